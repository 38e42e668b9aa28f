//! One task per handle renews each lease after a quarter of its ttl, and tries again while the
//! lease is valid. It declares a lease lost at its deadline, even if no node answers. The lease of
//! a leaked guard is renewed as long as the process runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::renewal_queue::{RenewalQueue, Turn};
use crate::config::renew_every;
use crate::error::ExtendError;
use crate::span::operation;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Longest sleep of a task that watches a lease: tokio's timers stop while the computer is
/// suspended, and this library's clock advances.
pub(crate) const WATCH: Duration = Duration::from_millis(500);

/// With 100,000 leases a batch then has some hundred renewals instead of ten.
const TOGETHER: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Renewer {
    schedule: SyncMutex<Schedule>,
    wake: Notify,
    /// Acquires and claims are refused while this is true (renewal 12).
    late: AtomicBool,
    stopped: AtomicBool,
    core: OnceLock<Weak<Core>>,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeMap<(Moment, u64), Arc<Lease>>,
    /// Watched for failovers of nodes only.
    quiet: BTreeMap<u64, Arc<Lease>>,
    next_id: u64,
    /// A difference shows that a lease was added.
    seen_id: u64,
    running: Option<u64>,
    runs: u64,
    asleep_until: Option<Moment>,
}

impl Schedule {
    fn slot(&mut self, lease: &Lease, at: Moment) -> (Moment, u64) {
        self.next_id += 1;
        let slot = (at, self.next_id);
        if let Some(old) = lease.set_slot(Some(slot)) {
            self.due.remove(&old);
        }
        slot
    }

    /// Those with an entry at their lease's deadline.
    fn put_back(&mut self, now: Moment) {
        let taken = self.due.iter().filter(|((at, _), lease)| *at >= lease.until());
        let taken: Vec<_> = taken.map(|(_, lease)| Arc::clone(lease)).collect();
        for lease in taken {
            let slot = self.slot(&lease, now);
            self.due.insert(slot, lease);
        }
    }
}

impl Renewer {
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Includes leases past their `max_hold`, which are no longer renewed.
    pub(crate) fn len(&self) -> usize {
        self.schedule.lock().due.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let s = self.schedule.lock();
        s.due.is_empty() && s.quiet.is_empty()
    }

    pub(crate) fn add(&self, core: &Arc<Core>, lease: &Arc<Lease>) {
        self.schedule(Arc::clone(lease), due(core, lease, core.env.now()));
        core.failovers.check(lease);
        let _ = self.core.set(Arc::downgrade(core));
        if let Ok(runtime) = Handle::try_current()
            && self.start(core, &runtime)
        {
            core.listen();
        }
    }

    fn start(&self, core: &Arc<Core>, runtime: &Handle) -> bool {
        let mut s = self.schedule.lock();
        if s.running.is_some() {
            return false;
        }
        self.stopped.store(false, Ordering::Relaxed);
        s.runs += 1;
        s.running = Some(s.runs);
        s.put_back(core.env.now());
        let run = Run {
            renewer: Arc::clone(&core.renewer),
            core: Arc::downgrade(core),
            number: s.runs,
            runtime: runtime.id(),
        };
        // If the runtime is shutting down, `spawn` drops the task, which locks the mutex.
        drop(s);
        core.env.spawn(runtime, Box::pin(run.run()));
        true
    }

    /// Called by whatever a holder does.
    pub(crate) fn keep_running(&self) {
        if self.stopped.load(Ordering::Relaxed)
            && let Ok(runtime) = Handle::try_current()
            && let Some(core) = self.core.get().and_then(Weak::upgrade)
        {
            self.start(&core, &runtime);
        }
    }

    pub(crate) fn watch(&self, core: &Arc<Core>, lease: &Arc<Lease>) {
        let mut s = self.schedule.lock();
        let slot = s.slot(lease, Moment::default());
        s.quiet.insert(slot.1, Arc::clone(lease));
        drop(s);
        core.failovers.check(lease);
        core.listen();
    }

    pub(crate) fn holds(&self, now: Moment) -> bool {
        let s = self.schedule.lock();
        s.due.values().chain(s.quiet.values()).any(|lease| lease.is_valid(now))
    }

    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let s = self.schedule.lock();
        s.due.values().chain(s.quiet.values()).cloned().collect()
    }

    pub(crate) fn renew_now(&self, lease: &Arc<Lease>, now: Moment) -> bool {
        let s = self.schedule.lock();
        let kept = lease.slot().is_some_and(|slot| !s.quiet.contains_key(&slot.1));
        let kept = kept && lease.may_be_renewed(now);
        drop(s);
        if kept {
            self.schedule(Arc::clone(lease), now);
        }
        kept
    }

    fn schedule(&self, lease: Arc<Lease>, at: Moment) {
        let at = at.min(lease.until());
        let mut s = self.schedule.lock();
        if !lease.is_held() || lease.is_sealed() {
            return;
        }
        let slot = s.slot(&lease, at);
        s.due.insert(slot, lease);
        let earlier = s.asleep_until.is_some_and(|until| at < until);
        drop(s);
        if earlier {
            self.wake.notify_one();
        }
    }

    pub(crate) fn remove(&self, lease: &Lease) {
        let mut s = self.schedule.lock();
        if let Some(slot) = lease.set_slot(None) {
            s.due.remove(&slot);
            s.quiet.remove(&slot.1);
        }
    }

    fn take_due(&self, now: Moment) -> Vec<Arc<Lease>> {
        let mut s = self.schedule.lock();
        let mut due = Vec::new();
        // Splitting the map would visit all entries that stay.
        while let Some(first) = s.due.first_entry() {
            let at = first.key().0;
            // An entry at its lease's deadline reports the loss, so it must not be taken early.
            let is_early = !due.is_empty() && at <= now + TOGETHER && at < first.get().until();
            if at > now && !is_early {
                break;
            }
            due.push(first.remove());
        }
        // Before the mutex is released, each valid lease gets an entry at its deadline: a loss is
        // reported even while the renewal hangs, and a failover finds every lease.
        for lease in due.iter().filter(|lease| lease.is_valid(now)) {
            let slot = s.slot(lease, lease.until());
            s.due.insert(slot, Arc::clone(lease));
        }
        due
    }

    /// `None` ends the task. A lease that was added and removed keeps it alive, so that short locks
    /// do not start a task each. `add` starts a task under the same mutex, so no lease is left
    /// without one.
    fn sleep_for(&self, now: Moment, renewing: bool) -> Option<Duration> {
        let mut s = self.schedule.lock();
        let idle = s.due.is_empty() && !renewing;
        if idle && s.next_id == s.seen_id {
            s.running = None;
            s.asleep_until = None;
            return None;
        }
        s.seen_id = s.next_id;
        let next = s.due.keys().next().map_or(now + WATCH, |k| k.0).min(now + WATCH);
        s.asleep_until = Some(next);
        Some(next.since(now))
    }
}

