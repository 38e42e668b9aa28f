//! Checks the clients' observations of `nemesis locks` about one kind of lock: no two holders
//! conflict at the same time, fencing tokens are in order, and the other promises of this kind are
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::record::{Grant, Line, Mode, What};
use super::{Kind, PERMITS, TTL};
use crate::event::{Nanos, TaskId};
use crate::judge::Violation;

/// Names of the rules, as they are in violations.
const ONE_HOLDER: &str = "one holder at a time";
const ALL_PERMITS: &str = "no more permits than there are";
const TOKENS: &str = "tokens grow with the holders";
const INNER: &str = "an inner acquire has the token of the outer one";
const ORDER: &str = "fair callers are served in their order";
const STUCK_RULE: &str = "callers of several names do not wait for each other";
const ONCE: &str = "a ticket is redeemed once";
const BETWEEN: &str = "no holder between a hand-over and its redemption";

/// Rules that hold under all faults. The other rules hold while no server loses its data, a
/// majority of the servers answers, and no client is stopped.
pub(crate) const ALWAYS: [&str; 6] = [ONE_HOLDER, ALL_PERMITS, TOKENS, INNER, ONCE, BETWEEN];

/// Longest time for which a lock of several names may have no holder while callers wait for it. A
/// client that was killed in the middle of a call leaves its names taken for one ttl.
const STUCK: Nanos = TTL.as_nanos() as Nanos / 2 * 5;

/// A hold: the time `[from, end)` in which a holder relies on its lock.
#[derive(Clone, Debug)]
struct Hold {
    who: TaskId,
    grant: Grant,
    from: Nanos,
    end: Nanos,
}

impl Hold {
    fn is_empty(&self) -> bool {
        self.from >= self.end
    }

    fn conflicts(&self, other: &Self) -> bool {
        let process = |hold: &Self| (hold.who.client, hold.who.life);
        match (self.grant.mode, other.grant.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Slot(one), Mode::Slot(other)) => one == other,
            (Mode::Degraded, _) | (_, Mode::Degraded) => process(self) == process(other),
            _ => true,
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TaskId { client, life, task } = self.who;
        let Grant { mode, token, .. } = self.grant;
        write!(f, "client {client}.{life}.{task} ({mode:?}, token {token})")
    }
}

/// Findings about one kind of lock. A field that applies only to some kinds is left out for the
/// other kinds.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    pub(crate) grants: usize,
    /// Number of pairs of holders that conflict and relied on their locks at the same time.
    pub(crate) overlaps: usize,
    /// Number of holders with a wrong token. The token of a writer must be above those of earlier
    /// holders. The token of a reader must not be below those of earlier writers.
    pub(crate) tokens_wrong: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) longest_writer_wait_ms: Option<u64>,
    /// Largest number of permits that were held at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_held: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits: Option<u16>,
    /// Number of inner acquires: calls of an owner that already has the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inner: Option<usize>,
    /// Number of grants of a fair lock to callers that had waited in its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited: Option<usize>,
    /// Number of grants in a wrong order: the call began after another call had its place in the
    /// queue, and was granted before that call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) out_of_order: Option<usize>,
    /// Number of times in which a lock of several names had no holder for too long, because its
    /// callers waited for each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadlocks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) degraded: Option<usize>,
    /// Number of tickets that were redeemed. By a ticket, a holder hands its lock over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed: Option<usize>,
    /// Number of tickets that were redeemed more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) twice: Option<usize>,
    /// Number of holders that got the lock between a hand-over and the redemption of its ticket,
    /// when it should not have been free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) let_in: Option<usize>,
}

impl Found {
    fn count(&mut self, kind: Kind, broken: &[Broken]) {
        let of = |rules: &[&str]| broken.iter().filter(|b| rules.contains(&b.0)).count();
        self.overlaps = of(&[ONE_HOLDER, ALL_PERMITS]);
        self.tokens_wrong = of(&[TOKENS, INNER]);
        match kind {
            Kind::Multi => self.deadlocks = Some(of(&[STUCK_RULE])),
            Kind::HandOver => {
                (self.twice, self.let_in) = (Some(of(&[ONCE])), Some(of(&[BETWEEN])));
            }
            Kind::Fair => self.out_of_order = Some(of(&[ORDER])),
            _ => {}
        }
    }

    /// Returns true if no rule was broken, and each behaviour of this kind of lock was observed at
    /// least once.
    pub(crate) fn is_good(&self) -> bool {
        let broken = [self.out_of_order, self.deadlocks, self.twice, self.let_in];
        let broken =
            broken.into_iter().flatten().sum::<usize>() + self.overlaps + self.tokens_wrong;
        let idle = [self.inner, self.degraded, self.resumed, self.waited].contains(&Some(0));
        broken == 0 && self.grants > 0 && !idle
    }
}

