//! All messages between the quorum core and a node: [`Op`] in, [`Reply`] out.
//!
//! Each op is atomic on its node and idempotent by owner token. The doc of each op defines what a
//! node must do; `MemoryNode` is the reference, the Lua files implement the same rules on Redis,
//! and the contract suite of `palisade-testing` checks every node kind by them.

mod began;
mod claim;
mod facts;
mod if_held;
mod loss;
mod mode;
mod not_after;
mod stored;

use std::sync::Arc;
use std::time::Duration;

pub use self::stored::{
    Enlist, Holder, Listed, MAX_ENTRY, MAX_LISTED, Readers, RecordState, SharedGrant, StoredRecord,
    StoredSteps,
};
use crate::error::NodeError;
use crate::name::LockKeys;
use crate::token::{FencingToken, OwnerToken};

pub use began::Began;
pub use claim::{Claim, ClaimEnd};
pub use facts::{Facts, TimedFacts};
pub use if_held::{IfHeld, Place};
pub use loss::Loss;
pub use mode::LockMode;
pub use not_after::NotAfter;

/// Key of a record on a node.
pub type RecordKey = Arc<str>;

/// SHA-256 over the canonical bytes of a request.
pub type FingerprintBytes = [u8; 32];

/// A request to one node. Times are those for the node, never those on which the caller relies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes the lock if it is free, reserved for this handle, or passed on by
    /// [`IfHeld::TakeFrom`]. Grants only outside quarantine. Free → `lock := owner, ttl`, `fence :=
    /// max(fence + 1, clamp(proposal), floor)` → `Granted`. Same owner → `Granted` with the present
    /// fence. Else → `Held`, and the hint of `if_held` is registered.
    ///
    /// A shared acquire is granted beside other shared grants, and refused where an exclusive
    /// waiter that asked lately began to wait earlier (readers 1, 9). It does not raise the
    /// fence: where there is none, `fence := max(clamp(proposal), floor)`, else `fence :=
    /// max(fence, floor)` (readers 2). It is passed on by nobody: `TakeFrom` counts as `None`.
    Acquire {
        /// Mode of the grant.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner; a fresh one per attempt, but all attempts of one takeover have the same (locks
        /// 13).
        owner: OwnerToken,
        /// Lease length.
        ttl: Duration,
        /// Wall clock of the caller or a larger value, in microseconds since 1970.
        proposal: u64,
        /// Request to the node if another owner has the lock; `None`: it only answers.
        if_held: Option<IfHeld>,
    },
    /// Sets the fence to `token` if the owner still has a grant, `fence ≤ token`, `floor ≤
    /// token`, and `token` is not further ahead than honest clocks and nodes can bring it (the
    /// node's own clock + 6E + 1 s, locks 6). In quarantine the answer is `Quarantined`: a token
    /// that was granted before a failover is not raised on the new master (quarantine 3).
    Raise {
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// Value that a majority has to have.
        token: FencingToken,
    },
    /// Extends the owner's lock; creates it again if the key is absent (`fence := max(fence,
    /// token)`). `meta`, if given, replaces the holder's metadata. In quarantine the answer is
    /// `Quarantined` unless `reassert` names the quarantine, even if the lock is on the node: the
    /// node may have forgotten a grant to another attempt, or a replaced server may still grant the
    /// lock from an older copy.
    ///
    /// A shared extension also turns the owner's exclusive grant into a shared one (a downgrade),
    /// and then wakes the readers that wait before the first exclusive waiter. An exclusive one
    /// never turns a shared grant into an exclusive one: where shared grants are it is refused
    /// (readers 6).
    Extend {
        /// Mode of the grant.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// New lease length, from now.
        ttl: Duration,
        /// Settled token of the holder.
        token: FencingToken,
        /// Metadata of the holder, kept as long as the lock.
        meta: Option<Arc<[u8]>>,
        /// Quarantine in which the holder keeps its lock. A holder may name it only if this very
        /// node had confirmed its lease until a moment after the end of the quarantine less
        /// `max_ttl`, even if that moment has passed (quarantine 6): then no other owner can have
        /// been granted the name since, by this server or by the one that it replaced.
        reassert: Option<QuarantineId>,
    },
    /// Deletes the lock if it is the owner's. If it is free then, even if there was nothing to
    /// delete, wakes all who watch, takes the first [`Place`] out of the queue, wakes its handle,
    /// and reserves the lock for it; if that place is a reader's, it and the readers behind it, up
    /// to the first exclusive waiter that asked lately (readers 10).
    ///
    /// A shared release removes the owner's shared grant, or its exclusive one, which a downgrade
    /// may have left (readers 7).
    Release {
        /// Mode of the grant.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner of the lock.
        owner: OwnerToken,
        /// True if the holder may have published metadata (`Extend` with `meta`), which are deleted
        /// too. `false` only spares the node a lookup.
        meta: bool,
    },
    /// Reads the holder or the readers. `wait` asks for a hint on the next change.
    Inspect {
        /// Keys of the lock.
        keys: LockKeys,
        /// Ask for a hint.
        wait: bool,
    },
    /// Writes, extends or removes the owner's entry in a list of candidates, and reads the list →
    /// `Candidates`. If [`MAX_LISTED`] others are listed the entry is left out. The list says
    /// nothing about holders: so it is answered in quarantine, too, and an entry that a node has
    /// forgotten is written again by its owner.
    Enlist(Enlist),
    /// Begins an idempotency record (phase 1 of consensus on the key's result).
    Claim(Claim),
    /// As `Raise`, for a record; refused above `token`, and while the promise is of an earlier data
    /// history of the node; answers the record if there is one.
    RaiseClaim {
        /// Key of the record.
        key: RecordKey,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// Ballot that a majority has to have promised.
        token: FencingToken,
    },
    /// Extends a claim's lease: accepted iff the ballot is not below the promise. In quarantine the
    /// answer is `Quarantined` unless `reassert` names the quarantine. A promise of an earlier data
    /// history of the node counts again only once its holder has named the quarantine.
    ExtendClaim {
        /// Key of the record.
        key: RecordKey,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// Settled ballot of the claim.
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
    /// Stores the result (phase 2): accepted iff `fence < token`, or `fence = token` and the last
    /// owner is `owner`, and no other fingerprint is stored here.
    Complete {
        /// Key of the record.
        key: RecordKey,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// Settled ballot of the claim.
        token: FencingToken,
        /// Bytes of the result; `None` if only the fact is to be kept.
        value: Option<Arc<[u8]>>,
        /// Time for which the record is kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
    },
    /// Stores the finished steps of a handler, in place of those that are stored: accepted as
    /// `Complete`, if there is no result. The longest list of one ballot stays, so a repeated
    /// request removes nothing. A record with steps never becomes as if it had not been claimed.
    Steps {
        /// Key of the record.
        key: RecordKey,
        /// Owner that sends the request.
        owner: OwnerToken,
        /// Settled ballot of the claim.
        token: FencingToken,
        /// All finished steps, encoded by the caller.
        list: Arc<[u8]>,
        /// Time for which the record is kept.
        retention: Duration,
        /// As for `Claim`.
        fingerprint: Option<FingerprintBytes>,
    },
    /// Ends a claim's lease before its time. Only for the last owner, only while the lease has not
    /// been ended, and only without a record; after it the owner is no longer the last owner.
    Unclaim {
        /// Key of the record.
        key: RecordKey,
        /// Owner of the claim.
        owner: OwnerToken,
        /// State in which the attempt ends.
        end: ClaimEnd,
    },
    /// Reads a record.
    Lookup {
        /// Key of the record.
        key: RecordKey,
        /// As for `Claim`: time for which records of this key are kept.
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
    /// Returns the owner token of the request; `None` for requests that only read.
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

    /// Returns true if the op only takes back what its owner has on the node; it may run at any
    /// time.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Unclaim { .. })
    }

    /// Returns true if the op extends what its owner holds.
    pub(crate) fn is_extension(&self) -> bool {
        matches!(self, Self::Extend { .. } | Self::ExtendClaim { .. })
    }

    /// Returns true if a grant in answer to the op counts as a vote for a holder.
    pub(crate) fn is_vote(&self) -> bool {
        self.is_new_work()
            || self.is_extension()
            || matches!(self, Self::Raise { .. } | Self::RaiseClaim { .. })
    }

    /// Returns true if the op extends a lease and names the node's quarantine.
    pub(crate) fn reasserts(&self) -> bool {
        matches!(
            self,
            Self::Extend { reassert: Some(_), .. } | Self::ExtendClaim { reassert: Some(_), .. }
        )
    }

    /// Returns true if the op would give its owner something more to hold.
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

    /// Returns the size in bytes of the data that the op asks the node to store.
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

/// Name of one quarantine of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuarantineId {
    /// Data history, as in [`Facts::history_id`].
    pub history: u64,
    /// Beginning of the quarantine, by the node's clock and in the node's own unit.
    pub since: u64,
}

