//! The whole language between the quorum core and a node: [`Op`] in, [`Reply`] out.
//!
//! Each op is atomic on its node and idempotent by owner token. What a node must do is written at
//! the op; `MemoryNode` is the reference, the Lua files are the same rules on Redis, and
//! the contract suite of `palisade-testing` holds every node kind to them.

mod began;
mod facts;
mod if_held;
mod loss;
mod not_after;
mod stored;

use std::sync::Arc;
use std::time::Duration;

pub use self::stored::{
    Enlist, Holder, Listed, MAX_ENTRY, MAX_LISTED, RecordState, StoredRecord, StoredSteps,
};
use crate::error::NodeError;
use crate::name::LockKeys;
use crate::token::{FencingToken, OwnerToken};

pub use began::Began;
pub use facts::{Facts, TimedFacts};
pub use if_held::{IfHeld, Place};
pub use loss::Loss;
pub use not_after::NotAfter;

/// A record's key on a node.
pub type RecordKey = Arc<str>;

/// SHA-256 over the canonical bytes of a request.
pub type FingerprintBytes = [u8; 32];

/// Request of the caller to one node. Times are what is sent to the node, never what the caller
/// believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take the lock if it is free, reserved for who asks, or given over by
    /// [`IfHeld::TakeFrom`]. Grants only outside quarantine. Free → `lock := owner, ttl`,
    /// `fence := max(fence + 1, clamp(proposal), floor)` → `Granted`. Same owner → `Granted` with
    /// the present fence. Else → `Held`, and the hint of `if_held` is due.
    Acquire {
        /// The lock's keys.
        keys: LockKeys,
        /// Fresh per attempt; all attempts of one takeover have the same (locks 13).
        owner: OwnerToken,
        /// Lease length.
        ttl: Duration,
        /// The caller's wall clock or more, in microseconds.
        proposal: u64,
        /// Request to a node where another owner has it; `None`: no more than the answer.
        if_held: Option<IfHeld>,
    },
    /// Set the fence to `token` if the lock is still the owner's, `fence ≤ token`, `floor ≤ token`,
    /// and `token` is not further ahead than honest clocks and nodes can bring it (the node's own
    /// clock + 6E + 1 s, locks 6). In quarantine the answer is `Quarantined`: a token that was
    /// granted before a failover is not raised on the new master (quarantine 3).
    Raise {
        /// The lock's keys.
        keys: LockKeys,
        /// The owner that asks.
        owner: OwnerToken,
        /// The value that a majority has to have.
        token: FencingToken,
    },
    /// Prolong the owner's lock; re-create it if the key is absent (`fence := max(fence, token)`).
    /// `meta`, if given, replaces the holder's metadata. In quarantine the answer is `Quarantined`
    /// unless `reassert` names the quarantine, whether the lock is here or not: the node may have
    /// forgotten a grant to another attempt, or a replaced server may still give away an older copy
    /// of what is here.
    Extend {
        /// The lock's keys.
        keys: LockKeys,
        /// The owner that asks.
        owner: OwnerToken,
        /// New lease length, from now.
        ttl: Duration,
        /// The holder's settled token.
        token: FencingToken,
        /// The holder's metadata, kept as long as the lock.
        meta: Option<Arc<[u8]>>,
        /// The quarantine in which the holder keeps its lock. A holder may name it only if this
        /// very node had confirmed its lease until a moment after the end of the quarantine less
        /// `max_ttl`, even if that moment has passed (quarantine 6): no other owner can have been
        /// granted the name since, here or by the server that this one replaced.
        reassert: Option<QuarantineId>,
    },
    /// Delete the lock if it is the owner's. If it is free then, also if there was nothing to
    /// delete, wake all who watch, take the first [`Place`] out of the queue, wake it, and reserve
    /// the lock for it.
    Release {
        /// The lock's keys.
        keys: LockKeys,
        /// Whose lock.
        owner: OwnerToken,
        /// The holder may have published metadata (`Extend` with `meta`), which is deleted too.
        /// `false` only spares the node the look.
        meta: bool,
    },
    /// Read the holder. `wait` asks for a hint on the next change.
    Inspect {
        /// The lock's keys.
        keys: LockKeys,
        /// Ask for a hint.
        wait: bool,
    },
    /// Write or prolong the owner's entry in a list of candidates, or take it out, and read the
    /// list → `Candidates`. Where [`MAX_LISTED`] others are listed the entry is left out. It says
    /// nothing about who holds what: it is answered in quarantine, too, and what a node has
    /// forgotten is written again by its owner.
    Enlist(Enlist),
    /// Begin an idempotency record (phase 1 of consensus on the key's result).
    Claim(Claim),
    /// As `Raise`, for a record; refused above `token`, and while the promise is of an earlier data
    /// history of the node; answers the record if there is one.
    RaiseClaim {
        /// The record.
        key: RecordKey,
        /// The owner that asks.
        owner: OwnerToken,
        /// The ballot that a majority has to have promised.
        token: FencingToken,
    },
    /// Prolong a claim's lease: accepted iff the ballot is not below the promise. In quarantine the
    /// answer is `Quarantined` unless `reassert` names the quarantine. A promise of an earlier data
    /// history of the node counts again only once its holder has named the quarantine.
    ExtendClaim {
        /// The record.
        key: RecordKey,
        /// The owner that asks.
        owner: OwnerToken,
        /// The claim's settled ballot.
        token: FencingToken,
        /// New lease length, from now.
        lease: Duration,
        /// Time for which the record is kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
        /// As for `Extend`.
        reassert: Option<QuarantineId>,
    },
    /// Store the result (phase 2): accepted iff `fence < token`, or `fence = token` and the last
    /// owner is `owner`, and no other fingerprint is stored here.
    Complete {
        /// The record.
        key: RecordKey,
        /// The owner that asks.
        owner: OwnerToken,
        /// The claim's settled ballot.
        token: FencingToken,
        /// The result's bytes; `None` if only the fact is to be kept.
        value: Option<Arc<[u8]>>,
        /// Time for which the record is kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
    },
    /// Store the steps of a handler that are finished, in place of those that are stored: accepted
    /// as `Complete`, if there is no result. Of one ballot the longest list stays, so a repeated
    /// request takes nothing back. A record with steps is never as if it had not been claimed.
    Steps {
        /// The record.
        key: RecordKey,
        /// The owner that asks.
        owner: OwnerToken,
        /// The claim's settled ballot.
        token: FencingToken,
        /// All of them, in the form of the caller.
        list: Arc<[u8]>,
        /// Time for which the record is kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
    },
    /// End a claim's lease before its time. Only for the last owner, only while the lease has not
    /// been ended, and only without a record; after it the owner is no longer the last owner.
    Unclaim {
        /// The record.
        key: RecordKey,
        /// Whose claim.
        owner: OwnerToken,
        /// State in which the attempt ends.
        end: ClaimEnd,
    },
    /// Read a record.
    Lookup {
        /// The record.
        key: RecordKey,
        /// As for `Claim`: how long records of this key are kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
        /// As for `Claim`.
        born: Option<u64>,
        /// As for `Claim`.
        accepted: Duration,
    },
}

