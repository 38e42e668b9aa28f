//! Encodes a [`Batch`] as one `EVALSHA`, in the order that `lua/main.lua` reads.

use std::time::Duration;

use redis::Cmd;

use super::script::{IN_SLOT, SCRIPT};
use super::seen::Seen;
use crate::name::{STAYS, slot_key, trial_key};
use crate::op::{Batch, Enlist, IfHeld, LockMode, Op, Place, QuarantineId, Slots, Want};
use crate::store::records::Planned;
use crate::store::write::{Class, Look, Stamped, Step, Write};
use crate::time::{FENCE_SLACK, Moment, token_lead};
use crate::token::OwnerToken;

pub(crate) const MARKER: &str = crate::name::MARKER;
pub(crate) const NOTE: &str = crate::name::NOTE;
/// The last two keys of each batch in a slot of a cluster: whether it was away, and one that is
/// never there.
const IN_SLOT_ONLY: [&str; 2] = [STAYS, "palisade:none"];

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
}

impl GroupTerms {
    pub(crate) const ALONE: Self = Self {
        failover_window: Duration::ZERO,
        unread_window: Duration::ZERO,
        widest_window: Duration::ZERO,
        trust_fresh: false,
        good_replicas: (0, 0),
        allow_eviction: false,
        trial: None,
        named: None,
        slot: None,
    };
}

/// For a server on which the client expects `seen`. Without one the script executes nothing, and
/// answers what the client needs to judge again. `not_after` is in µs by that server's clock.
/// `awaited`: a client may be waiting for a hint from it. `plans`: for each op on a record its
/// conditional write.
pub(crate) fn batch(
    batch: &Batch,
    plans: &[Option<Planned>],
    not_after: Option<u64>,
    group_terms: GroupTerms,
    seen: Option<&Seen>,
    awaited: bool,
) -> Cmd {
    let n = batch.ops.len();
    // About four keys and four arguments per op. A wrong guess only costs a reallocation.
    let (mut args, mut bytes) = (14 + 9 * n, 640 + 160 * n);
    for Planned { write, .. } in plans.iter().flatten() {
        (args, bytes) = (args + 5 * write.steps.len(), bytes + write.len());
    }
    let mut cmd = Cmd::with_capacity(args, bytes);
    let script = if group_terms.slot.is_some() { &IN_SLOT } else { &SCRIPT };
    cmd.arg("EVALSHA").arg(script.get_hash());
    let keyed = || runs(&batch.ops).flat_map(keyed);
    let mut count = 2 + group_terms.slot.map_or(0, |_| IN_SLOT_ONLY.len());
    keyed().for_each(|op| keys(op, awaited, |_| count += 1));
    cmd.arg(count);
    for key in [MARKER, NOTE] {
        match (group_terms.slot, group_terms.trial) {
            (Some(slot), _) => cmd.arg(slot_key(slot, key)),
            (None, None) => cmd.arg(key),
            (None, Some(trial)) => cmd.arg(trial_key(trial, key)),
        };
    }
    keyed().for_each(|op| keys(op, awaited, |key| _ = cmd.arg(key)));
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
        "{needed} {age} {error} {fence_life} {} {} {:012} {}",
        not_after.unwrap_or(0),
        seen.map_or(String::from("0 0 0 -"), Seen::limits),
        seen.map_or(0, |seen| seen.least_seq(&batch.remembers)),
        counts(&batch.ops),
    ));
    match seen.filter(|seen| seen.replaces.is_some()) {
        Some(seen) => cmd.arg(seen.text()).arg(seen.marker.replid.to_string()),
        None => cmd.arg("").arg(""),
    };
    let mut at = 0;
    for run in runs(&batch.ops) {
        match plans.get(at).and_then(Option::as_ref) {
            Some(planned) => write(&mut cmd, &planned.write),
            // Nothing is executed.
            None if run[0].record_key().is_some() => write(&mut cmd, &Write::NOTHING),
            None => run_args(&mut cmd, run, fence_life, awaited),
        }
        at += run.len();
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

/// As `lua/write.lua` reads it.
pub(super) fn write(cmd: &mut Cmd, Write { class, steps, look }: &Write) {
    let args = |step: &Step| match step {
        Step::Absent | Step::Show => 1,
        Step::Begins(_) | Step::KeepFor(_) | Step::Wake(_) => 2,
        Step::Clock(..) => 3,
        Step::Set(..) | Step::Part(..) => 5,
    };
    let class = match class {
        Class::Grant => "g",
        Class::Keep => "k",
        Class::Undo => "u",
        Class::Read => "r",
    };
    cmd.arg("C").arg(class).arg(steps.iter().map(args).sum::<usize>());
    for step in steps {
        match step {
            Step::Absent => cmd.arg("A"),
            Step::Show => cmd.arg("V"),
            Step::Begins(bytes) => cmd.arg("E").arg(&bytes[..]),
            Step::Clock(from, until) => cmd.arg("T").arg(*from).arg(*until),
            Step::KeepFor(ms) => cmd.arg("X").arg(*ms),
            Step::Wake(at) => cmd.arg("W").arg(*at),
            Step::Set(value, life) => stamped(number(cmd.arg("S"), *life), value),
            Step::Part(at, value) => stamped(cmd.arg("O").arg(*at), value),
        };
    }
    let Look { first, whole_if } = look;
    cmd.arg(first - 1);
    match whole_if {
        Some((at, byte)) => cmd.arg(at + 1).arg(&[*byte][..]),
        None => cmd.arg("").arg(""),
    };
}

fn stamped<'c>(cmd: &'c mut Cmd, Stamped { before, lease, after }: &Stamped) -> &'c mut Cmd {
    number(cmd.arg(&before[..]), *lease).arg(&after[..])
}

