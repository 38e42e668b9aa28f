//! A lease: what is held, its deadline, and its state.
//!
//! Invariants:
//! 1. `until` only grows, and only by an extension that a majority answered in time (renewal 1).
//! 2. The phase leaves `Held` once and never returns: a lost lease cannot become held again.
//! 3. `is_valid` reads the suspend-proof clock each time and needs no timer, so a process that
//!    wakes from a pause gets the right answer at its first call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::client::failover::{Failover, Verdicts};
use crate::client::reply_collector::ReplyCollector;
use crate::durability::Achieved;
use crate::error::{NoQuorum, Resource};
use crate::metrics::LeaseMeters;
use crate::name::LockKeys;
use crate::op::{FingerprintBytes, LockMode, Op, RecordKey};
use crate::quorum::holdings::Known;
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

/// Log target of messages about leases. It and the fields `of` (`lock "a"`), `token` and `event` do
/// not change between versions.
const TARGET: &str = "palisade::lease";

/// Lock or claim that a lease is for.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A lock or a leadership.
    Lock { of: Resource, keys: LockKeys },
    /// An idempotency claim.
    Claim { key: RecordKey, retention: Duration, fingerprint: Option<FingerprintBytes> },
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) subject: Subject,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    /// Time for which the holder may rely on the lease, before the drift is subtracted.
    pub(crate) ttl: Duration,
    /// Time after `ttl` for which the nodes keep the lease: an election's lock-delay (election 8).
    pub(crate) drain: Duration,
    /// Until then the lease is not released, only left to lapse: the holder it was taken from may
    /// rely on the lock for as long (locks 13).
    pub(crate) lapses_before: Moment,
    /// The renewer stops renewing here (`max_hold`).
    pub(crate) renew_until: Option<Moment>,
    /// Knows the nodes that may hold something of the lease.
    pub(crate) replies: Arc<ReplyCollector>,
    /// End of the validity in ns, readable without the mutex; zero once the lease is over.
    valid_until: AtomicU64,
    state: Mutex<State>,
    /// Notified when the lease is over, was renewed, or a failover was decided.
    news: Notify,
    pub(crate) meters: Arc<LeaseMeters>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The lease is counted in the metrics as held.
    counted: bool,
    until: Moment,
    /// Mode in which the lease is extended and released.
    mode: LockMode,
    /// Replicas that had the lease at the last decided round; its level is that of `replies`.
    kept: u32,
    /// The holder's metadata.
    meta: Option<Arc<[u8]>>,
    /// Results of renewals after failovers.
    verdicts: Verdicts,
    /// Entry of the lease in the renewer.
    slot: Option<(Moment, u64)>,
    /// End of the lease; `None` while it is held.
    over: Option<Over>,
    /// Start of the renewal under way, and the longest duration of one.
    renewing: Option<Moment>,
    longest_renewal: Duration,
}

/// End of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) at: Moment,
    /// True if the lease ended without its holder.
    pub(crate) lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `troubled`: the last renewal failed, and the log reports it.
    Held { troubled: bool },
    /// The deadline passed, or a different owner has the name.
    Lost,
    /// The holder released or finished it.
    Ended,
}

impl State {
    fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }
}

impl Lease {
    pub(crate) fn new(
        subject: Subject,
        (owner, token): (OwnerToken, FencingToken),
        (ttl, until): (Duration, Moment),
        renew_until: Option<Moment>,
        replies: Arc<ReplyCollector>,
        meta: Option<Arc<[u8]>>,
        meters: Arc<LeaseMeters>,
    ) -> Self {
        let state = State {
            phase: Phase::Held { troubled: false },
            counted: false,
            until,
            mode: LockMode::Exclusive,
            kept: replies.achieved().replicas,
            meta,
            verdicts: Verdicts::default(),
            slot: None,
            over: None,
            renewing: None,
            longest_renewal: Duration::ZERO,
        };
        Self {
            subject,
            owner,
            token,
            ttl,
            drain: Duration::ZERO,
            lapses_before: Moment::default(),
            renew_until,
            replies,
            valid_until: AtomicU64::new(until.as_nanos()),
            state: Mutex::new(state),
            news: Notify::new(),
            meters,
        }
    }

    /// Has the nodes keep the lease for `drain` longer than its holder relies on it.
    pub(crate) fn with_drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// The same, not released before that moment.
    pub(crate) fn lapsing_before(self, lapses_before: Moment) -> Self {
        Self { lapses_before, ..self }
    }

    /// Makes it a lease of this mode.
    pub(crate) fn in_mode(self, mode: LockMode) -> Self {
        self.downgrade_to(mode);
        self
    }

    /// Has every later extension, and the release, be of this mode: shared for a writer that
    /// becomes a reader (read_write 12).
    pub(crate) fn downgrade_to(&self, mode: LockMode) {
        self.lock().mode = mode;
    }

