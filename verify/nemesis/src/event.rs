//! The events as they are logged: one line of JSON for each event, in the order of arrival.
//!
//! All processes run on one machine and share `CLOCK_BOOTTIME`, so times of different processes can
//! be compared exactly. The names describe *observations*; the judge interprets them.

use std::sync::Arc;

use palisade::node::spi::{Env as _, SystemEnv};
use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    SystemEnv.now().as_nanos()
}

/// Source of an event: a task of one process of a client. Client 0 is the nemesis itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TaskId {
    /// Number of the client, from 1.
    #[serde(rename = "c")]
    pub(crate) client: u8,
    /// Number of the client's process; a restart increases it.
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
    /// Regular refusal: another client holds, leads or works.
    Taken,
    /// Too few nodes answered; correct while groups are down.
    Refused,
    /// The lease was lost.
    Lost,
    /// The client itself dropped the call.
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
    /// A lock or leadership was won by an attempt that began at `since`.
    Held { name: Arc<str>, token: u64, since: Nanos, until: Nanos },
    /// The lock won under `token` was taken over from a holder; the nodes had the fence `fence`,
    /// and the old holder may believe in the lock until `closed`. Reported after the taker's
    /// `Held`.
    Took { name: Arc<str>, token: u64, fence: u64, closed: Nanos },
    /// At the time of the event the guard reported that it was valid, and afterwards that it was
    /// valid until `until`.
    Valid { name: Arc<str>, token: u64, until: Nanos },
    /// A holder's belief ended: the time is before the release was called, or when the loss was
    /// reported.
    Over { name: Arc<str>, token: u64, lost: bool },
    /// A write under a lock reached the resource.
    Write { name: Arc<str>, token: u64, accepted: bool },
    /// The handler of an order was started; `valid` is its context's answer right after the start.
    Started { key: Arc<str>, token: u64, attempt: u32, valid: bool },
    /// An effect reached the books, which accept it unless its token was overtaken.
    Booked { key: Arc<str>, token: u64, value: Arc<str>, accepted: bool },
    /// A call returned the result of an order.
    Result { key: Arc<str>, value: Arc<str>, executed: bool },
    /// A batch is about to be requested; at most `turns` of its keys are claimed at once.
    Batch { keys: Vec<Arc<str>>, turns: u16 },
    /// A handler performed the effect of a batch's key; no fence can refuse this effect.
    Acted { key: Arc<str>, token: u64, value: Arc<str> },
    /// A call found the key parked: an attempt lapsed, or, if `lapsed` is false, may have been
    /// forgotten.
    Parked { key: Arc<str>, lapsed: bool },
    /// A call may have left a claim on the key without a handler: too few nodes answered, or the
    /// claim ended before the handler began.
    Unclear { key: Arc<str> },
    /// An operator decides about a parked key: to run it again, or to store the effect that it had.
    Decided { key: Arc<str>, rerun: bool },
    /// The leader of this term publishes this value, at some time after this event.
    Says { name: Arc<str>, term: u64, value: Arc<str> },
    /// An observer (`stream`) or a reader received this leader.
    Seen { name: Arc<str>, term: u64, value: Arc<str>, stream: bool },
    /// The client deliberately stops all its work until `until`, as a long pause does.
    Stalled { until: Nanos },
    /// A server (by its run id) confirmed a grant or renewal of this token, which was requested at
    /// `since`.
    Vote { name: Arc<str>, token: u64, since: Nanos, server: Arc<str>, grant: bool },
    /// A server (by address) gives this reply to plain writes from now on. If the server stops
    /// accepting writes, the time is just after its last accepted write.
    Answers { server: Arc<str>, to_write: WriteReply },
    /// The server at this address is the process with this run id.
    Process { server: Arc<str>, run_id: Arc<str> },
    /// The server's own marker shows this quarantine.
    Quarantine { server: Arc<str>, from: Nanos, ends: Nanos },
    /// A Sentinel names this master from now on.
    Named { sentinel: u8, master: Arc<str> },
    /// A client was started.
    Born,
    /// A client ended; `wanted` unless it ended by itself.
    Died { wanted: bool },
    /// Fault `id` strikes.
    Fault { id: u32, kind: Arc<str>, target: Arc<str> },
    /// A client was stopped at the time of the event, and continued at `until`.
    Frozen { until: Nanos },
    /// Fault `id` is undone; its consequences may last longer.
    Healed { id: u32 },
    /// Fault `id` could not be performed.
    Missed { id: u32 },
    /// All faults have ended for good.
    Calm,
    /// Every client was served again after the end of all faults.
    Served,
}

impl EventKind {
    /// Returns the name or key that the event concerns.
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