pub(super) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Each run is sent as one: acquires or releases that differ only in keys, owner and proposal, and
/// for readers only in owner and proposal; any other op is a run by itself. The script releases a
/// run in two commands instead of two for each lock, adds its readers in one, and answers a single
/// code if all was executed as requested.
pub(super) fn runs(ops: &[Op]) -> impl Iterator<Item = &[Op]> {
    ops.chunk_by(|a, b| match (a, b) {
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
            Op::Acquire { mode: LockMode::Shared, keys, ttl, if_held: None, .. },
            Op::Acquire { mode: LockMode::Shared, keys: next, ttl: other, if_held: None, .. },
        ) => ttl == other && keys == next,
        (
            Op::Release { mode: LockMode::Shared, keys, .. },
            Op::Release { mode: LockMode::Shared, keys: next, .. },
        ) => keys == next,
        _ => false,
    })
    .flat_map(|run| run.chunks(RUN_MAX))
}

/// The readers of a run have the same keys, which are sent once.
fn keyed(run: &[Op]) -> &[Op] {
    match &run[0] {
        Op::Acquire { mode: LockMode::Shared, .. } | Op::Release { mode: LockMode::Shared, .. } => {
            &run[..1]
        }
        _ => run,
    }
}

fn run_args(cmd: &mut Cmd, run: &[Op], fence_life: u64, awaited: bool) {
    match &run[0] {
        Op::Release { mode, keys, meta, .. }
            if keys.is_many() || *mode == LockMode::Exclusive && !meta =>
        {
            // Several locks are a run of releases of the same owner.
            let releases = run.iter().map(|op| op.several().map_or(1, |keys| keys.all().count()));
            cmd.arg(if awaited { "Q" } else { "D" }).arg(releases.sum::<usize>());
        }
        op if op.several().is_some() => {}
        Op::Acquire { mode: LockMode::Shared, ttl, proposal, if_held, .. } => {
            let cmd = cmd.arg("S").arg(run.len()).arg(millis(*ttl)).arg(*proposal);
            waits(cmd, if_held.as_ref());
        }
        Op::Release { mode: LockMode::Shared, .. } => {
            cmd.arg("G").arg(run.len());
        }
        Op::Acquire { mode: LockMode::Exclusive, ttl, if_held, .. } => {
            let kind = match if_held {
                None => "A",
                Some(IfHeld::Watch) => "V",
                Some(IfHeld::Queue(_)) => "W",
                Some(IfHeld::Fair { .. }) => "O",
                Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }) => "T",
            };
            cmd.arg(kind).arg(run.len()).arg(millis(*ttl)).arg(fence_life);
        }
        _ => {}
    }
    for op in run {
        args(cmd, op);
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

/// As `lua/many.lua` or `lua/release_fast.lua` reads them.
fn many_args(cmd: &mut Cmd, op: &Op, names: usize) {
    if let Op::Release { owner, .. } = op {
        for _ in 0..names {
            cmd.arg(owner.as_str());
        }
        return;
    }
    let (lease, number) = match op {
        Op::Acquire { ttl, proposal, .. } => (millis(*ttl), *proposal),
        Op::Raise { token, .. } => (1, token.get()),
        Op::Extend { ttl, token, .. } => (millis(*ttl), token.get()),
        _ => (1, 0),
    };
    let kind = match op {
        Op::Acquire { .. } => "N",
        Op::Raise { .. } => "J",
        _ => "K",
    };
    cmd.arg(kind).arg(names).arg(op.owner().map_or("", OwnerToken::as_str)).arg(lease).arg(number);
    match op {
        Op::Acquire { if_held: Some(IfHeld::TakeFrom(from)), .. } => cmd.arg(from.as_str()),
        Op::Extend { reassert, .. } => named(cmd, *reassert),
        _ => cmd.arg(""),
    };
}

/// In the order in which the script expects them.
pub(crate) fn keys(op: &Op, awaited: bool, mut each: impl FnMut(&str)) {
    if let Some(names) = op.several() {
        let is_release = matches!(op, Op::Release { .. });
        for name in names.all() {
            each(name.lock());
            if is_release && awaited {
                each(name.queue());
            }
        }
        if !is_release {
            names.all().for_each(|name| each(name.fence()));
        }
        return;
    }
    let keys: &[&str] = match op {
        Op::Acquire { mode: LockMode::Slot(_), keys, .. }
        | Op::Extend { mode: LockMode::Slot(_), keys, .. }
        | Op::Release { mode: LockMode::Slot(_) | LockMode::Shared, keys, .. } => {
            &[keys.lock(), keys.queue()]
        }
        Op::Raise { slot: Some(_), keys, .. } => &[keys.lock()],
        Op::Acquire { mode: LockMode::Shared, keys, .. }
        | Op::Extend { mode: LockMode::Shared, keys, .. } => {
            &[keys.lock(), keys.fence(), keys.queue()]
        }
        Op::Acquire { keys, if_held, .. } => match if_held {
            None => &[keys.lock(), keys.fence()],
            Some(IfHeld::Watch | IfHeld::Queue(_) | IfHeld::Fair { .. }) => {
                &[keys.lock(), keys.fence(), keys.queue()]
            }
            Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }) => {
                &[keys.lock(), keys.fence(), keys.meta()]
            }
        },
        Op::Raise { keys, .. } => &[keys.lock(), keys.fence()],
        Op::Extend { keys, .. } | Op::Inspect { keys, .. } => {
            &[keys.lock(), keys.fence(), keys.meta(), keys.queue()]
        }
        Op::Release { keys, meta: true, .. } => &[keys.lock(), keys.queue(), keys.meta()],
        // Each key costs time, so the queue's is sent only if there may be one.
        Op::Release { keys, .. } if awaited => &[keys.lock(), keys.queue()],
        Op::Release { keys, .. } => &[keys.lock()],
        op => &[op.own_key().unwrap_or_default()],
    };
    for key in keys {
        each(key);
    }
}

