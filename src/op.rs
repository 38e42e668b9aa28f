//! All messages between the quorum core and a node. Each op is atomic on its node, and idempotent
//! because of its owner token. The doc of each op defines what a node must do; `MemoryNode` is the
//! reference.

mod batch;
mod began;
mod claim;
mod facts;
mod if_held;
mod loss;
mod mode;
mod not_after;
mod own_key;
mod remembered;
mod slots;
mod stored;

use std::sync::Arc;
use std::time::Duration;

pub use self::stored::{
    Enlist, Holder, Listed, MAX_ENTRY, MAX_LISTED, Readers, RecordState, SharedGrant, StoredRecord,
    StoredSteps,
};
use crate::name::LockKeys;
use crate::token::{FencingToken, OwnerToken};

pub use batch::{Batch, Replies, Terms};
pub use began::Began;
pub use claim::{Ballot, Claim, ClaimEnd};
pub use facts::{Facts, TimedFacts};
pub use if_held::{IfHeld, Place, Queued};
pub use loss::Loss;
pub use mode::LockMode;
pub use not_after::NotAfter;
pub use remembered::{Lineage, Remembered};
pub(crate) use remembered::{next_generation, precedes};
pub use slots::{SlotGrant, Slots, Want};

/// Key of an idempotency record on a node.
pub type RecordKey = Arc<str>;

/// Fingerprint of a request: SHA-256 over its canonical bytes.
pub type FingerprintBytes = [u8; 32];

