//! Events of a run: lines of JSON in the order of arrival. All processes run on one machine and
//! share `CLOCK_BOOTTIME`, so their times can be compared exactly. `judge` compares the events with
//! the rules.

use std::sync::Arc;

use palisade::node::spi::{Env as _, SystemEnv};
use serde::{Deserialize, Serialize};

use crate::locks::record::What;
use crate::names::names;

/// A time of `CLOCK_BOOTTIME`, in nanoseconds.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    SystemEnv.now().as_nanos()
}

/// Source of an event: one task in one process of a client. Client 0 is the nemesis itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TaskId {
    /// Number of the client, from 1. The nemesis has the number 0.
    #[serde(rename = "c")]
    pub(crate) client: u8,
    /// Number of the client's process. Each restart increases it.
    #[serde(rename = "l")]
    pub(crate) life: u16,
    #[serde(rename = "t")]
    pub(crate) task: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Nanos,
    pub(crate) who: TaskId,
    #[serde(flatten)]
    pub(crate) kind: EventKind,
}

names! {
    /// An operation of the library.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum Verb {
        Acquire = "acquire",
        TryAcquire = "try_acquire",
        Extend = "extend",
        Release = "release",
        Run = "run",
        Campaign = "campaign",
        Proclaim = "proclaim",
        Resign = "resign",
        Leader = "leader",
        TakeOver = "take_over",
        ForceRelease = "force-release",
        RunEach = "run_each",
        ClaimMany = "claim_many",
        CompleteMany = "complete_many",
        Resolve = "resolve",
        Rerun = "rerun",
        Read = "read",
        Write = "write",
        Permit = "permit",
        AcquireMany = "acquire_many",
        AcquireMulti = "several names",
        AcquireFair = "fair acquire",
        HandOver = "hand_over",
        Resume = "resume",
    }
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The operation succeeded.
    Done,
    /// The call was refused because another client holds the lock, leads, or runs the handler.
    Taken,
    /// Too few nodes replied. This result is correct while groups are down.
    Refused,
    /// The lease was lost.
    Lost,
    /// The client dropped the call on purpose.
    Dropped,
}

