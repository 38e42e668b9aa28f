//! The loop: fetch what there is room for, run each message under its key, settle it.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::gate::{Gate, Past};
use super::hold::Holding;
use super::{DeadLetter, DeadLetterReason, Delivery, Disposition, Rules, Source};
use crate::error::ConfigError;
use crate::idempotency::detached::panic_text;
use crate::idempotency::{Call, Context, Failed, Idempotency, Outcome, Probed, RunError};
use crate::name::check_name;

/// A broker that does not answer within this is not waited for: the message comes again.
const SETTLE: Duration = Duration::from_secs(30);

/// Runs messages under their keys. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Worker {
    of: Idempotency,
    rules: Rules,
}

/// What a consumer did until it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Deliveries taken from the broker.
    pub delivered: u64,
    /// Acknowledged: the result is stored.
    pub acked: u64,
    /// Given back, to come again.
    pub retried: u64,
    /// Put with the dead letters.
    pub parked: u64,
    /// The broker did not confirm what became of them: they come again, and are answered by their
    /// records.
    pub unsettled: u64,
    /// Still at work when the grace was over: they come again.
    pub unfinished: u64,
}

/// Why a consumer ended before it was asked to.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConsumeError<E> {
    /// No message can be handled until a person has changed something.
    #[non_exhaustive]
    Stopped {
        /// What, and why.
        why: String,
        /// What was done until then.
        ended: Ended,
    },
    /// The broker refuses deliveries for good.
    #[non_exhaustive]
    Source {
        /// The broker's answer.
        error: E,
        /// What was done until then.
        ended: Ended,
    },
}

impl<E: fmt::Display> fmt::Display for ConsumeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { why, .. } => write!(f, "the consumer stopped: {why}"),
            Self::Source { error, .. } => write!(f, "the consumer gets no messages: {error}"),
        }
    }
}

// The sentence has all that the broker's answer says.
impl<E: Error> Error for ConsumeError<E> {}

/// Reason for which a loop ends.
enum End<E> {
    Asked,
    Stopped(String),
    Broken(E),
}

/// What became of one delivery.
struct Settled {
    disposition: Disposition,
    /// The broker confirmed it.
    confirmed: bool,
    past: Past,
}

impl Worker {
    /// Runs messages under the keys of this namespace, by these rules.
    ///
    /// # Errors
    /// [`ConfigError`] naming the rule that cannot be kept.
    pub fn new(of: Idempotency, rules: Rules) -> Result<Self, ConfigError> {
        rules.check()?;
        Ok(Self { of, rules })
    }

    /// The lease of the namespace: the longest time after which another consumer may take over a
    /// message.
    pub fn lease(&self) -> Duration {
        self.of.lease
    }

    /// After how long without a heartbeat a broker delivers a message to another consumer: as
    /// asked, or one and a half leases. `field` names the setting.
    ///
    /// # Errors
    /// [`ConfigError`] if it is shorter than the lease.
    pub fn taken_over_after(
        &self,
        field: &'static str,
        asked: Option<Duration>,
    ) -> Result<Duration, ConfigError> {
        let lease = self.lease();
        let after = asked.unwrap_or(lease + lease / 2);
        if after < lease {
            let rule = format!(
                "at least the lease ({lease:?}): a message that is taken over earlier finds the \
                 claim of the consumer that died, and waits for it"
            );
            return Err(ConfigError::new(field, format!("{after:?}"), rule));
        }
        Ok(after)
    }

