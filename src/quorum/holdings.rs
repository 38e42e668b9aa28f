//! The nodes that may hold the lock or the claim of one attempt, derived from their answers to the
//! attempt and to its renewals.
//!
//! A release must go to each node that may hold something of the attempt, and to no other node
//! ([`Holdings::may_hold`]). A renewal may name a node's quarantine only if that node had confirmed
//! the lease for long enough ([`Known::reassert`]). Answers may arrive late and in any order, so
//! each is recorded with the number of its round: 0 for the grant, then 1 for the first renewal.

use std::time::Duration;

use crate::op::{QuarantineId, Reply};
use crate::quorum::Answer;
use crate::time::Moment;

/// A quarantine of a node, as the node reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Name by which an extension refers to the quarantine.
    pub id: QuarantineId,
    /// End of the quarantine by the local clock. It is too late by at most the time for which the
    /// node's answer was under way.
    pub ends: Moment,
}

/// Knowledge of a lease, and of one of the nodes that may hold it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// End of the lease's validity.
    pub until: Moment,
    /// Time until which the node certainly keeps the lease that it confirmed; zero if it confirmed
    /// none.
    pub confirmed_until: Moment,
    /// Quarantine that the node reported last, if it reported any.
    pub quarantine: Option<Quarantine>,
}

impl Known {
    /// Returns true if the holder's extension may name this quarantine of the node, so that it
    /// counts although the node may have forgotten the lease (quarantine 6). For this the node must
    /// have confirmed the lease until after the moment at which the master before it has certainly
    /// stopped granting. Otherwise that earlier master could give the lock to another owner.
    pub fn may_reassert(&self, quarantine: Quarantine, max_ttl: Duration) -> bool {
        // A quarantine is at least max_ttl + L long, where L is the time for which a replaced
        // master may still grant. In a longer quarantine `stopped` is later than necessary, which
        // is safe.
        let stopped = quarantine.ends - max_ttl;
        stopped < self.confirmed_until
    }

    /// Returns the quarantine that an extension names: the one that the node reported last, if it
    /// has not ended and the holder may name it.
    pub fn reassert(&self, now: Moment, max_ttl: Duration) -> Option<QuarantineId> {
        let last = self.quarantine.filter(|quarantine| now < quarantine.ends)?;
        self.may_reassert(last, max_ttl).then_some(last.id)
    }
}

/// Parts of the attempt that one node may hold.
#[derive(Clone, Debug)]
struct Holding {
    /// True once the node's first answer has arrived. Also true once an extension was sent to the
    /// node, because from then on the first answer does not show what the node holds.
    answered: bool,
    may_hold: bool,
    confirmed_until: Moment,
    /// Number of the round in which the node confirmed the lease last, and the node's data history
    /// at that time.
    confirmed_in: Option<(u64, QuarantineId)>,
    /// Number of the round in which the node last answered that it is in quarantine, and that
    /// quarantine.
    quarantine: Option<(u64, Quarantine)>,
}

/// Parts of one attempt that each node may hold.
#[derive(Clone, Debug)]
pub struct Holdings {
    nodes: Vec<Holding>,
    /// Number of renewals so far; the round of the grant is 0.
    rounds: u64,
}

impl Holdings {
    /// Makes the state of `n` nodes, all of which are about to be asked for a grant.
    pub fn new(n: usize) -> Self {
        let holding = Holding {
            answered: false,
            may_hold: true,
            confirmed_until: Moment::default(),
            confirmed_in: None,
            quarantine: None,
        };
        Self { nodes: vec![holding; n], rounds: 0 }
    }

    /// Begins a renewal, and returns the number of its round.
    pub fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    /// Records that an extension is sent to the node. The extension may create the key there again,
    /// so an answer to the first request that arrives later does not show what the node holds.
    pub fn extended(&mut self, node: usize) {
        (self.nodes[node].may_hold, self.nodes[node].answered) = (true, true);
    }

    /// Records the node's answer to the request of this round. If it is a grant, it confirms the
    /// lease until `until`. The answer arrived at `at`, and `history` is the node's data history.
    pub fn answered(
        &mut self,
        node: usize,
        reply: &Answer,
        (round, until): (u64, Moment),
        (at, history): (Moment, Option<QuarantineId>),
    ) {
        let of = &mut self.nodes[node];
        let is_yes = reply.as_ref().is_ok_and(Reply::is_grant);
        if round == 0 && !std::mem::replace(&mut of.answered, true) {
            of.may_hold = is_yes || matches!(reply, Err(e) if e.is_ambiguous());
        }
        if is_yes {
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

    /// Records that the node has begun the data history to which this quarantine belongs. Returns
    /// true if the node last confirmed the lease in an earlier data history. The next extension
    /// then names the quarantine, if the holder may name it.
    pub fn switched(&mut self, node: usize, quarantine: Quarantine) -> bool {
        let of = &mut self.nodes[node];
        let before = of.confirmed_in.is_some_and(|(_, history)| history != quarantine.id);
        if before {
            of.quarantine = Some((self.rounds, quarantine));
        }
        before
    }

    /// Returns true if the node may hold the lock or the claim of the attempt.
    pub fn may_hold(&self, node: usize) -> bool {
        self.nodes[node].may_hold
    }

    /// Returns what is known of the node, for a lease that is valid until `until`.
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

    /// One node. A line reads `yes@1 ext no@2 -> holds until 100`: events at a time in ms, then the
    /// state of the node. `yes`, `no`, `fault`, `unsent` and `quarantined` are answers (`yes.2`
    /// answers the second renewal). With `ext` an extension is sent, and with `switch` the node
    /// begins another data history.
    #[test]
    fn what_a_node_holds() {
        let table = include_str!("testdata/holdings.txt");
        for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (events, expect) = line.split_once(" -> ").expect("a line has an outcome");
            let mut holdings = Holdings::new(1);
            let (mut switched, mut renewals) = (None, 0);
            for event in events.split_whitespace() {
                let (what, time) = event.split_once('@').unwrap_or((event, "0"));
                let (what, round) = what.split_once('.').unwrap_or((what, "0"));
                let (time, round): (u64, u64) = (time.parse().unwrap(), round.parse().unwrap());
                let reply = match what {
                    "ext" => {
                        renewals += 1;
                        assert_eq!(holdings.next_round(), renewals);
                        holdings.extended(0);
                        continue;
                    }
                    "switch" => {
                        let quarantine = Quarantine { id: history(2), ends: at(time + 50) };
                        switched = Some(holdings.switched(0, quarantine));
                        continue;
                    }
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
                holdings.answered(0, &reply, (round, until), (at(time), Some(history(1))));
            }
            let known = holdings.known(0, at(0));
            let mut got = vec![if holdings.may_hold(0) { "holds" } else { "free" }.to_owned()];
            if known.confirmed_until > Moment::default() {
                got.push(format!("until {}", known.confirmed_until.as_nanos() / 1_000_000));
            }
            if let Some(quarantine) = known.quarantine {
                got.push(format!("quarantine ends {}", quarantine.ends.as_nanos() / 1_000_000));
            }
            got.extend(switched.map(|before| format!("confirmed before: {before}")));
            assert_eq!(got.join(", "), expect, "{line}");
        }
    }

    /// Each row has the end of the quarantine, the end of what the node confirmed and the present
    /// time, all in ms, and whether the quarantine is named. Leases are at most 20 ms long.
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
