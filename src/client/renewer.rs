//! The renewer: one task per handle that renews each lease when a quarter of its ttl has passed, or
//! by up to a quarter of that time sooner.
//!
//! If a renewal got no majority, the renewer tries again while the lease is valid. It stops
//! renewing a lease at `max_hold`, and declares a lease lost at its deadline even if no node
//! answers. For its holder a lease is in one of four states: held, renewed (with a later deadline),
//! lost, or unknown (held until its old deadline). A guard that is leaked (`mem::forget`) keeps its
//! lease as long as its process runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::renewal_queue::RenewalQueue;
use crate::config::renew_every;
use crate::error::ExtendError;
use crate::span::operation;
use crate::time::Moment;

/// Longest sleep of a task that watches a lease. tokio's timers stand still while the machine is
/// suspended, but our clock advances. So the task notices a suspend at most this long after the
/// machine resumes.
pub(crate) const WATCH: Duration = Duration::from_millis(500);

/// Leases that the renewer renews or watches. Each lease knows the key (slot) of its entry here, by
/// which the entry is removed.
#[derive(Debug, Default)]
pub(crate) struct Renewer {
    schedule: Mutex<Schedule>,
    wake: Notify,
    /// True if renewals wait longer than they should. Acquires and claims are then refused.
    late: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeMap<(Moment, u64), Arc<Lease>>,
    /// Leases without automatic renewal, which are only watched for failovers.
    quiet: BTreeMap<u64, Arc<Lease>>,
    next_id: u64,
    /// Value of `next_id` when the task last went to sleep, which shows if a lease was added since.
    seen_id: u64,
    /// Number of the task that runs; `runs` is the number of tasks started so far.
    running: Option<u64>,
    runs: u64,
    /// Time at which the task's present sleep ends.
    asleep_until: Option<Moment>,
}

impl Schedule {
    /// Gives the lease a new slot, which is due at `at`, in place of its earlier one.
    fn slot(&mut self, lease: &Lease, at: Moment) -> (Moment, u64) {
        self.next_id += 1;
        let slot = (at, self.next_id);
        if let Some(old) = lease.set_slot(Some(slot)) {
            self.due.remove(&old);
        }
        slot
    }
}

impl Renewer {
    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the renewer's task.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns true if renewals are late, so that new work is refused (renewal 12).
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Returns the number of leases with automatic renewal, including those that are past
    /// `max_hold`.
    pub(crate) fn len(&self) -> usize {
        self.lock().due.len()
    }

    /// Returns true if there is no lease with or without automatic renewal.
    pub(crate) fn is_empty(&self) -> bool {
        let s = self.lock();
        s.due.is_empty() && s.quiet.is_empty()
    }

    /// Adds a lease that is renewed automatically from now on.
    pub(crate) fn add(&self, core: &Arc<Core>, lease: &Arc<Lease>) {
        self.schedule(Arc::clone(lease), due(core, lease, core.env.now()));
        core.failovers.check(lease);
        let mut s = self.lock();
        if s.running.is_some() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        s.runs += 1;
        s.running = Some(s.runs);
        let run = Run { renewer: Arc::clone(&core.renewer), number: s.runs };
        // The mutex is released before the task is spawned, because a runtime that shuts down drops
        // the task inside `spawn`, and that drop takes the mutex.
        drop(s);
        core.env.spawn(&runtime, Box::pin(run.run(Arc::downgrade(core))));
        core.listen();
    }

    /// Adds a lease without automatic renewal, so that its holder learns of failovers.
    pub(crate) fn watch(&self, core: &Arc<Core>, lease: &Arc<Lease>) {
        let mut s = self.lock();
        let slot = s.slot(lease, Moment::default());
        s.quiet.insert(slot.1, Arc::clone(lease));
        drop(s);
        core.failovers.check(lease);
        core.listen();
    }

    /// Returns true if any lease is still valid at `now`.
    pub(crate) fn holds(&self, now: Moment) -> bool {
        let s = self.lock();
        s.due.values().chain(s.quiet.values()).any(|lease| lease.is_valid(now))
    }