/// Reply of a server to a plain write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteReply {
    /// The write was executed.
    Yes,
    /// `READONLY`: the server is a replica.
    Replica,
    /// `NOREPLICAS` or another refusal.
    No,
    /// No reply or no connection.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum EventKind {
    /// An operation begins. The library documents that the operation ends within `within`
    /// milliseconds.
    Begin { verb: Verb, name: Arc<str>, within: u64 },
    /// An operation has ended.
    End { verb: Verb, name: Arc<str>, answer: Answer },
    /// A client acquired a lock or a leadership. The attempt began at `since`. The lease ends at
    /// `until`.
    Held { name: Arc<str>, token: u64, since: Nanos, until: Nanos },
    /// The client with the token `token` took over the lock from an old holder. `fence` is the
    /// largest token that the nodes had before. The old holder may rely on the lock until `closed`.
    /// This event follows the event `Held` of the same client.
    Took { name: Arc<str>, token: u64, fence: u64, closed: Nanos },
    /// At the time of the event, the guard reported that it was valid. Just afterwards the guard
    /// reported the deadline `until`.
    Valid { name: Arc<str>, token: u64, until: Nanos },
    /// A holder no longer relies on its lease. The event comes just before the release, or after
    /// the guard reported the loss.
    Over { name: Arc<str>, token: u64, lost: bool },
    /// A client observed `seen` about a lock of another kind than a mutex.
    Lock { name: Arc<str>, seen: What },
    /// The ledger, the system on which the clients' work has effects, received a write under a
    /// lock.
    Write { name: Arc<str>, token: u64, accepted: bool },
    /// The handler of an order or of a batch key has started. `valid` is true if its claim was
    /// valid after the start.
    Started { key: Arc<str>, token: u64, attempt: u32, valid: bool },
    /// A handler asked the ledger to book an effect, which means to record it once. The ledger
    /// refuses the effect if it has already received a larger token.
    Booked { key: Arc<str>, token: u64, value: Arc<str>, accepted: bool },
    /// A call returned the result of an order or of a key of a batch.
    Result { key: Arc<str>, value: Arc<str>, executed: bool },
    /// A client will call a batch of keys next. At most `turns` keys of the batch are claimed at
    /// the same time.
    Batch { keys: Vec<Arc<str>>, turns: u16 },
    /// A handler performed the effect of an idempotency key of a batch. The ledger accepts all
    /// effects of such keys.
    Acted { key: Arc<str>, token: u64, value: Arc<str> },
    /// A call returned that the key is parked: its handler does not run again without a decision.
    /// If `lapsed` is true, an earlier attempt left no result. Otherwise the nodes may have lost
    /// the record of an attempt.
    Parked { key: Arc<str>, lapsed: bool },
    /// A call may have claimed the key without starting a handler. Either too few nodes replied, or
    /// the claim ended before the handler began.
    Unclear { key: Arc<str> },
    /// An operator decided about a parked key. If `rerun` is true, the handler of the key may run
    /// again. Otherwise the operator stored the effect of the key.
    Decided { key: Arc<str>, rerun: bool },
    /// The leader with the term `term` will publish the value `value` next.
    Says { name: Arc<str>, term: u64, value: Arc<str> },
    /// A client received the leader with this term and value, through an observer if `stream` is
    /// true, otherwise by a read.
    Seen { name: Arc<str>, term: u64, value: Arc<str>, stream: bool },
    /// The client stops all its work until `until`, to imitate a long pause.
    Stalled { until: Nanos },
    /// The server with this run id granted or renewed the lease with this token. `grant` is true
    /// for a grant. The request was sent at `since`.
    Vote { name: Arc<str>, token: u64, since: Nanos, server: Arc<str>, grant: bool },
    /// From now on, the server at this address gives this reply to plain writes (writes without the
    /// library). If the server stops accepting writes, the time of this event is just after the
    /// last accepted write.
    Answers { server: Arc<str>, to_write: WriteReply },
    /// The server at this address has this run id.
    Process { server: Arc<str>, run_id: Arc<str> },
    /// The marker at this address states that the server grants nothing from `from` to `ends`.
    Quarantine { server: Arc<str>, from: Nanos, ends: Nanos },
    /// From now on, the Sentinel with the number `sentinel` reports this master.
    Named { sentinel: u8, master: Arc<str> },
    /// A client was started.
    Born,
    /// A client process ended. `wanted` is false if the process ended by itself.
    Died { wanted: bool },
    /// The fault `id` begins.
    Fault { id: u32, kind: Arc<str>, target: Arc<str> },
    /// A client was stopped at the time of the event, and continued at `until`.
    Frozen { until: Nanos },
    /// The fault `id` was ended. Its consequences may last longer.
    Healed { id: u32 },
    /// The fault `id` could not be injected.
    Missed { id: u32 },
    /// All faults have ended, and no further fault begins.
    Calm,
    /// After the end of all faults, each client has got each kind of work done again.
    Served,
}

impl EventKind {
    pub(crate) fn about(&self) -> Option<&Arc<str>> {
        match self {
            Self::Begin { name, .. }
            | Self::End { name, .. }
            | Self::Held { name, .. }
            | Self::Took { name, .. }
            | Self::Valid { name, .. }
            | Self::Over { name, .. }
            | Self::Lock { name, .. }
            | Self::Write { name, .. }
            | Self::Says { name, .. }
            | Self::Seen { name, .. } => Some(name),
            Self::Started { key, .. }
            | Self::Booked { key, .. }
            | Self::Acted { key, .. }
            | Self::Parked { key, .. }
            | Self::Unclear { key }
            | Self::Decided { key, .. }
            | Self::Result { key, .. } => Some(key),
            _ => None,
        }
    }
}
