//! Actions of simulated client processes on locks. A client acquires a lock, holds it, and writes
//! to a resource that checks fencing tokens. Then the client releases the lock, or leaves it
//! without a release.

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use palisade::node::spi::Env as _;
use palisade::{
    AcquireError, LockGuard, Moment, MultiGuard, Permit, ReadGuard, Redlock, RwLock, TryAcquire,
    WriteGuard,
};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::names;
use crate::node::Node;
use crate::plan::{Action, Parting, Plan, Settings, Uses, ms};
use crate::process::{Gated, Process};
use crate::trace::{Event, HoldId};
use crate::world::World;

/// Converts the result of a call that tries once into the guard of the lock. The error is true if
/// another owner has the lock.
pub(crate) fn tried<G>(
    got: Result<TryAcquire<G>, AcquireError>,
    guard: impl FnOnce(G) -> Guard,
) -> Result<Guard, bool> {
    match got {
        Ok(TryAcquire::Acquired(got)) => Ok(guard(got)),
        Ok(TryAcquire::Taken(_)) => Err(true),
        Err(_) => Err(false),
    }
}

/// Converts the result of a call that waits into the guard of the lock. The error is true if
/// another owner has the lock.
pub(crate) fn waited<G>(
    got: Result<G, AcquireError>,
    guard: impl FnOnce(G) -> Guard,
) -> Result<Guard, bool> {
    got.map(guard).map_err(|e| matches!(e, AcquireError::TimedOut { .. }))
}

/// Guards of locks that the user's code never drops. They exist until the process ends.
pub(crate) type Forgotten = Arc<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>;

/// A task of a client process.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) world: Arc<World>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) settings: Settings,
    pub(crate) process: Arc<Process>,
    pub(crate) redlock: Redlock,
    /// The nodes, for direct access without the library.
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) client: usize,
    pub(crate) task: usize,
    /// Index of the next action. A restarted process skips the interrupted action and continues
    /// with the next one.
    pub(crate) next: Arc<AtomicUsize>,
    pub(crate) forgotten: Forgotten,
}

/// Polls a future at most `polls` times. Returns `None` if the future is not ready by then.
pub(crate) async fn cut<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut future).poll(cx) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending => {
                if left == 0 {
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    })
    .await
}

/// A guard of a lock.
pub(crate) enum Guard {
    Lock(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Several(MultiGuard),
}

impl Deref for Guard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
            Self::Permit(guard) => guard,
            Self::Several(guard) => guard,
        }
    }
}

impl Guard {
    /// Converts the guard into a [`LockGuard`]. Returns `None` for a permit and for a guard of
    /// several locks.
    pub(crate) fn into_lock(self) -> Option<LockGuard> {
        match self {
            Self::Lock(guard) => Some(guard),
            Self::Read(guard) => Some(guard.into()),
            Self::Write(guard) => Some(guard.into()),
            Self::Permit(_) | Self::Several(_) => None,
        }
    }

    async fn release(self) {
        let _ = match self {
            Self::Lock(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permit(guard) => guard.release().await,
            Self::Several(guard) => guard.release().await,
        };
    }
}

/// A lock that a simulated task ([`Actor`]) holds.
pub(crate) struct Hold {
    pub(crate) guard: Arc<Guard>,
    pub(crate) id: HoldId,
    name: u16,
    until_lost: bool,
}

impl Actor {
    fn dice(&self, action: usize) -> Dice {
        let stream = 10_000 + 100 * (self.client * 8 + self.task) + action;
        Dice::new(self.plan.seed, stream as u64)
    }

