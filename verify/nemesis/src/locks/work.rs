//! Work of one task of a client under locks of one kind. The task records each grant before its
//! next step.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use palisade::error::{AcquireError, HandOverError, ResumeError};
use palisade::{HandOver, LockGuard, OnUnavailable, Owner, Permits, Redlock, Semaphore};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use super::record::{Grant, Journal, Mode, What};
use super::{Kind, PERMITS};
use crate::event::{Answer, Nanos, TaskId, Verb, now};
use crate::world::Failure;

/// Longest wait of a call for a lock. It is longer than a fault of `nemesis locks`, so that calls
/// also succeed after a fault that began while they waited.
const WAIT: Duration = Duration::from_secs(5);
/// Longest time of an operation that does not wait for a lock, and of the last attempt of a call
/// that waits.
const ROUND: Duration = Duration::from_secs(3);
/// Time without an answer of a majority after which a client does its work without the lock.
const DEGRADE_AFTER: Duration = Duration::from_millis(200);
/// Name of the file with the newest hand-over ticket.
pub(crate) const TICKET: &str = "ticket";

/// Pace of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Shortest and longest pause between two locks, in milliseconds.
    pub(crate) rest: (u64, u64),
    /// Percentage of the locks that are held over several renewals.
    pub(crate) long: u32,
}

/// State of one task of a client process.
pub(crate) struct Task {
    pub(crate) who: TaskId,
    pub(crate) kind: Kind,
    /// Number of this task among the client's tasks of the same kind.
    pub(crate) half: u8,
    pub(crate) pace: Pace,
    pub(crate) journal: Journal,
    pub(crate) dice: StdRng,
    pub(crate) redlock: Redlock,
    pub(crate) ticket: PathBuf,
}

/// Guard of one lock, or of several permits that are held together.
trait Lease {
    async fn lost(&self);
    fn is_valid(&self) -> bool;
    fn until(&self) -> Nanos;
}

impl Lease for LockGuard {
    async fn lost(&self) {
        LockGuard::lost(self).await;
    }

    fn is_valid(&self) -> bool {
        LockGuard::is_valid(self)
    }

    fn until(&self) -> Nanos {
        self.valid_until().as_nanos()
    }
}

impl Lease for Permits {
    async fn lost(&self) {
        Permits::lost(self).await;
    }

    fn is_valid(&self) -> bool {
        Permits::is_valid(self)
    }

    fn until(&self) -> Nanos {
        self.valid_until().as_nanos()
    }
}

impl Task {
    /// Repeatedly acquires and uses a lock of the task's kind. Ends only after an error that no
    /// fault explains.
    pub(crate) async fn work(mut self) -> Result<(), Failure> {
        loop {
            match self.kind {
                Kind::ReadWrite => self.read_write().await?,
                Kind::Semaphore => self.semaphore().await?,
                Kind::Reentrant => self.reentrant().await?,
                Kind::Multi => self.multi().await?,
                Kind::Degrade => self.degrade().await?,
                Kind::HandOver if self.half == 0 => self.hand_over().await?,
                Kind::HandOver => self.resume().await?,
                Kind::Fair => self.fair().await?,
            }
            let (least, most) = self.pace.rest;
            self.pause(least..most).await;
        }
    }

    async fn read_write(&mut self) -> Result<(), Failure> {
        let lock = self.redlock.rw_lock(self.kind.name()).acquire_timeout(WAIT).build()?;
        let since = now();
        if self.chance(75) {
            let Some(guard) = self.call(Verb::Read, lock.read()).await? else { return Ok(()) };
            self.hold(&guard, self.grant(Mode::Shared, since)).await?;
            return self.end(guard.into()).await;
        }
        let Some(guard) = self.call(Verb::Write, lock.write()).await? else { return Ok(()) };
        self.hold(&guard, self.grant(Mode::Exclusive, since)).await?;
        if self.chance(70) {
            return self.end(guard.into()).await;
        }
        let since = now();
        let guard = guard.downgrade().await;
        self.hold(&guard, self.grant(Mode::Shared, since)).await?;
        self.end(guard.into()).await
    }