    /// Takes deliveries until `stop` resolves, then finishes or returns what it has.
    ///
    /// # Errors
    /// [`ConsumeError`] if it had to end earlier. What it had is finished or returned.
    ///
    /// # Cancellation safety
    /// Dropped, it takes nothing more. Handlers that run go on in tasks of their own and their
    /// results are stored, but nothing is acknowledged: the broker delivers those messages again,
    /// and they are answered by their results.
    pub async fn run<S, T, E, F, Fut>(
        &self,
        source: S,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<S::Error>>
    where
        S: Source,
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        F: Fn(Context, Arc<S::Delivery>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let start = move |call: Call, delivery: Arc<S::Delivery>| {
            let handler = Arc::clone(&handler);
            call.detached().run(move |cx| handler(cx, delivery))
        };
        self.serve(source, start, stop).await
    }

    /// As [`run`](Self::run), with a [probe](Call::probe) in place of the policies for keys whose
    /// past is not known.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation safety
    /// As [`run`](Self::run).
    pub async fn run_probed<S, T, E, P, PF, F, Fut>(
        &self,
        source: S,
        probe: P,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<S::Error>>
    where
        S: Source,
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        P: Fn(Context, Arc<S::Delivery>) -> PF + Send + Sync + 'static,
        PF: Future<Output = Probed<T>> + Send + 'static,
        F: Fn(Context, Arc<S::Delivery>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (probe, handler) = (Arc::new(probe), Arc::new(handler));
        let start = move |call: Call, delivery: Arc<S::Delivery>| {
            let (probe, handler) = (Arc::clone(&probe), Arc::clone(&handler));
            let asked = Arc::clone(&delivery);
            call.probe(move |cx| probe(cx, asked)).detached().run(move |cx| handler(cx, delivery))
        };
        self.serve(source, start, stop).await
    }

    async fn serve<S, T, R, RF>(
        &self,
        source: S,
        start: R,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<S::Error>>
    where
        S: Source,
        T: Send + 'static,
        R: Fn(Call, Arc<S::Delivery>) -> RF + Clone + Send + 'static,
        RF: Future<Output = Result<Outcome<T>, RunError>> + Send + 'static,
    {
        let holding = Arc::new(Holding::new(&self.of));
        self.of.holdings.add(&holding);
        // Boxed: it is large, and part of each consumer's future.
        let serving = Box::pin(self.serving(source, start, stop, &holding));
        tokio::select! {
            biased;
            ended = serving => ended,
            never = holding.watch() => match never {},
        }
    }

    async fn serving<S, T, R, RF>(
        &self,
        mut source: S,
        start: R,
        stop: impl Future<Output = ()>,
        holding: &Arc<Holding>,
    ) -> Result<Ended, ConsumeError<S::Error>>
    where
        S: Source,
        T: Send + 'static,
        R: Fn(Call, Arc<S::Delivery>) -> RF + Clone + Send + 'static,
        RF: Future<Output = Result<Outcome<T>, RunError>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        let mut ended = Ended::default();
        let mut gate = Gate::shown_by(&holding.shut);
        let mut stop = pin!(stop);
        let why = loop {
            let (fetched, end) =
                self.next(&mut source, &mut tasks, (&mut ended, &mut gate), stop.as_mut()).await;
            match (fetched, end) {
                (Err(e), _) => break End::Broken(e),
                (Ok(deliveries), end) => {
                    ended.delivered += deliveries.len() as u64;
                    for delivery in deliveries {
                        let (of, rules) = (Arc::clone(holding), self.rules.clone());
                        if end.is_some() {
                            tasks.spawn(give_back(delivery));
                        } else {
                            tasks.spawn(one(of, rules, delivery, start.clone()));
                        }
                    }
                    if let Some(end) = end {
                        break end;
                    }
                }
            }
        };
        let drained = async {
            while let Some(done) = tasks.join_next().await {
                let _ = ended.note(done, &mut gate);
            }
        };
        let _ = timeout(self.rules.grace, drained).await;
        ended.unfinished = tasks.len() as u64;
        tasks.abort_all();
        source.close().await;
        match why {
            End::Asked => Ok(ended),
            End::Stopped(why) => Err(ConsumeError::Stopped { why, ended }),
            End::Broken(error) => Err(ConsumeError::Source { error, ended }),
        }
    }

    /// What there is room for, as soon as there is; and why the loop has to end, if it has.
    async fn next<S: Source>(
        &self,
        source: &mut S,
        tasks: &mut JoinSet<Settled>,
        (ended, gate): (&mut Ended, &mut Gate),
        mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> (Result<Vec<S::Delivery>, S::Error>, Option<End<S::Error>>) {
        loop {
            let closed = gate.closed_until();
            if closed.is_none() && tasks.len() < self.rules.concurrency {
                break;
            }
            tokio::select! {
                biased;
                () = stop.as_mut() => return (Ok(Vec::new()), Some(End::Asked)),
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Some(why) = ended.note(done, gate) {
                        return (Ok(Vec::new()), Some(End::Stopped(why)));
                    }
                }
                () = sleep_until(closed.unwrap_or_else(Instant::now)), if closed.is_some() => {}
            }
        }
        let mut end = None;
        let mut fetch = pin!(source.fetch(gate.room(self.rules.concurrency - tasks.len())));
        loop {
            tokio::select! {
                biased;
                () = stop.as_mut(), if end.is_none() => end = Some(End::Asked),
                // Polled to its end: what it took is known here, and can be given back.
                fetched = &mut fetch => {
                    if fetched.as_ref().is_ok_and(|fetched| !fetched.is_empty()) {
                        gate.fetched();
                    }
                    return (fetched, end);
                }
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Some(why) = ended.note(done, gate) {
                        end = Some(End::Stopped(why));
                    }
                }
            }
        }
    }
}

impl Ended {
    /// Counts; says why the consumer has to stop, if it has.
    fn note(&mut self, done: Result<Settled, JoinError>, gate: &mut Gate) -> Option<String> {
        let Settled { disposition, confirmed, past } = match done {
            Ok(settled) => settled,
            Err(e) => {
                tracing::error!(target: "palisade::consumer", error = %e, "a delivery was dropped");
                self.unsettled += 1;
                return None;
            }
        };
        gate.judge(&past);
        match &disposition {
            _ if !confirmed => self.unsettled += 1,
            Disposition::Ack => self.acked += 1,
            Disposition::Retry(_) | Disposition::Stop(_) => self.retried += 1,
            Disposition::Park(_) => self.parked += 1,
        }
        match disposition {
            Disposition::Stop(why) => Some(why),
            _ => None,
        }
    }
}

/// One delivery from its claim to its settlement.
async fn one<D, T, R, RF>(of: Arc<Holding>, rules: Rules, delivery: D, start: R) -> Settled
where
    D: Delivery,
    R: FnOnce(Call, Arc<D>) -> RF,
    RF: Future<Output = Result<Outcome<T>, RunError>>,
{
    let delivery = Arc::new(delivery);
    #[cfg(feature = "test-util")]
    rules.pass(super::Arrow::Fetched);
    let before = delivery.failures();
    // A panic of what the user or the broker's client does with the message is a failure of it: no
    // panic may leave a delivery unsettled. Nothing that was half done is looked at again.
    let judged = AssertUnwindSafe(judge(&of, &rules, &delivery, before, start));
    let (disposition, failures, past) = judged.catch_unwind().await.unwrap_or_else(|panic| {
        let what = format!("its delivery panicked: {}", panic_text(&*panic));
        (rules.after_failure(before, None, &what), before.saturating_add(1), Past::Unsaid)
    });
    #[cfg(feature = "test-util")]
    if disposition == Disposition::Ack {
        rules.pass(super::Arrow::Completed);
    }
    let confirmed = settle(&*delivery, &disposition, failures).await;
    #[cfg(feature = "test-util")]
    if confirmed && disposition == Disposition::Ack {
        rules.pass(super::Arrow::Acknowledged);
    }
    Settled { disposition, confirmed, past }
}

/// Returns the disposition of the delivery, the number of failures of its handler, and what its
/// call showed.
async fn judge<D, T, R, RF>(
    of: &Holding,
    rules: &Rules,
    delivery: &Arc<D>,
    before: u32,
    start: R,
) -> (Disposition, u32, Past)
where
    D: Delivery,
    R: FnOnce(Call, Arc<D>) -> RF,
    RF: Future<Output = Result<Outcome<T>, RunError>>,
{
    let call = match call(&of.of, rules, &**delivery) {
        Ok(call) => call,
        Err(why) => {
            let why = DeadLetter::new(DeadLetterReason::Unreadable, why);
            return (Disposition::Park(why), before, Past::Unsaid);
        }
    };
    let key = Arc::clone(&call.key);
    let run = start(call, Arc::clone(delivery));
    let came_to = tokio::select! {
        biased;
        came_to = run => came_to,
        never = beat(&**delivery) => match never {},
    };
    let failed = matches!(came_to, Err(RunError::Handler { .. }));
    let mut disposition = rules.disposition(&came_to, before);
    match &came_to {
        Ok(Outcome::Parked(parked)) if rules.holds(parked) => {
            disposition = Disposition::Retry(of.hold(&key, parked));
        }
        // Nothing is known of it that was not known before.
        Err(RunError::NoQuorum { .. }) | Ok(Outcome::InFlight { .. }) => {}
        _ => of.release(&key),
    }
    if let Disposition::Park(letter) = &mut disposition {
        letter.key = check_name("key", &key).is_ok().then(|| key.to_string());
    }
    (disposition, before.saturating_add(u32::from(failed)), Past::of(&came_to))
}

fn call<D: Delivery>(of: &Idempotency, rules: &Rules, delivery: &D) -> Result<Call, String> {
    let mut call = of.key(delivery.key()?);
    if let Some(created) = delivery.created_at() {
        call = call.created_at(created);
    }
    if rules.body_matters {
        call = call.fingerprint_bytes(delivery.body());
    }
    Ok(call)
}

/// Reports again and again that the message is being handled. A broker without these reports
/// delivers it to another consumer, which finds it in flight.
async fn beat<D: Delivery>(delivery: &D) -> Infallible {
    let Some(every) = delivery.heartbeat() else { return std::future::pending().await };
    loop {
        sleep(every).await;
        match timeout(every, delivery.extend()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!(
                target: "palisade::consumer", error = %e,
                "the broker did not extend the time of a delivery"
            ),
            Err(_) => tracing::debug!(
                target: "palisade::consumer", "the broker did not answer a heartbeat"
            ),
        }
    }
}

async fn give_back<D: Delivery>(delivery: D) -> Settled {
    let again = Disposition::Retry(Duration::ZERO);
    let confirmed = settle(&delivery, &again, delivery.failures()).await;
    Settled { disposition: again, confirmed, past: Past::Unsaid }
}

/// True if the broker confirmed it. If not the message comes again, and its record answers it.
async fn settle<D: Delivery>(delivery: &D, how: &Disposition, failures: u32) -> bool {
    let settled = AssertUnwindSafe(timeout(SETTLE, delivery.settle(how, failures)));
    let cause = match settled.catch_unwind().await {
        Ok(Ok(Ok(()))) => {
            if let Disposition::Park(why) = how {
                tracing::warn!(target: "palisade::consumer", %why, "a message was put aside");
            }
            return true;
        }
        Ok(Ok(Err(e))) => e.to_string(),
        Ok(Err(_)) => format!("no answer within {SETTLE:?}"),
        Err(panic) => format!("it panicked: {}", panic_text(&*panic)),
    };
    if let Disposition::Park(why) = how {
        tracing::warn!(
            target: "palisade::consumer", error = %cause, %why,
            "a dead letter is not confirmed; the message comes again"
        );
    } else {
        tracing::debug!(target: "palisade::consumer", error = %cause, ?how, "not settled");
    }
    false
}