pub(crate) fn judge(kind: Kind, lines: &[Line], end: Nanos) -> (Found, Vec<Violation>) {
    let is_of = |grant: &Grant| grant.names.iter().any(|name| Kind::of(name) == Some(kind));
    let holds: Vec<_> = holds(lines).into_iter().filter(|hold| is_of(&hold.grant)).collect();
    let mut broken = Vec::new();
    for of in by_name(&holds).values() {
        broken.extend(overlaps(of));
        broken.extend(tokens_wrong(of));
    }
    let degraded = holds.iter().filter(|hold| hold.grant.mode == Mode::Degraded).count();
    let mut found = Found { grants: holds.len() - degraded, ..Found::default() };
    match kind {
        Kind::ReadWrite => {
            let writers = holds.iter().filter(|hold| hold.grant.mode == Mode::Exclusive);
            let wait = writers.map(|hold| hold.from.saturating_sub(hold.grant.since)).max();
            found.longest_writer_wait_ms = Some(wait.unwrap_or(0) / 1_000_000);
        }
        Kind::Semaphore => {
            let (most_held, at) = most_held(&holds);
            if most_held > usize::from(PERMITS) {
                let text = format!("{most_held} of {PERMITS} permits were held");
                broken.push((ALL_PERMITS, at, text));
            }
            (found.most_held, found.permits) = (Some(most_held), Some(PERMITS));
        }
        Kind::Reentrant => {
            let (inner, wrong) = inner(lines);
            broken.extend(wrong);
            found.inner = Some(inner);
        }
        Kind::Multi => broken.extend(stuck(&holds, end)),
        Kind::Degrade => found.degraded = Some(degraded),
        Kind::HandOver => {
            let (resumed, twice) = resumed(&holds);
            broken.extend(twice);
            broken.extend(let_in(&holds));
            found.resumed = Some(resumed);
        }
        Kind::Fair => {
            let waited = holds.iter().filter(|hold| hold.grant.queued.is_some());
            found.waited = Some(waited.count());
            broken.extend(out_of_order(&holds));
        }
    }
    found.count(kind, &broken);
    let name = kind.name().into();
    let violation = |(rule, at, text)| Violation::new(rule, &name, at, text);
    (found, broken.into_iter().map(violation).collect())
}