    async fn semaphore(&mut self) -> Result<(), Failure> {
        let semaphore = self.redlock.semaphore(self.kind.name(), PERMITS);
        let semaphore = semaphore.acquire_timeout(WAIT).build()?;
        if self.chance(30) {
            return self.several_permits(&semaphore).await;
        }
        let since = now();
        let acquired = self.call(Verb::Permit, semaphore.acquire()).await?;
        let Some(permit) = acquired else { return Ok(()) };
        let mode = Mode::Slot(permit.slot());
        self.hold(&permit, self.grant(mode, since)).await?;
        self.end(permit.into()).await
    }

    /// Acquires several permits together. Two tasks that do this at the same time may want more
    /// permits than there are.
    async fn several_permits(&mut self, semaphore: &Semaphore) -> Result<(), Failure> {
        let n = self.dice.random_range(2..PERMITS);
        let since = now();
        let acquired = self.call(Verb::AcquireMany, semaphore.acquire_many(n)).await?;
        let Some(permits) = acquired else { return Ok(()) };
        let (at, until) = (now(), permits.until());
        for (slot, token) in permits.slots() {
            let grant = self.grant(Mode::Slot(*slot), since);
            self.note(at, What::Held(Grant { token: token.get(), until, ..grant })).await?;
        }
        self.rely_on(&permits).await?;
        self.note(now(), What::Over).await?;
        if self.chance(15) {
            drop(permits);
        } else {
            let _ = permits.release().await;
        }
        Ok(())
    }

    async fn reentrant(&mut self) -> Result<(), Failure> {
        let lock = self.redlock.mutex(self.kind.name()).acquire_timeout(WAIT).build()?.reentrant();
        let (owner, since) = (Owner::new(), now());
        let acquired = self.call(Verb::Acquire, lock.acquire(&owner)).await?;
        let Some(outer) = acquired else { return Ok(()) };
        self.begin(&outer, self.grant(Mode::Exclusive, since)).await?;
        let mut inner = Vec::new();
        for _ in 0..self.dice.random_range(1..4) {
            // The lock may be lost after the first acquire. Then the owner cannot acquire it again.
            let Ok(guard) = lock.acquire(&owner).await else { break };
            self.note(now(), What::Inner { token: guard.fencing_token().get() }).await?;
            inner.push(guard);
        }
        self.rely(&outer).await?;
        // The first guard is released before the others, which keep the lock.
        let _ = outer.release().await;
        if let Some(last) = inner.pop() {
            inner.clear();
            self.rely(&last).await?;
            self.note(now(), What::Over).await?;
            let _ = last.release().await;
        } else {
            self.note(now(), What::Over).await?;
        }
        Ok(())
    }

    /// Acquires the locks of two names together. Half of the tasks give the names in the opposite
    /// order.
    async fn multi(&mut self) -> Result<(), Failure> {
        let mut names = ["left", "right"].map(|side| format!("{}:{side}", self.kind.name()));
        if (self.half + self.who.client) % 2 == 1 {
            names.reverse();
        }
        let lock = self.redlock.multi(&names).acquire_timeout(WAIT * 2).build()?;
        let since = now();
        let Some(guard) = self.call(Verb::AcquireMulti, lock.acquire()).await? else {
            return Ok(());
        };
        let grant = self.grant(Mode::Exclusive, since);
        self.hold(&guard, Grant { names: names.to_vec(), ..grant }).await?;
        let _ = guard.release().await;
        Ok(())
    }

