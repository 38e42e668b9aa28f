//! Whether a node's answer counts as a vote, before a machine receives it:
//! - No grant of a node whose clock stepped (renewal 8).
//! - No fencing token that no node with a correct clock can have given (locks 6).
//! - In quarantine, only an answer about a holder whose lock was certainly written after the loss
//!   (quarantine 9).
//! - Two addresses of one server, or of the data of one vote, are one vote (overview 8).
//! - A node votes only with the deployment that a majority has (quarantine 22).

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::op::{Facts, Holder, Lineage, Queued, Reply, Terms};
use crate::quorum::{Answer, majority};
use crate::time::{FENCE_SLACK, token_lead};

#[derive(Clone, Copy, Debug)]
pub struct Witness<'a> {
    pub facts: Option<&'a Facts>,
    pub objection: Option<&'a NodeError>,
    pub terms: &'a Terms,
    /// This machine's wall clock, in µs since 1970.
    pub wall_micros: u64,
}

impl Witness<'_> {
    /// `votes` is true for an op whose grant makes the caller a holder or extends its lease.
    pub fn judge(&self, reply: Answer, votes: bool) -> Answer {
        let reply = reply?;
        if let Some(error) = self.objection {
            // A clock that stepped forward ends leases early. A refusal counts, because it can only
            // make the caller more careful.
            let free = matches!(reply, Reply::Holder(None) | Reply::Permits(_) | Reply::Readers(_));
            if votes && reply.is_grant() || free {
                return Err(error.clone());
            }
        }
        match &reply {
            Reply::Holder(holder) => Ok(self.old_data(holder.as_ref()).unwrap_or(reply)),
            Reply::Permits(_) | Reply::Readers(_) => Ok(self.old_data(None).unwrap_or(reply)),
            Reply::Granted { fence }
            | Reply::Permit { fence, .. }
            | Reply::Claimed { fence, .. }
            | Reply::Queued { queued: Queued { ticket: fence, .. }, .. }
                if self.is_ahead(*fence) =>
            {
                let ahead = Duration::from_micros(fence.saturating_sub(self.wall_micros));
                let detail = format!("token {fence} is {ahead:?} ahead of this machine's clock");
                Err(NodeError::maybe_executed(NodeFault::TokenAhead, detail))
            }
            _ => Ok(reply),
        }
    }

    /// All clients use the largest that any has asked for (quarantine 7).
    fn clock_error(&self) -> Duration {
        let shared = self.facts.map_or(Duration::ZERO, |facts| facts.clock_error);
        self.terms.clock_error.max(shared)
    }

    fn is_ahead(&self, fence: u64) -> bool {
        let lead = token_lead(self.clock_error()) + FENCE_SLACK;
        let lead = u64::try_from(lead.as_micros()).unwrap_or(u64::MAX);
        fence > self.wall_micros.saturating_add(lead)
    }

    /// "Free" proves nothing in quarantine. A holder counts only if its remaining time plus the age
    /// of the history is longer than the longest lease of any client plus 2E, because the key's
    /// expiry may come from an earlier server, whose clock was ahead by 2E (quarantine 9).
    fn old_data(&self, holder: Option<&Holder>) -> Option<Reply> {
        let facts = self.facts.filter(|f| !f.quarantine.is_zero())?;
        let age = facts.quarantine_len.saturating_sub(facts.quarantine);
        let longer = facts.quarantine_len.saturating_sub(facts.quarantine_asked);
        let longest = self.terms.max_ttl + longer + 2 * self.clock_error();
        let rest = holder.and_then(|h| h.remaining);
        let written_since = rest.is_some_and(|rest| rest + age > longest);
        let id = facts.history();
        let (remaining, began) = (facts.quarantine, facts.began);
        (!written_since).then_some(Reply::Quarantined { remaining, id, began })
    }
}

const ONE_BY_ONE: &str = "if it is another deployment's server, point its address at the right \
                          one; if the nodes were marked one by one, `palisade settings \
                          --one-deployment --yes --node <url>` with the --node of each gives all \
                          of them one id and loses nothing; then restart the programs";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    process: Arc<str>,
    /// 0 if the data have no name, as `deployment`.
    vote: u64,
    deployment: u64,
}

