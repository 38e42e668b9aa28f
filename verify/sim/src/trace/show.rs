//! Formats events and faults of a simulated run as sentences.

use std::fmt;

use super::Event;
use crate::plan::{Copy, Fault, Shift, Stops, ms};

fn name(n: u16) -> String {
    match n {
        0..100 => format!("lock-{n}"),
        100..200 => format!("calm-{}", n - 100),
        200..300 => format!("order-{}", n - 200),
        300..400 => format!("seat-{}", n - 300),
        400..999 => format!("tick-{}", n - 400),
        999 => format!("name-{n}"),
        1_000.. => format!("slot {} of pool-{}", n % 10, (n - 1_000) / 10),
    }
}

fn letter(server: usize) -> char {
    (b'A' + server as u8) as char
}

/// Returns the numbers of the clients in `mask` as text.
fn clients(mask: u64) -> String {
    let who: Vec<String> =
        (0..8).filter(|c| mask >> c & 1 == 1).map(|c: u64| c.to_string()).collect();
    if who.is_empty() { "nobody".into() } else { who.join(", ") }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind(0) => f.write_str("all data"),
            Self::Behind(span) => write!(f, "the data of {:?} ago", ms(*span)),
            Self::Empty => f.write_str("no data"),
            Self::Own => f.write_str("its own data"),
        }
    }
}

/// Returns the letters of the servers in `mask`.
fn letters(mask: u64) -> String {
    (0..16).filter(|at| mask >> at & 1 == 1).map(letter).collect()
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Split { servers, clients: who, span } => {
                write!(f, "for {span} ms {} are cut off from all others, ", letters(servers))?;
                write!(f, "with the clients: {}", clients(who))
            }
            Self::Freeze { server, span } => write!(f, "{} freezes for {span} ms", letter(server)),
            Self::Restart { server, is_empty, down } => {
                let what = if is_empty { "no data" } else { "all data" };
                write!(f, "{} restarts with {what}, in {down} ms", letter(server))
            }
            Self::Promote { server, how } => {
                write!(f, "{} shall take its master's place: {how:?}", letter(server))
            }
            Self::Move { slot, to, takes, first, end } => {
                write!(f, "slot {slot} moves to {} in {takes} ms: {end:?}", letter(to))?;
                write!(f, ", keys {first:04b} first")
            }
            Self::Bump { server } => write!(f, "{} takes a new epoch", letter(server)),
            Self::Foreign { server, span } => {
                write!(
                    f,
                    "for {span} ms the address of {} leads to another cluster",
                    letter(server)
                )
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Crash { node, copy, down } => {
                write!(f, "the master of node {node} crashes and is back in {down} ms with {copy}")
            }
            Self::Flush { node } => write!(f, "FLUSHALL on node {node}"),
            Self::Evict { node } => write!(f, "the memory of node {node} is full"),
            Self::Freeze { node, server, span } => {
                write!(f, "node {node}/{} freezes for {span} ms", letter(server))
            }
            Self::Halt { node, server, span } => {
                let server = letter(server);
                write!(f, "node {node}/{server} stops in the middle of a batch, within {span} ms")
            }
            Self::Cut { client, node, requests: true, span } => {
                write!(f, "for {span} ms no request of client {client} reaches node {node}")
            }
            Self::Cut { client, node, span, .. } => {
                write!(f, "for {span} ms no answer of node {node} reaches client {client}")
            }
            Self::Step { node, server, to } => {
                write!(f, "the clock of node {node}/{} steps, now {to} µs ahead", letter(server))
            }
            Self::Wild { node, server, by, span } => {
                let server = letter(server);
                write!(
                    f,
                    "the clock of node {node}/{server} is {by} µs further ahead for {span} ms"
                )
            }
            Self::Handover { node, to, takes, stops } => {
                let to = letter(to);
                write!(f, "node {node} is closed, and handed over to {to} {takes} ms later")?;
                if stops == Stops::Done { Ok(()) } else { write!(f, "; stops: {stops:?}") }
            }
            Self::Failover { node, to, copy, old, freeze } => {
                write!(f, "node {node} fails over to {} with {copy}; ", letter(to))?;
                write!(f, "these stay with the old master: {}", clients(old))?;
                if freeze > 0 {
                    write!(f, "; it freezes for {freeze} ms")?;
                }
                Ok(())
            }
            Self::Rename { node } => write!(f, "the master of node {node} renames its data"),
            Self::Epoch { node, old } => {
                write!(f, "the Sentinels' epoch of node {node} rises; ")?;
                write!(f, "these are not told: {}", clients(old))
            }
            Self::PutBack { node, age, whole } => {
                let what = if whole { "machine" } else { "data" };
                write!(f, "the {what} of {age} ms ago is put back on node {node}")
            }
            Self::Detour { node, copy, reset } => {
                let then = if reset { ", then RESETSTAT" } else { "" };
                write!(f, "the master of node {node} follows a server with {copy}, and back{then}")
            }
            Self::Astray { node, to, span } => {
                write!(f, "for {span} ms the address of node {node} leads to node {to}")
            }
            Self::Pause { client, span, lag } => {
                write!(f, "client {client} stops for {span} ms, its timers for {lag} ms more")
            }
            Self::Kill { client } => write!(f, "client {client} dies; a new one takes its place"),
            Self::Deploy { client, stage } => {
                write!(f, "client {client} is replaced by one with settings {stage}")
            }
            Self::Shift(shift) => write!(f, "{shift}"),
        }
    }
}

