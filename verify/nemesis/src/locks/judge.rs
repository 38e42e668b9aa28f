//! Checks what the clients of one kind of lock observed: holders that conflict at the same time,
//! the order of fencing tokens, and what each kind promises besides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::record::{Grant, Line, Mode, What};
use super::{Kind, PERMITS, TTL};
use crate::event::{Nanos, TaskId};
use crate::judge::Violation;

/// Rules, as they are named in violations.
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

/// Longest time in which callers of a multi-lock wait and none of them holds it. A client that was
/// killed in the middle of a call leaves its names taken for one ttl.
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
    /// Pairs of holders that conflict and relied on their locks at the same time.
    pub(crate) overlaps: usize,
    /// Holders whose token is not above (for a reader: is below) that of an earlier holder.
    pub(crate) tokens_wrong: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) longest_writer_wait_ms: Option<u64>,
    /// Largest number of permits that were held at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_held: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits: Option<u16>,
    /// Further acquires of an owner that has the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inner: Option<usize>,
    /// Grants to callers that had a place in the order of a fair lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited: Option<usize>,
    /// Grants to calls that began after another call had its place, and that came before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) out_of_order: Option<usize>,
    /// Times in which callers waited for each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadlocks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) degraded: Option<usize>,
    /// Tickets that were redeemed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resumed: Option<usize>,
    /// Tickets that were redeemed more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) twice: Option<usize>,
    /// Holders that got the lock between a hand-over and its redemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) let_in: Option<usize>,
}

impl Found {
    /// Counts the broken rules.
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

    /// Returns true if nothing was broken, and the kind was seen at work.
    pub(crate) fn is_good(&self) -> bool {
        let broken = [self.out_of_order, self.deadlocks, self.twice, self.let_in];
        let broken =
            broken.into_iter().flatten().sum::<usize>() + self.overlaps + self.tokens_wrong;
        let idle = [self.inner, self.degraded, self.resumed, self.waited].contains(&Some(0));
        broken == 0 && self.grants > 0 && !idle
    }
}

/// Returns the findings about `kind`, and the broken rules. The clients of this kind were ended at
/// the time `end`.
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

/// Returns the holds of all tasks. A hold without an end, because its process was killed, lasts
/// until the last deadline that was reported.
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

/// Returns the holds of each name, in the order of `holds`. Leaves out empty holds.
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

/// Returns the holders with a wrong token. The tokens of a name are those of each slot.
///
/// Holders that conflict exclude each other while they are valid. So the order in which they
/// relied on the lock is the order of their grants.
fn tokens_wrong(holds: &[&Hold]) -> Vec<Broken> {
    /// The largest tokens so far.
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

/// Returns the largest number of holds at the same time, and the first time of it.
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

/// Returns the number of inner acquires, and those with another token than the outer one.
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

/// Returns the times in which no caller held the names for too long, from the first grant until
/// `end`.
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

/// Returns the number of tickets that were redeemed, and those that were redeemed more than once.
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

/// Returns the holders whose token is between that of a ticket and that of the holder who redeemed
/// the ticket.
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

/// Returns the grants before which a call had begun to wait that was granted later. A call waits
/// from the time at which it knew that its place counts.
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
