//! The whole language between the quorum core and a node: [`Op`] in, [`Reply`] out.
//!
//! Each op is atomic on its node and idempotent by owner token. What a node must do is written at
//! the op; `MemoryNode` is the reference, the Lua files are the same rules on Redis, and
//! `node::contract` holds every node kind to them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeError;
use crate::name::LockKeys;
use crate::receipt::Predecessor;
use crate::token::{FencingToken, OwnerToken};

/// A record's key on a node.
pub type RecordKey = Arc<str>;

/// SHA-256 over the canonical bytes of a request.
pub type FingerprintBytes = [u8; 32];

/// What the caller asks of one node. Times are what the node is told, never what the caller
/// believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take the lock if it is free. Grants only outside quarantine.
    /// Free → `lock := owner, ttl`, `fence := max(fence + 1, clamp(proposal), floor)` → `Granted`.
    /// Same owner → `Granted` with the fence as it stands. Else → `Held`, and if `wait`, the next
    /// release here publishes a hint.
    Acquire {
        /// The lock's keys.
        keys: LockKeys,
        /// Fresh per attempt.
        owner: OwnerToken,
        /// Lease length.
        ttl: Duration,
        /// The caller's wall clock or more, in microseconds.
        proposal: u64,
        /// Ask for a hint on release.
        wait: bool,
    },
    /// Set the fence to `token` if the lock is still the owner's, `fence ≤ token` and
    /// `floor ≤ token`: so a token granted before a failover is not raised on the new master.
    Raise {
        /// The lock's keys.
        keys: LockKeys,
        /// Who asks.
        owner: OwnerToken,
        /// The value every majority node shall have.
        token: FencingToken,
    },
    /// Prolong the owner's lock; re-create it if the key is absent (`fence := max(fence, token)`).
    /// `meta`, if given, replaces the holder's words. In quarantine an absent key is re-created
    /// only with `reassert` = the quarantine's epoch, else the answer is `Quarantined`: the node
    /// may have forgotten a grant to another attempt, and re-creating would vote twice.
    ///
    /// In the failover window, the first L of a generation (none if the node was born empty), the
    /// server that this one replaced may still grant. What stands here is prolonged only if before
    /// the renewal it lasts at least as long as the window: then it has not run out over there
    /// before that server stops. Else `Quarantined`, which is no vote and no loss, unless
    /// `reassert` names the epoch.
    Extend {
        /// The lock's keys.
        keys: LockKeys,
        /// Who asks.
        owner: OwnerToken,
        /// New lease length, from now.
        ttl: Duration,
        /// The holder's settled token.
        token: FencingToken,
        /// The holder's words, kept as long as the lock.
        meta: Option<Arc<[u8]>>,
        /// The epoch of the quarantine in which the holder puts back what the node forgot, or
        /// prolongs what it knows for too short a time. Only a holder whom this very node had
        /// confirmed, for a time that had not run out when it learned of the epoch and that does
        /// not run out in the failover window, may say so: then nobody else can have been granted
        /// here meanwhile, nor can be by the server that this one replaced.
        reassert: Option<u64>,
    },
    /// Delete the lock if it is the owner's; wake a waiter.
    Release {
        /// The lock's keys.
        keys: LockKeys,
        /// Whose lock.
        owner: OwnerToken,
        /// The holder may have left words (`Extend` with `meta`): they go too. `false` only spares
        /// the node the look.
        words: bool,
    },
    /// Read the holder. `wait` asks for a hint on the next change.
    Inspect {
        /// The lock's keys.
        keys: LockKeys,
        /// Ask for a hint.
        wait: bool,
    },
    /// Begin an idempotency record (phase 1 of consensus on the key's result).
    Claim(Claim),
    /// As `Raise`, for a record; refused above `token`; answers the record if there is one.
    RaiseClaim {
        /// The record.
        key: RecordKey,
        /// Who asks.
        owner: OwnerToken,
        /// The ballot that a majority shall have promised.
        token: FencingToken,
    },
    /// Prolong a claim's lease: accepted iff the ballot is not below the promise. A promise of an
    /// earlier life of the node counts again only with `reassert` (as for `Extend`); in quarantine
    /// the answer without it is `Quarantined`. In the failover window so it is for a promise of
    /// this life, unless the owner's lease lasts at least as long as the window.
    ExtendClaim {
        /// The record.
        key: RecordKey,
        /// Who asks.
        owner: OwnerToken,
        /// The claim's settled ballot.
        token: FencingToken,
        /// New lease length, from now.
        lease: Duration,
        /// How long the record is kept.
        retention: Duration,
        /// As for `Extend`.
        reassert: Option<u64>,
    },
    /// Store the result (phase 2): accepted iff `fence < token`, or `fence = token` and the last
    /// owner is `owner`.
    Complete {
        /// The record.
        key: RecordKey,
        /// Who asks.
        owner: OwnerToken,
        /// The claim's settled ballot.
        token: FencingToken,
        /// The result's bytes.
        value: Arc<[u8]>,
        /// How long the record is kept.
        retention: Duration,
    },
    /// Give a claim back whose handler certainly did nothing: the lease ends, the attempt does not
    /// count. Only for the last owner and only without a record.
    Unclaim {
        /// The record.
        key: RecordKey,
        /// Whose claim.
        owner: OwnerToken,
    },
    /// Read a record.
    Lookup {
        /// The record.
        key: RecordKey,
    },
}