impl Server {
    pub fn of(facts: &Facts) -> Self {
        let Lineage { vote, deployment, .. } = facts.lineage;
        Self { process: Arc::clone(&facts.identity), vote, deployment }
    }

    fn clash(&self, other: &Self, number: usize) -> Option<(NodeFault, String)> {
        let same =
            |what: &str| Some((NodeFault::SameServer, format!("same {what} node number {number}")));
        if self.process == other.process {
            same("run_id as")
        } else if self.vote == other.vote && self.vote != 0 {
            same("vote in palisade:generation (a copy of its data) as")
        } else if self.deployment != other.deployment
            && ![self.deployment, other.deployment].contains(&0)
        {
            let (ours, theirs) = (self.deployment, other.deployment);
            let detail = format!(
                "it has the data of deployment {theirs:016x}, and node number {number} those of \
                 {ours:016x}; {ONE_BY_ONE}"
            );
            Some((NodeFault::ForeignData, detail))
        } else {
            None
        }
    }
}

#[derive(Clone, Debug)]
pub struct Servers(Vec<Option<Server>>);

impl Servers {
    pub fn new(n: usize) -> Self {
        Self(vec![None; n])
    }

    /// An error if the same process has already answered for another node, or a server with the
    /// same vote's data or of another deployment. The first node that answered votes.
    pub fn admit(&mut self, node: usize, server: Option<&Server>, reply: Answer) -> Answer {
        let Some(server) = server else { return reply };
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != node);
        let mut clashes =
            others.filter_map(|(other, known)| known.as_ref()?.clash(server, other + 1));
        let Some((fault, detail)) = clashes.next() else {
            self.0[node] = Some(server.clone());
            return reply;
        };
        reply.and_then(|_| Err(NodeError::maybe_executed(fault, detail)))
    }
}

/// By the number of the node; 0 if not known, or the data have no name.
#[derive(Clone, Debug)]
pub struct Deployments(Vec<(u64, u64)>);

impl Deployments {
    pub fn new(n: usize) -> Self {
        Self(vec![(0, 0); n])
    }

    /// Unless a majority has another deployment: the address leads to its server.
    pub fn admit(&mut self, node: usize, lineage: &Lineage) -> Result<(), NodeError> {
        let Lineage { deployment, vote, .. } = *lineage;
        self.0[node] = (deployment, vote);
        match self.agreed() {
            Some(agreed) if deployment != 0 && deployment != agreed => {
                let detail = format!(
                    "it has the data of deployment {deployment:016x}, and a majority of the nodes \
                     those of {agreed:016x}; point its address at the right server"
                );
                Err(NodeError::maybe_executed(NodeFault::ForeignData, detail))
            }
            _ => Ok(()),
        }
    }

    fn agreed(&self) -> Option<u64> {
        let ids = || self.0.iter().map(|(deployment, _)| *deployment);
        let count = |one: u64| ids().filter(|other| *other == one).count();
        ids().find(|one| *one != 0 && count(*one) >= majority(self.0.len()))
    }

    /// The address had led to another deployment's server.
    pub fn disowns(&self, memory: &Lineage) -> bool {
        self.agreed().is_some_and(|agreed| ![0, agreed].contains(&memory.deployment))
    }

