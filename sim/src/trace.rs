//! What happened, in order: small values that are hashed at once and told as a story on demand.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::plan::{Fault, Loss, Parting};

/// One hold of a lock as the user's code sees it: from the verb that returned a guard until the
/// guard is given up.
pub(crate) type HoldId = u32;

/// What an op said, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Acquire,
    Raise,
    Extend,
    Release,
    Inspect,
    Claim,
    RaiseClaim,
    ExtendClaim,
    Complete,
    Unclaim,
    Lookup,
}

/// What a node answered, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Granted(u64),
    Held,
    Quarantined,
    Done,
    NotOwner,
    Absent,
    Seen,
    Completed(u64),
    InFlight,
    Mismatch,
    Failed,
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
    /// A node executed an op. `number` is the owner's short name.
    Served {
        node: usize,
        old: bool,
        client: usize,
        verb: Verb,
        name: u16,
        owner: u16,
        answer: Answer,
    },
    /// A node's data began a new life: nothing may be granted for so many of its nanoseconds.
    NewLife {
        node: usize,
        old: bool,
        generation: u64,
        at: u64,
        quarantine: u64,
    },
    /// A node granted, by its own clock.
    Granting {
        node: usize,
        old: bool,
        generation: u64,
        at: u64,
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
    /// It has a guard; `left` µs of validity at this moment.
    Holds {
        hold: HoldId,
        client: usize,
        name: u16,
        token: u64,
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
    },
    /// A caller was answered with a result.
    Result {
        client: usize,
        name: u16,
        value: u64,
        executed: bool,
    },
    /// A caller was answered without one.
    NoResult {
        client: usize,
        name: u16,
    },
    /// An observer (`watch`) is told who leads.
    Sees {
        client: usize,
        watch: u64,
        name: u16,
        leader: usize,
        term: u64,
        number: u64,
        gap: bool,
    },
    /// A key stands on a node although nobody can hold it any more.
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

fn name(n: u16) -> String {
    match n {
        0..100 => format!("lock-{n}"),
        100..200 => format!("calm-{}", n - 100),
        200..300 => format!("order-{}", n - 200),
        300..400 => format!("seat-{}", n - 300),
        _ => format!("name-{n}"),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash { node, loss, down } => {
                let what = match loss {
                    Loss::Nothing => "keeps its data",
                    Loss::LastWrites => "loses its last writes",
                    Loss::Everything => "loses everything",
                };
                write!(f, "node {node} crashes, {what}, is down for {down} ms")
            }
            Self::Freeze { node, span } => write!(f, "node {node} freezes for {span} ms"),
            Self::Cut { client, node, requests: true, span } => {
                write!(f, "for {span} ms no request of client {client} reaches node {node}")
            }
            Self::Cut { client, node, span, .. } => {
                write!(f, "for {span} ms no answer of node {node} reaches client {client}")
            }
            Self::Jump { node, by } => write!(f, "the clock of node {node} steps {by} ms forward"),
            Self::Failover { node, old } => {
                let mut who: Vec<String> = Vec::new();
                who.extend((0..8).filter(|c| old >> c & 1 == 1).map(|c: u64| c.to_string()));
                let who = if who.is_empty() { "nobody".into() } else { who.join(", ") };
                write!(f, "node {node} fails over; on the old master stay: {who}")
            }
            Self::Failback { node } => write!(f, "node {node} fails back to its former master"),
            Self::Pause { client, span, lag } => {
                write!(f, "client {client} stops for {span} ms, its timers for {lag} ms more")
            }
            Self::Kill { client } => write!(f, "client {client} dies; a new one takes its place"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fault(fault) => write!(f, "  ** {fault}"),
            Self::Healed => f.write_str("  ** all faults are over"),
            Self::ClientBack(c) => write!(f, "  ** client {c} goes on"),
            Self::NodeBack(n) => write!(f, "  ** node {n} is back"),
            Self::Served { node, old, client, verb, name: n, owner, answer } => {
                let side = if old { " (old master)" } else { "" };
                write!(f, "     node {node}{side} ← client {client}: {verb:?} {} ", name(n))?;
                write!(f, "by #{owner:04x} → {answer:?}")
            }
            Self::NewLife { node, old, quarantine, .. } => {
                let side = if old { " (old master)" } else { "" };
                let ms = quarantine / 1_000_000;
                write!(f, "     node {node}{side} notes a new generation: silent for {ms} ms")
            }
            Self::Granting { .. } => Ok(()),
            Self::Asks { client, task, name: n } => {
                write!(f, "client {client}.{task} asks for {}", name(n))
            }
            Self::Refused { client, task, name: n, taken } => {
                let why = if taken { "taken" } else { "no quorum" };
                write!(f, "client {client}.{task} is refused {}: {why}", name(n))
            }
            Self::Cancelled { client, task, name: n } => {
                write!(f, "client {client}.{task} drops its request for {}", name(n))
            }
            Self::Overdue { client, task, late } => {
                write!(f, "client {client}.{task} was answered {late} µs later than it may wait")
            }
            _ => self.fmt_holder(f),
        }
    }
}

impl Event {
    /// What concerns those who hold, run or watch something.
    fn fmt_holder(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Holds { hold, client, name: n, token, left, .. } => {
                write!(f, "client {client} HOLDS {} (hold {hold}) ", name(n))?;
                write!(f, "token {token}, valid for {left} µs")
            }
            Self::Parts { hold, client, name: n, how } => {
                write!(f, "client {client} parts with {} (hold {hold}): {how:?}", name(n))
            }
            Self::Unkept { client, name: n, token, nodes } => {
                write!(f, "client {client}: token {token} of {} is on replicas ", name(n))?;
                write!(f, "of {nodes} nodes")
            }
            Self::LossTold { hold, client, late } => {
                write!(f, "client {client} is told that hold {hold} is lost, {late} µs late")
            }
            Self::Revived { hold, client } => {
                write!(f, "client {client}: hold {hold} was invalid and is valid again")
            }
            Self::Overlap { first, second, name: n } => {
                write!(f, "holds {first} and {second} of {} are valid at once", name(n))
            }
            Self::Write { hold, name: n, token, accepted, .. } => {
                let done = if accepted { "accepted" } else { "refused" };
                write!(f, "     resource {}: write of hold {hold}, token {token}: {done}", name(n))
            }
            Self::Calls { client, name: n } => write!(f, "client {client} calls {}", name(n)),
            Self::Starts { client, name: n, token, attempt, value } => {
                write!(
                    f,
                    "client {client} STARTS the handler of {}, attempt {attempt}, ",
                    name(n)
                )?;
                write!(f, "token {token}; its result would be {value}")
            }
            Self::Result { client, name: n, value, executed } => {
                let how = if executed { "executed" } else { "replayed" };
                write!(f, "client {client} IS ANSWERED {value} for {}, {how}", name(n))
            }
            Self::NoResult { client, name: n } => {
                write!(f, "client {client} gets no result for {}", name(n))
            }
            Self::Sees { client, name: n, leader, term, number, gap, .. } => {
                let gap = if gap { ", something may be missed" } else { "" };
                write!(f, "client {client} sees client {leader} lead {}, ", name(n))?;
                write!(f, "number {number} of term {term}{gap}")
            }
            Self::KeyLeft { node, name: n, why } => {
                write!(f, "node {node} still has the key of {}: {why}", name(n))
            }
            Self::NotServed { client, name: n } => {
                write!(f, "client {client} cannot get {}, which nobody holds", name(n))
            }
            Self::TasksLeft(n) => write!(f, "{n} tasks are alive after everything was dropped"),
            Self::Stuck => f.write_str("the run did not come to its end"),
            _ => Ok(()),
        }
    }
}
