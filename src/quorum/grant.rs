//! The grant of one attempt, and of the lease that it wins. A release must go to each node that may
//! hold it ([`Grant::may_hold`]). Answers may arrive late and in any order, so each is recorded
//! with its round: 0 for the grant, then 1 for the first renewal.

use std::time::Duration;

use crate::durability::{Achieved, Durability};
use crate::op::{LockMode, QuarantineId, Reply, Slots};
use crate::quorum::Answer;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The node extends a lease in the quarantine only if the request contains this.
    pub id: QuarantineId,
    /// By the local clock. The real end may be earlier, by at most the time that the answer needed.
    pub ends: Moment,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub until: Moment,
    /// Zero if the node confirmed none.
    pub confirmed_until: Moment,
    pub quarantine: Option<Quarantine>,
}

impl Known {
    /// Else the previous master could have given the lock to another owner (quarantine 6).
    pub fn may_reassert(&self, quarantine: Quarantine, max_ttl: Duration) -> bool {
        // A quarantine is at least max_ttl + L long; in a longer one that master stopped earlier.
        let stopped = quarantine.ends - max_ttl;
        stopped < self.confirmed_until
    }

    /// The quarantine that the next extension must name to count.
    pub fn reassert(&self, now: Moment, max_ttl: Duration) -> Option<QuarantineId> {
        let last = self.quarantine.filter(|quarantine| now < quarantine.ends)?;
        self.may_reassert(last, max_ttl).then_some(last.id)
    }
}

#[derive(Clone, Debug)]
struct Holding {
    /// After an extension was sent, the first answer does not show the state of the node.
    answered: bool,
    may_hold: bool,
    /// Round of the last request that may wait behind all others in the node queue.
    behind: Option<u64>,
    confirmed_until: Moment,
    confirmed_in: Option<(u64, QuarantineId)>,
    slot: Option<u16>,
    quarantine: Option<(u64, Quarantine)>,
}

#[derive(Clone, Debug)]
pub struct Grant {
    /// Of a semaphore any slot, and then the one that was won.
    pub mode: LockMode,
    /// Level at which a grant or a renewal counts, and the smallest number of replicas of the last
    /// that counted.
    pub durability: Achieved,
    nodes: Vec<Holding>,
    rounds: u64,
}

impl Grant {
    pub fn new(n: usize, mode: LockMode, level: Durability) -> Self {
        let holding = Holding {
            answered: false,
            may_hold: true,
            behind: Some(0),
            confirmed_until: Moment::default(),
            confirmed_in: None,
            slot: None,
            quarantine: None,
        };
        let durability = Achieved::at_least(level);
        Self { mode, durability, nodes: vec![holding; n], rounds: 0 }
    }

    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// A node that grants another slot has not confirmed the lease.
    pub fn won_with(&mut self, slot: u16) -> LockMode {
        if let LockMode::Slot(slots) = &mut self.mode {
            *slots = slots.exactly(slot);
        }
        for of in self.nodes.iter_mut().filter(|of| of.slot.is_some_and(|other| other != slot)) {
            (of.confirmed_until, of.confirmed_in) = (Moment::default(), None);
        }
        self.mode
    }

    pub fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    /// The extension may create the key again, so a later answer to the acquire does not show the
    /// node's state.
    pub fn extended(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        (of.may_hold, of.answered) = (true, true);
        of.behind = of.behind.map(|_| self.rounds);
    }

    /// No request of the attempt, and no earlier extension, can be among the others.
    pub fn may_overtake(&self, node: usize) -> bool {
        self.nodes[node].behind.is_none()
    }

    /// A grant confirms the lease until `until`. The answer arrived at `at`, and `history` is the
    /// node's data history.
    pub fn answered(
        &mut self,
        node: usize,
        reply: &Answer,
        (round, until): (u64, Moment),
        (at, history): (Moment, Option<QuarantineId>),
    ) {
        let of = &mut self.nodes[node];
        let is_yes = reply.as_ref().is_ok_and(Reply::is_grant);
        of.behind = of.behind.filter(|last| round < *last);
        if round == 0 && !std::mem::replace(&mut of.answered, true) {
            of.may_hold = is_yes || matches!(reply, Err(e) if e.is_ambiguous());
        }
        let mut confirms = is_yes;
        if let Ok(Reply::Permit { slot, .. }) = reply {
            of.slot = Some(*slot);
            let won = self.mode.slots().and_then(Slots::slot);
            confirms = won.is_none_or(|mine| mine == *slot);
        }
        if confirms {
            of.confirmed_until = of.confirmed_until.max(until);
            if of.confirmed_in.is_none_or(|(last, _)| last <= round) {
                of.confirmed_in = history.map(|history| (round, history));
            }
        }
        if let Ok(Reply::Quarantined { remaining, id, .. }) = reply
            && of.quarantine.is_none_or(|(last, _)| last <= round)
        {
            of.quarantine = Some((round, Quarantine { id: *id, ends: at + *remaining }));
        }
    }

