//! Checks what the clients of one kind of lock observed: holders that conflict at the same time,
//! the order of fencing tokens, and what each kind promises besides.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::record::{Grant, Line, Mode, What};
use super::{Kind, PERMITS, TTL};
use crate::event::{Nanos, TaskId};

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

/// Findings about one kind of lock. Fields that only some kinds have are left out of the others.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Found {
    pub(super) grants: usize,
    /// Pairs of holders that conflict and relied on their locks at the same time.
    pub(super) overlaps: usize,
    /// Holders whose token is not above (for a reader: is below) that of an earlier holder.
    pub(super) tokens_wrong: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) longest_writer_wait_ms: Option<u64>,
    /// Largest number of permits that were held at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) most_held: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) permits: Option<u16>,
    /// Further acquires of an owner that has the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inner: Option<usize>,
    /// Grants to callers that had a place in the order of a fair lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waited: Option<usize>,
    /// Grants to calls that began after another call had its place, and that came before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) out_of_order: Option<usize>,
    /// Times in which callers waited for each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadlocks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) degraded: Option<usize>,
    /// Tickets that were redeemed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resumed: Option<usize>,
    /// Tickets that were redeemed more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) twice: Option<usize>,
    /// Holders that got the lock between a hand-over and its redemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) let_in: Option<usize>,
}

impl Found {
    /// Returns true if nothing was broken, and the kind was seen at work.
    pub(super) fn is_good(&self) -> bool {
        let broken = [self.out_of_order, self.deadlocks, self.twice, self.let_in];
        let broken =
            broken.into_iter().flatten().sum::<usize>() + self.overlaps + self.tokens_wrong;
        let idle = [self.inner, self.degraded, self.resumed, self.waited].contains(&Some(0));
        broken == 0 && self.grants > 0 && !idle
    }
}

/// Returns the findings about `kind`. The clients of this kind were ended at the time `end`.
pub(super) fn judge(kind: Kind, lines: &[Line], end: Nanos) -> Found {
    let is_of = |grant: &Grant| grant.names.iter().any(|name| Kind::of(name) == Some(kind));
    let holds: Vec<_> = holds(lines).into_iter().filter(|hold| is_of(&hold.grant)).collect();
    let degraded = holds.iter().filter(|hold| hold.grant.mode == Mode::Degraded).count();
    let mut found = Found { grants: holds.len() - degraded, ..Found::default() };
    for of in by_name(&holds).values() {
        found.overlaps += overlaps(of);
        found.tokens_wrong += tokens_wrong(of);
    }
    match kind {
        Kind::ReadWrite => {
            let writers = holds.iter().filter(|hold| hold.grant.mode == Mode::Exclusive);
            let wait = writers.map(|hold| hold.from.saturating_sub(hold.grant.since)).max();
            found.longest_writer_wait_ms = Some(wait.unwrap_or(0) / 1_000_000);
        }
        Kind::Semaphore => {
            let most_held = most_held(&holds);
            found.overlaps += most_held.saturating_sub(usize::from(PERMITS));
            (found.most_held, found.permits) = (Some(most_held), Some(PERMITS));
        }
        Kind::Reentrant => {
            let (inner, wrong) = inner(lines);
            found.tokens_wrong += wrong;
            found.inner = Some(inner);
        }
        Kind::Multi => found.deadlocks = Some(stuck(&holds, end)),
        Kind::Degrade => found.degraded = Some(degraded),
        Kind::HandOver => {
            let mut tickets = BTreeMap::<u64, usize>::new();
            for ticket in holds.iter().filter_map(|hold| hold.grant.ticket) {
                *tickets.entry(ticket).or_default() += 1;
            }
            found.twice = Some(tickets.values().filter(|times| **times > 1).count());
            found.resumed = Some(tickets.len());
            found.let_in = Some(let_in(&holds));
        }
        Kind::Fair => {
            let waited = holds.iter().filter(|hold| hold.grant.queued.is_some());
            found.waited = Some(waited.count());
            found.out_of_order = Some(out_of_order(&holds));
        }
    }
    found
}

/// Returns the holds of all tasks. A hold without an end, because its process was killed, lasts
/// until the last deadline that was reported.
fn holds(lines: &[Line]) -> Vec<Hold> {
    let mut open = BTreeMap::<TaskId, Hold>::new();
    let mut all = Vec::new();
    for Line { at, who, what } in lines {
        match what {
            What::Held(grant) => {
                let (grant, from, end) = (grant.clone(), *at, grant.until);
                all.extend(open.insert(*who, Hold { who: *who, grant, from, end }));
            }
            What::Valid { until } => {
                if let Some(hold) = open.get_mut(who) {
                    hold.end = hold.end.max(*until);
                }
            }
            What::Over => {
                if let Some(mut hold) = open.remove(who) {
                    hold.end = hold.end.min(*at);
                    all.push(hold);
                }
            }
            What::Inner { .. } => {}
        }
    }
    all.extend(open.into_values());
    all.sort_by_key(|hold| hold.from);
    all
}