/// A request to one node. The caller relies on a lease for less time than the node keeps it.
///
/// The keys of `Acquire`, `Raise`, `Extend` and `Release` may be those of several locks
/// ([`LockKeys::many`]), always in exclusive mode and without metadata. Then the node executes the
/// op for all of these locks, or for none (multi_lock 1 to 6). A grant has one fence, which is
/// above the earlier fences of these locks. `Held` has the time of the held lock that ends last,
/// and the node puts no client into its queue of waiters. A release deletes the locks that the
/// owner has, and its answer is `Done` if the owner had all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes the lock if it is free or reserved for this handle, or if [`IfHeld::TakeFrom`]
    /// transfers it. [`IfHeld::TakeOnly`] takes it only by a transfer. In quarantine it is never
    /// taken. The node sets the lock to `owner` for `ttl`, sets `fence := max(fence + 1,
    /// clamp(proposal), floor)`, and answers `Granted`. `clamp` limits the proposal to the node's
    /// clock ± E; `floor` is the smallest token of the data history. If `owner` has the lock
    /// already, the answer is `Granted` with the present fence. Otherwise the answer is `Held`, and
    /// the node registers the caller for the hint that `if_held` asks for.
    ///
    /// A shared acquire is granted beside other shared grants. It is refused if an exclusive waiter
    /// that asked lately began to wait earlier (readers 1, 9). It does not raise an existing fence:
    /// `fence := max(fence, floor)`. Without a fence, `fence := max(clamp(proposal), floor)`
    /// (readers 2). `TakeFrom` and `TakeOnly` count as `None`; no caller sends them with a shared
    /// acquire.
    ///
    /// An acquire of a slot is answered `Permit`, with the slot (semaphore 1, 2):
    /// - If the request asks for any slot, the owner gets the slot that it already has, or else a
    ///   slot that is reserved for it, or else the first free slot in its order.
    /// - If the request asks for exactly one slot, the owner gets this slot if it is free. The
    ///   owner's other slots become free, even if the request is refused.
    ///
    /// Each slot has its own fence. `TakeFrom` and `TakeOnly` count as `None`. If the semaphore
    /// does not have the slot, the answer is `Held` without an end, and nothing changes.
    Acquire {
        /// Mode of the grant: exclusive, shared or a slot.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner token. Each attempt has a new token, but all attempts of one takeover have the
        /// same token (locks 13).
        owner: OwnerToken,
        /// Lease length.
        ttl: Duration,
        /// Proposed fencing token: the caller's wall clock in µs since 1970, or a larger value.
        proposal: u64,
        /// Action of the node if another owner has the lock; `None` if it only answers.
        if_held: Option<IfHeld>,
    },
    /// Sets the fence to `token` if the owner still has a grant, `fence ≤ token`, and `token` is at
    /// most the node's clock + 6E + 1 s. Nodes make tokens from their clocks, so a correct token is
    /// below this limit (locks 6). In quarantine the answer is `Quarantined`, so that the fence of
    /// a new master is not raised to a token from before the failover (quarantine 3).
    Raise {
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner token of the request.
        owner: OwnerToken,
        /// Fencing token of the grant, which a majority of the nodes must store.
        token: FencingToken,
        /// Slot of the owner if the grant is a permit; the fence of this slot is set (semaphore 3).
        slot: Option<u16>,
    },
    /// Extends the owner's lock, or creates it again if the key is absent, and sets `fence :=
    /// max(fence, token)`. `meta`, if given, replaces the holder's metadata. In quarantine the
    /// answer is `Quarantined` unless `reassert` names the quarantine, even if the lock is on the
    /// node (quarantine 6).
    ///
    /// A shared extension also turns the owner's exclusive grant into a shared one, and then wakes
    /// the readers that wait before the first exclusive waiter. An exclusive extension is refused
    /// if the lock has shared grants (readers 6).
    ///
    /// An extension of a slot is refused if another owner has that slot. Otherwise the owner has
    /// this slot afterwards, and no other slot (semaphore 4).
    Extend {
        /// Mode of the grant: exclusive, shared or a slot.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner token of the request.
        owner: OwnerToken,
        /// New lease length, from now.
        ttl: Duration,
        /// Fencing token of the holder, which a majority of the nodes has confirmed.
        token: FencingToken,
        /// Metadata that the holder publishes; the node keeps them as long as the lock.
        meta: Option<Arc<[u8]>>,
        /// Identifier of the node's quarantine, in spite of which the holder keeps its lock.
        /// Allowed only if this node has confirmed the lease until a moment later than the end of
        /// the quarantine minus `max_ttl`, even if that moment has passed (quarantine 6).
        reassert: Option<QuarantineId>,
    },
    /// Deletes the lock if the owner has it. If the lock is free afterwards, even if there was
    /// nothing to delete, the node notifies all handles that watch the lock. It also takes the
    /// first [`Place`] out of its queue of waiting handles, notifies the handle of this place, and
    /// reserves the lock for this handle. If the first place is a reader's, the node does the same
    /// for all readers before the first exclusive waiter that has asked in the last 3 s
    /// (readers 10).
    ///
    /// A shared release removes the owner's shared grant. It also removes an exclusive grant of the
    /// owner, which is left if a downgrade did not reach this node (readers 7).
    ///
    /// A release of a permit frees all slots of the owner. For each freed slot the node notifies
    /// one waiter and reserves the slot for it. The answer is `NotOwner` only if the release names
    /// a slot that another owner has (semaphore 5).
    Release {
        /// Mode of the grant: exclusive, shared or a slot.
        mode: LockMode,
        /// Keys of the lock.
        keys: LockKeys,
        /// Owner of the lock.
        owner: OwnerToken,
        /// True if the holder may have published metadata (`Extend` with `meta`). The node then
        /// deletes these, too. With false the node saves a lookup.
        meta: bool,
    },
    /// Reads the holder of the lock. With `wait`, the node notifies the caller of the next change.
    Inspect {
        /// Keys of the lock.
        keys: LockKeys,
        /// True to be notified of the next release, or of the holder's next change of its metadata.
        wait: bool,
    },
    /// Writes, extends or removes a candidate's entry in a list of candidates, and reads the list.
    /// The answer is `Candidates`. If the list has [`MAX_LISTED`] other entries, this entry is left
    /// out. A node in quarantine answers, too.
    Enlist(Enlist),
    /// Claims an idempotency key to run its handler.
    Claim(Claim),
    /// Sets the promised ballot of a record to `token`, the ballot of the claim. This is like
    /// `Raise` for a lock. The node refuses the op if a higher ballot was promised, or if the
    /// promise is from an earlier data history. If there is a result, the answer is `Completed`.
    RaiseClaim {
        /// Key of the idempotency record.
        key: RecordKey,
        /// Owner token of the request.
        owner: OwnerToken,
        /// Ballot of the claim, which a majority of the nodes must have promised.
        token: FencingToken,
    },
    /// Extends a claim's lease, if no higher ballot was promised. In quarantine the answer is
    /// `Quarantined` unless `reassert` names the quarantine. If the promise is of an earlier data
    /// history of the node, the node refuses results with a ballot below the floor until the holder
    /// has named the quarantine.
    ExtendClaim {
        /// Ballot of the claim.
        ballot: Ballot,
        /// New lease length, from now.
        lease: Duration,
        /// Identifier of the node's quarantine, if the holder may extend the claim in spite of it.
        reassert: Option<QuarantineId>,
    },
    /// Stores the result of a key. The node accepts it if its promised ballot is below `token`, or
    /// is `token` and the last owner is `owner`. It refuses if the record has another fingerprint.
    Complete {
        /// Ballot of the claim.
        ballot: Ballot,
        /// Bytes of the result; `None` if the node shall store only that there is a result.
        value: Option<Arc<[u8]>>,
    },
    /// Stores the list of a handler's finished steps, in place of an earlier list. The node accepts
    /// it under the conditions of `Complete`, if there is no result. Of two lists of one ballot the
    /// longer one stays, so a request that arrives twice removes no step. A record with steps
    /// always counts as claimed, even if its claims end as `Undone`.
    Steps {
        /// Ballot of the claim.
        ballot: Ballot,
        /// All finished steps, encoded by the caller.
        list: Arc<[u8]>,
    },
    /// Ends a claim's lease before its time. The node accepts it only from the last owner, only if
    /// the claim was not ended before, and only while there is no result. Afterwards the record has
    /// no owner, so later requests under this claim are refused.
    Unclaim {
        /// Key of the idempotency record.
        key: RecordKey,
        /// Owner of the claim.
        owner: OwnerToken,
        /// State in which the claim's attempt to run the handler ended.
        end: ClaimEnd,
    },
    /// Reads the record of an idempotency key.
    Lookup {
        /// Key of the idempotency record.
        key: RecordKey,
        /// Time for which records of this key are kept.
        retention: Duration,
        /// Fingerprint of the request; `None` if fingerprints are not compared.
        fingerprint: Option<FingerprintBytes>,
        /// Earliest time at which a copy of the request was made, in milliseconds since 1970.
        born: Option<u64>,
        /// Longest span of lost writes of the node that counts as no loss; zero accepts no loss.
        accepted: Duration,
    },
}

