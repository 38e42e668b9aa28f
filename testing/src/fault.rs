//! Fault injection for any node: delay, loss, duplicates, a freeze, a cut, loss of data. A script
//! decides on the faults of the next calls, or random numbers from a seed. With a paused clock, the
//! same seed causes the same faults at the same times.

mod plan;

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};
use palisade::node::FailoverTimes;
use palisade::node::spi::{
    BarrierPoint, Batch, BoxFuture, Env, LockNode, NodeSignal, Op, Replies, SystemEnv,
};
use palisade::{Durability, Moment};
use tokio::sync::{broadcast, oneshot};
use tokio::time::sleep;

use self::plan::Dice;
pub use self::plan::{Fate, Odds, Step};

/// A node behind a simulated bad network. The network causes faults only if a script of faults,
/// their probabilities ([`Odds`]), a freeze or a cut is set.
///
/// All clones share the node and its faults. [`FaultControl`] sets the faults.
#[derive(Clone)]
pub struct Fault(Arc<Shared>);

/// Controls the faults of one [`Fault`]. Clones are cheap.
#[derive(Clone)]
pub struct FaultControl(Arc<Shared>);

type Forget = Arc<dyn Fn() + Send + Sync>;

struct Shared {
    inner: Arc<dyn LockNode>,
    env: Arc<dyn Env>,
    forget: Option<Forget>,
    /// The parts of a node share it.
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    script: VecDeque<Step>,
    dice: Option<Dice>,
    cut: bool,
    frozen: bool,
    /// A thaw executes the queued requests; new ones are appended to the queue.
    draining: bool,
    queue: VecDeque<Job>,
    calls: u64,
}

/// Continues even if its caller has dropped the call.
struct Job {
    inner: Arc<dyn LockNode>,
    batch: Batch,
    budget: Duration,
    step: Step,
    reply: oneshot::Sender<Replies>,
}

impl Fault {
    /// Wraps a node with fault injection.
    pub fn new(inner: impl LockNode) -> Self {
        Self::over(Arc::new(inner))
    }

    /// Wraps a shared node with fault injection.
    pub fn over(inner: Arc<dyn LockNode>) -> Self {
        Self::build(inner, Arc::new(SystemEnv), None)
    }

    /// Sets the clock that is used for deadlines. Default: the machine's clock.
    #[must_use]
    pub fn env(self, env: Arc<dyn Env>) -> Self {
        Self::build(self.0.inner.clone(), env, self.0.forget.clone())
    }

    /// Sets the function that removes data of the node, for example `move ||
    /// memory.restart_empty()`. [`FaultControl::forget`] and [`Step::forgetting`] use this
    /// function. Call this method before you clone the wrapper.
    #[must_use]
    pub fn forget_by(self, forget: impl Fn() + Send + Sync + 'static) -> Self {
        let (inner, env) = (self.0.inner.clone(), self.0.env.clone());
        Self::build(inner, env, Some(Arc::new(forget)))
    }

    /// Returns the control of the faults.
    pub fn control(&self) -> FaultControl {
        FaultControl(self.0.clone())
    }

    fn build(inner: Arc<dyn LockNode>, env: Arc<dyn Env>, forget: Option<Forget>) -> Self {
        Self(Arc::new(Shared { inner, env, forget, state: Arc::default() }))
    }
}

impl FaultControl {
    /// Appends steps to the script. Each step has the faults of one call. After the last step, the
    /// random numbers of [`dice`](Self::dice) decide about the faults again.
    pub fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.0.state().script.extend(steps);
    }

    /// Sets the random faults of all further calls. The same seed, odds and order of calls cause
    /// the same faults.
    pub fn dice(&self, seed: u64, odds: Odds) {
        self.0.state().dice = Some(Dice::new(seed, odds));
    }

    /// Removes the random faults, and the script. A freeze or a cut continues.
    pub fn clear(&self) {
        let mut state = self.0.state();
        state.script.clear();
        state.dice = None;
    }

    /// Begins a freeze: further requests are queued without an answer, as in a process that a
    /// signal has stopped.
    pub fn freeze(&self) {
        self.0.state().frozen = true;
    }

    /// Ends a freeze: executes the queued requests in their order. Most callers of these requests
    /// no longer wait.
    ///
    /// Call this method inside a tokio runtime.
    pub fn thaw(&self) {
        let mut state = self.0.state();
        state.frozen = false;
        if !state.draining && !state.queue.is_empty() {
            state.draining = true;
            tokio::spawn(drain(self.0.clone()));
        }
    }

    /// Begins a cut: further requests are refused at once and do not reach the node. Requests that
    /// are already under way still arrive.
    pub fn cut(&self) {
        self.0.state().cut = true;
    }

    /// Ends a cut: further requests reach the node again.
    pub fn heal(&self) {
        self.0.state().cut = false;
    }

    /// Makes the node lose data: calls the function of [`Fault::forget_by`]. Does nothing if no
    /// function was set.
    pub fn forget(&self) {
        self.0.forget();
    }

    /// Returns the number of batches that callers have sent so far.
    pub fn calls(&self) -> u64 {
        self.0.state().calls
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self) {
        if let Some(forget) = &self.forget {
            forget();
        }
    }

    /// Appended to the queue during a freeze and until the queue is empty.
    async fn deliver(self: Arc<Self>, job: Job) {
        sleep_some(job.step.before).await;
        {
            let mut state = self.state();
            if state.frozen || state.draining {
                state.queue.push_back(job);
                return;
            }
        }
        self.execute(job).await;
    }

    async fn execute(self: &Arc<Self>, job: Job) {
        let Job { inner, batch, budget, step, reply } = job;
        if step.forgetting {
            self.forget();
        }
        if step.fate == Fate::LoseRequest {
            return;
        }
        if let Some(later) = step.duplicate {
            let (inner, env, batch) = (inner.clone(), self.env.clone(), batch.clone());
            tokio::spawn(async move {
                sleep_some(later).await;
                inner.call(batch, env.now() + budget).await;
            });
        }
        let replies = inner.call(batch, self.env.now() + budget).await;
        if step.fate == Fate::LoseReply {
            return;
        }
        if step.after.is_zero() {
            // The caller has dropped the call; the request took effect all the same.
            let _ = reply.send(replies);
        } else {
            // So that the requests in the queue do not wait for this delay.
            tokio::spawn(async move {
                sleep(step.after).await;
                let _ = reply.send(replies);
            });
        }
    }
}

