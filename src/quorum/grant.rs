//! The grant of one attempt, and of the lease that it wins: which nodes may have it, and until
//! when. It follows from the nodes' answers to the attempt and to its renewals.
//!
//! A release must go to each node that may hold the lock or the claim of the attempt, and to no
//! other node ([`Grant::may_hold`]). A node in quarantine (it may have lost leases) extends a
//! lease only if the renewal contains the quarantine's identifier. A renewal may contain it only if
//! the node had confirmed the lease for long enough ([`Known::reassert`]). Answers may arrive late
//! and in any order. So each answer is recorded with the number of its round: 0 for the grant, then
//! 1 for the first renewal.

use std::time::Duration;

use crate::durability::{Achieved, Durability};
use crate::op::{LockMode, QuarantineId, Reply, Slots};
use crate::quorum::Answer;
use crate::time::Moment;

/// A quarantine that a node reported: a time in which it grants nothing, because it may have lost
/// leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Identifier of the quarantine (time in which the node grants nothing). During the quarantine,
    /// the node extends a lease only if the request contains this identifier.
    pub id: QuarantineId,
    /// End of the quarantine (time in which the node grants nothing) by the local clock. The real
    /// end may be earlier: at most by the time that the node's answer needed to arrive.
    pub ends: Moment,
}

/// Known facts about a lease, and about one of the nodes that may hold it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// End of the lease's validity.
    pub until: Moment,
    /// Time until which the node certainly keeps the confirmed lease; zero if the node confirmed no
    /// lease.
    pub confirmed_until: Moment,
    /// Last quarantine (time in which the node grants nothing) that the node reported; `None` if
    /// the node reported none.
    pub quarantine: Option<Quarantine>,
}

impl Known {
    /// Returns true if the lease may be extended in this quarantine, although the node may have
    /// lost it (rule quarantine 6 in docs/design). For this, the lease that the node confirmed must
    /// end after the moment at which the previous master has certainly stopped granting. Otherwise
    /// the previous master could have given the lock to another owner.
    pub fn may_reassert(&self, quarantine: Quarantine, max_ttl: Duration) -> bool {
        // The length of a quarantine is at least max_ttl + L, where L is the time for which a
        // replaced master may still grant. So the replaced master has stopped granting at
        // `stopped`. In a longer quarantine it stopped earlier, so `stopped` is on the safe side.
        let stopped = quarantine.ends - max_ttl;
        stopped < self.confirmed_until
    }

    /// Returns the identifier of the quarantine (time in which the node grants nothing) that the
    /// next extension must contain to count: the last quarantine that the node reported. Returns
    /// `None` if this quarantine has ended, or if the holder is not allowed to extend its lease in
    /// it.
    pub fn reassert(&self, now: Moment, max_ttl: Duration) -> Option<QuarantineId> {
        let last = self.quarantine.filter(|quarantine| now < quarantine.ends)?;
        self.may_reassert(last, max_ttl).then_some(last.id)
    }
}

/// State on one node of one attempt to acquire a lock or to claim a key.
#[derive(Clone, Debug)]
struct Holding {
    /// True once the node's first answer has arrived, or an extension was sent to the node. After
    /// an extension, the first answer does not show the state of the node.
    answered: bool,
    may_hold: bool,
    /// Round of the last request that may wait behind all others in the node queue; `None` once
    /// that request has been answered.
    behind: Option<u64>,
    confirmed_until: Moment,
    /// Round (grant or renewal) in which the node last confirmed the lease, and the node's data
    /// history (the sequence of writes behind its data) in that round.
    confirmed_in: Option<(u64, QuarantineId)>,
    /// Slot of the permit that the node gave last.
    slot: Option<u16>,
    /// Round (grant or renewal) in which the node last reported a quarantine (time in which it
    /// grants nothing), and that quarantine.
    quarantine: Option<(u64, Quarantine)>,
}

/// What each node has of one attempt to acquire a lock or to claim a key, and then of its lease.
#[derive(Clone, Debug)]
pub struct Grant {
    /// What a node grants, and what it is asked to extend and to release: of a semaphore any slot,
    /// and then the one that the attempt has won.
    pub mode: LockMode,
    /// Level at which a grant or a renewal counts, and the smallest number of replicas that had the
    /// last one that counted.
    pub durability: Achieved,
    nodes: Vec<Holding>,
    /// Number of renewals so far. The requests for the grant are round 0, and each renewal is a
    /// further round.
    rounds: u64,
}

impl Grant {
    /// Makes the grant of an attempt whose request the caller is about to send to all `n` nodes.
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

    /// Returns the number of nodes.
    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// Records that the attempt has won this slot, and returns the mode of what it won. A node that
    /// grants another slot, earlier or later, has not confirmed the lease. So the lease may not be
    /// extended on this node while the node is in quarantine.
    pub fn won_with(&mut self, slot: u16) -> LockMode {
        if let LockMode::Slot(slots) = &mut self.mode {
            *slots = slots.exactly(slot);
        }
        for of in self.nodes.iter_mut().filter(|of| of.slot.is_some_and(|other| other != slot)) {
            (of.confirmed_until, of.confirmed_in) = (Moment::default(), None);
        }
        self.mode
    }

    /// Begins a renewal, and returns the number of its round: 1 for the first renewal.
    pub fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    /// Records that an extension is sent to the node. The extension may create the key on the node
    /// again. So if the answer to the acquire (the first request) arrives later, it does not show
    /// the state of the node.
    pub fn extended(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        (of.may_hold, of.answered) = (true, true);
        of.behind = of.behind.map(|_| self.rounds);
    }

    /// Returns true if an extension may overtake the other requests to the node: no request of the
    /// attempt, and no earlier extension, can be among them.
    pub fn may_overtake(&self, node: usize) -> bool {
        self.nodes[node].behind.is_none()
    }

    /// Records the node's answer to the request of the round `round` (0 is the grant, 1 the first
    /// renewal). A grant confirms the lease until `until`. The answer arrived at `at`, and
    /// `history` is the node's data history (the sequence of writes behind its data).
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
            // A node that gave another slot than the one that was won has not confirmed the lease.
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

    /// Records that the node has begun a new data history (by a restart, a failover or a loss of
    /// data), and with the history this quarantine. Returns true if the node last confirmed the
    /// lease in an earlier data history. The next extension of the lease then contains the
    /// identifier of the quarantine, if the holder may extend the lease during the quarantine.
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

    /// Returns the node's last confirmation of the lease and its last quarantine, for a lease that
    /// is valid until `until`.
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

    /// The table is for one node. An example of a line is `yes@1 ext no@2 -> holds, until 100`:
    /// first the events, each with a time in ms, and then the state of the node. `yes`, `no`,
    /// `fault`, `unsent` and `quarantined` are answers (`yes.2` answers the second renewal), and
    /// `slot1` is the grant of a permit. `won` means that the attempt has won slot 0. At `ext` an
    /// extension is sent (at `stray` one of the attempt itself), and at `switch` the node begins
    /// another data history.
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

    /// Each row has the end of the node's quarantine (it grants nothing), the end of the confirmed
    /// lease and the present time, all in ms. `named` is true if the extension contains the
    /// identifier of the quarantine. A lease lasts at most 20 ms.
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
