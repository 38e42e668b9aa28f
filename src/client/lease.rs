//! A lease: what is held, its deadline, and its state.
//!
//! Invariants:
//! 1. `until` only grows, and only by a renewal that a majority confirmed in time (renewal 1).
//! 2. The phase leaves `Held` once and never returns: a lost lease cannot become held again.
//! 3. `is_valid` reads the suspend-proof clock each time and needs no timer. So a process that
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

/// Log target of messages about leases. The target and the fields `of` (for example `lock "a"`),
/// `token` and `event` stay the same in all versions.
const TARGET: &str = "palisade::lease";

/// Subject of a lease: a lock, a leadership or a claim.
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
    /// Time for which a grant or a renewal lets the holder rely on the lease, before clock drift is
    /// subtracted.
    pub(crate) ttl: Duration,
    /// Time for which the nodes keep the lease after `ttl`: the lock-delay of an election (election
    /// 8), otherwise zero.
    pub(crate) drain: Duration,
    /// Time before which the lease is not released but only left to lapse. A takeover sets it,
    /// because until then the earlier holder may rely on the lock (locks 13).
    pub(crate) lapses_before: Moment,
    /// Time at which the renewer stops renewing the lease (`max_hold`); `None`: it does not stop.
    pub(crate) renew_until: Option<Moment>,
    /// Collector of the nodes' answers, which knows the nodes that may hold something of the lease.
    pub(crate) replies: Arc<ReplyCollector>,
    /// End of the lease's validity as nanoseconds of a [`Moment`], readable without the mutex; zero
    /// once the lease is over.
    valid_until: AtomicU64,
    state: Mutex<State>,
    /// Notified at each change of the lease: it was renewed, its renewals fail or succeed again, it
    /// is over, or the outcome of a failover is known.
    news: Notify,
    pub(crate) meters: Arc<LeaseMeters>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// True if the metrics count the lease as held.
    counted: bool,
    until: Moment,
    /// Mode in which the lease is extended and released.
    mode: LockMode,
    /// Least number of replicas that had the lease when it was last granted or renewed. The
    /// durability level is kept in `replies`.
    kept: u32,
    /// Metadata that the holder publishes beside its lock.
    meta: Option<Arc<[u8]>>,
    /// Failovers of the lease's nodes, and what renewals found after them.
    verdicts: Verdicts,
    /// Key of the lease's entry in the renewer; `None` if it has no entry.
    slot: Option<(Moment, u64)>,
    /// End of the lease; `None` while it is held.
    over: Option<Over>,
    /// Time at which the renewal under way began; `None` if there is none.
    renewing: Option<Moment>,
    longest_renewal: Duration,
}