    pub fn shares(&self, node: usize, memory: &Lineage) -> bool {
        let mut others = self.0.iter().enumerate().filter(|(other, _)| *other != node);
        memory.vote != 0 && others.any(|(_, (_, vote))| *vote == memory.vote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Began, Readers};

    const SECOND: Duration = Duration::from_secs(1);
    const TERMS: Terms = Terms { max_ttl: Duration::from_secs(6), clock_error: SECOND };

    /// A quarantine of 10 s, `others` longer if other clients ask for that.
    fn facts(age: Option<u32>, others: u32) -> Facts {
        let len = (10 + others) * SECOND;
        Facts {
            node_micros: 1,
            history_id: 1,
            since: 1,
            identity: Arc::from("s"),
            quarantine: age.map_or(Duration::ZERO, |age| len.saturating_sub(age * SECOND)),
            quarantine_len: len,
            quarantine_asked: 10 * SECOND,
            clock_error: Duration::ZERO,
            clock_error_asked: Duration::ZERO,
            quarantine_raised: false,
            new_history: false,
            marker_missing: false,
            began: Began::Known,
            losses: [].into(),
            replication: 1,
            lineage: Lineage::default(),
            renamed: false,
            refuted: false,
        }
    }

    fn holder(rest: Duration) -> Holder {
        Holder { owner: None, fence: 1, remaining: Some(rest), meta: None }
    }

    /// `grant=1000 stepped -> ClockJump`: answer, state of the node, result. Tokens in ms of this
    /// clock, which shows 1000 s. E is 1 s.
    #[test]
    fn an_answer_is_worth_what_its_node_is() {
        let stepped = NodeError::maybe_executed(NodeFault::ClockJump, "");
        let table = include_str!("testdata/vote.txt");
        for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (given, expect) = line.split_once(" -> ").expect("a line has an outcome");
            let (answer, node) = given.split_once(' ').expect("an answer and a node");
            let (word, value) = answer.split_once('=').unwrap_or((answer, "0"));
            let fence = value.parse::<u64>().unwrap() * 1_000;
            let reply = match word {
                "grant" => Reply::Granted { fence },
                "done" => Reply::Done,
                "other" => Reply::NotOwner,
                "free" => Reply::Holder(None),
                "queued" => {
                    let queued = Queued { ahead: 0, ticket: fence };
                    Reply::Queued { remaining: None, foreign: false, queued }
                }
                "permits" => Reply::Permits(vec![]),
                "readers" => Reply::Readers(Readers { fence: 1, count: 0, listed: vec![] }),
                "holder" => Reply::Holder(Some(holder(Duration::from_micros(fence)))),
                _ => panic!("unknown answer {word}"),
            };
            let facts = facts(node.contains("quarantined").then_some(3), 0);
            let witness = Witness {
                facts: Some(&facts),
                objection: node.contains("stepped").then_some(&stepped),
                terms: &TERMS,
                wall_micros: 1_000_000_000,
            };
            // The answer to a release is no vote.
            let got = match witness.judge(Ok(reply.clone()), node != "released") {
                Ok(judged) if judged == reply => "counts".to_owned(),
                Ok(Reply::Quarantined { .. }) => "quarantined".to_owned(),
                Ok(other) => panic!("{other:?}"),
                Err(e) => format!("{:?}", e.fault()),
            };
            assert_eq!(got, expect, "{line}");
        }
    }

    #[test]
    fn in_quarantine_a_holder_counts_only_if_it_was_written_since() {
        let (just, more) = (Duration::from_secs(5), Duration::from_millis(5_001));
        // A lease from an earlier data history had at most 6 s + 2E left when the quarantine began.
        for (age, others, rest, counted) in [
            (None, 0, None, true),
            (None, 0, Some(SECOND), true),
            (Some(3), 0, None, false),
            (Some(9), 0, None, false),
            (Some(3), 0, Some(just), false),
            (Some(3), 0, Some(more), true),
            (Some(4), 0, Some(just), true),
            // Clients that ask for a longer quarantine may have longer leases.
            (Some(3), 1, Some(more), false),
            (Some(3), 1, Some(SECOND + more), true),
        ] {
            let facts = facts(age, others);
            let (facts, objection) = (Some(&facts), None);
            let witness = Witness { facts, objection, terms: &TERMS, wall_micros: 0 };
            let got = witness.old_data(rest.map(holder).as_ref()).is_none();
            assert_eq!(got, counted, "{age:?} {others} {rest:?}");
        }
    }

    #[test]
    fn an_answer_is_judged_by_the_largest_clock_error_that_any_client_asked_for() {
        let shared = Facts { clock_error: 3 * SECOND, ..facts(Some(4), 0) };
        let own = facts(Some(4), 0);
        let judge = |facts: &Facts, reply: Reply| {
            let (facts, terms) = (Some(facts), &TERMS);
            let witness = Witness { facts, objection: None, terms, wall_micros: 1_000_000_000 };
            witness.judge(Ok(reply), true).map(|reply| matches!(reply, Reply::Quarantined { .. }))
        };
        let ahead = |facts| token_lead(facts) + FENCE_SLACK;
        let fence = 1_000_000_000 + u64::try_from(ahead(3 * SECOND).as_micros()).unwrap();
        let refused = judge(&own, Reply::Granted { fence }).unwrap_err();
        assert_eq!(refused.fault(), NodeFault::TokenAhead);
        assert_eq!(judge(&shared, Reply::Granted { fence }).map_err(|e| e.fault()), Ok(false));
        let written = Reply::Holder(Some(holder(5 * SECOND)));
        assert_eq!(judge(&own, written.clone()).map_err(|e| e.fault()), Ok(false));
        assert_eq!(judge(&shared, written).map_err(|e| e.fault()), Ok(true));
    }