struct Run {
    renewer: Arc<Renewer>,
    core: Weak<Core>,
    number: u64,
    runtime: Id,
}

impl Drop for Run {
    fn drop(&mut self) {
        let renewer = &self.renewer;
        let mut s = renewer.schedule.lock();
        if s.running != Some(self.number) {
            return;
        }
        s.running = None;
        s.asleep_until = None;
        renewer.late.store(false, Ordering::Relaxed);
        renewer.stopped.store(!s.due.is_empty(), Ordering::Relaxed);
        let mut other = None;
        // All leases are asked, so that none names a runtime that has ended to the next drop.
        for lease in s.due.values() {
            other = lease.runtime_besides(self.runtime).or(other);
        }
        drop(s);
        if let (Some(core), Some(runtime)) = (self.core.upgrade(), other) {
            renewer.start(&core, &runtime);
        }
    }
}

impl Run {
    async fn run(self) {
        let (renewer, core) = (&*self.renewer, &self.core);
        let (mut renewals, mut queue) = (FuturesUnordered::new(), RenewalQueue::new());
        // The tasks that listen may have ended with the runtime of an earlier run.
        if let Some(core) = core.upgrade() {
            core.listen();
        }
        loop {
            let (now, closed) = match core.upgrade() {
                Some(core) => (core.env.now(), core.closing.is_over()),
                None => return,
            };
            for lease in renewer.take_due(now) {
                if !lease.is_valid(now) {
                    lease.lose(now);
                } else if !closed && lease.may_be_renewed(now) {
                    let (refused, until) = (lease.is_refused(), lease.until());
                    let turn = Turn { refused, until, owner: lease.owner };
                    queue.push(turn, lease.ttl, lease);
                }
            }
            while let Some(lease) = queue.next() {
                renewals.push(renew(Weak::clone(core), lease));
            }
            renewer.late.store(queue.is_late(now), Ordering::Relaxed);
            let Some(pause) = renewer.sleep_for(now, !renewals.is_empty()) else { return };
            tokio::select! {
                biased;
                Some(in_time) = renewals.next(), if !renewals.is_empty() => queue.finished(in_time),
                () = renewer.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

fn due(core: &Core, lease: &Lease, from: Moment) -> Moment {
    let span = renew_every(lease.ttl);
    let share = f64::from(core.env.random() as u16) / f64::from(u16::MAX);
    from + span / 4 * 3 + (span / 4).mul_f64(share)
}

/// False if it got too few answers in time; a refusal that more time had not changed is an answer.
async fn renew(core: Weak<Core>, lease: Arc<Lease>) -> bool {
    let Some(core) = core.upgrade() else { return true };
    let started = core.env.now();
    if !lease.is_valid(started) || lease.is_sealed() {
        // It ended while it waited; a loss is reported at the deadline.
        return true;
    }
    core.check_outlives(&lease);
    lease.renewing(started);
    let operation = operation!("renew", of = %lease.resource());
    match core.extend_in(&lease, operation, true).await {
        Ok(until) => {
            tracing::trace!(of = %lease.resource(), token = %lease.token, ?until, "renewed");
            lease.set_refused(false);
            lease.renewed(core.env.now(), None);
            let due = due(&core, &lease, started);
            core.renewer.schedule(Arc::clone(&lease), due);
            true
        }
        // Its holder extends it too, and that extension reports the loss.
        Err(ExtendError::Lost(_)) if lease.is_sealed() => true,
        Err(ExtendError::Lost(_)) => {
            lease.lose(core.env.now());
            true
        }
        Err(ExtendError::Unknown(why)) => {
            let is_refused = core.is_refused(why.nodes.iter().map(|(_, outcome)| outcome));
            lease.set_refused(is_refused);
            let now = core.env.now();
            let left = lease.until().since(now);
            let of = lease.resource();
            tracing::debug!(%of, token = %lease.token, ?left, %why, "not renewed");
            lease.renewed(now, Some(&why));
            let pause = (left / 8).max(Duration::from_millis(1));
            core.renewer.schedule(Arc::clone(&lease), now + pause);
            is_refused
        }
    }
}