/// Time and cause of a lease's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) at: Moment,
    /// True if the lease was lost; false if its holder ended it before the deadline.
    pub(crate) lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The lease is held. `troubled`: its last renewal failed, and the log has reported that.
    Held { troubled: bool },
    /// The deadline has passed, or another owner has the name.
    Lost,
    /// The holder released the lock or finished the claim.
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

    /// Makes the nodes keep the lease for `drain` longer than its holder relies on it.
    pub(crate) fn with_drain(self, drain: Duration) -> Self {
        Self { drain, ..self }
    }

    /// Sets the time before which the lease is not released but only left to lapse.
    pub(crate) fn lapsing_before(self, lapses_before: Moment) -> Self {
        Self { lapses_before, ..self }
    }

    /// Makes it a lease of this mode.
    pub(crate) fn in_mode(self, mode: LockMode) -> Self {
        self.downgrade_to(mode);
        self
    }

    /// Sets the mode of every later extension and of the release. It becomes shared when a writer
    /// becomes a reader (readers 12).
    pub(crate) fn downgrade_to(&self, mode: LockMode) {
        self.lock().mode = mode;
    }

    /// Returns the mode of the lease's next extension.
    pub(crate) fn mode(&self) -> LockMode {
        self.lock().mode
    }

    /// Returns the time for which a node keeps the lease without a renewal.
    pub(crate) fn on_nodes(&self) -> Duration {
        self.ttl + self.drain
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the durability that the lease had when it was last granted or renewed, or when its
    /// result was stored.
    pub(crate) fn durability(&self) -> Achieved {
        Achieved { replicas: self.lock().kept, ..Achieved::at_least(self.replies.level()) }
    }

    /// Records the durability that a later round of requests achieved.
    pub(crate) fn keep(&self, achieved: Achieved) {
        self.lock().kept = achieved.replicas;
    }

    /// Returns the deadline of the lease as of its last renewal, also if the lease is over.
    pub(crate) fn until(&self) -> Moment {
        self.lock().until
    }

    /// Records that a majority confirmed a renewal, which was sent after the first `failovers`
    /// failovers of the lease's nodes. Returns false if the lease was found lost before, which is
    /// final.
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

    /// Sends these extensions and returns true; sends nothing and returns false if the lease is
    /// over. This happens under the mutex that `end` takes as well, because an extension that is
    /// sent after `end` would be behind the release in a node's queue, and would put back the lock
    /// that the release deleted.
    pub(crate) fn send(
        &self,
        now: Moment,
        extensions: Vec<(usize, Op)>,
        send: impl Fn(usize, Op),
    ) -> bool {
        let s = self.lock();
        let valid = self.is_valid(now);
        for (node, mut op) in extensions.into_iter().filter(|_| valid) {
            // The extension may create the key on that node again, so the release must be sent to
            // that node too.
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

    /// Returns true if the lease is held and its deadline is later than `now`.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        now.as_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    /// Returns true if the renewer may renew the lease at `now`, because its longest hold is not
    /// over.
    pub(crate) fn may_be_renewed(&self, now: Moment) -> bool {
        self.renew_until.is_none_or(|end| now < end)
    }

    /// Returns true if the lease is neither lost nor ended, whether or not its deadline has passed.
    pub(crate) fn is_held(&self) -> bool {
        self.lock().is_held()
    }

    /// Returns true if the renewals of a held lease are in trouble: the last one failed, or less
    /// than half of the ttl is left.
    pub(crate) fn is_in_jeopardy(&self, now: Moment) -> bool {
        let s = self.lock();
        s.phase == (Phase::Held { troubled: true }) || s.until.since(now) < self.ttl / 2
    }

    /// Returns when and how the lease ended; `None` if it is not known to be over.
    pub(crate) fn over_since(&self) -> Option<Over> {
        self.lock().over
    }

    /// Records that a renewal begins at `now`, unless an earlier try of the same renewal has begun
    /// it.
    pub(crate) fn renewing(&self, now: Moment) {
        self.lock().renewing.get_or_insert(now);
    }

    /// Returns the longest time that a renewal of this lease took until it succeeded, with all its
    /// tries. A renewal under way counts with its time so far.
    pub(crate) fn longest_renewal(&self, now: Moment) -> Duration {
        let s = self.lock();
        let end = s.over.map_or(now, |over| over.at);
        s.renewing.map_or(s.longest_renewal, |began| s.longest_renewal.max(end.since(began)))
    }

    /// Counts the lease as held in the metrics, until it is over.
    pub(crate) fn count(&self) {
        let mut s = self.lock();
        if s.is_held() && !std::mem::replace(&mut s.counted, true) {
            self.meters.holds(true);
        }
    }

    /// Declares a held lease lost, logs that, and wakes all who wait for the end of the lease.
    pub(crate) fn lose(&self, now: Moment) {
        let lost = |phase| matches!(phase, Phase::Held { .. }).then_some(Phase::Lost);
        if self.leave(now, lost).is_some() {
            self.meters.lost(self.until().since(now));
            let (of, token) = (self.resource(), self.token);
            tracing::warn!(target: TARGET, %of, %token, event = "lost", "lease lost");
        }
    }

    /// Records the result of a renewal; `failed` is the error of one that got no majority. Logs
    /// once that renewals fail, and once that they succeed again.
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

    /// Ends the lease because its holder gives it up. Returns true in the first call only.
    pub(crate) fn end(&self, now: Moment) -> bool {
        self.leave(now, |phase| (phase != Phase::Ended).then_some(Phase::Ended)).is_some()
    }

    /// Ends the lease because its holder gives it up. Returns true if it was held and valid until
    /// now.
    pub(crate) fn end_held(&self, now: Moment) -> bool {
        let valid = self.is_valid(now);
        let before = self.leave(now, |_| Some(Phase::Ended));
        valid && matches!(before, Some(Phase::Held { .. }))
    }

    /// Changes to the phase that `to` makes of the present one, in which the lease is not held.
    /// Returns the phase before; `None` if nothing changed.
    fn leave(&self, now: Moment, to: impl FnOnce(Phase) -> Option<Phase>) -> Option<Phase> {
        let mut s = self.lock();
        let before = s.phase;
        s.phase = to(before)?;
        // If the holder ends the lease after its deadline, the lease counts as lost.
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

    /// Returns the lock or key that the lease is for, as errors and the log show it.
    pub(crate) fn resource(&self) -> Resource {
        match &self.subject {
            Subject::Lock { of, .. } => of.clone(),
            Subject::Claim { key, .. } => Resource::Key(Arc::clone(key)),
        }
    }

    /// Resolves at the next change of the lease after the first poll. A deadline that passes is no
    /// such change, so the caller has to watch the clock itself.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Resolves as soon as the lease is declared lost or ended. A deadline that passes does not
    /// resolve it, so the caller has to watch the clock itself.
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

    /// Sets the key of the lease's entry in the renewer, and returns the key before.
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

    /// Records that a renewal got too few answers, which was sent after the first `failovers`
    /// failovers of the lease's nodes.
    pub(crate) fn left_open(&self, failovers: u64) {
        self.lock().verdicts.renewed(failovers, false);
        self.news.notify_waiters();
    }

    /// Waits for the outcome of the next failover and returns it; `Lost` as soon as `over` returns
    /// true.
    ///
    /// # Cancellation safety
    /// Dropping the future loses nothing, because the outcome is taken only when it is returned.
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

    /// Returns the op that extends this lease on a node. It lacks the metadata, which
    /// [`send`](Self::send) adds, and the name of a quarantine, which the quorum machine adds.
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

    /// Returns what is known of this lease on one node: until when the node has confirmed it, and
    /// the node's quarantine.
    pub(crate) fn known(&self, node: usize) -> Known {
        self.replies.known(node, self.until())
    }

    /// Returns the op that releases the lock of this lease on a node. `None` if the lock must be
    /// left to lapse, and for a claim, which is ended by [`ClaimEnd`](crate::op::ClaimEnd) instead.
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

    /// Changes the metadata of the holder. The next extension carries them to the nodes.
    pub(crate) fn set_meta(&self, meta: Arc<[u8]>) {
        self.lock().meta = Some(meta);
    }
}