    async fn degrade(&mut self) -> Result<(), Failure> {
        let lock = self.redlock.mutex(self.kind.name()).acquire_timeout(WAIT).build()?;
        let lock = lock.on_unavailable(OnUnavailable::Local).degrade_after(DEGRADE_AFTER)?;
        let since = now();
        let Some(guard) = self.call(Verb::Acquire, lock.acquire()).await? else { return Ok(()) };
        if let Some(held) = guard.lock() {
            self.hold(held, self.grant(Mode::Exclusive, since)).await?;
        } else {
            // A degraded guard has no lock and so no deadline. It counts as held from now until it
            // is dropped.
            let at = now();
            let until = at;
            let grant = Grant { until, ..self.grant(Mode::Degraded, since) };
            self.note(at, What::Held(grant)).await?;
            self.pause(1..10).await;
            let at = now();
            self.note(at, What::Valid { until: at }).await?;
            self.note(at, What::Over).await?;
        }
        let _ = guard.release().await;
        Ok(())
    }

    /// Acquires the lock, uses it, and writes a ticket. The task that redeems the ticket first gets
    /// the lock.
    async fn hand_over(&mut self) -> Result<(), Failure> {
        let lock = self.redlock.mutex(self.kind.name()).acquire_timeout(WAIT).build()?;
        let since = now();
        let Some(guard) = self.call(Verb::Acquire, lock.acquire()).await? else { return Ok(()) };
        self.hold(&guard, self.grant(Mode::Exclusive, since)).await?;
        self.pass_on(guard).await
    }

    async fn pass_on(&mut self, guard: LockGuard) -> Result<(), Failure> {
        let answer = |handed: &Result<HandOver, HandOverError>| match handed {
            Ok(_) => Answer::Done,
            Err(HandOverError::Lost(_)) => Answer::Lost,
            Err(_) => Answer::Refused,
        };
        let name = self.kind.name();
        let call = self.journal.verb((Verb::HandOver, name), ROUND, guard.hand_over(), answer);
        let Ok(ticket) = call.await? else { return Ok(()) };
        let TaskId { client, life, task } = self.who;
        let new = self.ticket.with_extension(format!("{client}-{life}-{task}"));
        std::fs::write(&new, serde_json::to_vec(&ticket)?)?;
        std::fs::rename(new, &self.ticket)?;
        Ok(())
    }

