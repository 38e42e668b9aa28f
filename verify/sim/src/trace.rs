//! The trace of a simulated run: small event values in order. Each event is hashed when it is
//! recorded. Events are printed only on demand.

mod show;

use std::hash::{Hash, Hasher};

use crate::plan::{Decision, Fault, Parting};

/// Number of a hold. A hold of a lock lasts from the return of the guard until the user's code
/// gives the guard up.
pub(crate) type HoldId = u32;

/// Kind of an operation that a client sends to a node, without the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Acquire,
    Raise,
    Extend,
    /// An extension of a lease that names the quarantine, so that a node in quarantine may accept
    /// it.
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

/// Reply of a node to an operation, without the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(u64),
    /// The claim's fencing token, and true if the node has a record of earlier attempts.
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
    pub(crate) fn is_effect(self) -> bool {
        matches!(self, Self::Granted(_) | Self::Claimed(..) | Self::Done)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A fault begins.
    Fault(Fault),
    /// All faults have ended.
    Healed,
    /// A stopped client continues. `NodeBack` is the event of a crashed or frozen server that runs
    /// again.
    ClientBack(usize),
    NodeBack(usize),
    /// A server executed an op. `owner` is a short form of the owner token.
    Served {
        node: usize,
        server: usize,
        client: usize,
        verb: Verb,
        name: u16,
        owner: u16,
        answer: Answer,
    },
    /// A new data history began on a node. The node must grant nothing for `quarantine` nanoseconds
    /// of its own clock.
    NewLife {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
        quarantine: u64,
    },
    /// A node that has lost nothing began a new data history.
    Needless {
        node: usize,
    },
    /// A node granted a lease at the time `at` of the node's own clock.
    Granting {
        node: usize,
        server: usize,
        life: u64,
        at: u64,
    },
    /// A node in quarantine refused a request, `since_ms` after its history began.
    Refrains {
        node: usize,
        life: u64,
        since_ms: u64,
        /// When the history began, by the node's clock in ms.
        began: u64,
    },
    /// A request took effect `late` microseconds after its deadline.
    LateEffect {
        node: usize,
        client: usize,
        name: u16,
        late: u64,
    },
    /// A server of a cluster took over a slot, by what itself says.
    Leads {
        server: usize,
        slot: u16,
        epoch: u64,
    },
    /// A client follows another owner of a slot, or another epoch.
    Named {
        client: usize,
        slot: u16,
        port: u16,
        epoch: u64,
    },
    /// The user's code begins to acquire a lock.
    Asks {
        client: usize,
        task: usize,
        name: u16,
    },
    /// The user's code begins to acquire a fair lock, whose callers wait in the order of tickets.
    /// The event `Queued` follows when the call receives its position.
    AsksFairly {
        client: usize,
        task: usize,
        name: u16,
    },
    Queued {
        client: usize,
        task: usize,
        name: u16,
    },
    /// A call that waited in the order of tickets received its guard.
    ItsTurn {
        client: usize,
        task: usize,
        name: u16,
    },
    /// The place of a client's call for a fair lock in a server's queue changed. If `with_ticket`
    /// is true, the place has the ticket of the call. Otherwise the place has no such ticket, or
    /// the server no longer has the place.
    Placed {
        node: usize,
        client: usize,
        name: u16,
        with_ticket: bool,
    },
    /// An attempt of the user's code to acquire a lock was refused. `taken` is true if the lock has
    /// another holder.
    Refused {
        client: usize,
        task: usize,
        name: u16,
        taken: bool,
    },
    /// The future of a call of the user's code was dropped.
    Cancelled {
        client: usize,
        task: usize,
        name: u16,
    },
    /// A call that acquires a lock ended `late` microseconds after the latest time that its timeout
    /// permits.
    Overdue {
        client: usize,
        task: usize,
        late: u64,
    },
    /// The user's code received a guard with `left` microseconds of validity. If `is_taker` is
    /// true, the guard came from a takeover, and the earlier holder may not have detected it yet.
    Holds {
        hold: HoldId,
        client: usize,
        name: u16,
        token: u64,
        is_taker: bool,
        /// True if the holder is a reader.
        shared: bool,
        requested_at: u64,
        left: u64,
    },
    /// A call for all permits of a semaphore returned the slots `slots`, as bits, in `permits`
    /// permits.
    AllPermits {
        client: usize,
        name: u16,
        slots: u64,
        permits: usize,
    },
    /// A guard was returned, but not enough nodes have its grant on their replicas.
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
    /// The user's code hands over a lock that it holds under the token `token`.
    HandedOver {
        client: usize,
        name: u16,
        token: u64,
    },
    /// The user's code has redeemed a hand-over ticket: it got the lock from the holder with the
    /// token `token`, and has a guard with `left` µs of validity.
    Resumed {
        client: usize,
        name: u16,
        token: u64,
        left: u64,
    },
    /// `lost()` returned `late` microseconds after the deadline. Zero means that it returned before
    /// the deadline.
    LossReported {
        hold: HoldId,
        client: usize,
        late: u64,
    },
    /// A guard that was invalid before now reports that it is valid.
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
    /// The resource received a write, or a read of a reader (`shared`). `valid` is true if the
    /// guard of the sender was valid at that time.
    Write {
        hold: HoldId,
        name: u16,
        token: u64,
        shared: bool,
        valid: bool,
        accepted: bool,
    },
    /// The data of a node went back to the true time `since`, in microseconds. Later writes are
    /// lost, and so are writes that a replaced master still makes.
    Lost {
        node: usize,
        since: u64,
    },
    /// The user's code makes a call with an idempotency key.
    Calls {
        client: usize,
        name: u16,
    },
    /// A handler starts. If it succeeds, its result is `value`.
    Starts {
        client: usize,
        name: u16,
        token: u64,
        attempt: u32,
        value: u64,
        print: u8,
    },
    StepBegins {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler received the value of a step. The step ran now or in an earlier attempt.
    StepDone {
        name: u16,
        step: usize,
        token: u64,
    },
    /// A handler reports that it had no effect, or that it may run again. Its result would have
    /// been `value`.
    NoEffect {
        name: u16,
        value: u64,
    },
    /// A caller received a result. If `kept` is true, later callers receive the same result.
    Result {
        client: usize,
        name: u16,
        value: u64,
        print: u8,
        executed: bool,
        kept: bool,
    },
    /// A caller received the reply that there is a result, but that its value was not stored.
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
    /// A client received the leader of an election. `watch` is the number of its observer.
    Sees {
        client: usize,
        watch: u64,
        name: u16,
        leader: usize,
        term: u64,
        number: u64,
        gap: bool,
    },
    /// An operator decides about an idempotency key, for example whether its handler runs again.
    Decided {
        client: usize,
        name: u16,
        decision: Decision,
    },
    /// A client received the reply that a name has no holder. `hold` is a hold that was valid from
    /// the request (`requested_at`) to the reply.
    Vacant {
        client: usize,
        name: u16,
        requested_at: u64,
        hold: Option<HoldId>,
    },
    /// A key still exists on a node, although no lease of this key can be valid.
    KeyLeft {
        node: usize,
        name: u16,
        why: &'static str,
    },
    /// A name was refused, although the name has no holder and all faults have ended.
    NotServed {
        client: usize,
        name: u16,
    },
    /// Number of the library's tasks that still run after all `Redlock` handles were dropped.
    TasksLeft(usize),
    /// The run did not end in time.
    Stuck,
}

/// Events of a run. Each has its true time in microseconds.
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

/// A hasher with the same result in each process.
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
