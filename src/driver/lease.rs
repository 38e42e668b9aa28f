//! A lease: what is held, until when, and whether it still is.
//!
//! Invariants:
//! 1. `until` only grows, and only by an extension that a majority answered in time
//!    (renewal 1).
//! 2. The state leaves `HELD` once and never returns: a lost lease cannot become held again.
//! 3. `is_valid` asks the suspend-proof clock each time; no timer has to have fired for it to be
//!    right, so a process that wakes from a pause finds the truth at its first question.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::config::NODES_MAX;
use crate::driver::verdict::Notices;
use crate::durability::Achieved;
use crate::error::{NoQuorum, Resource};
use crate::name::LockKeys;
use crate::node::mailbox::{Mailbox, Quarantine};
use crate::op::{FingerprintBytes, Op, QuarantineId, RecordKey};
use crate::receipt::Written;
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

/// Under which the log speaks of leases, with the fields `of` (`lock "a"`), `token` and `event`:
/// these names are kept from version to version.
const TARGET: &str = "palisade::lease";

const HELD: u8 = 0;
const LOST: u8 = 1;
const ENDED: u8 = 2;

/// Rounds remembered whose answers may still come: a renewal comes each quarter of the ttl, so four
/// cover it.
const ROUNDS: usize = 5;

/// What a lease is a lease of.
#[derive(Debug)]
pub(crate) enum Subject {
    /// A lock or a leadership, with its holder's words.
    Lock { of: Resource, keys: LockKeys, meta: Mutex<Option<Arc<[u8]>>> },
    /// An idempotency claim.
    Claim { key: RecordKey, retention: Duration, fingerprint: Option<FingerprintBytes> },
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) subject: Subject,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Duration,
    /// The keeper stops renewing here (`max_hold`).
    pub(crate) renew_until: Option<Moment>,
    /// Which nodes may hold something of it.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The latest rounds in which nodes confirmed the lease, each with the moment until which those
    /// nodes certainly keep it.
    rounds: Mutex<VecDeque<(Arc<Mailbox>, Moment)>>,
    /// What nodes confirmed before: rounds that fail push older ones out, and shall not cost the
    /// holder what those say.
    earlier: Mutex<Earlier>,
    /// What became of it where a node changed servers.
    pub(crate) told: Notices,
    /// The keeper's entry for this lease.
    pub(crate) slot: Mutex<Option<(Moment, u64)>>,
    /// How many replicas had it at the last round that decided; the level is the mailbox's.
    kept: AtomicU32,
    until: AtomicU64,
    state: AtomicU8,
    /// The last renewal failed, and the log says so.
    troubled: AtomicBool,
    over: Notify,
    /// Held while extensions are sent, and while the lease ends: see `while_held`.
    sending: Mutex<()>,
}

/// The last word of each node from rounds that are not remembered any more.
#[derive(Debug, Default)]
struct Earlier {
    /// Where it stands in the node's history.
    written: Vec<(usize, Written)>,
    /// Until when the node certainly keeps it.
    until: BTreeMap<usize, Moment>,
}

impl Earlier {
    fn take(&mut self, round: &Mailbox, until: Moment) {
        for (node, written) in round.all_written() {
            self.written.retain(|(n, _)| *n != node);
            self.written.push((node, written));
        }
        for node in (0..NODES_MAX).filter(|n| round.confirmed(*n)) {
            let known = self.until.entry(node).or_default();
            *known = until.max(*known);
        }
    }
}

impl Lease {
    pub(crate) fn new(
        subject: Subject,
        (owner, token): (OwnerToken, FencingToken),
        ttl: Duration,
        until: Moment,
        renew_until: Option<Moment>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        Self {
            subject,
            owner,
            token,
            ttl,
            renew_until,
            rounds: Mutex::new(VecDeque::from([(Arc::clone(&mailbox), until)])),
            kept: AtomicU32::new(mailbox.achieved().replicas),
            earlier: Mutex::default(),
            told: Notices::default(),
            mailbox,
            slot: Mutex::new(None),
            until: AtomicU64::new(until.as_nanos()),
            state: AtomicU8::new(HELD),
            troubled: AtomicBool::new(false),
            over: Notify::new(),
            sending: Mutex::new(()),
        }
    }

    /// How durable it was when it was granted, renewed or completed last.
    pub(crate) fn durability(&self) -> Achieved {
        let replicas = self.kept.load(Ordering::Relaxed);
        Achieved { replicas, ..Achieved::at_least(self.mailbox.level()) }
    }