    /// Redeems the newest hand-over ticket, to get its lock. Several tasks may read the same
    /// ticket.
    async fn resume(&mut self) -> Result<(), Failure> {
        let ticket = match std::fs::read(&self.ticket) {
            Ok(text) => serde_json::from_slice::<HandOver>(&text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        // Only a quarter of the tasks try, because with many tries at the same time no task may get
        // a majority of the nodes.
        if self.chance(75) {
            return Ok(());
        }
        let answer = |resumed: &Result<LockGuard, ResumeError>| match resumed {
            Ok(_) => Answer::Done,
            Err(ResumeError::Gone(_)) => Answer::Taken,
            Err(_) => Answer::Refused,
        };
        let (name, since, call) = (self.kind.name(), now(), self.redlock.resume(&ticket));
        let guard = match self.journal.verb((Verb::Resume, name), ROUND, call, answer).await? {
            Ok(guard) => guard,
            Err(ResumeError::Gone(_) | ResumeError::NoQuorum(_)) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let of = self.grant(Mode::Exclusive, since);
        let ticket = Some(ticket.fencing_token().get());
        self.hold(&guard, Grant { ticket, ..of }).await?;
        if self.chance(50) { self.pass_on(guard).await } else { self.end(guard).await }
    }

    /// Acquires the fair lock, which serves its callers in the order of a queue. Notes the time at
    /// which the call received its first position in the queue.
    async fn fair(&mut self) -> Result<(), Failure> {
        let name = self.kind.name();
        let lock = self.redlock.mutex(name).fair(true).acquire_timeout(WAIT).build()?;
        let (since, mut queued) = (now(), None);
        let call = lock.acquire_with(|_| queued = queued.or_else(|| Some(now())));
        let Some(guard) = self.call(Verb::AcquireFair, call).await? else { return Ok(()) };
        let of = self.grant(Mode::Exclusive, since);
        self.hold(&guard, Grant { queued, ..of }).await?;
        self.end(guard).await
    }

    /// Runs a call that acquires a lock. A few calls are dropped early. Returns `None` if the call
    /// was dropped, timed out, or got no answer of a majority.
    async fn call<G>(
        &mut self,
        verb: Verb,
        call: impl Future<Output = Result<G, AcquireError>>,
    ) -> Result<Option<G>, Failure> {
        let patience = if self.chance(5) { self.millis(1..300) } else { WAIT * 10 };
        let answer = |got: &Result<Result<G, AcquireError>, _>| match got {
            Ok(Ok(_)) => Answer::Done,
            Ok(Err(AcquireError::TimedOut { .. })) => Answer::Taken,
            Ok(Err(_)) => Answer::Refused,
            Err(_) => Answer::Dropped,
        };
        let (of, within) = ((verb, self.kind.name()), WAIT * 2 + ROUND);
        match self.journal.verb(of, within, timeout(patience, call), answer).await? {
            Ok(Ok(guard)) => Ok(Some(guard)),
            Err(_) | Ok(Err(AcquireError::TimedOut { .. } | AcquireError::NoQuorum(_))) => Ok(None),
            Ok(Err(e)) => Err(e.into()),
        }
    }

    /// Reports the grant, relies on the lock for some time, and reports the end.
    async fn hold(&mut self, guard: &LockGuard, grant: Grant) -> io::Result<()> {
        self.begin(guard, grant).await?;
        self.rely(guard).await?;
        self.note(now(), What::Over).await
    }

    async fn begin(&mut self, guard: &LockGuard, grant: Grant) -> io::Result<()> {
        let at = now();
        let (token, until) = (guard.fencing_token().get(), guard.until());
        self.note(at, What::Held(Grant { token, until, ..grant })).await
    }

    async fn rely(&mut self, guard: &LockGuard) -> io::Result<()> {
        self.rely_on(guard).await
    }

    /// Relies on the lock for some time, mostly short, sometimes over several renewals. Ends early
    /// if the lock is lost.
    async fn rely_on(&mut self, guard: &impl Lease) -> io::Result<()> {
        let length = match self.dice.random_range(0..100) {
            n if n < self.pace.long => self.millis(300..1_200),
            n if n < self.pace.long + 5 => self.millis(20..100),
            _ => self.millis(1..12),
        };
        let begun = Instant::now();
        while begun.elapsed() < length {
            let step = self.millis(2..40).min(length.saturating_sub(begun.elapsed()));
            tokio::select! {
                biased;
                () = guard.lost() => return Ok(()),
                () = sleep(step) => {}
            }
            // Read the clock before the state of the guard. Otherwise the guard could end in
            // between, and would be recorded as valid after its end.
            let at = now();
            if !guard.is_valid() {
                return Ok(());
            }
            self.note(at, What::Valid { until: guard.until() }).await?;
        }
        Ok(())
    }

    /// Releases or drops the lock. The task has already reported that it no longer relies on the
    /// lock.
    async fn end(&mut self, guard: LockGuard) -> Result<(), Failure> {
        if self.chance(15) {
            drop(guard);
        } else {
            // The result does not matter, because the task has already reported that it no longer
            // relies on the lock.
            let _ = guard.release().await;
        }
        Ok(())
    }

    async fn note(&mut self, at: Nanos, what: What) -> io::Result<()> {
        self.journal.add((at, self.who), self.kind.name(), what).await
    }

    /// Returns a grant of this kind of lock. The caller adds the token and the deadline of the
    /// guard.
    fn grant(&self, mode: Mode, since: Nanos) -> Grant {
        let names = vec![self.kind.name().to_owned()];
        Grant { names, mode, token: 0, since, queued: None, until: 0, ticket: None }
    }

    fn chance(&mut self, n: u32) -> bool {
        self.dice.random_ratio(n, 100)
    }

    fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.dice.random_range(range))
    }

    async fn pause(&mut self, range: Range<u64>) {
        sleep(self.millis(range)).await;
    }
}
