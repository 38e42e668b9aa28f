//! Encodes a [`Batch`] as one `EVALSHA`, in the order that `lua/main.lua` reads.

use std::time::Duration;

use redis::Cmd;

use super::script::{IN_SLOT, SCRIPT};
use super::seen::Seen;
use crate::name::{NONE, STAYS, slot_key, trial_key};
use crate::op::{Batch, LockMode, Op, Slots, Want};
use crate::store::planned::Planned;
use crate::store::write::{
    Ahead, Choose, Class, Extent, FENCE_MAX, Key, Look, SlotWrite, Stamped, Step, Take, Waits,
    Write,
};
use crate::time::{FENCE_SLACK, Moment, token_lead};
use crate::token::OwnerToken;

pub(crate) const MARKER: &str = crate::name::MARKER;
pub(crate) const NOTE: &str = crate::name::NOTE;
/// The last two keys of each batch in a slot of a cluster: whether it was away, and one that is
/// never there.
const IN_SLOT_ONLY: [&str; 2] = [STAYS, NONE];

/// Larger than every ticket.
const LAST_TICKET: u64 = 10_000_000_000_000_000;

/// In one run. Lua passes at most some thousand values to a command, and a release passes two for
/// each op.
const RUN_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupTerms {
    /// L: the longest that follows from the servers' settings that could be read.
    pub(crate) failover_window: Duration,
    /// L if each server whose settings could not be read has the longest. For the beginning of a
    /// data history: a promoted server's marker may be older than the settings of the one that it
    /// replaced.
    pub(crate) unread_window: Duration,
    /// The longest L that any client with the same settings for this group can state.
    pub(crate) widest_window: Duration,
    pub(crate) trust_fresh: bool,
    /// That must have acknowledged lately, and the largest age of their acknowledgements in
    /// seconds.
    pub(crate) good_replicas: (u32, u64),
    pub(crate) allow_eviction: bool,
    pub(crate) durable: bool,
    /// Number of a trial, which has a marker and a note of its own.
    pub(crate) trial: Option<u64>,
    /// The Sentinels' last word on the master of the group, or that of a cluster's masters on the
    /// owner of the slot.
    pub(crate) named: Option<Named>,
    /// Slot of a cluster, which has a marker and a note of its own.
    pub(crate) slot: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) epoch: Option<u64>,
    /// End of the time in which a batch may rely on it: L after the question was sent
    /// (sentinel 10); `None` if it may at any time.
    pub(crate) until: Option<Moment>,
    /// Lowest epoch since which each word on a slot has named this owner (cluster 7).
    pub(crate) since: Option<u64>,
    /// When the slot was last known to be migrating from it (cluster 8).
    pub(crate) disturbed: Option<Moment>,
}

impl GroupTerms {
    pub(crate) const ALONE: Self = Self {
        failover_window: Duration::ZERO,
        unread_window: Duration::ZERO,
        widest_window: Duration::ZERO,
        trust_fresh: false,
        good_replicas: (0, 0),
        allow_eviction: false,
        durable: false,
        trial: None,
        named: None,
        slot: None,
    };
}

