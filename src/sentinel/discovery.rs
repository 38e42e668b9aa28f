//! Decides on the master of a group by the Sentinels' answers: a pure state machine. A master
//! counts only if a majority of the *known* Sentinels names it in one epoch, no older than an
//! earlier decision's, unless each of this majority was reset. An epoch, a peer or the number of
//! peers counts only if more than a minority report it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::dial::address::Address;
use crate::error::{NodeError, NodeFault};

/// Largest number of known Sentinels, including the configured Sentinels.
pub const SENTINELS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    pub from: Address,
    /// `SENTINEL MYID`, so that one Sentinel with two addresses has one vote.
    pub id: Option<Box<str>>,
    pub reply: SentinelReply,
    /// It answers, and acts on nothing. False if the user may not read that.
    pub in_tilt: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SentinelReply {
    Master {
        at: Address,
        /// `SENTINEL MASTER`; `None` if the user may not read it.
        facts: Option<MasterFacts>,
        /// `SENTINEL SENTINELS`.
        peers: Vec<Peer>,
    },
    Unknown(Box<str>),
    Failed(Trouble, Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Unreachable,
    Timeout,
    NotSentinel,
    Auth,
    NoCredentials,
    NoPermission,
    Tls,
    Strange,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MasterFacts {
    /// Every failover increases it by at least one.
    pub epoch: u64,
    /// Sentinels that must agree that the master is down.
    pub quorum: u32,
    /// Also those that are down.
    pub others: u32,
    /// Also those that are down.
    pub replicas: u32,
    pub down_after: Duration,
    /// The master is down or a failover runs.
    pub troubled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub at: Address,
    pub id: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    pub at: Address,
    /// `None` if no Sentinel reports it.
    pub epoch: Option<u64>,
    /// Shortest that the Sentinels report.
    pub down_after: Option<Duration>,
    /// Largest number that the Sentinels report.
    pub replicas: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Discovery {
    /// Who replied first comes first.
    sentinels: Vec<Address>,
    learned: BTreeSet<Address>,
    configured: usize,
    ids: BTreeMap<Address, Box<str>>,
    /// A silent Sentinel may still begin a failover.
    down_after: BTreeMap<Address, Duration>,
    seen: Option<u64>,
    /// A later word below this one shows that the Sentinel was reset.
    said: BTreeMap<Address, Said>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    id: Option<Box<str>>,
    epoch: Option<u64>,
}

impl Discovery {
    pub(crate) fn new(sentinels: Vec<Address>) -> Self {
        Self {
            configured: sentinels.len(),
            sentinels,
            learned: BTreeSet::new(),
            ids: BTreeMap::new(),
            down_after: BTreeMap::new(),
            seen: None,
            said: BTreeMap::new(),
        }
    }

    pub(crate) fn sentinels(&self) -> &[Address] {
        &self.sentinels
    }

    /// A configured Sentinel that is asked at the address to which it may have moved counts once.
    pub(crate) fn count(&self) -> usize {
        let learned = |s: &Address| self.learned.contains(s);
        let is_of = |id, s: &&Address| !learned(s) && self.ids.get(*s) == Some(id);
        let is_other = |s: &&Address| match self.ids.get(*s) {
            Some(id) if learned(s) => !self.sentinels.iter().any(|other| is_of(id, &other)),
            _ => true,
        };
        self.sentinels.iter().filter(is_other).count()
    }

    /// Step 1 of Redis' guideline for Sentinel clients.
    pub(crate) fn first_replier(&mut self, at: &Address) {
        if let Some(i) = self.sentinels.iter().position(|s| s == at) {
            self.sentinels[..=i].rotate_right(1);
        }
    }

    /// Step 9 of Redis' guideline. Removes one whose id is a configured Sentinel's, one that has
    /// moved, and, where there is no place, one that is gone. True if there are new ones to ask.
    pub(crate) fn learn(&mut self, answers: &[Answer]) -> bool {
        for a in answers {
            if let Some(id) = &a.id {
                self.ids.insert(a.from.clone(), id.clone());
            }
            if let SentinelReply::Master { facts: Some(facts), .. } = &a.reply {
                self.down_after.insert(a.from.clone(), facts.down_after);
            }
        }
        let mut named: BTreeMap<&Address, (BTreeSet<&Address>, &Peer)> = BTreeMap::new();
        for (a, peer) in answers.iter().flat_map(|a| a.peers().iter().map(move |p| (a, p))) {
            let (by, known) = named.entry(&peer.at).or_insert_with(|| (BTreeSet::new(), peer));
            by.insert(&a.from);
            *known = peer.min(known);
        }
        // Otherwise one Sentinel could report many peers that do not exist or repeat its answer.
        let enough = minority(self.configured) + 1;
        let peers = named.into_values().filter(|(by, _)| by.len() >= enough).map(|(_, peer)| peer);
        let failed = |at: &Address| {
            let is = |a: &Answer| a.from == *at && matches!(a.reply, SentinelReply::Failed(..));
            answers.iter().any(is)
        };
        let (ids, learned) = (&self.ids, &self.learned);
        let lives = |(at, _): &(&Address, _)| !learned.contains(*at) && !failed(at);
        let configured = |id| ids.iter().filter(lives).any(|(_, i)| i == id);
        self.sentinels.retain(|s| !learned.contains(s) || !ids.get(s).is_some_and(configured));
        let listed: BTreeSet<_> = answers.iter().flat_map(Answer::peers).map(|p| &p.at).collect();
        let mut is_new = false;
        for peer in peers {
            let has_its_id = |s: &Address| peer.id.is_some() && self.ids.get(s) == peer.id.as_ref();
            let lives_elsewhere = self.sentinels.iter().any(|s| has_its_id(s) && !failed(s));
            if self.sentinels.contains(&peer.at) || lives_elsewhere {
                continue;
            }
            self.sentinels.retain(|s| !has_its_id(s) || !self.learned.contains(s));
            if self.sentinels.len() >= SENTINELS_MAX {
                let is_gone =
                    |s: &&Address| self.learned.contains(*s) && failed(s) && !listed.contains(s);
                let Some(gone) = self.sentinels.iter().find(is_gone).cloned() else { continue };
                self.sentinels.retain(|s| *s != gone);
            }
            is_new = true;
            self.sentinels.push(peer.at.clone());
            self.learned.insert(peer.at.clone());
            if let Some(id) = &peer.id {
                self.ids.insert(peer.at.clone(), id.clone());
            }
        }
        let sentinels = &self.sentinels;
        self.ids.retain(|at, _| sentinels.contains(at));
        self.down_after.retain(|at, _| sentinels.contains(at));
        self.said.retain(|at, _| sentinels.contains(at));
        self.learned.retain(|at| sentinels.contains(at));
        is_new
    }

    /// The largest of three: the configured, those that answered, and the number that they report.
    /// Even an isolated part reports the full number and is recognised as a minority. The highest
    /// reports may be wrong: as many are ignored as there are beyond a majority, and at most a
    /// minority.
    fn known(&self, voices: &[Voice<'_>]) -> usize {
        let mut reported: Vec<usize> = voices.iter().filter_map(|v| v.sentinels).collect();
        reported.sort_unstable_by(|a, b| b.cmp(a));
        let count = self.count();
        let lies = minority(count).min(reported.len().saturating_sub(count / 2 + 1));
        let reported = reported.get(lies).copied().unwrap_or(0);
        reported.max(self.configured).max(voices.len()).max(1)
    }

    pub(crate) fn decide(&mut self, answers: &[Answer]) -> Result<Master, NodeError> {
        let voices = voices(answers);
        let known = self.known(&voices);
        let needed = known / 2 + 1;
        let named: Vec<(&Address, &Voice<'_>)> =
            voices.iter().filter_map(|v| Some((v.at?, v))).collect();
        let Some((first, voice)) = named.first() else {
            return Err(no_master_named(&voices, answers));
        };
        // It has not received the last failover (sentinel 1).
        let current = |v: &Voice<'_>| v.epoch().is_none() || v.epoch() >= self.seen;
        // Epochs decrease only when an operator resets the Sentinels.
        let agrees = |(at, v): &(&Address, &Voice<'_>)| at == first && v.epoch() == voice.epoch();
        let all_agree = named.len() >= known && named.iter().all(agrees);
        let reset = |v: &Voice<'_>| all_agree || self.was_reset(v);
        let mut winners = majorities(&named, needed, current);
        let begins_again = winners.is_empty();
        if begins_again {
            winners = majorities(&named, needed, reset);
        }
        // Two majorities share Sentinels that do not tell their epoch; one of the others is stale
        // or wrong.
        let winner = if let [one] = winners[..] { Some(one) } else { None };
        let epoch = winner.and_then(|(_, epoch)| epoch);
        if epoch.is_some() {
            self.seen = epoch;
            if begins_again {
                self.said.clear();
            }
        }
        for (_, v) in &named {
            self.hear(v);
        }
        let Some((at, _)) = winner else {
            return Err(no_agreement(answers, needed, self.seen));
        };
        // Any Sentinel may begin the next failover.
        let reported = named.iter().filter_map(|(_, v)| v.facts).map(|f| f.down_after);
        let down_after = reported.chain(self.down_after.values().copied()).min();
        Ok(Master {
            at: at.clone(),
            epoch,
            down_after,
            // A Sentinel may promote a replica that no other knows.
            replicas: voices.iter().filter_map(|v| v.facts).map(|f| f.replicas).max(),
        })
    }

    fn was_reset(&self, v: &Voice<'_>) -> bool {
        let fell = |said: &Said| v.epoch().is_some_and(|epoch| Some(epoch) < said.epoch);
        // An address may lead to another known Sentinel, whose own word then counts.
        match v.id.and_then(|id| self.said.values().find(|s| s.id.as_deref() == Some(id))) {
            Some(own) => fell(own),
            None => self.said.get(v.from).is_some_and(|before| {
                let is_another = v.id.is_some() && before.id.is_some();
                is_another || fell(before)
            }),
        }
    }

    fn hear(&mut self, v: &Voice<'_>) {
        if v.epoch().is_some() && v.epoch() < self.seen && self.was_reset(v) {
            return;
        }
        let before = self.said.get(v.from).filter(|s| s.id.as_deref() == v.id);
        let epoch = v.epoch().max(before.and_then(|s| s.epoch));
        self.said.insert(v.from.clone(), Said { id: v.id.map(Into::into), epoch });
    }
}

/// One that does not tell its epoch counts for each epoch of its master.
fn majorities<'a>(
    named: &[(&'a Address, &Voice<'_>)],
    needed: usize,
    counts: impl Fn(&Voice<'_>) -> bool,
) -> Vec<(&'a Address, Option<u64>)> {
    let mut votes: BTreeMap<&Address, Vec<Option<u64>>> = BTreeMap::new();
    for (at, v) in named.iter().filter(|(_, v)| counts(v)) {
        votes.entry(at).or_default().push(v.epoch());
    }
    let mut found = Vec::new();
    for (at, epochs) in votes {
        let mut told: BTreeSet<Option<u64>> = epochs.iter().copied().collect();
        if told.len() > 1 {
            told.retain(Option::is_some);
        }
        let voices =
            |epoch: Option<u64>| epochs.iter().filter(|e| e.is_none() || **e == epoch).count();
        found.extend(told.into_iter().filter(|e| voices(*e) >= needed).map(|epoch| (at, epoch)));
    }
    found
}

pub(crate) fn minority(sentinels: usize) -> usize {
    sentinels.saturating_sub(1) / 2
}

/// A Sentinel with several addresses counts once.
struct Voice<'a> {
    from: &'a Address,
    id: Option<&'a str>,
    at: Option<&'a Address>,
    facts: Option<&'a MasterFacts>,
    /// Itself included.
    sentinels: Option<usize>,
    unknown: bool,
}

impl Voice<'_> {
    fn epoch(&self) -> Option<u64> {
        self.facts.map(|f| f.epoch)
    }
}

fn voices(answers: &[Answer]) -> Vec<Voice<'_>> {
    // Of two answers with one id, the one whose address more others report; then the higher epoch,
    // because a failover may happen in between; then by the whole answer, so that the order of
    // arrival does not matter.
    let known = |a: &Answer| {
        let is = |p: &Peer| p.at == a.from && p.id == a.id;
        answers.iter().filter(|other| other.from != a.from && other.peers().iter().any(is)).count()
    };
    let mut sorted: Vec<&Answer> = answers.iter().collect();
    sorted.sort_by_cached_key(|a| (std::cmp::Reverse(known(a)), std::cmp::Reverse(a.epoch()), *a));
    let (mut ids, mut from) = (BTreeSet::new(), BTreeSet::new());
    let mut out = Vec::new();
    for a in sorted {
        if matches!(a.reply, SentinelReply::Failed(..)) || !from.insert(&a.from) {
            continue;
        }
        if a.id.as_ref().is_some_and(|id| !ids.insert(id)) {
            continue;
        }
        let (from, id) = (&a.from, a.id.as_deref());
        out.push(match &a.reply {
            SentinelReply::Master { at, facts, peers } => {
                let others = facts.as_ref().map_or(0, |f| f.others as usize).max(peers.len());
                let sentinels = Some(others.saturating_add(1));
                Voice { from, id, at: Some(at), facts: facts.as_ref(), sentinels, unknown: false }
            }
            _ => Voice { from, id, at: None, facts: None, sentinels: None, unknown: true },
        });
    }
    out
}

impl Answer {
    fn peers(&self) -> &[Peer] {
        match &self.reply {
            SentinelReply::Master { peers, .. } => peers,
            _ => &[],
        }
    }

    fn epoch(&self) -> Option<u64> {
        match &self.reply {
            SentinelReply::Master { facts, .. } => facts.as_ref().map(|f| f.epoch),
            _ => None,
        }
    }

    pub(crate) fn troubled(&self) -> bool {
        match &self.reply {
            SentinelReply::Master { facts, .. } => facts.as_ref().is_some_and(|f| f.troubled),
            _ => false,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.from)?;
        match &self.reply {
            SentinelReply::Master { at, facts: Some(m), .. } => {
                write!(f, "{at} in epoch {}", m.epoch)
            }
            SentinelReply::Master { at, facts: None, .. } => write!(f, "{at}"),
            SentinelReply::Unknown(detail) => f.write_str(detail),
            SentinelReply::Failed(trouble, detail) => write!(f, "{}: {detail}", trouble.summary()),
        }
    }
}

impl Trouble {
    fn summary(self) -> &'static str {
        match self {
            Self::Unreachable => "not reachable",
            Self::Timeout => "no answer in time",
            Self::NotSentinel => "not a Sentinel",
            Self::Auth => "credentials refused",
            Self::NoPermission => "not permitted",
            Self::NoCredentials => "no credentials",
            Self::Tls => "TLS refused",
            Self::Strange => "unexpected answer",
        }
    }
}

fn all_answers(answers: &[Answer]) -> String {
    let mut all: Vec<String> = answers.iter().map(ToString::to_string).collect();
    all.sort();
    all.dedup();
    all.join("; ")
}

/// Of several causes, the one that most likely needs a person.
fn no_master_named(voices: &[Voice<'_>], answers: &[Answer]) -> NodeError {
    let has = |t| answers.iter().any(|a| matches!(a.reply, SentinelReply::Failed(x, _) if x == t));
    let fault = if voices.iter().any(|v| v.unknown) {
        NodeFault::UnknownMaster
    } else if has(Trouble::Auth) {
        NodeFault::Auth
    } else if has(Trouble::NoCredentials) {
        NodeFault::Credentials
    } else if has(Trouble::NoPermission) {
        NodeFault::NoPermission
    } else if has(Trouble::Tls) {
        NodeFault::Tls
    } else if has(Trouble::NotSentinel) {
        NodeFault::NotSentinel
    } else if has(Trouble::Strange) {
        NodeFault::Protocol
    } else {
        NodeFault::NoSentinel
    };
    let change = match fault {
        NodeFault::Auth => "; set `sentinel_username` and `sentinel_password`",
        NodeFault::Credentials => "; look at the provider given to `sentinel_credentials`",
        NodeFault::NoPermission => {
            "; allow this user what users-sentinel.acl in sentinel-conf allows `palisade`"
        }
        _ => "",
    };
    NodeError::not_executed(fault, format!("the Sentinels: {}{change}", all_answers(answers)))
}

fn no_agreement(answers: &[Answer], needed: usize, floor: Option<u64>) -> NodeError {
    let least = floor.map(|e| format!(", {e} or later")).unwrap_or_default();
    let answers = all_answers(answers);
    let detail = format!("{needed} must name one master in one epoch{least}; {answers}");
    NodeError::not_executed(NodeFault::NoAgreement, detail)
}

#[cfg(test)]
mod tests;