impl Op {
    pub(crate) fn owner(&self) -> Option<&OwnerToken> {
        match self {
            Self::Acquire { owner, .. }
            | Self::Raise { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Release { owner, .. }
            | Self::RaiseClaim { owner, .. }
            | Self::Unclaim { owner, .. } => Some(owner),
            Self::ExtendClaim { ballot, .. }
            | Self::Complete { ballot, .. }
            | Self::Steps { ballot, .. } => Some(&ballot.owner),
            Self::Claim(claim) => Some(&claim.owner),
            Self::Enlist(enlist) => Some(&enlist.owner),
            Self::Inspect { .. } | Self::Lookup { .. } => None,
        }
    }

    /// Both are requests of one caller, and of one lock if a handle has made them: its value is the
    /// owner of each of its reservations, whatever the lock.
    pub(crate) fn shares_an_owner_with(&self, other: &Self) -> bool {
        let is_handles = self.owner().is_some_and(OwnerToken::is_ownerless);
        self.owner().is_some()
            && self.owner() == other.owner()
            && (!is_handles || self.lock_keys() == other.lock_keys())
    }

    /// Returns true if the op only undoes its owner's lock or claim. Such an op is executed even
    /// after the deadline of its batch.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Unclaim { .. })
    }

    pub(crate) fn is_extension(&self) -> bool {
        matches!(self, Self::Extend { .. } | Self::ExtendClaim { .. })
    }

    pub(crate) fn is_vote(&self) -> bool {
        self.is_new_work()
            || self.is_extension()
            || matches!(self, Self::Raise { .. } | Self::RaiseClaim { .. })
    }

    pub(crate) fn reasserts(&self) -> bool {
        matches!(
            self,
            Self::Extend { reassert: Some(_), .. } | Self::ExtendClaim { reassert: Some(_), .. }
        )
    }

    pub(crate) fn is_new_work(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Claim(_))
    }

    /// No earlier request of the owner token can have been executed. False for a takeover and for a
    /// call that redeems a ticket, whose acquires share one token, and for an exact slot, because
    /// the same attempt asked for any slot before.
    pub(crate) fn begins_owner(&self) -> bool {
        match self {
            Self::Acquire { mode, if_held, .. } => {
                let takes = matches!(if_held, Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }));
                !takes && mode.slots().and_then(Slots::slot).is_none()
            }
            Self::Claim(_) => true,
            _ => false,
        }
    }

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
}

/// Identifier of one quarantine of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuarantineId {
    /// Identifier of the data history that began with the quarantine, as in [`Facts::history_id`].
    pub history: u64,
    /// Beginning of the quarantine, by the node's clock and in the node's own unit.
    pub since: u64,
}