    /// A later round was decided.
    pub(crate) fn keep(&self, achieved: Achieved) {
        self.kept.store(achieved.replicas, Ordering::Relaxed);
    }

    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(crate) fn prolong(&self, until: Moment) {
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::Revival) {
            let _ = self.state.compare_exchange(LOST, HELD, Ordering::AcqRel, Ordering::Acquire);
        }
        self.until.fetch_max(until.as_nanos(), Ordering::AcqRel);
    }

    /// A new round is under way.
    pub(crate) fn begin_round(&self, mailbox: &Arc<Mailbox>, until: Moment) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.len() >= ROUNDS
            && let Some((old, until)) = rounds.pop_front()
        {
            self.earlier.lock().unwrap_or_else(PoisonError::into_inner).take(&old, until);
        }
        rounds.push_back((Arc::clone(mailbox), until));
    }

    /// Where in the node's history its last confirmation of this lease stands.
    pub(crate) fn written(&self, node: usize) -> Option<Written> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.iter().rev().find_map(|(mailbox, _)| mailbox.written(node)).or_else(|| {
            let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            earlier.written.iter().find(|(n, _)| *n == node).map(|(_, w)| *w)
        })
    }

    /// Whether the node confirmed this lease for a time that is not over: if it forgot the lease
    /// since, nobody else was granted there in between, and the holder may put it back
    /// (quarantine 6).
    fn is_confirmed(&self, node: usize, now: Moment) -> bool {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.iter().any(|(mailbox, until)| now < *until && mailbox.confirmed(node))
            || earlier.until.get(&node).is_some_and(|until| now < *until)
    }

    /// Whether the holder may name the quarantine of a node, so that its extension counts there.
    /// The node lost its data, or another server took its place: then the replaced one may go on
    /// granting for L, and what it confirmed must last until it has stopped, or it gives the lock
    /// away before.
    pub(crate) fn may_reassert(
        &self,
        node: usize,
        quarantine: Quarantine,
        (now, max_ttl): (Moment, Duration),
    ) -> bool {
        // A quarantine is at least max_ttl + L long; a longer one only errs to the safe side.
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::NamedByWhoLapses) {
            return self.is_confirmed(node, now);
        }
        self.is_confirmed(node, now.max(quarantine.ends - max_ttl))
    }

    /// The quarantine to name to a node: that of which it spoke last, while it lasts.
    pub(crate) fn quarantine(
        &self,
        node: usize,
        (now, max_ttl): (Moment, Duration),
    ) -> Option<QuarantineId> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let last = rounds.iter().rev().find_map(|(mailbox, _)| mailbox.quarantine(node));
        drop(rounds);
        let last = last.filter(|q| now < q.ends)?;
        self.may_reassert(node, last, (now, max_ttl)).then_some(last.id)
    }

    /// Sends an extension, unless the lease is over. What is sent after `end` would stand in the
    /// lanes behind the release and put back what that deleted.
    pub(crate) fn while_held(&self, now: Moment, send: impl FnOnce()) -> bool {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let valid = self.is_valid(now);
        if valid {
            send();
        }
        valid
    }

    /// Held, and inside the validity at `now`.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.state.load(Ordering::Acquire) == HELD && now < self.until()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    /// Declares the lease lost and wakes whoever awaits that.
    pub(crate) fn lose(&self) {
        let lost = self.state.compare_exchange(HELD, LOST, Ordering::AcqRel, Ordering::Acquire);
        if lost.is_ok() {
            let (of, token) = (self.resource(), self.token);
            tracing::warn!(target: TARGET, %of, %token, event = "lost", "lease lost");
            self.over.notify_waiters();
            self.told.over();
        }
    }

    /// A renewal was decided. The log says once that renewals fail, and once that they do not any
    /// more.
    pub(crate) fn renewed(&self, now: Moment, failed: Option<&NoQuorum>) {
        let before = self.troubled.swap(failed.is_some(), Ordering::AcqRel);
        if before == failed.is_some() || self.state.load(Ordering::Acquire) != HELD {
            return;
        }
        let (of, token, left) = (self.resource(), self.token, self.until().since(now));
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

    /// The holder is done with it. True for the first caller only.
    pub(crate) fn end(&self) -> bool {
        self.finish() != ENDED
    }

    /// The same; true if it was held until then.
    pub(crate) fn end_held(&self, now: Moment) -> bool {
        self.finish() == HELD && now < self.until()
    }

    /// The state before.
    fn finish(&self) -> u8 {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.state.swap(ENDED, Ordering::AcqRel);
        self.over.notify_waiters();
        self.told.over();
        before
    }

    /// What it is a lease of, for errors and the log.
    pub(crate) fn resource(&self) -> Resource {
        match &self.subject {
            Subject::Lock { of, .. } => of.clone(),
            Subject::Claim { key, .. } => Resource::Key(Arc::clone(key)),
        }
    }

    /// Resolves as soon as the lease is lost or ended by somebody; the clock is the caller's job.
    pub(crate) async fn over(&self) {
        let over = self.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        if self.state.load(Ordering::Acquire) == HELD {
            over.await;
        }
    }

    /// The op that prolongs this lease on one node; `reassert` names its quarantine.
    pub(crate) fn extend_op(&self, reassert: Option<QuarantineId>) -> Op {
        let (owner, token) = (self.owner, self.token);
        match &self.subject {
            Subject::Lock { keys, meta, .. } => Op::Extend {
                keys: keys.clone(),
                owner,
                ttl: self.ttl,
                token,
                meta: meta.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                reassert,
            },
            Subject::Claim { key, retention, fingerprint } => Op::ExtendClaim {
                key: Arc::clone(key),
                owner,
                token,
                lease: self.ttl,
                retention: *retention,
                fingerprint: *fingerprint,
                reassert,
            },
        }
    }

    /// The op that gives this lease back on one node; none for a claim, which says how it ends.
    pub(crate) fn release_op(&self) -> Option<Op> {
        let Subject::Lock { keys, meta, .. } = &self.subject else { return None };
        let words = meta.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        Some(Op::Release { keys: keys.clone(), owner: self.owner, words })
    }

    pub(crate) fn is_claim(&self) -> bool {
        matches!(self.subject, Subject::Claim { .. })
    }

    /// The op that reads this lease's key on one node.
    pub(crate) fn look_op(&self) -> Op {
        match &self.subject {
            Subject::Lock { keys, .. } => Op::Inspect { keys: keys.clone(), wait: false },
            Subject::Claim { key, retention, fingerprint } => Op::Lookup {
                key: Arc::clone(key),
                retention: *retention,
                fingerprint: *fingerprint,
                born: None,
            },
        }
    }

    /// Changes the holder's words; the next extension carries them to the nodes.
    pub(crate) fn set_meta(&self, words: Arc<[u8]>) {
        if let Subject::Lock { meta, .. } = &self.subject {
            *meta.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        }
    }
}