/// A new freeze stops this function before the next request.
async fn drain(shared: Arc<Shared>) {
    loop {
        let job = {
            let mut state = shared.state();
            let job = if state.frozen { None } else { state.queue.pop_front() };
            state.draining = job.is_some();
            job
        };
        let Some(job) = job else { return };
        shared.execute(job).await;
    }
}

async fn sleep_some(span: Duration) {
    if !span.is_zero() {
        sleep(span).await;
    }
}

async fn answer(reply: oneshot::Receiver<Replies>) -> Replies {
    match reply.await {
        Ok(replies) => replies,
        // The request or reply was lost, so the caller waits until its deadline.
        Err(_) => pending().await,
    }
}

impl LockNode for Fault {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let n = batch.ops.len();
        // Here and not at the first poll, so that the faults depend only on the order of the calls.
        let (step, cut, plain) = {
            let mut state = self.0.state();
            state.calls += 1;
            let scripted = state.script.pop_front();
            let step = match scripted {
                Some(step) => step,
                None => state.dice.as_mut().map(Dice::roll).unwrap_or_default(),
            };
            let plain = step == Step::default() && !state.frozen && !state.draining;
            (step, state.cut, plain)
        };
        if cut {
            let error = NodeError::not_executed(NodeFault::Unreachable, "cut off");
            return Box::pin(std::future::ready(Replies::fail(n, &error)));
        }
        if plain {
            return self.0.inner.call(batch, deadline);
        }
        let budget = deadline.since(self.0.env.now());
        Box::pin(async move {
            let (reply, receiver) = oneshot::channel();
            let inner = self.0.inner.clone();
            tokio::spawn(self.0.clone().deliver(Job { inner, batch, budget, step, reply }));
            let late = pin!(sleep(budget));
            tokio::select! {
                biased;
                replies = answer(receiver) => replies,
                () = late => {
                    let error = NodeError::maybe_executed(NodeFault::Timeout, "no answer in time");
                    Replies::fail(n, &error)
                }
            }
        })
    }

    /// If the link is cut, the barrier is refused; if it is frozen, it waits until its deadline.
    /// Scripted and random faults do not change barriers.
    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        let (cut, frozen) = {
            let state = self.0.state();
            (state.cut, state.frozen || state.draining)
        };
        if !cut && !frozen {
            return self.0.inner.barrier(after, level, deadline);
        }
        let budget = if cut { Duration::ZERO } else { deadline.since(self.0.env.now()) };
        Box::pin(async move {
            sleep_some(budget).await;
            let (fault, text) = if cut {
                (NodeFault::Unreachable, "cut off")
            } else {
                (NodeFault::Timeout, "no answer in time")
            };
            Err(NodeError::maybe_executed(fault, text))
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.0.inner.events()
    }

    fn failover(&self) -> Option<FailoverTimes> {
        self.0.inner.failover()
    }

    fn no_failover(&self) -> Option<&'static str> {
        self.0.inner.no_failover()
    }

    fn part_of(&self, op: &Op) -> Option<Result<u16, NodeError>> {
        self.0.inner.part_of(op)
    }

    /// With the same faults.
    fn part(&self, part: u16) -> Option<Arc<dyn LockNode>> {
        let Shared { env, forget, state, .. } = &*self.0;
        let (env, forget, state) = (env.clone(), forget.clone(), state.clone());
        let inner = self.0.inner.part(part)?;
        Some(Arc::new(Self(Arc::new(Shared { inner, env, forget, state }))))
    }

    fn troubles(&self) -> Option<Arc<str>> {
        self.0.inner.troubles()
    }

    fn address(&self) -> Option<Arc<str>> {
        self.0.inner.address()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.0.inner.server()
    }

    fn name(&self) -> Arc<str> {
        self.0.inner.name()
    }

    fn url(&self) -> Arc<str> {
        self.0.inner.url()
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fault").field(&self.name()).finish()
    }
}

impl fmt::Debug for FaultControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultControl").field(&self.0.inner.name()).finish()
    }
}