/// Answer of a node to one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answer to `Acquire`: the lock is granted.
    Granted {
        /// Fence of this node after the grant.
        fence: u64,
    },
    /// Answer to `Acquire` of a slot: the permit is granted.
    Permit {
        /// Fence of this slot on this node after the grant.
        fence: u64,
        /// Slot that the owner has.
        slot: u16,
    },
    /// Answer to `Acquire`: another owner has the lock, or the lock is reserved for another handle
    /// or kept closed after a planned handover, or there is no free slot.
    Held {
        /// Time until the lock expires; `None` if it has no expiry.
        remaining: Option<Duration>,
        /// True if the lock's key has another program's value.
        foreign: bool,
    },
    /// Answer to `Acquire` with [`IfHeld::Fair`], in place of `Held`: the handle has its place in
    /// the node's queue of waiters.
    Queued {
        /// Time until the lock expires; `None` without an expiry. If only the places ahead of the
        /// caller are the reason for the refusal, the time until none of these places is fresh any
        /// more.
        remaining: Option<Duration>,
        /// True if the lock's key has another program's value.
        foreign: bool,
        /// Ticket of the caller on this node, and the number of fair callers ahead that have asked
        /// lately.
        queued: Queued,
    },
    /// Answer to `Acquire`, `Claim` and `Raise`: the node is in quarantine and grants nothing.
    /// Answer to `Extend` and `ExtendClaim`: the node is in quarantine, `reassert` does not name
    /// this quarantine, and nothing was extended.
    Quarantined {
        /// Time until the node grants again.
        remaining: Duration,
        /// Identifier of this quarantine, which a holder names in `reassert`.
        id: QuarantineId,
        /// Origin of the node's data.
        began: Began,
    },
    /// Answer to `Raise`, `Extend`, `RaiseClaim`, `ExtendClaim`, `Complete`, `Steps`, `Release` and
    /// `Unclaim`: the op was executed.
    Done,
    /// Answer to `Raise`, `Extend` and `Release`: the lock is not, or no longer, the owner's.
    /// Answer to `RaiseClaim`, `ExtendClaim`, `Complete` and `Steps`: a higher ballot was promised,
    /// or, for `Steps`, there is a result. Answer to `Unclaim`: the owner is not the last owner.
    NotOwner,
    /// Answer to `Release` and `Unclaim`: there is nothing under the key.
    Absent,
    /// Answer to `Inspect`: the holder of the lock; `None` if there is none.
    Holder(Option<Holder>),
    /// Answer to `Inspect`: the lock has shared grants.
    Readers(Readers),
    /// Answer to `Inspect` of a semaphore: its permits, in the order of the slots.
    Permits(Vec<SlotGrant>),
    /// Answer to `Enlist`: the listed candidates, in the order in which they were first written.
    Candidates(Vec<Listed>),
    /// Answer to `Claim`: the claim is granted.
    Claimed {
        /// Fencing token of the ballot that this node has promised.
        fence: u64,
        /// Number of claims of this key that count on this node, including this one.
        attempt: u32,
        /// Result of the key that this node already stores; only for a claim with `force`.
        record: Option<StoredRecord>,
        /// Finished steps of the handler that this node stores, if there is no result yet.
        steps: Option<StoredSteps>,
        /// Time until the node certainly has every claim of a key without `born`; zero if it has
        /// every claim now. If it is not zero, the node may have lost a claim of this key, even if
        /// it has a record of the key.
        unsure: Duration,
        /// Losses of the node's data that make `unsure` larger than zero; empty if it is zero.
        losses: Vec<Loss>,
        /// True if `unsure` is not zero because the node's data began [empty](Began::Empty), and no
        /// operator has confirmed that the node was new.
        fresh: bool,
    },
    /// Answer to `Claim`, `RaiseClaim` and `ExtendClaim`: the node stores this result of the key.
    Completed(StoredRecord),
    /// Answer to `Claim`: another owner's claim runs.
    InFlight {
        /// Time until the lease of that claim ends.
        remaining: Duration,
    },
    /// Answer to `Claim`, `ExtendClaim`, `Complete`, `Steps` and `Lookup`: the key was used with
    /// another fingerprint, so for another request.
    Mismatch,
    /// Answer to `Claim`: by the node's clock the request is older than the retention.
    TooOld,
    /// Answer to `Lookup`: the record, as this node has it.
    Record {
        /// State of the idempotency record; `None` if there is none.
        state: Option<RecordState>,
        /// Time until the node certainly has every claim of the key; zero if it has every claim
        /// now.
        unsure: Duration,
        /// Losses of data because of which `unsure` is not zero.
        losses: Vec<Loss>,
    },
    /// Answer to `Claim`, `RaiseClaim`, `ExtendClaim`, `Lookup`, `Inspect` and `Enlist`: the op was
    /// not executed, because the answer to this batch has as many bytes of stored data as the node
    /// sends at once. The node queue sends the op again, until its deadline. An answer contains the
    /// stored data of at least one op, so no op waits for ever.
    Deferred,
}

impl Reply {
    pub(crate) fn is_grant(&self) -> bool {
        matches!(
            self,
            Self::Granted { .. } | Self::Permit { .. } | Self::Claimed { .. } | Self::Done
        )
    }

    /// A result may have been stored without replicas, and must not be lost once a caller has seen
    /// it (idempotency 1).
    pub(crate) fn must_last(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
            reply => reply.is_grant(),
        }
    }

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