impl Op {
    /// Owner token of the request; `None` for those that only read.
    pub(crate) fn owner(&self) -> Option<&OwnerToken> {
        match self {
            Self::Acquire { owner, .. }
            | Self::Raise { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Release { owner, .. }
            | Self::RaiseClaim { owner, .. }
            | Self::ExtendClaim { owner, .. }
            | Self::Complete { owner, .. }
            | Self::Steps { owner, .. }
            | Self::Unclaim { owner, .. } => Some(owner),
            Self::Claim(claim) => Some(&claim.owner),
            Self::Enlist(enlist) => Some(&enlist.owner),
            Self::Inspect { .. } | Self::Lookup { .. } => None,
        }
    }

    /// Returns true if it only takes back what its owner has here: right at any time.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Unclaim { .. })
    }

    /// Returns true if it prolongs what its owner holds.
    pub(crate) fn is_extension(&self) -> bool {
        matches!(self, Self::Extend { .. } | Self::ExtendClaim { .. })
    }

    /// Returns true if a yes to it counts as a vote for a holder.
    pub(crate) fn is_vote(&self) -> bool {
        self.is_new_work()
            || self.is_extension()
            || matches!(self, Self::Raise { .. } | Self::RaiseClaim { .. })
    }

    /// Returns true if it extends a lease and names the node's quarantine.
    pub(crate) fn reasserts(&self) -> bool {
        matches!(
            self,
            Self::Extend { reassert: Some(_), .. } | Self::ExtendClaim { reassert: Some(_), .. }
        )
    }