impl Op {
    /// Whether a yes to it is part of what somebody holds, so that a receipt is worth its cost.
    pub(crate) fn is_confirming(&self) -> bool {
        match self {
            Self::Acquire { .. }
            | Self::Raise { .. }
            | Self::Extend { .. }
            | Self::Claim(_)
            | Self::RaiseClaim { .. }
            | Self::ExtendClaim { .. }
            | Self::Complete { .. } => true,
            Self::Release { .. }
            | Self::Inspect { .. }
            | Self::Unclaim { .. }
            | Self::Lookup { .. } => false,
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
    /// How long the handler may run before others may take over.
    pub lease: Duration,
    /// How long the record is kept.
    pub retention: Duration,
    /// The caller's wall clock or more, in microseconds.
    pub proposal: u64,
    /// What the request said; `None` if the caller does not care.
    pub fingerprint: Option<FingerprintBytes>,
    /// Be granted on top of a completed record (repair).
    pub force: bool,
}

/// Bounds that hold for a whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The longest lease anyone may hold: the base of the quarantine.
    pub max_ttl: Duration,
    /// E: bound on any clock's error against true time; clamps proposals, sets the floor.
    pub clock_error: Duration,
}

/// Ops for one node, executed in order, each atomically.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The bounds.
    pub terms: Terms,
    /// The ops, in the order in which they must take effect.
    pub ops: Vec<Op>,
}

/// A completed result as a node stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The ballot it was stored under.
    pub token: FencingToken,
    /// The result's bytes.
    pub value: Arc<[u8]>,
}

/// What a node says to one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Acquire: yes, with the node's fence.
    Granted {
        /// This node's fence after the grant.
        fence: u64,
    },
    /// Acquire: somebody else's.
    Held {
        /// Until it expires; `None` without expiry.
        remaining: Option<Duration>,
        /// Not one of our locks.
        foreign: bool,
    },
    /// Acquire, Claim: nothing is granted for this long. Extend, `ExtendClaim`: not without
    /// `reassert`, either because it is not here or because it ends within the failover window.
    Quarantined {
        /// Until grants begin: at least `max_ttl` longer than the rest of the failover window.
        remaining: Duration,
        /// Which quarantine: the marker's `since`, in the node's own unit.
        epoch: u64,
    },
    /// Raise, Extend, `RaiseClaim`, `ExtendClaim`, Complete, Release, Unclaim: done.
    Done,
    /// Raise, Extend, Release: not the owner's lock (any more). `RaiseClaim`, `ExtendClaim`,
    /// Complete: a higher ballot was promised. Unclaim: not the last owner.
    NotOwner,
    /// Release, Unclaim: nothing there.
    Absent,
    /// Inspect.
    Holder(Option<Holder>),
    /// Claim: yes.
    Claimed {
        /// This node's promise.
        fence: u64,
        /// How many claims this key has seen here, this one included.
        attempt: u32,
        /// A record that already stands here (only with `force`).
        record: Option<StoredRecord>,
        /// False if the node may have lost data since the key could have been claimed (its marker
        /// is younger than the retention): "never seen" is then unknown, whatever stands here.
        remembers: bool,
    },
    /// Claim, `RaiseClaim`, `ExtendClaim`: a result is stored here.
    Completed(StoredRecord),
    /// Claim: another owner's lease runs.
    InFlight {
        /// Until the lease ends.
        remaining: Duration,
    },
    /// Claim: the key was used with another fingerprint.
    Mismatch,
    /// Lookup.
    Record(Option<RecordState>),
}

/// Who holds a lock on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner's token; `None` for a foreign client's value.
    pub owner: Option<OwnerToken>,
    /// This node's fence.
    pub fence: u64,
    /// Until expiry; `None` without.
    pub remaining: Option<Duration>,
    /// The holder's words.
    pub meta: Option<Arc<[u8]>>,
}

/// An idempotency key's state on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The highest ballot promised.
    pub fence: u64,
    /// Claims seen.
    pub attempt: u32,
    /// Rest of the running lease, if one runs.
    pub lease: Option<Duration>,
    /// The result, if completed.
    pub record: Option<StoredRecord>,
}

/// What a node tells about itself with each batch, at no cost of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The node's wall clock, microseconds since 1970.
    pub node_micros: u64,
    /// Identity of the data history (digest of `master_replid`).
    pub generation: u64,
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Rest of the quarantine; zero outside.
    pub quarantine: Duration,
    /// The quarantine's length as agreed on the node: the largest that any client asked for.
    pub quarantine_len: Duration,
    /// What this batch asked it to be: its `max_ttl` and the node's failover window.
    pub quarantine_asked: Duration,
    /// The batch found a shorter length there, which another client had asked for, and raised it.
    pub quarantine_raised: bool,
    /// The batch itself set the marker: the generation is new.
    pub new_generation: bool,
    /// … and there was none before: the node is new, or lost its data.
    pub marker_missing: bool,
    /// The generation that this one went on from, if the node knows of one.
    pub predecessor: Option<Predecessor>,
    /// The length of the data history after the batch, or somewhat later, if the batch could write
    /// and the node can tell: with `generation` the receipt of all that it wrote.
    pub offset: Option<u64>,
}

/// The answers to a [`Batch`], one per op and in its order.
#[derive(Clone, Debug)]
pub struct Replies {
    /// What the node said of itself; `None` if it could not.
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
