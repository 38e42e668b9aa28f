//! What happened, in order: small values that are hashed at once and printed as a story on demand.

mod show;

use std::hash::{Hash, Hasher};

use crate::plan::{Decision, Fault, Parting};

/// One hold of a lock as the user's code sees it: from the verb that returned a guard until the
/// guard is given up.
pub(crate) type HoldId = u32;

/// What an op said, without its payload.
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

/// What a node answered, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(u64),
    /// With the node's memory: whether it remembers.
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
    /// Whether the op changed something on the server.
    pub(crate) fn is_effect(self) -> bool {
        matches!(self, Self::Granted(_) | Self::Claimed(..) | Self::Done)
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A fault was dealt.
    Fault(Fault),
    /// All faults are over.
    Healed,
    /// A stopped client goes on; a crashed or frozen server is back.
    ClientBack(usize),
    NodeBack(usize),
    /// A server executed an op. `owner` is its short name.
    Served {
        node: usize,
        server: usize,
        client: usize,
        verb: Verb,
        name: u16,
        owner: u16,
        answer: Answer,
    },
    /// A node's data began a new history: nothing may be granted for so many of its nanoseconds.
    NewLife {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
        quarantine: u64,
    },
    /// A node granted, by its own clock.
    Granting {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
    },
    /// A request took effect so many µs after its deadline.
    LateEffect {
        node: usize,
        client: usize,
        name: u16,
        late: u64,
    },
    /// The user's code asks for a lock.
    Asks {
        client: usize,
        task: usize,
        name: u16,
    },
    /// It was refused after so many microseconds of its own time.
    Refused {
        client: usize,
        task: usize,
        name: u16,
        taken: bool,
    },
    /// Its future was dropped.
    Cancelled {
        client: usize,
        task: usize,
        name: u16,
    },
    /// A verb ended this much later (µs) than its wait allowed.
    Overdue {
        client: usize,
        task: usize,
        late: u64,
    },
    /// It has a guard; `left` µs of validity at this moment. `is_taker`: it took the lock
    /// from a holder, who asked before and may still believe in it.
    Holds {
        hold: HoldId,
        client: usize,
        name: u16,
        token: u64,
        is_taker: bool,
        asked: u64,
        left: u64,
    },
    /// The replicas of fewer nodes have it than must.
    Unkept {
        client: usize,
        name: u16,
        token: u64,
        nodes: usize,
    },
    /// The guard is being given up.
    Parts {
        hold: HoldId,
        client: usize,
        name: u16,
        how: Parting,
    },
    /// `lost()` came, so many µs after the deadline (zero: before it).
    LossTold {
        hold: HoldId,
        client: usize,
        late: u64,
    },
    /// A guard that was once invalid says that it is valid.
    Revived {
        hold: HoldId,
        client: usize,
    },
    /// Two guards of one name are valid at this moment.
    Overlap {
        first: HoldId,
        second: HoldId,
        name: u16,
    },
    /// A write reached the resource; `valid`: its guard is valid at this moment.
    Write {
        hold: HoldId,
        name: u16,
        token: u64,
        valid: bool,
        accepted: bool,
    },
    /// A node's data are those of an earlier moment (true µs): later writes are gone, and so will
    /// be those of a master that was replaced.
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
    /// The work of a handler's step begins.
    StepBegins {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler was answered the value of a step: run now, or by an earlier attempt.
    StepDone {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler whose result would have been `value` says that it did nothing, or may be started
    /// again.
    NoEffect {
        name: u16,
        value: u64,
    },
    /// A caller was answered with a result; `kept`: later ones will be shown the same.
    Result {
        client: usize,
        name: u16,
        value: u64,
        print: u8,
        executed: bool,
        kept: bool,
    },
    /// A caller was answered that there is a result, which was not kept.
    NotKept {
        client: usize,
        name: u16,
    },
    /// A caller was answered without one.
    NoResult {
        client: usize,
        name: u16,
        why: &'static str,
    },
    /// An observer (`watch`) sees who leads.
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
    /// A client was answered that nobody has a name. `hold`: it was valid from before the question
    /// (`asked`) until the answer.
    Vacant {
        client: usize,
        name: u16,
        asked: u64,
        hold: Option<HoldId>,
    },
    /// A key is on a node although nobody can hold it any more.
    KeyLeft {
        node: usize,
        name: u16,
        why: &'static str,
    },
    /// Nobody holds the name and all is well, and yet it was refused.
    NotServed {
        client: usize,
        name: u16,
    },
    /// Tasks that are alive although all handles are gone.
    TasksLeft(usize),
    /// The run could not come to its end.
    Stuck,
}

/// A trace with the true time of each event in microseconds.
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

/// A hash that is the same in every process.
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