    /// Returns true if its owner would hold something more.
    pub(crate) fn is_new_work(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Claim(_))
    }

    /// Returns true if the answer may contain a stored result.
    pub(crate) fn shows_result(&self) -> bool {
        matches!(
            self,
            Self::Claim(_)
                | Self::RaiseClaim { .. }
                | Self::ExtendClaim { .. }
                | Self::Lookup { .. }
                | Self::Inspect { .. }
                | Self::Enlist(_)
        )
    }

    /// Returns the size of the data that it asks the node to store.
    pub(crate) fn payload(&self) -> usize {
        match self {
            Self::Complete { value: Some(bytes), .. } | Self::Extend { meta: Some(bytes), .. } => {
                bytes.len()
            }
            Self::Steps { list, .. } => list.len(),
            Self::Enlist(Enlist { entry: Some(entry), .. }) => entry.len(),
            _ => 0,
        }
    }
}

/// The fields of [`Op::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The record.
    pub key: RecordKey,
    /// Fresh per attempt.
    pub owner: OwnerToken,
    /// Time for which the handler may run before others may take over.
    pub lease: Duration,
    /// Time for which the record is kept.
    pub retention: Duration,
    /// The caller's wall clock or more, in microseconds.
    pub proposal: u64,
    /// Fingerprint of the request; `None` if the caller does not care.
    pub fingerprint: Option<FingerprintBytes>,
    /// Be granted on top of a completed record (repair).
    pub force: bool,
    /// No copy of this request is older than this, in milliseconds since 1970: a node that kept
    /// everything since before it knows whether the key was ever claimed.
    pub born: Option<u64>,
    /// The longest loss of the node's data that the caller accepts: one that was proved to be no
    /// longer counts as none. Zero: none is accepted.
    pub accepted: Duration,
    /// Time of the request, in milliseconds since 1970. A request older than the retention is
    /// answered `TooOld`: its record may be gone.
    pub created: Option<u64>,
    /// If another owner's lease runs, its end here publishes a hint: a result, or a claim that is
    /// given back. Not the lapse of the lease.
    pub wait: bool,
}

/// End of an attempt whose claim is ended by [`Op::Unclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimEnd {
    /// It did nothing: it does not count, and if no earlier attempt is left the key is as new.
    Undone,
    /// It may be repeated: it does not count, but the fingerprint stays.
    Repeatable,
    /// It may have acted and left no result: it counts, as if its lease had lapsed now.
    Lapsed,
}

/// Names one quarantine of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuarantineId {
    /// The data history, as in [`Facts::history_id`].
    pub history: u64,
    /// Its beginning, by the node's clock and in the node's own unit.
    pub since: u64,
}

/// Bounds that hold for a whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The longest lease anyone may hold: the base of the quarantine.
    pub max_ttl: Duration,
    /// E: bound on any clock's error against true time; clamps proposals, sets the floor.
    pub clock_error: Duration,
}

/// Ops for one node, executed in order, each atomically. Without ops it only asks for the facts.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The bounds.
    pub terms: Terms,
    /// The moment after which the batch must not take effect: each op is then answered with the
    /// fault [`PastDeadline`](crate::error::NodeFault::PastDeadline), but for releases and
    /// unclaims, which are executed at any time. `None`: there is no such moment.
    pub not_after: Option<NotAfter>,
    /// The node's clock (µs since 1970) when this client first saw a marker there, if it did. A
    /// node whose data began empty later then says [`Began::Lost`].
    pub known_since: Option<u64>,
    /// The ops, in the order in which they must take effect.
    pub ops: Vec<Op>,
}