/// A broken rule: the rule, the time, and a description.
type Broken = (&'static str, Nanos, String);

/// Returns the holds of all tasks. If a process was killed during a hold, the hold lasts until the
/// last deadline that the process reported.
fn holds(lines: &[Line]) -> Vec<Hold> {
    let mut open = BTreeMap::<TaskId, Vec<Hold>>::new();
    let mut all = Vec::new();
    for Line { at, who, what } in lines {
        let of_task = open.entry(*who).or_default();
        match what {
            What::Held(grant) => {
                let (grant, from, end) = (grant.clone(), *at, grant.until);
                of_task.push(Hold { who: *who, grant, from, end });
            }
            What::Valid { until } => {
                for hold in of_task {
                    hold.end = hold.end.max(*until);
                }
            }
            What::Over => {
                for mut hold in of_task.drain(..) {
                    hold.end = hold.end.min(*at);
                    all.push(hold);
                }
            }
            What::Inner { .. } => {}
        }
    }
    all.extend(open.into_values().flatten());
    all.sort_by_key(|hold| hold.from);
    all
}

/// Returns the holds for each name, in the order of `holds`. Leaves out holds that ended before
/// they began.
fn by_name(holds: &[Hold]) -> BTreeMap<&str, Vec<&Hold>> {
    let mut all = BTreeMap::<&str, Vec<&Hold>>::new();
    for hold in holds.iter().filter(|hold| !hold.is_empty()) {
        for name in &hold.grant.names {
            all.entry(name).or_default().push(hold);
        }
    }
    all
}

fn overlaps(holds: &[&Hold]) -> Vec<Broken> {
    let mut open: Vec<&Hold> = Vec::new();
    let mut found = Vec::new();
    for hold in holds {
        open.retain(|before| before.end > hold.from);
        for before in open.iter().filter(|before| before.conflicts(hold)) {
            let ms = (before.end.min(hold.end) - hold.from) as f64 / 1e6;
            let text = format!("{before} and {hold} for {ms:.3} ms");
            found.push((ONE_HOLDER, hold.from, text));
        }
        open.push(hold);
    }
    found
}

/// Returns the holders with a wrong token. Each slot of a semaphore has tokens of its own.
///
/// Two holders that conflict are never valid at the same time. So the order in which they relied on
/// the lock is the order of their grants.
fn tokens_wrong(holds: &[&Hold]) -> Vec<Broken> {
    /// The largest fencing tokens of one slot or lock so far.
    #[derive(Default)]
    struct Largest {
        of_writers: u64,
        of_all: u64,
    }
    let (mut largest, mut found) = (BTreeMap::<u16, Largest>::new(), Vec::new());
    for hold in holds {
        let (slot, shared) = match hold.grant.mode {
            Mode::Degraded => continue,
            Mode::Slot(slot) => (slot, false),
            mode => (0, mode == Mode::Shared),
        };
        let (so_far, token) = (largest.entry(slot).or_default(), hold.grant.token);
        let wrong = if shared { token < so_far.of_writers } else { token <= so_far.of_all };
        if wrong {
            let text = format!("{hold} came after token {}", so_far.of_all);
            found.push((TOKENS, hold.from, text));
        }
        so_far.of_all = so_far.of_all.max(token);
        if !shared {
            so_far.of_writers = so_far.of_writers.max(token);
        }
    }
    found
}

fn most_held(holds: &[Hold]) -> (usize, Nanos) {
    let whole = || holds.iter().filter(|hold| !hold.is_empty());
    // At equal times, an end comes before a beginning.
    let mut changes: Vec<_> = whole().flat_map(|h| [(h.from, 1_isize), (h.end, -1)]).collect();
    changes.sort_unstable();
    let (mut held, mut most) = (0, (0, 0));
    for (at, change) in changes {
        held += change;
        if held > most.0 {
            most = (held, at);
        }
    }
    (usize::try_from(most.0).unwrap_or(0), most.1)
}

fn inner(lines: &[Line]) -> (usize, Vec<Broken>) {
    let mut outer = BTreeMap::<TaskId, u64>::new();
    let (mut all, mut wrong) = (0, Vec::new());
    for Line { at, who, what } in lines {
        match what {
            What::Held(grant) => drop(outer.insert(*who, grant.token)),
            What::Inner { token } => {
                all += 1;
                if outer.get(who) != Some(token) {
                    wrong.push((INNER, *at, format!("{who:?} has {token}")));
                }
            }
            What::Valid { .. } | What::Over => {}
        }
    }
    (all, wrong)
}

/// Returns a violation for each time in which the lock had no holder for longer than [`STUCK`],
/// from the first grant until `end`.
fn stuck(holds: &[Hold], end: Nanos) -> Vec<Broken> {
    let mut free_from = holds.first().map_or(end, |first| first.from);
    let mut found = Vec::new();
    for from_and_end in holds.iter().map(|h| (h.from, h.end)).chain([(end, end)]) {
        let idle = from_and_end.0.saturating_sub(free_from);
        if idle > STUCK {
            let text = format!("no holder for {:.3} s", idle as f64 / 1e9);
            found.push((STUCK_RULE, from_and_end.0, text));
        }
        free_from = free_from.max(from_and_end.1);
    }
    found
}

/// Returns the number of hand-over tickets by which a caller got the lock (redeemed them), and a
/// violation for each ticket that was redeemed again.
fn resumed(holds: &[Hold]) -> (usize, Vec<Broken>) {
    let mut tickets = BTreeSet::new();
    let mut twice = Vec::new();
    for hold in holds {
        if let Some(ticket) = hold.grant.ticket
            && !tickets.insert(ticket)
        {
            twice.push((ONCE, hold.from, format!("the ticket of token {ticket}, by {hold}")));
        }
    }
    (tickets.len(), twice)
}

/// Returns a violation for each holder that got the lock between a hand-over and the redemption of
/// its ticket. The token of such a holder is between the ticket's token and that of the holder who
/// redeemed the ticket.
fn let_in(holds: &[Hold]) -> Vec<Broken> {
    let tokens: BTreeMap<_, _> = holds.iter().map(|hold| (hold.grant.token, hold)).collect();
    let mut found = Vec::new();
    for hold in holds {
        let Some(ticket) = hold.grant.ticket else { continue };
        for (_, between) in tokens.range(ticket + 1..hold.grant.token.max(ticket + 1)) {
            let text = format!("{between} had it before {hold} redeemed the ticket of {ticket}");
            found.push((BETWEEN, hold.from, text));
        }
    }
    found
}

/// Returns a violation for each grant in a wrong order. When the granted call began, another call
/// already had its place in the queue, but that call was granted later.
fn out_of_order(holds: &[Hold]) -> Vec<Broken> {
    let mut first_queued: Option<(Nanos, &Hold)> = None;
    let mut found = Vec::new();
    for hold in holds.iter().rev() {
        if let Some((at, later)) = first_queued.filter(|(at, _)| *at < hold.grant.since) {
            let ms = (hold.grant.since - at) as f64 / 1e6;
            let text = format!("{hold} began {ms:.3} ms after {later} had its place");
            found.push((ORDER, hold.from, text));
        }
        let queued = hold.grant.queued.map(|at| (at, hold));
        first_queued = [first_queued, queued].into_iter().flatten().min_by_key(|(at, _)| *at);
    }
    found
}

#[cfg(test)]
mod tests;