    /// Returns all leases, with and without automatic renewal.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let s = self.lock();
        s.due.values().chain(s.quiet.values()).cloned().collect()
    }

    /// Renews the lease now if it has automatic renewal. Returns false if it has none, or none any
    /// more.
    pub(crate) fn renew_now(&self, lease: &Arc<Lease>, now: Moment) -> bool {
        let s = self.lock();
        let kept = lease.slot().is_some_and(|slot| !s.quiet.contains_key(&slot.1));
        let kept = kept && lease.may_be_renewed(now);
        drop(s);
        if kept {
            self.schedule(Arc::clone(lease), now);
        }
        kept
    }

    fn schedule(&self, lease: Arc<Lease>, at: Moment) {
        // The slot is due at the lease's deadline at the latest, so that a loss is reported in
        // time.
        let at = at.min(lease.until());
        let mut s = self.lock();
        if !lease.is_held() {
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

    /// Removes a lease that need not be renewed or watched any more, so that memory is used only
    /// for leases that are held.
    pub(crate) fn remove(&self, lease: &Lease) {
        let mut s = self.lock();
        if let Some(slot) = lease.set_slot(None) {
            s.due.remove(&slot);
            s.quiet.remove(&slot.1);
        }
    }

    /// Takes the leases that are due at `now`.
    fn take_due(&self, now: Moment) -> Vec<Arc<Lease>> {
        let mut s = self.lock();
        let mut due = Vec::new();
        // The entries are removed one by one, because splitting the map would visit all entries
        // that stay.
        while let Some(first) = s.due.first_entry().filter(|e| e.key().0 <= now) {
            due.push(first.remove());
        }
        // Each valid lease is scheduled for its deadline before the mutex is released. So its loss
        // is reported even while its renewal hangs, and a failover finds every lease.
        for lease in due.iter().filter(|lease| lease.is_valid(now)) {
            let slot = s.slot(lease, lease.until());
            s.due.insert(slot, Arc::clone(lease));
        }
        due
    }

    /// Returns how long the task may sleep; it is woken if anything becomes due earlier. Returns
    /// `None`, and the task ends, if there is no lease and none was added since the last call. (A
    /// lock that is held only briefly should not need a new task.) This is decided under the mutex
    /// under which `add` starts a new task.
    fn sleep_for(&self, now: Moment, renewing: bool) -> Option<Duration> {
        let mut s = self.lock();
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

/// One run of the renewer's task. However the task ends, for example because its runtime does, the
/// next lease that is added starts another one.
struct Run {
    renewer: Arc<Renewer>,
    number: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut s = self.renewer.lock();
        if s.running == Some(self.number) {
            s.running = None;
            s.asleep_until = None;
            self.renewer.late.store(false, Ordering::Relaxed);
        }
    }
}

impl Run {
    async fn run(self, core: Weak<Core>) {
        let renewer = &*self.renewer;
        let (mut renewals, mut queue) = (FuturesUnordered::new(), RenewalQueue::new());
        loop {
            let (now, closed) = match core.upgrade() {
                Some(core) => (core.env.now(), core.closing.is_over()),
                None => return,
            };
            for lease in renewer.take_due(now) {
                if !lease.is_valid(now) {
                    // Either the deadline has passed, or the lease is over already; then `lose`
                    // does nothing.
                    lease.lose(now);
                } else if !closed && lease.may_be_renewed(now) {
                    // The address of the lease is its number. It is unique, because the queue keeps
                    // each of its leases alive.
                    let number = Arc::as_ptr(&lease).addr();
                    queue.push(number, (lease.until(), lease.ttl), lease);
                }
            }
            while let Some(lease) = queue.next() {
                renewals.push(renew(Weak::clone(&core), lease));
            }
            renewer.late.store(queue.is_late(now), Ordering::Relaxed);
            let Some(pause) = renewer.sleep_for(now, !renewals.is_empty()) else { return };
            tokio::select! {
                biased;
                Some(decided) = renewals.next(), if !renewals.is_empty() => queue.finished(decided),
                () = renewer.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// Returns the time at which a lease that was granted or renewed at `from` is renewed next: when a
/// quarter of its ttl has passed, or by a random time of up to a quarter of that sooner, so that
/// leases that began together do not stay together.
fn due(core: &Core, lease: &Lease, from: Moment) -> Moment {
    let span = renew_every(lease.ttl);
    let share = f64::from(core.env.random() as u16) / f64::from(u16::MAX);
    from + span / 4 * 3 + (span / 4).mul_f64(share)
}

/// Renews a lease once, and schedules its next renewal. Returns false if the renewal got too few
/// answers in time.
async fn renew(core: Weak<Core>, lease: Arc<Lease>) -> bool {
    let Some(core) = core.upgrade() else { return true };
    let started = core.env.now();
    if !lease.is_valid(started) {
        // The lease was released or has lapsed while it waited in the queue. If it lapsed, its loss
        // is reported at its deadline.
        return true;
    }
    core.check_outlives(&lease);
    lease.renewing(started);
    let operation = operation!("renew", of = %lease.resource());
    match core.extend_in(&lease, operation).await {
        Ok(until) => {
            tracing::trace!(of = %lease.resource(), token = %lease.token, ?until, "renewed");
            lease.renewed(core.env.now(), None);
            let due = due(&core, &lease, started);
            core.renewer.schedule(Arc::clone(&lease), due);
            true
        }
        Err(ExtendError::Lost(_)) => {
            lease.lose(core.env.now());
            true
        }
        Err(ExtendError::Unknown(why)) => {
            let now = core.env.now();
            let left = lease.until().since(now);
            let of = lease.resource();
            tracing::debug!(%of, token = %lease.token, ?left, %why, "not renewed");
            lease.renewed(now, Some(&why));
            // The renewal is tried several more times in what is left of the lease, but not in a
            // busy loop.
            let pause = (left / 8).max(Duration::from_millis(1));
            core.renewer.schedule(Arc::clone(&lease), now + pause);
            false
        }
    }
}