/// Answer of a node to one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acquire: yes, with the node's fence.
    Granted {
        /// This node's fence after the grant.
        fence: u64,
    },
    /// Acquire: a different owner's.
    Held {
        /// Until it expires; `None` without expiry.
        remaining: Option<Duration>,
        /// Not one of our locks.
        foreign: bool,
    },
    /// Acquire, Claim, Raise: nothing is granted for this long. Extend, `ExtendClaim`: not without
    /// `reassert`.
    Quarantined {
        /// Until grants begin.
        remaining: Duration,
        /// The quarantine.
        id: QuarantineId,
        /// As [`Facts::began`].
        began: Began,
    },
    /// Raise, Extend, `RaiseClaim`, `ExtendClaim`, Complete, Steps, Release, Unclaim: done.
    Done,
    /// Raise, Extend, Release: not the owner's lock (any more). `RaiseClaim`, `ExtendClaim`,
    /// Complete: a higher ballot was promised. Steps: the same, or there is a result. Unclaim: not
    /// the last owner.
    NotOwner,
    /// Release, Unclaim: nothing there.
    Absent,
    /// Inspect.
    Holder(Option<Holder>),
    /// Enlist: who is listed, in the order in which they were written first.
    Candidates(Vec<Listed>),
    /// Claim: yes.
    Claimed {
        /// This node's promise.
        fence: u64,
        /// Number of claims of this key here, this one included.
        attempt: u32,
        /// A record that is already stored here (only with `force`).
        record: Option<StoredRecord>,
        /// Steps that are stored here in place of a result.
        steps: Option<StoredSteps>,
        /// Zero if the node knows of every claim of this key. Else it may have lost one, whatever
        /// is stored here, and this is for how long it will not know the same of a key without
        /// `born`.
        unsure: Duration,
        /// The losses for which it is not zero.
        losses: Vec<Loss>,
        /// It may have, for its data began [empty](Began::Empty) and nobody said that it is new.
        fresh: bool,
    },
    /// Claim, `RaiseClaim`, `ExtendClaim`: a result is stored here.
    Completed(StoredRecord),
    /// Claim: another owner's lease runs.
    InFlight {
        /// Until the lease ends.
        remaining: Duration,
    },
    /// Claim, `ExtendClaim`, Complete, Steps, Lookup: the key was used with another fingerprint.
    Mismatch,
    /// Claim: by the node's clock the request is older than the retention.
    TooOld,
    /// Lookup.
    Record {
        /// The stored state.
        state: Option<RecordState>,
        /// As for `Claimed`.
        unsure: Duration,
        /// As for `Claimed`.
        losses: Vec<Loss>,
    },
    /// Claim, `RaiseClaim`, `ExtendClaim`, Lookup, Inspect, Enlist: there is a result, steps, a
    /// holder's metadata or a list, and the answer to this batch has shown as many bytes of them as
    /// the node sends at once. Nothing was executed; ask again. At least one of them is shown in a
    /// batch that has such an answer, whatever its length. Callers never see it: the op is asked
    /// again for them, in a later batch, until its deadline.
    Deferred,
}

impl Reply {
    /// Returns true if it makes the caller a holder, or keeps one.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self, Self::Granted { .. } | Self::Claimed { .. } | Self::Done)
    }

    /// Returns true if the caller relies on it: a grant, or a stored result. A result, too, because
    /// it may have been written without being confirmed, and once it is answered it may not be lost
    /// (idempotency 1).
    pub(crate) fn must_last(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
            reply => reply.is_grant(),
        }
    }

    /// Returns true if it contains a stored result, or a holder's metadata.
    pub(crate) fn shows_result(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Claimed { record, steps, .. } => record.is_some() || steps.is_some(),
            Self::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
            Self::Holder(holder) => holder.as_ref().is_some_and(|h| h.meta.is_some()),
            Self::Candidates(all) => !all.is_empty(),
            _ => false,
        }
    }
}

/// The answers to a [`Batch`], one per op and in its order.
#[derive(Clone, Debug)]
pub struct Replies {
    /// Server clock, run id and data history; `None` if the node could not report them.
    pub facts: Option<Facts>,
    /// One per op.
    pub items: Vec<Result<Reply, NodeError>>,
}

impl Replies {
    /// The same fault for all of `n` ops.
    pub fn fail(n: usize, error: &NodeError) -> Self {
        Self { facts: None, items: (0..n).map(|_| Err(error.clone())).collect() }
    }
}