    /// Performs the actions that this task has not begun, in order.
    pub(crate) async fn work(self, actions: Vec<Action>) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(action) = actions.get(at).copied() else { return };
            match action {
                Action::Think(span) => sleep(ms(span)).await,
                Action::Order { key, print, wait, handler } => {
                    self.order(key, print, wait, handler).await;
                }
                Action::Lead { seat, wait, span, every, parting } => {
                    self.lead(seat, (wait, span, every), parting).await;
                }
                Action::Watch { seat, span } => self.watch(seat, span).await,
                Action::TakeOver { name, ttl, wait, hold, polls, parting } => {
                    let dice = self.dice(at);
                    self.take_over(name, (ttl, wait, polls), (hold, parting), dice).await;
                }
                Action::Several { wait, hold, renew, parting } => {
                    self.several((wait, renew), (hold, parting), self.dice(at)).await;
                }
                Action::AllPermits { name, wait, hold, renew, polls, parting } => {
                    let how = (wait, renew, polls);
                    self.all_permits(name, how, (hold, parting), self.dice(at)).await;
                }
                Action::Resume { name, wait, hold, polls, parting } => {
                    let dice = self.dice(at);
                    self.resume(name, (wait, polls), (hold, parting), dice).await;
                }
                Action::Classic { name, wait, hold } => {
                    self.classic(name, wait, hold, self.dice(at)).await;
                }
                Action::Tick { span, takes } => self.tick(span, takes).await,
                Action::Decide { key, later, decision } => self.decide(key, later, decision).await,
                Action::Cancelled { name, wait, polls } => self.cancelled(name, wait, polls).await,
                Action::Lock { uses, name, wait, hold, every, renew, parting } => {
                    let dice = self.dice(at);
                    let requested_at = self.world.micros();
                    let guard = if uses == Uses::Permit {
                        self.ask_permit(name, wait, renew, parting).await
                    } else {
                        self.ask((uses, name), wait, renew, parting).await
                    };
                    if let Some(guard) = guard {
                        let mut held = self.holds(name, guard, (requested_at, false));
                        if uses == Uses::Downgrades {
                            held = self.hold(held, hold / 2, (every, renew), self.dice(at)).await;
                            held = self.downgrade(held, requested_at).await;
                        }
                        let held = self.hold(held, hold, (every, renew), dice).await;
                        self.part(held, parting).await;
                    }
                }
            }
        }
    }

    async fn cancelled(&self, name: usize, wait: u64, polls: u32) {
        let n = name as u16;
        let (client, task) = (self.client, self.task);
        self.world.tell(Event::Asks { client, task, name: n });
        let requested_at = self.world.micros();
        let mutex = self.redlock.mutex(names::lock(name)).acquire_timeout(ms(wait.max(1)));
        let mutex = mutex.durability(self.plan.durability).build().expect("settings fit together");
        match cut(polls, mutex.acquire()).await {
            None => self.world.tell(Event::Cancelled { client, task, name: n }),
            Some(Ok(guard)) => {
                let held = self.holds(name, Guard::Lock(guard), (requested_at, false));
                self.part(held, Parting::Drop).await;
            }
            Some(Err(_)) => {
                self.world.tell(Event::Refused { client, task, name: n, taken: false });
            }
        }
    }

    async fn ask(
        &self,
        (uses, name): (Uses, usize),
        wait: u64,
        renew: bool,
        how: Parting,
    ) -> Option<Guard> {
        let (client, task, n) = (self.client, self.task, name as u16);
        self.world.tell(Event::Asks { client, task, name: n });
        let mut mutex =
            self.redlock.mutex(names::lock(name)).acquire_timeout(ms(wait)).auto_renew(renew);
        mutex = mutex.durability(self.plan.durability);
        if how == Parting::Forget {
            mutex = mutex.max_hold(ms(2 * self.settings.ttl));
        }
        if uses == Uses::ReadsBriefly && !renew {
            mutex = mutex.ttl(ms(self.settings.ttl / 4));
        }
        let is_fair = uses == Uses::WritesFairly && wait > 0;
        let mutex = mutex.fair(is_fair).build().expect("settings fit together");
        if is_fair {
            self.world.tell(Event::AsksFairly { client, task, name: n });
        }
        let on_queued = |_| self.world.tell(Event::Queued { client, task, name: n });
        let env = Gated(Arc::clone(&self.process));
        let (began, lost) = (env.now(), self.process.stood_still().1);
        let lock = RwLock::from(mutex.clone());
        let got = match (uses, wait) {
            (Uses::Writes | Uses::WritesFairly, 0) => tried(mutex.try_acquire().await, Guard::Lock),
            (Uses::WritesFairly, _) => waited(mutex.acquire_with(on_queued).await, Guard::Lock),
            (Uses::Writes | Uses::Permit, _) => waited(mutex.acquire().await, Guard::Lock),
            (Uses::Reads | Uses::ReadsBriefly, 0) => tried(lock.try_read().await, Guard::Read),
            (Uses::Reads | Uses::ReadsBriefly, _) => waited(lock.read().await, Guard::Read),
            (Uses::Downgrades, 0) => tried(lock.try_write().await, Guard::Write),
            (Uses::Downgrades, _) => waited(lock.write().await, Guard::Write),
        };
        self.must_be_in_time((began, lost), wait);
        match got {
            Ok(guard) => {
                if is_fair {
                    self.world.tell(Event::ItsTurn { client, task, name: n });
                }
                Some(guard)
            }
            Err(taken) => {
                self.world.tell(Event::Refused { client, task, name: n, taken });
                let requested_at = self.world.micros();
                if mutex.inspect().await.is_ok_and(|seen| seen.is_free()) {
                    self.world.vacant((client, n), requested_at);
                }
                None
            }
        }
    }

    /// Reports a call that took longer than its wait allows. The call began at the process's time
    /// `began`. At that time the process had been stopped for `lost` nanoseconds in all.
    pub(crate) fn must_be_in_time(&self, (began, lost): (Moment, u64), wait: u64) {
        let stood = Duration::from_nanos(self.process.stood_still().1 - lost);
        // The call may start its last attempt at the end of the wait, and an attempt takes at most
        // one ttl.
        let allowed = ms(wait + self.settings.ttl + 20) + stood + stood / 8;
        let took = Gated(Arc::clone(&self.process)).now().since(began);
        if took > allowed {
            let late = took.saturating_sub(allowed).as_micros() as u64;
            self.world.tell(Event::Overdue { client: self.client, task: self.task, late });
        }
    }

    async fn take_over(
        &self,
        name: usize,
        (ttl, wait, polls): (u64, u64, u32),
        (span, parting): (u64, Parting),
        dice: Dice,
    ) {
        let (client, task, n) = (self.client, self.task, name as u16);
        let renew = ttl >= self.settings.ttl;
        let mutex = self.redlock.mutex(names::lock(name)).ttl(ms(ttl)).auto_renew(renew);
        let mutex = mutex.acquire_timeout(ms(wait));
        let mutex = mutex.durability(self.plan.durability).build().expect("settings fit together");
        let Ok(seen) = mutex.inspect().await else { return };
        let Some(holder) = seen.holder() else { return };
        self.world.tell(Event::Asks { client, task, name: n });
        let requested_at = self.world.micros();
        match cut(polls, mutex.take_over(&holder, "it hangs")).await {
            None => self.world.tell(Event::Cancelled { client, task, name: n }),
            Some(Err(_)) => {
                self.world.tell(Event::Refused { client, task, name: n, taken: false });
            }
            Some(Ok(taken)) => {
                let held = self.holds(name, Guard::Lock(taken.guard), (requested_at, true));
                let held = self.hold(held, span, (9, renew), dice).await;
                self.part(held, parting).await;
            }
        }
    }

    pub(crate) fn holds(
        &self,
        name: usize,
        guard: Guard,
        (requested_at, is_taker): (u64, bool),
    ) -> Hold {
        let name = match &guard {
            Guard::Permit(permit) => usize::from(names::slot(name, permit.slot())),
            _ => name,
        };
        self.also_holds(name, Arc::new(guard), (requested_at, is_taker))
    }

    /// Registers the holder of the lock `name`, which is one of the names of the guard.
    pub(crate) fn also_holds(
        &self,
        name: usize,
        guard: Arc<Guard>,
        (requested_at, is_taker): (u64, bool),
    ) -> Hold {
        let name = name as u16;
        let shared = matches!(*guard, Guard::Read(_));
        let weak = Arc::downgrade(&guard);
        let belief = Box::new(move || weak.upgrade().map(|g| g.remaining()));
        let token = guard.fencing_token().get();
        let who = (self.client, name);
        let id = self.world.holds(who, (token, is_taker, shared), requested_at, belief);
        Hold { guard, id, name, until_lost: false }
    }

    pub(crate) async fn hold(
        &self,
        mut held: Hold,
        span: u64,
        (every, renew): (u64, bool),
        mut dice: Dice,
    ) -> Hold {
        let end = self.world.start.elapsed() + ms(span);
        // A careless client continues to write after it has lost the lock. The resource must then
        // refuse its writes.
        let careless = dice.chance(250);
        loop {
            let careful = dice.chance(700);
            if !careful || held.guard.is_valid() {
                self.write(&held, dice.range(0, 3));
            }
            if !renew && dice.chance(400) {
                let _ = held.guard.extend().await;
            }
            let now = self.world.start.elapsed();
            if now >= end || (held.until_lost && !careless) {
                return held;
            }
            if held.until_lost {
                sleep(ms(every).min(end.saturating_sub(now))).await;
                continue;
            }
            tokio::select! {
                biased;
                () = held.guard.lost() => {
                    self.reported(held.id, held.guard.valid_until());
                    // The holder makes one more write to the resource, like a process that has not
                    // yet detected the loss of its lock.
                    held.until_lost = true;
                }
                () = sleep(ms(every).min(end.saturating_sub(now))) => {}
            }
        }
    }

    /// Downgrades a writer to a reader. The writer asked for its lock at the time `requested_at`.
    async fn downgrade(&self, held: Hold, requested_at: u64) -> Hold {
        let Hold { guard, id, name, until_lost } = held;
        self.world.parts(id);
        let guard = match Arc::try_unwrap(guard) {
            Ok(Guard::Write(guard)) => Guard::Read(guard.downgrade().await),
            Ok(other) => other,
            Err(guard) => return Hold { guard, id, name, until_lost },
        };
        let held = self.holds(name.into(), guard, (requested_at, false));
        Hold { until_lost, ..held }
    }

    /// Sends a write of a writer, or a read of a reader, to the resource that the lock protects.
    /// The request is a separate message, so it arrives even if its sender is paused.
    pub(crate) fn write(&self, held: &Hold, delay: u64) {
        let shared = matches!(*held.guard, Guard::Read(_));
        self.uses((held.id, shared), held.name, held.guard.fencing_token().get(), delay);
    }

    pub(crate) fn uses(&self, id: (HoldId, bool), name: u16, token: u64, delay: u64) {
        let world = Arc::clone(&self.world);
        tokio::spawn(async move {
            if delay > 0 {
                sleep(ms(delay)).await;
            }
            world.uses(id, name, token);
        });
    }

    /// Records the event that `lost()` has returned for the hold `hold`, whose lease was valid
    /// until `until`.
    pub(crate) fn reported(&self, hold: HoldId, until: Moment) {
        let now = Gated(Arc::clone(&self.process)).now();
        let late = now.since(until).as_micros() as u64;
        let awake = self.world.nanos().saturating_sub(self.process.stood_still().0) / 1_000;
        // tokio's timers use true time, but the process's clock has a rate error. Only the
        // simulation has this difference, so it does not count as lateness.
        let skew =
            self.settings.ttl * self.plan.clients[self.client].clock.ppm.unsigned_abs() / 1_000;
        let late = late.min(awake).saturating_sub(skew);
        self.world.tell(Event::LossReported { hold, client: self.client, late });
    }

    pub(crate) async fn part(&self, held: Hold, how: Parting) {
        let (id, client, name) = (held.id, self.client, held.name);
        self.world.tell(Event::Parts { hold: id, client, name, how });
        if how == Parting::Forget {
            let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            forgotten.push(held.guard);
            return;
        }
        self.world.parts(id);
        let Ok(guard) = Arc::try_unwrap(held.guard) else { return };
        match how {
            Parting::HandOver => self.hand_over(name, guard).await,
            Parting::Release => guard.release().await,
            Parting::CutShort(polls) => {
                cut(polls, guard.release()).await;
            }
            Parting::Drop | Parting::Forget => drop(guard),
        }
    }
}