fn named(cmd: &mut Cmd, reassert: Option<QuarantineId>) -> &mut Cmd {
    match reassert {
        Some(QuarantineId { history, since }) => cmd.arg(format!("{history:016x}:{since}")),
        None => cmd.arg(""),
    }
}

fn number(cmd: &mut Cmd, number: Option<u64>) -> &mut Cmd {
    match number {
        Some(number) => cmd.arg(number),
        None => cmd.arg(""),
    }
}

fn held<'c>(cmd: &'c mut Cmd, then: Option<&IfHeld>) -> &'c mut Cmd {
    match then {
        None | Some(IfHeld::Watch) => cmd,
        Some(IfHeld::Queue(Place { waited, .. })) => place(cmd.arg(micros(*waited)), then),
        Some(IfHeld::Fair { ticket, .. }) => place(number(cmd, *ticket), then),
        Some(IfHeld::TakeFrom(from)) => cmd.arg(from.as_str()).arg(""),
        Some(IfHeld::TakeOnly { from, token }) => cmd.arg(from.as_str()).arg(token.get()),
    }
}

/// With the time in ms for which a released lock is to be reserved.
fn place<'c>(cmd: &'c mut Cmd, if_held: Option<&IfHeld>) -> &'c mut Cmd {
    let Some(Place { waiter, needs, .. }) = if_held.and_then(IfHeld::place) else { return cmd };
    cmd.arg(format!("{waiter:016x}")).arg(whole_millis(*needs))
}