/// Returns the fingerprint of a request as text. Returns an empty text if there is none.
fn of(print: u8) -> String {
    if print == 0 { String::new() } else { format!(" (request {print})") }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fault(fault) => write!(f, "  ** {fault}"),
            Self::Healed => f.write_str("  ** all faults are over"),
            Self::ClientBack(c) => write!(f, "  ** client {c} goes on"),
            Self::NodeBack(n) => write!(f, "  ** node {n} is back"),
            Self::Served { node, server, client, verb, name: n, owner, answer } => {
                let server = letter(server);
                write!(f, "     node {node}/{server} ← client {client}: {verb:?} {} ", name(n))?;
                write!(f, "by #{owner:04x} → {answer:?}")
            }
            Self::NewLife { node, server, quarantine, .. } => {
                let (server, ms) = (letter(server), quarantine / 1_000_000);
                write!(
                    f,
                    "     node {node}/{server} begins a new life: silent for {ms} ms at least"
                )
            }
            Self::Lost { node, since } => {
                write!(f, "     node {node} has what was written until {since} µs")
            }
            Self::LateEffect { node, client, name: n, late } => {
                write!(f, "     node {node}: a request of client {client} for {} ", name(n))?;
                write!(f, "took effect {late} µs after its deadline")
            }
            Self::Needless { node } => {
                write!(f, "node {node} begins a new history, though it has lost nothing")
            }
            Self::Granting { .. } | Self::Refrains { .. } => Ok(()),
            Self::Leads { server, slot, epoch } => {
                write!(f, "     {} says that it has slot {slot} in epoch {epoch}", letter(server))
            }
            Self::Named { client, slot, port, epoch } => {
                write!(f, "     to client {client} a majority names {port} for slot {slot}, ")?;
                write!(f, "epoch {epoch}")
            }
            Self::Asks { client, task, name: n } => {
                write!(f, "client {client}.{task} asks for {}", name(n))
            }
            Self::AsksFairly { client, task, name: n } => {
                write!(f, "client {client}.{task} waits for its turn with {}", name(n))
            }
            Self::Queued { client, task, name: n } => {
                write!(f, "client {client}.{task} has a position for {}", name(n))
            }
            Self::ItsTurn { client, task, name: n } => {
                write!(f, "client {client}.{task} has its turn with {}", name(n))
            }
            Self::Placed { node, client, name: n, with_ticket } => {
                let what = if with_ticket { "has the place" } else { "has no settled place" };
                write!(f, "     node {node} {what} of client {client} for {}", name(n))
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
    fn fmt_holder(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Holds { hold, client, name: n, token, is_taker, shared, left, .. } => {
                let took = if is_taker { ", taken from another" } else { "" };
                let holds = if shared { "READS" } else { "HOLDS" };
                write!(f, "client {client} {holds} {} (hold {hold}) ", name(n))?;
                write!(f, "token {token}, valid for {left} µs{took}")
            }
            Self::Parts { hold, client, name: n, how } => {
                write!(f, "client {client} parts with {} (hold {hold}): {how:?}", name(n))
            }
            Self::HandedOver { client, name: n, token } => {
                write!(f, "client {client} hands {} over, token {token}", name(n))
            }
            Self::Resumed { client, name: n, token, .. } => {
                write!(f, "client {client} redeems the ticket of {} with token {token}", name(n))
            }
            Self::AllPermits { client, name: n, slots, permits } => {
                let pool = (n - 1_000) / 10;
                write!(f, "client {client} has {permits} permits of pool-{pool}, slots {slots:b}")
            }
            Self::Unkept { client, name: n, token, nodes } => {
                write!(f, "client {client}: token {token} of {} is on replicas ", name(n))?;
                write!(f, "of {nodes} nodes")
            }
            Self::LossReported { hold, client, late } => {
                write!(f, "client {client} learns {late} µs late that hold {hold} is lost")
            }
            Self::Revived { hold, client } => {
                write!(f, "client {client}: hold {hold} was invalid and is valid again")
            }
            Self::Overlap { first, second, name: n } => {
                write!(f, "holds {first} and {second} of {} are valid at once", name(n))
            }
            Self::Write { hold, name: n, token, shared, accepted, .. } => {
                let use_ = if shared { "read" } else { "write" };
                let done = if accepted { "accepted" } else { "refused" };
                write!(f, "     resource {}: {use_} of hold {hold}, token {token}: {done}", name(n))
            }
            Self::Calls { client, name: n } => write!(f, "client {client} calls {}", name(n)),
            Self::Starts { client, name: n, token, attempt, value, print } => {
                write!(f, "client {client} STARTS the handler of {}{}, ", name(n), of(print))?;
                write!(f, "attempt {attempt}, token {token}; its result would be {value}")
            }
            Self::StepBegins { name: n, step, token } => {
                write!(f, "the handler of {} with token {token} begins step {step}", name(n))
            }
            Self::StepDone { name: n, step, token } => {
                write!(f, "the handler of {} with token {token} has step {step}", name(n))
            }
            Self::NoEffect { name: n, value } => {
                write!(f, "the handler of {} with result {value} did nothing", name(n))
            }
            Self::Result { client, name: n, value, print, executed, kept } => {
                let how = if executed { "executed" } else { "replayed" };
                let kept = if kept { "" } else { ", not kept" };
                write!(f, "client {client} IS ANSWERED {value} for {}", name(n))?;
                write!(f, "{}, {how}{kept}", of(print))
            }
            Self::NotKept { client, name: n } => {
                write!(f, "client {client} IS ANSWERED that the result of {} was not kept", name(n))
            }
            Self::NoResult { client, name: n, why } => {
                write!(f, "client {client} gets no result for {}: {why}", name(n))
            }
            Self::Sees { client, name: n, leader, term, number, gap, .. } => {
                let gap = if gap { ", something may be missed" } else { "" };
                write!(f, "client {client} sees client {leader} lead {}, ", name(n))?;
                write!(f, "number {number} of term {term}{gap}")
            }
            Self::Vacant { client, name: n, requested_at, hold } => {
                write!(f, "client {client}, to a request of {requested_at} µs, is answered ")?;
                write!(f, "that nobody has {}", name(n))?;
                hold.map_or(Ok(()), |hold| write!(f, "; hold {hold} was valid all the time"))
            }
            Self::Decided { client, name: n, decision } => {
                write!(f, "client {client} decides about {}: {decision:?}", name(n))
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
