//! A lease. Invariants:
//! 1. `until` only grows, and only by a renewal that a majority confirmed in time (renewal 1).
//! 2. `phase` leaves `Held` once and never returns.
//! 3. `is_valid` needs no timer, and its clock counts while the computer is suspended, so the first
//!    call after a pause of the process is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::client::failover::{Failover, Verdicts};
use crate::client::round::SharedGrant;
use crate::durability::Achieved;
use crate::error::{NoQuorum, Resource};
use crate::metrics::LeaseMeters;
use crate::name::LockKeys;
use crate::op::{Ballot, Op};
use crate::quorum::grant::Known;
use crate::sync::SyncMutex;
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

/// Stable in all versions, like the fields `of` (for example `lock "a"`), `token` and `event`.
const TARGET: &str = "palisade::lease";

#[derive(Debug)]
pub(crate) enum Subject {
    Lock { of: Resource, keys: LockKeys },
    Claim(Arc<Ballot>),
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) subject: Subject,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    /// The nodes keep the lease for this time after `ttl` (election 8).
    pub(crate) drain: Duration,
    /// Before this the lease must not be released, but only end by its ttl (locks 13).
    pub(crate) lapses_before: Moment,
    pub(crate) renew_until: Option<Moment>,
    pub(crate) grant: SharedGrant,
    /// In nanoseconds of a [`Moment`], readable without the mutex. Zero after the end of the lease.
    valid_until: AtomicU64,
    state: SyncMutex<State>,
    news: Notify,
    pub(crate) meters: Arc<LeaseMeters>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    counted: bool,
    until: Moment,
    meta: Option<Arc<[u8]>>,
    verdicts: Verdicts,
    slot: Option<(Moment, u64)>,
    over: Option<Over>,
    renewing: Option<Moment>,
    longest_renewal: Duration,
    sealed: bool,
    refused: bool,
    runtime: Option<Handle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) at: Moment,
    pub(crate) lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held { troubled: bool },
    Lost,
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
        owner: OwnerToken,
        token: FencingToken,
        ttl: Duration,
        until: Moment,
        grant: SharedGrant,
        meters: Arc<LeaseMeters>,
    ) -> Self {
        let state = State {
            phase: Phase::Held { troubled: false },
            counted: false,
            until,
            meta: None,
            verdicts: Verdicts::default(),
            slot: None,
            over: None,
            renewing: None,
            longest_renewal: Duration::ZERO,
            sealed: false,
            refused: false,
            runtime: Handle::try_current().ok(),
        };
        Self {
            subject,
            owner,
            token,
            ttl,
            drain: Duration::ZERO,
            lapses_before: Moment::default(),
            renew_until: None,
            grant,
            valid_until: AtomicU64::new(until.as_nanos()),
            state: SyncMutex::new(state),
            news: Notify::new(),
            meters,
        }
    }

    pub(crate) fn key(&self) -> &str {
        match &self.subject {
            Subject::Lock { keys, .. } => keys.lock(),
            Subject::Claim(ballot) => &ballot.key,
        }
    }

    pub(crate) fn with_drain(self, drain: Duration) -> Self {
        let until = self.until() - drain;
        self.state.lock().until = until;
        self.valid_until.store(until.as_nanos(), Ordering::Release);
        Self { ttl: self.ttl.saturating_sub(drain), drain, ..self }
    }

    pub(crate) fn lapsing_before(self, lapses_before: Moment) -> Self {
        Self { lapses_before, ..self }
    }

    pub(crate) fn on_nodes(&self) -> Duration {
        self.ttl + self.drain
    }

    pub(crate) fn durability(&self) -> Achieved {
        self.grant.lock().durability
    }

    pub(crate) fn until(&self) -> Moment {
        self.state.lock().until
    }

    /// `failovers` is their number before the renewal was sent.
    pub(crate) fn prolong(&self, until: Moment, replicas: u32, failovers: u64) -> bool {
        let mut s = self.state.lock();
        if s.is_held() {
            s.until = s.until.max(until);
            self.grant.lock().durability.replicas = replicas;
            s.verdicts.renewed(failovers, true);
            self.valid_until.store(s.until.as_nanos(), Ordering::Release);
            self.news.notify_waiters();
        }
        s.phase != Phase::Lost
    }

    /// Sends nothing if the lease is over, or sealed and `automatic`. This and `end` lock the same
    /// mutex: behind the release in a node's queue an extension would create the deleted lock
    /// again.
    pub(crate) fn send(
        &self,
        now: Moment,
        automatic: bool,
        extensions: Vec<(usize, Op)>,
        send: impl Fn(usize, Op),
    ) -> bool {
        let s = self.state.lock();
        let valid = self.is_valid(now) && !(automatic && s.sealed);
        // During the renewal the holder may have become a reader (readers 12).
        let now_in = self.grant.lock().mode;
        for (node, mut op) in extensions.into_iter().filter(|_| valid) {
            // The extension may create the key on this node again, so it needs the release too.
            self.grant.lock().extended(node);
            if let Op::Extend { mode, meta, .. } = &mut op {
                *mode = now_in;
                meta.clone_from(&s.meta);
            }
            send(node, op);
        }
        valid
    }

    pub(crate) fn extension(&self) -> Op {
        match &self.subject {
            Subject::Lock { keys, .. } => {
                let (mode, keys) = (self.grant.lock().mode, keys.clone());
                let (owner, token, ttl) = (self.owner, self.token, self.on_nodes());
                Op::Extend { mode, keys, owner, ttl, token, meta: None, reassert: None }
            }
            Subject::Claim(ballot) => {
                Op::ExtendClaim { ballot: Ballot::clone(ballot), lease: self.ttl, reassert: None }
            }
        }
    }

    /// `None` for a claim, and if the lock must end by itself (locks 13).
    pub(crate) fn release_op(&self, now: Moment) -> Option<Op> {
        let Subject::Lock { keys, .. } = &self.subject else { return None };
        if now < self.lapses_before {
            return None;
        }
        let mode = self.grant.lock().mode;
        let meta = self.state.lock().meta.is_some();
        Some(Op::Release { mode, keys: keys.clone(), owner: self.owner, meta })
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        now.as_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn may_be_renewed(&self, now: Moment) -> bool {
        self.renew_until.is_none_or(|end| now < end) && !self.is_sealed()
    }

    pub(crate) fn seal(&self) {
        self.state.lock().sealed = true;
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.state.lock().sealed
    }

    /// Does not check the deadline.
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().is_held()
    }

    pub(crate) fn is_in_jeopardy(&self, now: Moment) -> bool {
        let s = self.state.lock();
        s.phase == (Phase::Held { troubled: true }) || s.until.since(now) < self.ttl / 2
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.state.lock().refused
    }

    pub(crate) fn set_refused(&self, refused: bool) {
        self.state.lock().refused = refused;
    }

    pub(crate) fn runtime_besides(&self, ended: Id) -> Option<Handle> {
        let mut s = self.state.lock();
        s.runtime = s.runtime.take().filter(|runtime| runtime.id() != ended);
        s.runtime.clone()
    }

    pub(crate) fn over_since(&self) -> Option<Over> {
        self.state.lock().over
    }

    pub(crate) fn renewing(&self, now: Moment) {
        self.state.lock().renewing.get_or_insert(now);
    }

    /// One under way counts with its time so far.
    pub(crate) fn longest_renewal(&self, now: Moment) -> Duration {
        let s = self.state.lock();
        let end = s.over.map_or(now, |over| over.at);
        s.renewing.map_or(s.longest_renewal, |began| s.longest_renewal.max(end.since(began)))
    }

    pub(crate) fn count(&self) {
        let mut s = self.state.lock();
        if s.is_held() && !std::mem::replace(&mut s.counted, true) {
            self.meters.holds(true);
        }
    }

    pub(crate) fn lose(&self, now: Moment) {
        let lost = |phase| matches!(phase, Phase::Held { .. }).then_some(Phase::Lost);
        if self.leave(now, lost).is_some() {
            self.meters.lost(self.until().since(now));
            let (of, token) = (self.resource(), self.token);
            tracing::warn!(target: TARGET, %of, %token, event = "lost", "lease lost");
        }
    }

    pub(crate) fn renewed(&self, now: Moment, failed: Option<&NoQuorum>) {
        let mut s = self.state.lock();
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

    pub(crate) fn end(&self, now: Moment) -> bool {
        self.leave(now, |phase| (phase != Phase::Ended).then_some(Phase::Ended)).is_some()
    }

    pub(crate) fn end_held(&self, now: Moment) -> bool {
        let valid = self.is_valid(now);
        let before = self.leave(now, |_| Some(Phase::Ended));
        valid && matches!(before, Some(Phase::Held { .. }))
    }

    fn leave(&self, now: Moment, to: impl FnOnce(Phase) -> Option<Phase>) -> Option<Phase> {
        let mut s = self.state.lock();
        let before = s.phase;
        s.phase = to(before)?;
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

    pub(crate) fn resource(&self) -> Resource {
        match &self.subject {
            Subject::Lock { of, .. } => of.clone(),
            Subject::Claim(ballot) => Resource::Key(Arc::clone(&ballot.key)),
        }
    }

    /// The deadline is no such change, so the caller has to watch the clock.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Does not resolve at the deadline, so the caller has to watch the clock.
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

    pub(crate) fn set_slot(&self, slot: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.state.lock().slot, slot)
    }

    pub(crate) fn slot(&self) -> Option<(Moment, u64)> {
        self.state.lock().slot
    }

    pub(crate) fn failed_over(&self) {
        self.state.lock().verdicts.failed_over();
    }

    pub(crate) fn failovers(&self) -> u64 {
        self.state.lock().verdicts.so_far()
    }

    pub(crate) fn left_open(&self, failovers: u64) {
        self.state.lock().verdicts.renewed(failovers, false);
        self.news.notify_waiters();
    }

    /// A dropped future loses no outcome.
    pub(crate) async fn verdict(&self, over: impl Fn() -> bool) -> Failover {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if over() {
                return Failover::Lost;
            }
            let next = self.state.lock().verdicts.next();
            if let Some(verdict) = next {
                return verdict;
            }
            news.await;
        }
    }

    pub(crate) fn known(&self, node: usize) -> Known {
        let until = self.until();
        self.grant.lock().known(node, until)
    }

    pub(crate) fn set_meta(&self, meta: Arc<[u8]>) {
        self.state.lock().meta = Some(meta);
    }
}