fn waits<'c>(cmd: &'c mut Cmd, if_held: Option<&IfHeld>) -> &'c mut Cmd {
    match if_held {
        Some(
            IfHeld::Queue(Place { waited, .. }) | IfHeld::Fair { place: Place { waited, .. }, .. },
        ) => place(cmd.arg("w").arg(micros(*waited)), if_held),
        Some(IfHeld::Watch) => cmd.arg("v").arg("").arg("").arg(""),
        Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }) | None => {
            cmd.arg("").arg("").arg("").arg("")
        }
    }
}

fn args(cmd: &mut Cmd, op: &Op) {
    if let Some(keys) = op.several() {
        return many_args(cmd, op, keys.all().count());
    }
    match op {
        Op::Acquire { mode: LockMode::Slot(slots), owner, ttl, proposal, if_held, .. } => {
            let Slots { of, want } = *slots;
            let (start, step) = match want {
                Want::First { start, step } => (start % of.max(1), step.max(1)),
                Want::Exactly(slot) => (slot, 0),
            };
            let cmd = cmd.arg("P").arg(owner.as_str()).arg(millis(*ttl));
            waits(cmd.arg(of).arg(start).arg(step).arg(*proposal), if_held.as_ref())
        }
        Op::Extend { mode: LockMode::Slot(slots), owner, ttl, token, reassert, .. } => {
            let cmd = cmd.arg("Y").arg(owner.as_str()).arg(millis(*ttl)).arg(token.get());
            named(cmd.arg(slots.slot().unwrap_or(0)).arg(slots.of), *reassert)
        }
        Op::Release { mode: LockMode::Slot(slots), owner, .. } => {
            let cmd = cmd.arg("F").arg(owner.as_str()).arg(slots.of);
            number(cmd, slots.slot().map(u64::from))
        }
        Op::Raise { owner, token, slot: Some(slot), .. } => {
            cmd.arg("U").arg(owner.as_str()).arg(token.get()).arg(*slot)
        }
        // `run_args` has added the kind, and what the ops of the run share.
        Op::Acquire { mode: LockMode::Shared, owner, .. }
        | Op::Release { mode: LockMode::Shared, owner, .. }
        | Op::Release { owner, meta: false, .. } => cmd.arg(owner.as_str()),
        Op::Extend { mode: LockMode::Shared, owner, ttl, token, reassert, .. } => {
            named(cmd.arg("H").arg(owner.as_str()).arg(millis(*ttl)).arg(token.get()), *reassert)
        }
        Op::Acquire { owner, proposal, if_held, .. } => {
            held(cmd.arg(owner.as_str()).arg(*proposal), if_held.as_ref())
        }
        Op::Raise { owner, token, .. } => cmd.arg("R").arg(owner.as_str()).arg(token.get()),
        Op::Extend { owner, ttl, token, meta, reassert, .. } => named(
            cmd.arg("X")
                .arg(owner.as_str())
                .arg(millis(*ttl))
                .arg(token.get())
                .arg(u8::from(meta.is_some()))
                .arg(meta.as_deref().unwrap_or_default()),
            *reassert,
        ),
        Op::Release { owner, .. } => cmd.arg("M").arg(owner.as_str()),
        Op::Inspect { wait, .. } => cmd.arg("I").arg(u8::from(*wait)),
        Op::Enlist(Enlist { owner, ttl, entry, news, .. }) => cmd
            .arg("E")
            .arg(owner.as_str())
            .arg(millis(*ttl))
            .arg(entry.as_deref().unwrap_or_default())
            .arg(u8::from(*news)),
        Op::Claim(_)
        | Op::RaiseClaim { .. }
        | Op::ExtendClaim { .. }
        | Op::Complete { .. }
        | Op::Steps { .. }
        | Op::Unclaim { .. }
        | Op::Lookup { .. } => unreachable!("a conditional write: {op:?}"),
    };
}