/// For a server on which the client expects `seen`. Without one the script executes nothing, and
/// answers what the client needs to judge again. `not_after` is in µs by that server's clock.
/// `awaited`: a client may be waiting for a hint from it. `plans`: for each op that is one its
/// conditional write; none if the script is to execute nothing.
pub(crate) fn batch(
    batch: &Batch,
    plans: &[Option<Planned>],
    not_after: Option<u64>,
    group_terms: GroupTerms,
    seen: Option<&Seen>,
    awaited: bool,
) -> Cmd {
    // Without a marker it is to execute nothing.
    let ops = if seen.is_some() { &batch.ops[..] } else { &[] };
    // About four keys and four arguments per op. A wrong guess only costs a reallocation.
    let (mut args, mut bytes) = (14 + 9 * ops.len(), 640 + 160 * ops.len());
    for planned in plans.iter().flatten() {
        let write = planned.write();
        (args, bytes) = (args + 5 * write.steps.len(), bytes + write.len());
    }
    let mut cmd = Cmd::with_capacity(args, bytes);
    let script = if group_terms.slot.is_some() { &IN_SLOT } else { &SCRIPT };
    cmd.arg("EVALSHA").arg(script.get_hash());
    let each_key = |each: &mut dyn FnMut(&str)| {
        for (run, planned) in runs(ops, plans) {
            if let Some(write) = planned.map(Planned::write) {
                for key in write.keys {
                    keys_of(&run[0], *key, &mut *each);
                }
                continue;
            }
            let run = if is_leaving(&run[0]) { &run[..1] } else { run };
            for op in run {
                keys(op, awaited, &mut *each);
            }
        }
    };
    let mut count = 2 + group_terms.slot.map_or(0, |_| IN_SLOT_ONLY.len());
    each_key(&mut |_| count += 1);
    cmd.arg(count);
    for key in [MARKER, NOTE] {
        match (group_terms.slot, group_terms.trial) {
            (Some(slot), None) => cmd.arg(slot_key(slot, key)),
            (Some(slot), Some(trial)) => cmd.arg(slot_key(slot, &trial_key(trial, key))),
            (None, None) => cmd.arg(key),
            (None, Some(trial)) => cmd.arg(trial_key(trial, key)),
        };
    }
    each_key(&mut |key| _ = cmd.arg(key));
    if let Some(slot) = group_terms.slot {
        for key in IN_SLOT_ONLY {
            cmd.arg(slot_key(slot, key));
        }
    }
    let (from, until) = seen.and_then(|seen| seen.window(batch, not_after)).unwrap_or((1, 0));
    let expected = seen.map_or("", |seen| seen.replaces.as_deref().unwrap_or(seen.text()));
    cmd.arg(expected).arg(from).arg(until);
    let terms = &batch.terms;
    // All clients use the largest E that any has asked for.
    let error = micros(terms.clock_error).max(seen.map_or(0, |seen| seen.marker.clock_error));
    let lead = token_lead(Duration::from_micros(error)).saturating_add(FENCE_SLACK);
    let fence_life = millis(terms.max_ttl.saturating_add(lead));
    let (needed, age) = group_terms.good_replicas;
    cmd.arg(format!(
        "{needed} {age} {error} {} {} {:012} {}",
        not_after.unwrap_or(0),
        seen.map_or(0, |seen| seen.marker.quarantine_end()),
        seen.map_or(0, |seen| seen.least_seq(&batch.remembers)),
        counts(&batch.ops),
    ));
    match seen.filter(|seen| seen.replaces.is_some()) {
        Some(seen) => cmd.arg(seen.text()).arg(seen.marker.replid.to_string()),
        None => cmd.arg("").arg(""),
    };
    for (run, planned) in runs(ops, plans) {
        match planned {
            Some(planned) => write(&mut cmd, planned.write()),
            None => run_args(&mut cmd, run, fence_life, awaited),
        }
    }
    cmd
}

/// How the batch counts as a write (quarantine 18): 2 if it grants, extends, claims or completes, 1
/// if it may write otherwise, 0 if it only reads.
fn counts(ops: &[Op]) -> u8 {
    let completes = |op: &Op| matches!(op, Op::Complete { .. } | Op::Steps { .. });
    match ops {
        ops if ops.iter().any(|op| op.is_vote() || completes(op)) => 2,
        [] => 1,
        ops => u8::from(!ops.iter().all(Op::only_reads)),
    }
}

fn keys_of(op: &Op, key: Key, each: &mut dyn FnMut(&str)) {
    let Some(names) = op.lock_keys() else { return each(op.own_key().unwrap_or_default()) };
    for keys in names.all() {
        each(match key {
            Key::Main => keys.lock(),
            Key::Fence => keys.fence(),
            Key::Meta => keys.meta(),
            Key::Queue => keys.queue(),
        });
    }
}

