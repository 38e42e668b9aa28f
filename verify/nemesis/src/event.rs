//! The events of the log: one line of JSON for each event, in the order of arrival.
//!
//! All processes run on one machine and share `CLOCK_BOOTTIME`, so times of different processes can
//! be compared exactly. An event is an observation of a client or the nemesis; the judge interprets
//! it.

use std::sync::Arc;

use palisade::node::spi::{Env as _, SystemEnv};
use serde::{Deserialize, Serialize};

/// A time of `CLOCK_BOOTTIME`, in nanoseconds.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    SystemEnv.now().as_nanos()
}

/// Source of an event: a task in a process of a client. Client 0 is the nemesis itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TaskId {
    /// Number of the client, from 1; 0 for the nemesis.
    #[serde(rename = "c")]
    pub(crate) client: u8,
    /// Number of the client's process, which each restart increases.
    #[serde(rename = "l")]
    pub(crate) life: u16,
    #[serde(rename = "t")]
    pub(crate) task: u8,
}

/// An event with its time and source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Nanos,
    pub(crate) who: TaskId,
    #[serde(flatten)]
    pub(crate) kind: EventKind,
}

/// An operation of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Acquire,
    TryAcquire,
    Extend,
    Release,
    Run,
    Campaign,
    Proclaim,
    Resign,
    Leader,
    TakeOver,
    ForceRelease,
    RunEach,
    ClaimMany,
    CompleteMany,
    Resolve,
    Rerun,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::TryAcquire => "try_acquire",
            Self::Extend => "extend",
            Self::Release => "release",
            Self::Run => "run",
            Self::Campaign => "campaign",
            Self::Proclaim => "proclaim",
            Self::Resign => "resign",
            Self::Leader => "leader",
            Self::TakeOver => "take_over",
            Self::ForceRelease => "force-release",
            Self::RunEach => "run_each",
            Self::ClaimMany => "claim_many",
            Self::CompleteMany => "complete_many",
            Self::Resolve => "resolve",
            Self::Rerun => "rerun",
        }
    }
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The operation did what was requested.
    Done,
    /// The call was refused because another client holds the lock, leads, or runs the handler.
    Taken,
    /// Too few nodes answered, which is correct while groups are down.
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
    /// An operation begins, and promises to answer within `within` milliseconds.
    Begin { verb: Verb, name: Arc<str>, within: u64 },
    /// The operation has answered.
    End { verb: Verb, name: Arc<str>, answer: Answer },
    /// A client acquired a lock or leadership by an attempt that began at `since`; its lease ends
    /// at `until`.
    Held { name: Arc<str>, token: u64, since: Nanos, until: Nanos },
    /// The lock acquired under `token` was taken over from a holder. The nodes had the fence
    /// `fence`, and the old holder may rely on the lock until `closed`. This event follows the
    /// taker's `Held`.
    Took { name: Arc<str>, token: u64, fence: u64, closed: Nanos },
    /// The guard reported at the time of the event that it was valid, and just afterwards that its
    /// deadline was `until`.
    Valid { name: Arc<str>, token: u64, until: Nanos },
    /// A holder stopped relying on its lease, just before it called release, or when the loss was
    /// reported to it.
    Over { name: Arc<str>, token: u64, lost: bool },
    /// A write under a lock reached the resource.
    Write { name: Arc<str>, token: u64, accepted: bool },
    /// The handler of an order or key was started; `valid` is true if its claim was valid after the
    /// start.
    Started { key: Arc<str>, token: u64, attempt: u32, valid: bool },
    /// A handler asked the ledger to book an effect; the ledger refuses it if it has seen a larger
    /// token.
    Booked { key: Arc<str>, token: u64, value: Arc<str>, accepted: bool },
    /// A call returned the result of an order or key.
    Result { key: Arc<str>, value: Arc<str>, executed: bool },
    /// A client is about to request a batch; at most `turns` of its keys are claimed at the same
    /// time.
    Batch { keys: Vec<Arc<str>>, turns: u16 },
    /// A handler performed the effect of a batch's key; the ledger never refuses such an effect.
    Acted { key: Arc<str>, token: u64, value: Arc<str> },
    /// A call found the key parked: if `lapsed`, an earlier attempt left no result; otherwise the
    /// nodes may have lost the record of an attempt.
    Parked { key: Arc<str>, lapsed: bool },
    /// A call may have left a claim of the key without a handler, because too few nodes answered,
    /// or because the claim ended before the handler began.
    Unclear { key: Arc<str> },
    /// An operator decided about a parked key: to run it again (`rerun`), or to store the effect
    /// that it had.
    Decided { key: Arc<str>, rerun: bool },
    /// The leader of this term is about to publish this value.
    Says { name: Arc<str>, term: u64, value: Arc<str> },
    /// An observer (if `stream`) or a reader of the election received this leader.
    Seen { name: Arc<str>, term: u64, value: Arc<str>, stream: bool },
    /// The client stops all its work until `until`, on purpose, as a long pause does.
    Stalled { until: Nanos },
    /// The server with this run id granted or renewed the lease with this token; the request was
    /// sent at `since`.
    Vote { name: Arc<str>, token: u64, since: Nanos, server: Arc<str>, grant: bool },
    /// The server at this address gives this reply to plain writes from now on. If the server stops
    /// accepting writes, the time of the event is just after its last accepted write.
    Answers { server: Arc<str>, to_write: WriteReply },
    /// The server at this address is the process with this run id.
    Process { server: Arc<str>, run_id: Arc<str> },
    /// The marker of the server at this address shows this quarantine.
    Quarantine { server: Arc<str>, from: Nanos, ends: Nanos },
    /// A Sentinel reports this master from now on.
    Named { sentinel: u8, master: Arc<str> },
    /// A client was started.
    Born,
    /// A client ended; `wanted` is false if it ended by itself.
    Died { wanted: bool },
    /// Fault `id` strikes.
    Fault { id: u32, kind: Arc<str>, target: Arc<str> },
    /// A client was stopped at the time of the event and continued at `until`.
    Frozen { until: Nanos },
    /// Fault `id` was undone; its consequences may last longer.
    Healed { id: u32 },
    /// Fault `id` could not be struck.
    Missed { id: u32 },
    /// All faults have ended, and no other one begins.
    Calm,
    /// Every client was served after the end of all faults.
    Served,
}

impl EventKind {
    /// Returns the name or key of the event, if it has one.
    pub(crate) fn about(&self) -> Option<&Arc<str>> {
        match self {
            Self::Begin { name, .. }
            | Self::End { name, .. }
            | Self::Held { name, .. }
            | Self::Took { name, .. }
            | Self::Valid { name, .. }
            | Self::Over { name, .. }
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
