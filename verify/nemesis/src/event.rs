//! What happened, as it is written down: one line of JSON an event, in the order of arrival.
//!
//! All processes are on one machine and share `CLOCK_BOOTTIME`, so times of different processes
//! can be compared exactly. The names say what was *observed*; what it means is for the judge.

use std::sync::Arc;

use palisade::node::spi::{Env as _, SystemEnv};
use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    SystemEnv.now().as_nanos()
}

/// The source: a task of one process of a client. Client 0 is the nemesis itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Who {
    /// Client, from 1.
    #[serde(rename = "c")]
    pub(crate) client: u8,
    /// How often it was started before.
    #[serde(rename = "l")]
    pub(crate) life: u16,
    #[serde(rename = "t")]
    pub(crate) task: u8,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Nanos,
    pub(crate) who: Who,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// A verb of the library.
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

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// What was asked for.
    Done,
    /// A regular no: somebody else holds, leads or works.
    Taken,
    /// Too few nodes; right while groups are away.
    Refused,
    /// It is over: the lease was lost.
    Lost,
    /// The client itself broke off.
    Dropped,
}

/// A server's answer to a plain write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWrite {
    /// Done.
    Yes,
    /// `READONLY`: it is a replica.
    Replica,
    /// `NOREPLICAS` and other refusals.
    No,
    /// No answer, no connection.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum What {
    /// A verb is called, and promises to answer within so many milliseconds.
    Begin { verb: Verb, name: Arc<str>, within: u64 },
    /// The verb has answered.
    End { verb: Verb, name: Arc<str>, answer: Answer },
    /// A lock or leadership was won by an attempt that began at `since`.
    Held { name: Arc<str>, token: u64, since: Nanos, until: Nanos },
    /// The lock that was won under `token` was taken over from a holder at whose nodes the fence
    /// was `fence`, and who believes in it until `closed` at most. Said after the new holder is.
    Took { name: Arc<str>, token: u64, fence: u64, closed: Nanos },
    /// At `at` the guard said that it was valid, and afterwards that it was until `until`.
    Valid { name: Arc<str>, token: u64, until: Nanos },
    /// The belief ended: `at` is before the release was called, or when the loss was reported.
    Over { name: Arc<str>, token: u64, lost: bool },
    /// A write under a lock reached the resource.
    Write { name: Arc<str>, token: u64, accepted: bool },
    /// The handler of an order was started; `valid` is what its context said at once afterwards.
    Started { key: Arc<str>, token: u64, attempt: u32, valid: bool },
    /// An effect reached the books, which took it if its token was not overtaken.
    Booked { key: Arc<str>, token: u64, value: Arc<str>, accepted: bool },
    /// A call answered with the result of an order.
    Result { key: Arc<str>, value: Arc<str>, executed: bool },
    /// A batch is about to be asked for, of which `turns` keys are claimed at once.
    Batch { keys: Vec<Arc<str>>, turns: u16 },
    /// The effect of a key of a batch, which nothing holds back.
    Acted { key: Arc<str>, token: u64, value: Arc<str> },
    /// A call found the key parked: an attempt lapsed, or else was perhaps forgotten.
    Parked { key: Arc<str>, lapsed: bool },
    /// A call about the key may have left a claim without a handler: too few nodes answered, or
    /// its claim was over before the handler began.
    Unclear { key: Arc<str> },
    /// An operator decides about a parked key: to run it again, or to store the effect it had.
    Decided { key: Arc<str>, rerun: bool },
    /// This term of an election says this value from some moment after now.
    Says { name: Arc<str>, term: u64, value: Arc<str> },
    /// An observer or reader was shown a leader.
    Seen { name: Arc<str>, term: u64, value: Arc<str>, stream: bool },
    /// The client stopped all its own work until `until` on purpose, as a long pause would.
    Stalled { until: Nanos },
    /// A server (by its run id) said yes to a grant or renewal of this token that was sent at
    /// `since`.
    Vote { name: Arc<str>, token: u64, since: Nanos, server: Arc<str>, grant: bool },
    /// What a server (by address) answers to a plain write from now on; for a server that stops
    /// saying yes, from just after its last yes.
    Answers { server: Arc<str>, to_write: ToWrite },
    /// The server at this address is the process with this run id.
    Process { server: Arc<str>, run_id: Arc<str> },
    /// Quarantine of the server as its own marker has it.
    Quarantine { server: Arc<str>, from: Nanos, ends: Nanos },
    /// A Sentinel names this master from now on.
    Named { sentinel: u8, master: Arc<str> },
    /// A client was started.
    Born,
    /// A client is gone since `at`; `wanted` unless it ended by itself.
    Died { wanted: bool },
    /// Fault number `id` strikes.
    Fault { id: u32, kind: Arc<str>, target: Arc<str> },
    /// A client was stopped from `at` on, and continued at `until`.
    Frozen { until: Nanos },
    /// Fault number `id` is undone (its consequences may last).
    Healed { id: u32 },
    /// Fault number `id` could not be done after all.
    Missed { id: u32 },
    /// Everything is healed for good.
    Calm,
    /// Everybody was served again after that.
    Served,
}

impl What {
    /// The name or key that it is about.
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