/// As `lua/write.lua` reads it.
fn write(cmd: &mut Cmd, Write { class, keys, names, steps, look, joins }: &Write) {
    let shape = |step: &Step| match step {
        Step::On(..) => (b' ', 0),
        Step::Absent => (b'A', 0),
        Step::Present => (b'p', 0),
        Step::Refuse => (b'f', 0),
        Step::Readable => (b's', 0),
        Step::Window => (b'n', 0),
        Step::DropMeta => (b'D', 0),
        Step::Drop => (b'J', 0),
        Step::WakeReaders => (b'w', 0),
        Step::Show => (b'V', 0),
        Step::Choose(_) => (b'c', 7),
        Step::Slot(_) => (b'y', 5),
        Step::Slots { .. } => (b'e', 2),
        Step::IsRead(_) => (b'o', 1),
        Step::Shareable(_) => (b'R', 1),
        Step::Free(_) => (b'U', 1),
        Step::Leave(_) => (b'l', 1),
        Step::Settled(_) => (b'Q', 1),
        Step::Begins(_) => (b'E', 1),
        Step::Is(_) => (b'I', 1),
        Step::IsOrAbsent(_) => (b'i', 1),
        Step::AtMost(_) => (b'B', 1),
        Step::Member(_) => (b'Z', 1),
        Step::NoMember(_) => (b'z', 1),
        Step::EndsWithin(_) => (b'L', 1),
        Step::KeepFor(_) => (b'X', 1),
        Step::LiveFor(_) => (b'P', 1),
        Step::KeepMeta(_) => (b'M', 1),
        Step::Wake(_) => (b'W', 1),
        Step::Settle(..) => (b'H', 2),
        Step::Clock(..) => (b'T', 2),
        Step::Number(..) => (b'F', 2),
        Step::Publish(..) => (b'N', 2),
        Step::Keep { .. } => (b'C', 3),
        Step::Read { owners, .. } => (b'Y', 3 + owners.len()),
        Step::First(_) => (b'K', 4),
        Step::Set(..) => (b'S', 4),
        Step::Part(..) => (b'O', 4),
        Step::Take(_) => (b'G', 7),
    };
    let code = |n: usize| 48 + u8::try_from(n).unwrap_or(0);
    let (mut letters, mut on, mut args) = (Vec::with_capacity(2 * steps.len()), 1, 0);
    for step in steps {
        if let Step::On(key, name) = step {
            on = keys.iter().position(|sent| sent == key).map_or(1, |at| at * names + name + 1);
            continue;
        }
        let (letter, count) = shape(step);
        letters.extend([letter, code(on)]);
        args += count;
    }
    let (shows, more) = match look {
        Look::Record { .. } => (b'r', 3),
        Look::Lock(Extent { fence, reader, all, kept, queue, slots }) => {
            let parts = [*fence, reader.is_some(), *all, *kept, *queue, *slots];
            let sum = parts.iter().rev().fold(0, |sum, shown| 2 * sum + usize::from(*shown));
            (code(sum), usize::from(reader.is_some()))
        }
    };
    args += more + if joins.is_some() { 5 } else { 0 };
    let class = match class {
        Class::Grant => b'g',
        Class::Keep => b'k',
        Class::Undo => b'u',
        Class::Read => b'r',
    };
    let then = joins.as_ref().map_or(b'-', |joins| if joins.always { b'a' } else { b'e' });
    let (low, high) = (code(args % 64), code(args / 64));
    let head = [class, code(keys.len() * names), low, high, shows, then, code(*names)];
    cmd.arg([&head[..], &letters].concat());
    for step in steps {
        step_args(cmd, step);
    }
    match look {
        Look::Record { first, whole_if: Some((at, byte)) } => {
            cmd.arg(first - 1).arg(at + 1).arg(&[*byte][..])
        }
        Look::Record { first, whole_if: None } => cmd.arg(first - 1).arg("").arg(""),
        Look::Lock(Extent { reader: Some(reader), .. }) => cmd.arg(reader.as_str()),
        Look::Lock(_) => cmd,
    };
    if let Some(joins) = joins {
        place(cmd, joins.place);
    }
}