/// Returns the holds that are not empty, for each name in their order.
fn by_name(holds: &[Hold]) -> BTreeMap<&str, Vec<&Hold>> {
    let mut all = BTreeMap::<&str, Vec<&Hold>>::new();
    for hold in holds.iter().filter(|hold| !hold.is_empty()) {
        for name in &hold.grant.names {
            all.entry(name).or_default().push(hold);
        }
    }
    all
}

fn overlaps(holds: &[&Hold]) -> usize {
    let mut open: Vec<&Hold> = Vec::new();
    let mut found = 0;
    for hold in holds {
        open.retain(|before| before.end > hold.from);
        for before in open.iter().filter(|before| before.conflicts(hold)) {
            found += 1;
            let ms = (before.end.min(hold.end) - hold.from) as f64 / 1e6;
            println!("overlap of {ms:.3} ms: {before:?} and {hold:?}");
        }
        open.push(hold);
    }
    found
}

/// Returns the number of holders with a wrong token. The tokens of a name are those of each slot.
///
/// Holders that conflict exclude each other while they are valid. So the order in which they
/// relied on the lock is the order of their grants.
fn tokens_wrong(holds: &[&Hold]) -> usize {
    /// The largest tokens so far.
    #[derive(Default)]
    struct Largest {
        of_writers: u64,
        of_all: u64,
    }
    let (mut largest, mut found) = (BTreeMap::<u16, Largest>::new(), 0);
    for hold in holds {
        let (slot, shared) = match hold.grant.mode {
            Mode::Degraded => continue,
            Mode::Slot(slot) => (slot, false),
            mode => (0, mode == Mode::Shared),
        };
        let (so_far, token) = (largest.entry(slot).or_default(), hold.grant.token);
        let wrong = if shared { token < so_far.of_writers } else { token <= so_far.of_all };
        if wrong {
            found += 1;
            println!("token after {}: {hold:?}", so_far.of_all);
        }
        so_far.of_all = so_far.of_all.max(token);
        if !shared {
            so_far.of_writers = so_far.of_writers.max(token);
        }
    }
    found
}

fn most_held(holds: &[Hold]) -> usize {
    let whole = || holds.iter().filter(|hold| !hold.is_empty());
    // At equal times, an end comes before a beginning.
    let mut changes: Vec<_> = whole().flat_map(|h| [(h.from, 1_isize), (h.end, -1)]).collect();
    changes.sort_unstable();
    let mut held = 0_isize;
    let most = changes.iter().map(|(_, change)| {
        held += change;
        held
    });
    usize::try_from(most.max().unwrap_or(0)).unwrap_or(0)
}

/// Returns the number of inner acquires, and of those with another token than the outer one.
fn inner(lines: &[Line]) -> (usize, usize) {
    let mut outer = BTreeMap::<TaskId, u64>::new();
    let (mut all, mut wrong) = (0, 0);
    for Line { who, what, .. } in lines {
        match what {
            What::Held(grant) => drop(outer.insert(*who, grant.token)),
            What::Inner { token } => {
                all += 1;
                wrong += usize::from(outer.get(who) != Some(token));
            }
            What::Valid { .. } | What::Over => {}
        }
    }
    (all, wrong)
}

/// Returns the number of times in which no caller held the names for too long, from the first grant
/// until `end`.
fn stuck(holds: &[Hold], end: Nanos) -> usize {
    let Some(first) = holds.first() else { return 0 };
    let (mut free_from, mut found) = (first.from, 0);
    for from_and_end in holds.iter().map(|h| (h.from, h.end)).chain([(end, end)]) {
        let idle = from_and_end.0.saturating_sub(free_from);
        if idle > STUCK {
            found += 1;
            println!("no holder of a multi-lock for {:.3} s", idle as f64 / 1e9);
        }
        free_from = free_from.max(from_and_end.1);
    }
    found
}

/// Returns the number of holders whose token is between that of a ticket and that of the holder who
/// redeemed the ticket.
fn let_in(holds: &[Hold]) -> usize {
    let tokens: BTreeSet<_> = holds.iter().map(|hold| hold.grant.token).collect();
    let resumed = holds.iter().filter_map(|hold| Some((hold.grant.ticket?, hold.grant.token)));
    resumed.map(|(ticket, token)| tokens.range(ticket + 1..token.max(ticket + 1)).count()).sum()
}

/// Returns the number of grants before which a call had begun to wait that was granted later. A
/// call waits from the time at which it knew that its place counts.
fn out_of_order(holds: &[Hold]) -> usize {
    let (mut first_queued, mut found) = (Nanos::MAX, 0);
    for hold in holds.iter().rev() {
        found += usize::from(first_queued < hold.grant.since);
        first_queued = first_queued.min(hold.grant.queued.unwrap_or(Nanos::MAX));
    }
    found
}

#[cfg(test)]
mod tests;
