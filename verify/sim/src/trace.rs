//! The trace: events in order, as small values that are hashed at once and printed on demand.

mod show;

use std::hash::{Hash, Hasher};

use crate::plan::{Decision, Fault, Parting};

/// Number of one hold of a lock, as the user's code sees it: from the return of the guard until the
/// guard is given up.
pub(crate) type HoldId = u32;

/// Kind of an op, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Acquire,
    Raise,
    Extend,
    /// An extension that names the quarantine.
    Reassert,
    Release,
    Inspect,
    Enlist,
    Claim,
    RaiseClaim,
    ExtendClaim,
    Complete,
    Steps,
    Unclaim,
    Lookup,
}

/// A node's reply, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(u64),
    /// Fence, and true if the node remembers earlier attempts.
    Claimed(u64, bool),
    Held,
    Quarantined,
    Done,
    NotOwner,
    Absent,
    Seen,
    Completed(u64),
    InFlight,
    Mismatch,
    TooOld,
    Deferred,
    Failed,
}

impl Answer {
    /// Returns true if the op changed data on the server.
    pub(crate) fn is_effect(self) -> bool {
        matches!(self, Self::Granted(_) | Self::Claimed(..) | Self::Done)
    }
}

/// An event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A fault begins.
    Fault(Fault),
    /// All faults have ended.
    Healed,
    /// A stopped client continues, or (`NodeBack`) a crashed or frozen server is back.
    ClientBack(usize),
    NodeBack(usize),
    /// A server executed an op. `owner` is the short form of the owner token.
    Served {
        node: usize,
        server: usize,
        client: usize,
        verb: Verb,
        name: u16,
        owner: u16,
        answer: Answer,
    },
    /// A new data history began on a node; the node must grant nothing for `quarantine` nanoseconds
    /// of its own clock.
    NewLife {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
        quarantine: u64,
    },
    /// A node granted a lease at the time `at` of its own clock.
    Granting {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
    },
    /// A request took effect `late` µs after its deadline.
    LateEffect {
        node: usize,
        client: usize,
        name: u16,
        late: u64,
    },
    /// The user's code tries to acquire a lock.
    Asks {
        client: usize,
        task: usize,
        name: u16,
    },
    /// An attempt of the user's code was refused; `taken`: the lock has another holder.
    Refused {
        client: usize,
        task: usize,
        name: u16,
        taken: bool,
    },
    /// The future of the user's call was dropped.
    Cancelled {
        client: usize,
        task: usize,
        name: u16,
    },
    /// A call ended `late` µs after the latest time that its timeout allows.
    Overdue {
        client: usize,
        task: usize,
        late: u64,
    },
    /// The user's code has a guard with `left` µs of validity. With `is_taker` the guard came from
    /// a takeover; the earlier holder, whose request was earlier, may still believe in the lock.
    Holds {
        hold: HoldId,
        client: usize,
        name: u16,
        token: u64,
        is_taker: bool,
        /// True for a reader.
        shared: bool,
        requested_at: u64,
        left: u64,
    },
    /// Fewer nodes than required have the grant on their replicas.
    Unkept {
        client: usize,
        name: u16,
        token: u64,
        nodes: usize,
    },
    /// The user's code gives up a guard.
    Parts {
        hold: HoldId,
        client: usize,
        name: u16,
        how: Parting,
    },
    /// The user's code hands over a lock that it holds under this token.
    HandedOver {
        client: usize,
        name: u16,
        token: u64,
    },
    /// The user's code has redeemed the ticket of a lock that was held under `token`, and has a
    /// guard with `left` µs of validity.
    Resumed {
        client: usize,
        name: u16,
        token: u64,
        left: u64,
    },
    /// `lost()` returned `late` µs after the deadline (zero: before it).
    LossReported {
        hold: HoldId,
        client: usize,
        late: u64,
    },
    /// A guard that was invalid once reports that it is valid.
    Revived {
        hold: HoldId,
        client: usize,
    },
    /// Two guards of one name are valid at the same time.
    Overlap {
        first: HoldId,
        second: HoldId,
        name: u16,
    },
    /// A write, or a reader's read (`shared`), reached the resource; `valid`: the guard of its
    /// sender was valid at that time.
    Write {
        hold: HoldId,
        name: u16,
        token: u64,
        shared: bool,
        valid: bool,
        accepted: bool,
    },
    /// A node's data went back to those of an earlier time (true µs): later writes are lost, and so
    /// are future writes of a replaced master.
    Lost {
        node: usize,
        since: u64,
    },
    /// The user's code makes a call under an idempotency key.
    Calls {
        client: usize,
        name: u16,
    },
    /// A handler starts; its result would be `value`.
    Starts {
        client: usize,
        name: u16,
        token: u64,
        attempt: u32,
        value: u64,
        print: u8,
    },
    /// A handler begins a step.
    StepBegins {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler received the value of a step, which was run now or by an earlier attempt.
    StepDone {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler whose result would have been `value` reports that it had no effect or may run
    /// again.
    NoEffect {
        name: u16,
        value: u64,
    },
    /// A caller received a result; `kept`: later callers receive the same one.
    Result {
        client: usize,
        name: u16,
        value: u64,
        print: u8,
        executed: bool,
        kept: bool,
    },
    /// A caller received the answer that a result exists but was not kept.
    NotKept {
        client: usize,
        name: u16,
    },
    /// A caller received no result.
    NoResult {
        client: usize,
        name: u16,
        why: &'static str,
    },
    /// An observer (`watch`) reports the leader.
    Sees {
        client: usize,
        watch: u64,
        name: u16,
        leader: usize,
        term: u64,
        number: u64,
        gap: bool,
    },
    /// An operator decides about a key.
    Decided {
        client: usize,
        name: u16,
        decision: Decision,
    },
    /// A client received the answer that a name has no holder. `hold` was valid from before the
    /// question (`requested_at`) until the answer.
    Vacant {
        client: usize,
        name: u16,
        requested_at: u64,
        hold: Option<HoldId>,
    },
    /// A key is still on a node although no lease on it can be valid.
    KeyLeft {
        node: usize,
        name: u16,
        why: &'static str,
    },
    /// A name was refused although it has no holder and all faults have ended.
    NotServed {
        client: usize,
        name: u16,
    },
    /// Number of tasks that still run after all handles were dropped.
    TasksLeft(usize),
    /// The run did not end in time.
    Stuck,
}

/// The events of a run, with the true time of each in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) events: Vec<(u64, Event)>,
    hash: Fnv,
}

impl Trace {
    pub(crate) fn push(&mut self, at: u64, event: Event) {
        at.hash(&mut self.hash);
        event.hash(&mut self.hash);
        self.events.push((at, event));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }
}

/// A hasher whose result is the same in every process.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01B3);
            self.0 ^= self.0 >> 29;
        }
    }
}