fn step_args<'c>(cmd: &'c mut Cmd, step: &Step) -> &'c mut Cmd {
    match step {
        Step::On(..)
        | Step::Absent
        | Step::Present
        | Step::Refuse
        | Step::Readable
        | Step::Window
        | Step::DropMeta
        | Step::Drop
        | Step::WakeReaders
        | Step::Show => cmd,
        Step::Begins(bytes) | Step::Is(bytes) | Step::IsOrAbsent(bytes) => cmd.arg(&bytes[..]),
        Step::Settled(till) => number(cmd, *till),
        Step::AtMost(number)
        | Step::KeepFor(number)
        | Step::LiveFor(number)
        | Step::EndsWithin(number)
        | Step::KeepMeta(number) => cmd.arg(*number),
        Step::Member(owner) | Step::NoMember(owner) | Step::Free(owner) => cmd.arg(owner.as_str()),
        Step::Leave(owner) => cmd.arg(&owner.as_str()[6..]),
        Step::Wake(at) | Step::IsRead(at) | Step::Shareable(at) => cmd.arg(*at),
        Step::Clock(from, until) | Step::Settle(from, until) | Step::Number(from, until) => {
            cmd.arg(*from).arg(*until)
        }
        Step::Publish(meta, ms) => cmd.arg(&meta[..]).arg(*ms),
        Step::Keep { first, low, ms } => cmd.arg(*first).arg(*low).arg(*ms),
        Step::Read { owners, ms, prolongs } => {
            cmd.arg(if *prolongs { "CH" } else { "NX" }).arg(*ms).arg(owners.len());
            owners.iter().fold(cmd, |cmd, owner| cmd.arg(owner.as_str()))
        }
        Step::First(Ahead::OfReader(waited)) => {
            cmd.arg("xX").arg(format!("-{}", (*waited).max(1))).arg("").arg(0)
        }
        Step::First(Ahead::OfFair(waiter, ticket, lead)) => {
            let ticket = ticket.unwrap_or(LAST_TICKET);
            cmd.arg("X").arg(ticket).arg(format!("{waiter:016x}")).arg(*lead)
        }
        Step::Take(Take { owner, proposal, ttl, life, reserved }) => {
            let cmd = cmd.arg("A").arg(1).arg(*ttl).arg(*life);
            let cmd = cmd.arg(owner.as_str()).arg(*proposal);
            cmd.arg(reserved.as_ref().map_or("", OwnerToken::as_str))
        }
        Step::Choose(Choose { slots, owner, proposal, ttl, reserved, is_new }) => {
            let Slots { of, want } = slots;
            let (start, step) = match *want {
                Want::First { start, step } => (start % of, step.max(1)),
                Want::Exactly(slot) => (slot, 0),
            };
            let cmd = cmd.arg(*of).arg(start).arg(step).arg(owner.as_str());
            let cmd = cmd.arg(format!("{proposal:016}")).arg(*ttl);
            let others = if *is_new { "-" } else { "" };
            cmd.arg(reserved.as_ref().map_or(others, OwnerToken::as_str))
        }
        Step::Slot(SlotWrite { slot, begins, owner, ms, fence }) => {
            let cmd = number(cmd, slot.map(u64::from)).arg(&begins[..]);
            let cmd = number(cmd.arg(owner.as_ref().map_or("", OwnerToken::as_str)), *ms);
            cmd.arg(fence.map_or(String::new(), |fence| format!("{:016}", fence.min(FENCE_MAX))))
        }
        Step::Slots { life, hands_on } => number(cmd, *life).arg(u8::from(*hands_on)),
        Step::Set(value, life) => stamped(number(cmd, *life), value),
        Step::Part(at, value) => stamped(cmd.arg(*at), value),
    }
}

/// As `lua/join.lua` reads it.
fn place(cmd: &mut Cmd, waits: Waits) -> &mut Cmd {
    let (mode, place, ticket, slots) = match waits {
        Waits::Watcher => return cmd.arg("v").arg("").arg("").arg("").arg(""),
        Waits::Writer(place) => ("x", place, None, None),
        Waits::Permit(place, slots) => ("x", place, None, Some(u64::from(slots))),
        Waits::Reader(place) => ("s", place, None, None),
        Waits::Fair(place, ticket) => ("X", place, Some(ticket), None),
    };
    let since = ticket.unwrap_or_else(|| Some(place.micros()));
    let cmd = number(cmd.arg(mode).arg(format!("{:016x}", place.waiter)), since);
    number(cmd.arg(whole_millis(place.needs)), slots)
}

fn stamped<'c>(cmd: &'c mut Cmd, Stamped { before, lease, after }: &Stamped) -> &'c mut Cmd {
    number(cmd.arg(&before[..]), *lease).arg(&after[..])
}