    #[test]
    fn two_addresses_of_one_server_are_one_vote_whichever_answers_first() {
        let mut servers = Servers::new(3);
        let mut admit = |node, name: &str| {
            let server = Server { process: name.into(), vote: 0, deployment: 0 };
            servers.admit(node, Some(&server), Ok(Reply::Done)).map_err(|e| e.fault())
        };
        assert_eq!(admit(1, "x"), Ok(Reply::Done));
        assert_eq!(admit(0, "x"), Err(NodeFault::SameServer));
        assert_eq!(admit(2, "y"), Ok(Reply::Done));
        assert_eq!(admit(1, "x"), Ok(Reply::Done), "the same node may answer again");
        assert_eq!(admit(1, "z"), Ok(Reply::Done), "the node has become another server");
    }

    #[test]
    fn two_servers_with_the_data_of_one_vote_are_one_vote() {
        let mut servers = Servers::new(4);
        let mut admit = |node, name: &str, vote| {
            let server = Server { process: name.into(), vote, deployment: 0 };
            servers.admit(node, Some(&server), Ok(Reply::Done))
        };
        assert_eq!(admit(0, "x", 7), Ok(Reply::Done));
        let e = admit(1, "y", 7).unwrap_err();
        assert_eq!(e.fault(), NodeFault::SameServer);
        assert!(e.to_string().contains("same vote in palisade:generation"), "{e}");
        assert!(e.to_string().contains("node number 1"), "{e}");
        assert_eq!(admit(0, "z", 7), Ok(Reply::Done), "a failover keeps the vote");
        assert_eq!(admit(1, "y", 8), Ok(Reply::Done), "the address leads home");
        assert_eq!(admit(2, "v", 0), Ok(Reply::Done));
        assert_eq!(admit(3, "w", 0), Ok(Reply::Done), "data without a name");
    }

    #[test]
    fn a_majority_of_the_nodes_says_which_deployment_it_is() {
        let mut all = Deployments::new(3);
        let of = |deployment, vote| Lineage { deployment, vote, ..Lineage::default() };
        let mut admit =
            |node, deployment| all.admit(node, &of(deployment, 0)).map_err(|e| e.fault());
        assert_eq!(admit(0, 9), Ok(()), "the others are not known");
        assert_eq!((admit(1, 5), admit(2, 0)), (Ok(()), Ok(())), "no majority has one name");
        assert_eq!(admit(2, 5), Ok(()));
        assert_eq!(admit(0, 9), Err(NodeFault::ForeignData));
        assert_eq!(admit(0, 0), Ok(()), "data without a name");
        assert_eq!(admit(0, 5), Ok(()), "the address leads home");
        assert!(all.disowns(&of(9, 1)) && !all.disowns(&of(5, 1)) && !all.disowns(&of(0, 1)));
        all.admit(1, &of(5, 7)).unwrap();
        assert!(all.shares(2, &of(5, 7)), "the address led to another node");
        assert!(!all.shares(1, &of(5, 7)) && !all.shares(2, &of(5, 8)));
        let mut servers = Servers::new(3);
        let mut vote = |node: usize, deployment| {
            let server = Server { process: format!("{node}").into(), vote: 0, deployment };
            servers.admit(node, Some(&server), Ok(Reply::Done)).map_err(|e| e.fault())
        };
        assert_eq!((vote(0, 9), vote(1, 5)), (Ok(Reply::Done), Err(NodeFault::ForeignData)));
        assert_eq!((vote(1, 0), vote(2, 9)), (Ok(Reply::Done), Ok(Reply::Done)));
    }
}