/// Bounds that hold for a whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Longest lease that any client may hold: the base of the quarantine.
    pub max_ttl: Duration,
    /// E: bound on the error of any clock against true time; limits proposals, sets the floor.
    pub clock_error: Duration,
}

/// Ops for one node, executed in order, each atomically. A batch without ops only asks for the
/// facts.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Bounds of the batch.
    pub terms: Terms,
    /// Moment after which the batch must not take effect: each op is then answered with the fault
    /// [`PastDeadline`](crate::error::NodeFault::PastDeadline), except releases and unclaims, which
    /// are executed at any time. `None`: there is no such moment.
    pub not_after: Option<NotAfter>,
    /// Clock of the node (µs since 1970) when this client first saw a marker there, if it did. A
    /// node whose data began empty later then reports [`Began::Lost`].
    pub known_since: Option<u64>,
    /// Ops, in the order in which they must take effect.
    pub ops: Vec<Op>,
}

/// Answer of a node to one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acquire: granted.
    Granted {
        /// Fence of this node after the grant.
        fence: u64,
    },
    /// Acquire: the lock is a different owner's.
    Held {
        /// Time until it expires; `None`: it has no expiry.
        remaining: Option<Duration>,
        /// True if it is not one of our locks.
        foreign: bool,
    },
    /// Acquire, Claim, Raise: nothing is granted for this time. Extend, `ExtendClaim`: nothing is
    /// extended without `reassert`.
    Quarantined {
        /// Time until the node grants again.
        remaining: Duration,
        /// Name of the quarantine.
        id: QuarantineId,
        /// As [`Facts::began`].
        began: Began,
    },
    /// Raise, Extend, `RaiseClaim`, `ExtendClaim`, Complete, Steps, Release, Unclaim: executed.
    Done,
    /// Raise, Extend, Release: the lock is not the owner's (any more). `RaiseClaim`, `ExtendClaim`,
    /// Complete: a higher ballot was promised. Steps: the same, or there is a result. Unclaim: the
    /// owner is not the last owner.
    NotOwner,
    /// Release, Unclaim: there is nothing under the key.
    Absent,
    /// Inspect: the holder; `None` if there is none.
    Holder(Option<Holder>),
    /// Inspect: the lock has shared grants.
    Readers(Readers),
    /// Enlist: the listed candidates, in the order in which they were first written.
    Candidates(Vec<Listed>),
    /// Claim: granted.
    Claimed {
        /// Promise of this node.
        fence: u64,
        /// Number of claims of this key here, this one included.
        attempt: u32,
        /// Record that is already stored here (only with `force`).
        record: Option<StoredRecord>,
        /// Steps that are stored here and have no result yet.
        steps: Option<StoredSteps>,
        /// Zero if the node knows of every claim of this key. Otherwise it may have lost one, even
        /// if there is a record here, and this is the time for which it will not know every claim
        /// of a key without `born`.
        unsure: Duration,
        /// Losses for which `unsure` is not zero.
        losses: Vec<Loss>,
        /// True if `unsure` is not zero because the data began [empty](Began::Empty), and no
        /// operator confirmed that the node is new.
        fresh: bool,
    },
    /// Claim, `RaiseClaim`, `ExtendClaim`: a result is stored here.
    Completed(StoredRecord),
    /// Claim: another owner's lease runs.
    InFlight {
        /// Time until that lease ends.
        remaining: Duration,
    },
    /// Claim, `ExtendClaim`, Complete, Steps, Lookup: the key was used with another fingerprint.
    Mismatch,
    /// Claim: by the node's clock the request is older than the retention.
    TooOld,
    /// Lookup: the record.
    Record {
        /// State of the record; `None` if there is none.
        state: Option<RecordState>,
        /// As for `Claimed`.
        unsure: Duration,
        /// As for `Claimed`.
        losses: Vec<Loss>,
    },
    /// Claim, `RaiseClaim`, `ExtendClaim`, Lookup, Inspect, Enlist: there is a result, steps, a
    /// holder's metadata or a list, and the answer to this batch already shows as many bytes of
    /// them as the node sends at once. Nothing was executed; the op has to be sent again. A batch
    /// that has such an answer shows at least one of them, whatever its length. Callers never
    /// receive this reply: the node queue sends the op again, in a later batch, until its deadline.
    Deferred,
}

impl Reply {
    /// Returns true if the reply makes the caller a holder, or keeps it one.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self, Self::Granted { .. } | Self::Claimed { .. } | Self::Done)
    }

    /// Returns true if the caller relies on the reply: a grant, or a stored result. A result
    /// counts, too: it may have been written without being confirmed, and once it is answered it
    /// may not be lost (idempotency 1).
    pub(crate) fn must_last(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
            reply => reply.is_grant(),
        }
    }

    /// Returns true if the reply contains a stored result, or a holder's metadata.
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

/// Answers to a [`Batch`], one per op and in its order.
#[derive(Clone, Debug)]
pub struct Replies {
    /// Server clock, run id and data history; `None` if the node could not report them.
    pub facts: Option<Facts>,
    /// Answers, one per op.
    pub items: Vec<Result<Reply, NodeError>>,
}

impl Replies {
    /// Makes the answer in which all `n` ops have the same fault.
    pub fn fail(n: usize, error: &NodeError) -> Self {
        Self { facts: None, items: (0..n).map(|_| Err(error.clone())).collect() }
    }
}