    /// True if the node last confirmed the lease in an earlier data history.
    pub fn switched(&mut self, node: usize, quarantine: Quarantine) -> bool {
        let of = &mut self.nodes[node];
        let before = of.confirmed_in.is_some_and(|(_, history)| history != quarantine.id);
        if before {
            of.quarantine = Some((self.rounds, quarantine));
        }
        before
    }

    pub fn may_hold(&self, node: usize) -> bool {
        self.nodes[node].may_hold
    }

    pub fn known(&self, node: usize, until: Moment) -> Known {
        let Holding { confirmed_until, quarantine, .. } = self.nodes[node];
        Known { until, confirmed_until, quarantine: quarantine.map(|(_, quarantine)| quarantine) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{NodeError, NodeFault};
    use crate::op::Began;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn history(history: u64) -> QuarantineId {
        QuarantineId { history, since: 1 }
    }

    /// For one node: events, each with a time in ms, then its state. `yes.2` answers the second
    /// renewal, `slot1` grants a permit, and `won` means that slot 0 was won. At `ext` an extension
    /// is sent (at `stray` one of the attempt itself), and `switch` begins another data history.
    #[test]
    fn what_a_node_holds() {
        let table = include_str!("testdata/grant.txt");
        for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (events, expect) = line.split_once(" -> ").expect("a line has an outcome");
            let mode = LockMode::Slot(Slots::any(2));
            let mut grant = Grant::new(1, mode, Durability::Primary);
            let (mut switched, mut renewals) = (None, 0);
            for event in events.split_whitespace() {
                let (what, time) = event.split_once('@').unwrap_or((event, "0"));
                let (what, round) = what.split_once('.').unwrap_or((what, "0"));
                let (time, round): (u64, u64) = (time.parse().unwrap(), round.parse().unwrap());
                let reply = match what {
                    "stray" => {
                        grant.extended(0);
                        continue;
                    }
                    "ext" => {
                        renewals += 1;
                        assert_eq!(grant.next_round(), renewals);
                        grant.extended(0);
                        continue;
                    }
                    "switch" => {
                        let quarantine = Quarantine { id: history(2), ends: at(time + 50) };
                        switched = Some(grant.switched(0, quarantine));
                        continue;
                    }
                    "won" => {
                        grant.won_with(0);
                        continue;
                    }
                    "slot0" => Ok(Reply::Permit { fence: 1, slot: 0 }),
                    "slot1" => Ok(Reply::Permit { fence: 1, slot: 1 }),
                    "yes" => Ok(Reply::Done),
                    "no" => Ok(Reply::NotOwner),
                    "fault" => Err(NodeError::maybe_executed(NodeFault::Timeout, "")),
                    "unsent" => Err(NodeError::not_executed(NodeFault::Timeout, "")),
                    "quarantined" => Ok(Reply::Quarantined {
                        remaining: Duration::from_millis(30),
                        id: history(2),
                        began: Began::Known,
                    }),
                    _ => panic!("unknown event {what}"),
                };
                let until = at(100 + 100 * round);
                grant.answered(0, &reply, (round, until), (at(time), Some(history(1))));
            }
            let known = grant.known(0, at(0));
            let mut got = vec![if grant.may_hold(0) { "holds" } else { "free" }.to_owned()];
            if known.confirmed_until > Moment::default() {
                got.push(format!("until {}", known.confirmed_until.as_nanos() / 1_000_000));
            }
            if let Some(quarantine) = known.quarantine {
                got.push(format!("quarantine ends {}", quarantine.ends.as_nanos() / 1_000_000));
            }
            got.extend(switched.map(|before| format!("confirmed before: {before}")));
            if !grant.may_overtake(0) {
                got.push("stays behind".to_owned());
            }
            assert_eq!(got.join(", "), expect, "{line}");
        }
    }

    /// In ms: the end of the quarantine, the end of the confirmed lease, the present time. A lease
    /// lasts at most 20 ms.
    #[test]
    fn a_quarantine_is_named_only_by_who_outlasts_the_replaced_master() {
        for (ends, confirmed, now, named) in [
            (50, 31, 10, true),
            (50, 30, 10, false),
            (50, 0, 10, false),
            (50, 31, 50, false),
            (10, 31, 5, true),
        ] {
            let quarantine = Some(Quarantine { id: history(2), ends: at(ends) });
            let known = Known { until: at(99), confirmed_until: at(confirmed), quarantine };
            let got = known.reassert(at(now), Duration::from_millis(20));
            assert_eq!(got.is_some(), named, "{ends} {confirmed} {now}");
        }
    }
}
