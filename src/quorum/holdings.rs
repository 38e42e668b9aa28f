//! The nodes that hold something of one attempt, by the answers to it and to its renewals.
//!
//! A release must go to each node that may hold something and to no other ([`Holdings::may_hold`]);
//! a renewal may name a quarantine only on a node that confirmed enough ([`Known::reassert`]).
//! Answers may come late and in any order, so each is recorded with the number of its round.

use std::time::Duration;

use crate::op::{QuarantineId, Reply};
use crate::quorum::Answer;
use crate::time::Moment;

/// A quarantine as a node reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Name of the quarantine.
    pub id: QuarantineId,
    /// End of the quarantine; late by at most the time that the answer took.
    pub ends: Moment,
}

/// What is known of a lease and of one of its nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// End of the lease's validity.
    pub until: Moment,
    /// Time until which the node certainly keeps what it confirmed; zero if it confirmed nothing.
    pub confirmed_until: Moment,
    /// Quarantine that the node reported last.
    pub quarantine: Option<Quarantine>,
}

impl Known {
    /// Returns true if the holder may name the quarantine of the node, so that its extension counts
    /// there (quarantine 6): if the node's confirmation lasts past the moment at which a replaced
    /// master has certainly stopped granting. Otherwise that master could give the lock to another
    /// owner.
    pub fn may_reassert(&self, quarantine: Quarantine, max_ttl: Duration) -> bool {
        // A quarantine is at least max_ttl + L long; for a longer one `stopped` is later, which is
        // safe.
        let stopped = quarantine.ends - max_ttl;
        stopped < self.confirmed_until
    }

    /// Returns the quarantine that an extension names: the one that the node reported last, while
    /// it lasts and if the holder may name it.
    pub fn reassert(&self, now: Moment, max_ttl: Duration) -> Option<QuarantineId> {
        let last = self.quarantine.filter(|quarantine| now < quarantine.ends)?;
        self.may_reassert(last, max_ttl).then_some(last.id)
    }
}

/// What one node holds of an attempt.
#[derive(Clone, Debug)]
struct Holding {
    /// The node's first answer has come, or has no meaning any more because an extension was sent.
    answered: bool,
    may_hold: bool,
    confirmed_until: Moment,
    /// Round and data history of the node's last confirmation.
    confirmed_in: Option<(u64, QuarantineId)>,
    /// Round of the node's last answer in quarantine, and that quarantine.
    quarantine: Option<(u64, Quarantine)>,
}

/// State of one attempt on each node.
#[derive(Clone, Debug)]
pub struct Holdings {
    nodes: Vec<Holding>,
    /// Number of renewals so far; the round of the grant is 0.
    rounds: u64,
}

impl Holdings {
    /// Makes the holdings of `n` nodes, all of which are about to be asked for a grant.
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

    /// Begins a renewal; returns the number of its round.
    pub fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    /// Records that an extension is sent to the node: it may create the key there again, and a
    /// first answer that comes after this does not show what the extension did.
    pub fn extended(&mut self, node: usize) {
        (self.nodes[node].may_hold, self.nodes[node].answered) = (true, true);
    }

    /// Records an answer of this round, which confirms until `until` if it is a grant; `at` and
    /// `history` are the time of the answer and the data history that gave it.
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

    /// Records that the node has begun the data history of this quarantine. Returns true if its
    /// last confirmation is of an earlier history; then the next extension names the quarantine, if
    /// it may.
    pub fn switched(&mut self, node: usize, quarantine: Quarantine) -> bool {
        let of = &mut self.nodes[node];
        let before = of.confirmed_in.is_some_and(|(_, history)| history != quarantine.id);
        if before {
            of.quarantine = Some((self.rounds, quarantine));
        }
        before
    }

    /// Returns true if the node may hold something of the attempt.
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

    /// One node. A line reads `yes@1 ext no@2 -> holds until 100`; a word is an event (`yes`, `no`,
    /// `fault`, `unsent` and `quarantined` are answers at that time, `yes.2` one to the second
    /// renewal; `ext` is an extension that is sent, `switch` another data history).
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

    /// Ends of the quarantine and of what was confirmed, in ms; leases are at most 20 ms long.
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