    /// Returns the time for which a node keeps it without a renewal.
    pub(crate) fn on_nodes(&self) -> Duration {
        self.ttl + self.drain
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the durability of the lease when it was last granted, renewed or completed.
    pub(crate) fn durability(&self) -> Achieved {
        Achieved { replicas: self.lock().kept, ..Achieved::at_least(self.replies.level()) }
    }

    /// Records the durability of a later round.
    pub(crate) fn keep(&self, achieved: Achieved) {
        self.lock().kept = achieved.replicas;
    }

    /// Returns the time at which the lease ends, or ended, unless it is renewed.
    pub(crate) fn until(&self) -> Moment {
        self.lock().until
    }

    /// Records a confirmed renewal that was sent after this number of failovers. Returns false if
    /// the lease was found lost before: that is final.
    pub(crate) fn prolong(&self, until: Moment, achieved: Achieved, failovers: u64) -> bool {
        let mut s = self.lock();
        if s.is_held() {
            s.until = s.until.max(until);
            s.kept = achieved.replicas;
            s.verdicts.renewed(failovers, true);
            self.valid_until.store(s.until.as_nanos(), Ordering::Release);
            self.news.notify_waiters();
        }
        s.phase != Phase::Lost
    }

    /// Sends these extensions unless the lease is over; returns false if it is. An extension that
    /// is sent after `end` would be behind the release in a node's queue and put back what the
    /// release deleted.
    pub(crate) fn send(
        &self,
        now: Moment,
        extensions: Vec<(usize, Op)>,
        send: impl Fn(usize, Op),
    ) -> bool {
        let s = self.lock();
        let valid = self.is_valid(now);
        for (node, mut op) in extensions.into_iter().filter(|_| valid) {
            // The extension may create the key again on that node, so a release must be sent there
            // too.
            self.replies.extended(node);
            if let Op::Extend { mode, meta, .. } = &mut op {
                // A renewal that was under way when the lease became shared asks again as a reader.
                *mode = s.mode;
                meta.clone_from(&s.meta);
            }
            send(node, op);
        }
        valid
    }

    /// Returns true if the lease is held and valid at `now`.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        now.as_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    /// Returns true if the renewer may renew the lease: not past its longest hold.
    pub(crate) fn may_be_renewed(&self, now: Moment) -> bool {
        self.renew_until.is_none_or(|end| now < end)
    }

    /// Returns true if the lease is neither lost nor ended.
    pub(crate) fn is_held(&self) -> bool {
        self.lock().is_held()
    }

    /// Returns true if the lease is held and its last renewal failed, or none was confirmed for
    /// half of its length.
    pub(crate) fn is_in_jeopardy(&self, now: Moment) -> bool {
        let s = self.lock();
        s.phase == (Phase::Held { troubled: true }) || s.until.since(now) < self.ttl / 2
    }

    /// Returns the end of the lease, if it is known to be over.
    pub(crate) fn over_since(&self) -> Option<Over> {
        self.lock().over
    }

    /// Records that a renewal is tried, for the first time or again.
    pub(crate) fn renewing(&self, now: Moment) {
        self.lock().renewing.get_or_insert(now);
    }

    /// Returns the longest time that a renewal has taken, with its repetitions; the renewal under
    /// way counts too.
    pub(crate) fn longest_renewal(&self, now: Moment) -> Duration {
        let s = self.lock();
        let end = s.over.map_or(now, |over| over.at);
        s.renewing.map_or(s.longest_renewal, |began| s.longest_renewal.max(end.since(began)))
    }

    /// Counts the lease in the metrics as held, until it is over.
    pub(crate) fn count(&self) {
        let mut s = self.lock();
        if s.is_held() && !std::mem::replace(&mut s.counted, true) {
            self.meters.holds(true);
        }
    }

    /// Declares the lease lost and wakes all that wait for its end.
    pub(crate) fn lose(&self, now: Moment) {
        let lost = |phase| matches!(phase, Phase::Held { .. }).then_some(Phase::Lost);
        if self.leave(now, lost).is_some() {
            self.meters.lost(self.until().since(now));
            let (of, token) = (self.resource(), self.token);
            tracing::warn!(target: TARGET, %of, %token, event = "lost", "lease lost");
        }
    }

    /// Records that a renewal was decided. Logs once that renewals fail, and once that they succeed
    /// again.
    pub(crate) fn renewed(&self, now: Moment, failed: Option<&NoQuorum>) {
        let mut s = self.lock();
        if failed.is_none()
            && let Some(began) = s.renewing.take()
        {
            s.longest_renewal = s.longest_renewal.max(now.since(began));
        }
        let (before, until) = (s.phase, s.until);
        let after = Phase::Held { troubled: failed.is_some() };
        if !s.is_held() || before == after {
            return;
        }
        s.phase = after;
        drop(s);
        self.news.notify_waiters();
        let (of, token, left) = (self.resource(), self.token, until.since(now));
        if let Some(why) = failed {
            tracing::warn!(
                target: TARGET, %of, %token, ?left, %why, event = "renewal_failed",
                "renewal got no majority; tried again until the lease ends"
            );
        } else {
            tracing::info!(
                target: TARGET, %of, %token, ?left, event = "renewed", "renewed again"
            );
        }
    }

    /// Ends the lease for its holder. Returns true for the first caller only.
    pub(crate) fn end(&self, now: Moment) -> bool {
        self.leave(now, |phase| (phase != Phase::Ended).then_some(Phase::Ended)).is_some()
    }

    /// Ends the lease for its holder. Returns true if it was held and valid until then.
    pub(crate) fn end_held(&self, now: Moment) -> bool {
        let valid = self.is_valid(now);
        let before = self.leave(now, |_| Some(Phase::Ended));
        valid && matches!(before, Some(Phase::Held { .. }))
    }

    /// Enters a phase in which the lease is not held; returns the phase before.
    fn leave(&self, now: Moment, to: impl FnOnce(Phase) -> Option<Phase>) -> Option<Phase> {
        let mut s = self.lock();
        let before = s.phase;
        s.phase = to(before)?;
        // A lease that its holder ends after the deadline was lost before.
        let lost = s.phase == Phase::Lost || now >= s.until;
        s.over.get_or_insert(Over { at: now, lost });
        self.valid_until.store(0, Ordering::Release);
        if std::mem::take(&mut s.counted) {
            self.meters.holds(false);
        }
        drop(s);
        self.news.notify_waiters();
        Some(before)
    }

    /// Returns the lock or key that the lease is for, for errors and the log.
    pub(crate) fn resource(&self) -> Resource {
        match &self.subject {
            Subject::Lock { of, .. } => of.clone(),
            Subject::Claim { key, .. } => Resource::Key(Arc::clone(key)),
        }
    }

    /// Resolves at the next change of the lease after the first poll. The caller has to watch the
    /// clock itself.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Resolves as soon as the lease is lost or ended. The caller has to watch the clock itself.
    pub(crate) async fn over(&self) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if !self.is_held() {
                return;
            }
            news.await;
        }
    }

    /// Sets the lease's entry in the renewer; returns the entry before.
    pub(crate) fn set_slot(&self, slot: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.lock().slot, slot)
    }

    pub(crate) fn slot(&self) -> Option<(Moment, u64)> {
        self.lock().slot
    }

    /// Counts a failover of a node that had confirmed the lease.
    pub(crate) fn failed_over(&self) {
        self.lock().verdicts.failed_over();
    }

    /// Returns the number of failovers until now of nodes that had confirmed the lease.
    pub(crate) fn failovers(&self) -> u64 {
        self.lock().verdicts.so_far()
    }

    /// Records a renewal that got too few answers and was sent after this number of failovers.
    pub(crate) fn left_open(&self, failovers: u64) {
        self.lock().verdicts.renewed(failovers, false);
        self.news.notify_waiters();
    }

    /// Returns the verdict on the next failover that has one; `Lost` once `over` returns true.
    ///
    /// # Cancellation safety
    /// The verdict is taken only when it is returned.
    pub(crate) async fn verdict(&self, over: impl Fn() -> bool) -> Failover {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if over() {
                return Failover::Lost;
            }
            let next = self.lock().verdicts.next();
            if let Some(verdict) = next {
                return verdict;
            }
            news.await;
        }
    }

    /// Returns the op that extends this lease on a node, without metadata, which
    /// [`send`](Self::send) adds, and without the name of a quarantine.
    pub(crate) fn extension(&self) -> Op {
        let (owner, token) = (self.owner, self.token);
        match &self.subject {
            Subject::Lock { keys, .. } => Op::Extend {
                mode: self.lock().mode,
                keys: keys.clone(),
                owner,
                ttl: self.on_nodes(),
                token,
                meta: None,
                reassert: None,
            },
            Subject::Claim { key, retention, fingerprint } => Op::ExtendClaim {
                key: Arc::clone(key),
                owner,
                token,
                lease: self.ttl,
                retention: *retention,
                fingerprint: *fingerprint,
                reassert: None,
            },
        }
    }

    /// Returns what is known of the lease and of a node.
    pub(crate) fn known(&self, node: usize) -> Known {
        self.replies.known(node, self.until())
    }

    /// Returns the op that releases this lease on one node; `None` for a lease that is left to
    /// lapse, and for a claim, which ends by [`ClaimEnd`](crate::op::ClaimEnd).
    pub(crate) fn release_op(&self, now: Moment) -> Option<Op> {
        let Subject::Lock { keys, .. } = &self.subject else { return None };
        if now < self.lapses_before {
            return None;
        }
        let s = self.lock();
        let (mode, meta) = (s.mode, s.meta.is_some());
        drop(s);
        Some(Op::Release { mode, keys: keys.clone(), owner: self.owner, meta })
    }

    /// Changes the holder's metadata; the next extension carries it to the nodes.
    pub(crate) fn set_meta(&self, meta: Arc<[u8]>) {
        self.lock().meta = Some(meta);
    }
}