pub(super) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Neighbours that are sent as one: acquires or releases that differ only in keys, owner and
/// proposal, and of readers only in owner and proposal; any other op is alone. With what is planned
/// for them.
pub(super) fn runs<'a>(
    ops: &'a [Op],
    plans: &'a [Option<Planned>],
) -> impl Iterator<Item = (&'a [Op], Option<&'a Planned>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = ops.get(at)?;
        let planned = plans.get(at).and_then(Option::as_ref);
        let unplanned = || {
            let is_alone = |n: &usize| plans.get(at + n).and_then(Option::as_ref).is_some();
            let is_next = |n: &usize| !is_alone(n) && are_run(first, &ops[at + n]);
            1 + (1..(ops.len() - at).min(RUN_MAX)).take_while(is_next).count()
        };
        let count = planned.map_or_else(unplanned, Planned::count);
        let run = &ops[at..at + count];
        at += count;
        Some((run, planned))
    })
}

fn are_run(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (
            Op::Acquire { mode: LockMode::Exclusive, keys, ttl, if_held: None, .. },
            Op::Acquire {
                mode: LockMode::Exclusive, keys: next, ttl: other, if_held: None, ..
            },
        ) => ttl == other && !keys.is_many() && !next.is_many(),
        (
            Op::Release { mode: LockMode::Exclusive, keys, meta: false, .. },
            Op::Release { mode: LockMode::Exclusive, keys: next, meta: false, .. },
        ) => !keys.is_many() && !next.is_many(),
        (
            Op::Release { mode: LockMode::Shared, keys, .. },
            Op::Release { mode: LockMode::Shared, keys: next, .. },
        ) => keys == next,
        _ => false,
    }
}

/// The readers of a run have the same keys, which are sent once.
fn is_leaving(op: &Op) -> bool {
    matches!(op, Op::Release { mode: LockMode::Shared, .. })
}

fn run_args(cmd: &mut Cmd, run: &[Op], fence_life: u64, awaited: bool) {
    match &run[0] {
        Op::Release { mode: LockMode::Shared, .. } => {
            cmd.arg("G").arg(run.len());
        }
        Op::Release { mode: LockMode::Exclusive, keys, .. } => {
            // Several locks are a run of releases of the same owner.
            let names = if run.len() == 1 { keys.all().count() } else { run.len() };
            cmd.arg(if awaited { "Q" } else { "D" }).arg(names);
        }
        Op::Acquire { mode: LockMode::Exclusive, ttl, .. } => {
            cmd.arg("A").arg(run.len()).arg(millis(*ttl)).arg(fence_life);
        }
        _ => {}
    }
    for op in run {
        match op {
            Op::Release { keys, owner, .. } => {
                keys.all().for_each(|_| _ = cmd.arg(owner.as_str()));
            }
            Op::Acquire { owner, proposal, .. } => _ = cmd.arg(owner.as_str()).arg(*proposal),
            _ => unreachable!("a conditional write: {op:?}"),
        }
    }
}

/// Rounded up, because on a node a lock may last longer than its holder relies on it, but never
/// shorter. At least one, because Redis refuses an expiry of zero.
fn millis(d: Duration) -> u64 {
    whole_millis(d).max(1)
}

/// Rounded up; zero for zero.
pub(super) fn whole_millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Of an op without a plan, in the order in which the script expects them.
pub(crate) fn keys(op: &Op, awaited: bool, mut each: impl FnMut(&str)) {
    let Some(names) = op.lock_keys() else { return each(op.own_key().unwrap_or_default()) };
    for keys in names.all() {
        each(keys.lock());
        match op {
            Op::Acquire { mode: LockMode::Exclusive, .. } => each(keys.fence()),
            // Each key costs time, so the queue's is sent only if there may be one.
            Op::Release { mode: LockMode::Exclusive, .. } if !awaited => {}
            _ => each(keys.queue()),
        }
    }
}

fn number(cmd: &mut Cmd, number: Option<u64>) -> &mut Cmd {
    match number {
        Some(number) => cmd.arg(number),
        None => cmd.arg(""),
    }
}
