//! Decides which server is the master: a pure state machine over the Sentinels' answers.
//!
//! One Sentinel's answer is not enough: a Sentinel that is cut off together with the old master
//! goes on naming it. So a master counts only if a majority of the *known* Sentinels name it, none
//! of them under an older configuration epoch than was decided upon before. Nor can one Sentinel's
//! answer prevent that: epochs, peers and their number count as far as more Sentinels say so than a
//! minority. No clock, no IO, and the order of the answers never matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::address::Address;
use crate::error::{NodeError, NodeFault};

/// Most Sentinels that are remembered, the configured ones included.
pub const SENTINELS_MAX: usize = 16;

/// What one Sentinel answered in one round.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    /// Where it was asked.
    pub from: Address,
    /// Its own id (`SENTINEL MYID`): one Sentinel under two addresses has one voice.
    pub id: Option<Box<str>>,
    /// What it said.
    pub said: Said,
}

/// The content of an [`Answer`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    /// It names a master.
    Master {
        /// The address as the Sentinel reports it.
        at: Address,
        /// `SENTINEL MASTER`, if the user may ask for it.
        facts: Option<MasterFacts>,
        /// The other Sentinels of this group it knows (`SENTINEL SENTINELS`).
        peers: Vec<Peer>,
    },
    /// It knows no master of that name.
    Unknown,
    /// Its answer does not count.
    Failed(Trouble, Box<str>),
}

/// Why an answer does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// No connection, or it broke.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// Something else listens there.
    NotSentinel,
    /// User name or password refused.
    Auth,
    /// The user may not even ask for the master's address.
    NoPermission,
    /// The TLS handshake failed, or it does not speak TLS.
    Tls,
    /// It answered something that cannot be understood, or an error of its own.
    Strange,
}

/// The answer to `SENTINEL MASTER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MasterFacts {
    /// Grows by at least one with every failover.
    pub epoch: u64,
    /// How many Sentinels must agree that the master is down.
    pub quorum: u32,
    /// Other Sentinels that this one knows, dead or alive.
    pub others: u32,
    /// Replicas it knows, dead or alive.
    pub replicas: u32,
    /// How long a master may be silent before it is considered down.
    pub down_after: Duration,
    /// It sees the master as down, or a failover running.
    pub troubled: bool,
}

/// Another Sentinel, as one of them reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    /// Where.
    pub at: Address,
    /// Its id.
    pub id: Option<Box<str>>,
}

/// The master that a majority names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// Its address, as the Sentinels report it.
    pub at: Address,
    /// Its configuration epoch; `None` if no Sentinel reports it.
    pub epoch: Option<u64>,
    /// The shortest `down-after-milliseconds` that any Sentinel reported.
    pub down_after: Option<Duration>,
    /// The most replicas that any of them knows.
    pub replicas: Option<u32>,
}

/// The memory of discovery: which Sentinels there are, and the highest epoch decided so far.
#[derive(Clone, Debug)]
pub(crate) struct Discovery {
    /// In the order in which they are asked; the first replier comes first.
    sentinels: Vec<Address>,
    learned: BTreeSet<Address>,
    configured: usize,
    ids: BTreeMap<Address, Box<str>>,
    /// The last answer of each: a Sentinel that is silent now may still begin a failover.
    down_after: BTreeMap<Address, Duration>,
    seen: Option<u64>,
}

impl Discovery {
    /// Begins with the configured Sentinels.
    pub(crate) fn new(sentinels: Vec<Address>) -> Self {
        Self {
            configured: sentinels.len(),
            sentinels,
            learned: BTreeSet::new(),
            ids: BTreeMap::new(),
            down_after: BTreeMap::new(),
            seen: None,
        }
    }

    /// The Sentinels to ask, in order.
    pub(crate) fn sentinels(&self) -> &[Address] {
        &self.sentinels
    }

    /// Puts the first replier to the head of the list (client guideline, step 1).
    pub(crate) fn first_replier(&mut self, at: &Address) {
        if let Some(i) = self.sentinels.iter().position(|s| s == at) {
            self.sentinels[..=i].rotate_right(1);
        }
    }

    /// Remembers ids, appends Sentinels not known yet (guideline, step 9), forgets learned ones
    /// that turn out to be a known one under another address. True if there are new ones to ask.
    pub(crate) fn learn(&mut self, answers: &[Answer]) -> bool {
        for a in answers {
            if let Some(id) = &a.id {
                self.ids.insert(a.from.clone(), id.clone());
            }
            if let Said::Master { facts: Some(facts), .. } = &a.said {
                self.down_after.insert(a.from.clone(), facts.down_after);
            }
        }
        let mut named: BTreeMap<&Address, (BTreeSet<&Address>, &Peer)> = BTreeMap::new();
        for (a, peer) in answers.iter().flat_map(|a| a.peers().iter().map(move |p| (a, p))) {
            let (by, known) = named.entry(&peer.at).or_insert_with(|| (BTreeSet::new(), peer));
            by.insert(&a.from);
            *known = peer.min(known);
        }
        // Otherwise one Sentinel could name many that do not exist or that repeat its answer.
        let enough = minority(self.configured) + 1;
        let peers = named.into_values().filter(|(by, _)| by.len() >= enough).map(|(_, peer)| peer);
        let (ids, learned) = (&self.ids, &self.learned);
        let configured = |id| ids.iter().any(|(at, i)| i == id && !learned.contains(at));
        self.sentinels.retain(|s| !learned.contains(s) || !ids.get(s).is_some_and(configured));
        let before = self.sentinels.len();
        for peer in peers {
            let twin = |id| self.ids.iter().any(|(at, i)| i == id && self.sentinels.contains(at));
            let known = self.sentinels.contains(&peer.at) || peer.id.as_ref().is_some_and(twin);
            if known || self.sentinels.len() >= SENTINELS_MAX {
                continue;
            }
            self.sentinels.push(peer.at.clone());
            self.learned.insert(peer.at.clone());
            if let Some(id) = &peer.id {
                self.ids.insert(peer.at.clone(), id.clone());
            }
        }
        // Addresses that are no longer asked (a Sentinel redeployed elsewhere) need no memory.
        let asked = &self.sentinels;
        self.ids.retain(|at, _| asked.contains(at));
        self.down_after.retain(|at, _| asked.contains(at));
        self.learned.retain(|at| asked.contains(at));
        self.sentinels.len() > before
    }

    /// How many Sentinels there are: as many as were configured or answer, or as they report if
    /// that is more. Sentinels never forget each other by themselves, so the side that lost the
    /// others still counts them: that is what makes a minority recognisable. Where more than a
    /// majority answers, the highest numbers do not count: as many as may be lies.
    fn known(&self, voices: &[Voice<'_>]) -> usize {
        let mut reported: Vec<usize> = voices.iter().filter_map(|v| v.sentinels).collect();
        reported.sort_unstable_by(|a, b| b.cmp(a));
        let asked = self.sentinels.len();
        let lies = minority(asked).min(reported.len().saturating_sub(asked / 2 + 1));
        let reported = reported.get(lies).copied().unwrap_or(0);
        reported.max(self.configured).max(voices.len()).max(1)
    }

    /// Decides from the answers of one round.
    ///
    /// # Errors
    /// The fault that says what to do, with every Sentinel's answer in the detail.
    pub(crate) fn decide(&mut self, answers: &[Answer]) -> Result<Master, NodeError> {
        let voices = voices(answers);
        let known = self.known(&voices);
        let needed = known / 2 + 1;
        let named: Vec<(&Address, &Voice<'_>)> =
            voices.iter().filter_map(|v| Some((v.at?, v))).collect();
        let Some((first, _)) = named.first() else {
            return Err(nobody_named(&voices, answers));
        };
        // An answer below the epoch that was decided upon before is stale: that Sentinel does not
        // know of the last failover and would lead back to the master that was replaced (sentinel
        // 1). A higher one that no majority reports decides nothing: soon the others know of it, or
        // it is a lie. Epochs go back only when somebody resets the Sentinels; then all of them say
        // so.
        let top = named.iter().filter_map(|(_, v)| v.epoch()).max();
        let everybody =
            named.len() >= known && named.iter().all(|(at, v)| at == first && v.epoch() == top);
        let floor = if everybody { top } else { self.seen };
        let current = |v: &Voice<'_>| v.epoch().is_none() || v.epoch() >= floor;
        let mut votes: BTreeMap<&Address, Vec<&Voice<'_>>> = BTreeMap::new();
        for (at, v) in named.iter().filter(|(_, v)| current(v)) {
            votes.entry(at).or_default().push(v);
        }
        let winner = votes.into_iter().find(|(_, by)| by.len() >= needed);
        let Some((at, by)) = winner else {
            return Err(no_agreement(answers, needed, floor));
        };
        // Any Sentinel may begin the next failover, also one that does not know of the last.
        let reported = named.iter().filter_map(|(_, v)| v.facts).map(|f| f.down_after);
        let down_after = reported.chain(self.down_after.values().copied()).min();
        let epoch = agreed_epoch(&by, needed);
        if epoch.is_some() {
            self.seen = epoch;
        }
        Ok(Master {
            at: at.clone(),
            epoch,
            down_after,
            // A Sentinel that knows one more replica may promote that one.
            replicas: voices.iter().filter_map(|v| v.facts).map(|f| f.replicas).max(),
        })
    }
}

/// How many of them may be wrong, cut off or lie while the others are a majority.
pub(crate) fn minority(sentinels: usize) -> usize {
    sentinels.saturating_sub(1) / 2
}

/// The highest epoch that this many of them, or all that report one, have reached.
fn agreed_epoch(by: &[&Voice<'_>], needed: usize) -> Option<u64> {
    let mut epochs: Vec<u64> = by.iter().filter_map(|v| v.epoch()).collect();
    epochs.sort_unstable_by(|a, b| b.cmp(a));
    epochs.get(needed.min(epochs.len()).checked_sub(1)?).copied()
}

/// One Sentinel, with any number of addresses.
struct Voice<'a> {
    at: Option<&'a Address>,
    facts: Option<&'a MasterFacts>,
    /// How many Sentinels it knows, itself included.
    sentinels: Option<usize>,
    unknown: bool,
}

impl Voice<'_> {
    fn epoch(&self) -> Option<u64> {
        self.facts.map(|f| f.epoch)
    }
}

fn voices(answers: &[Answer]) -> Vec<Voice<'_>> {
    // Of two that say they are the same Sentinel, the one counts that others know under this id,
    // and then the latest answer (two connections to it may straddle a switch). Which that is must
    // not depend on which came first: hence a total order.
    let known = |a: &Answer| {
        let is = |p: &Peer| p.at == a.from && p.id == a.id;
        answers.iter().filter(|other| other.from != a.from && other.peers().iter().any(is)).count()
    };
    let mut sorted: Vec<&Answer> = answers.iter().collect();
    sorted.sort_by_cached_key(|a| (std::cmp::Reverse(known(a)), std::cmp::Reverse(a.epoch()), *a));
    let (mut heard, mut from) = (BTreeSet::new(), BTreeSet::new());
    let mut out = Vec::new();
    for a in sorted {
        if matches!(a.said, Said::Failed(..)) || !from.insert(&a.from) {
            continue;
        }
        if a.id.as_ref().is_some_and(|id| !heard.insert(id)) {
            continue;
        }
        out.push(match &a.said {
            Said::Master { at, facts, peers } => {
                let others = facts.as_ref().map_or(0, |f| f.others as usize).max(peers.len());
                let sentinels = Some(others.saturating_add(1));
                Voice { at: Some(at), facts: facts.as_ref(), sentinels, unknown: false }
            }
            _ => Voice { at: None, facts: None, sentinels: None, unknown: true },
        });
    }
    out
}

impl Answer {
    /// The other Sentinels that it names.
    fn peers(&self) -> &[Peer] {
        match &self.said {
            Said::Master { peers, .. } => peers,
            _ => &[],
        }
    }

    fn epoch(&self) -> Option<u64> {
        match &self.said {
            Said::Master { facts, .. } => facts.as_ref().map(|f| f.epoch),
            _ => None,
        }
    }

    /// It reports the master as down, or a failover: ask again soon.
    pub(crate) fn troubled(&self) -> bool {
        match &self.said {
            Said::Master { facts, .. } => facts.as_ref().is_some_and(|f| f.troubled),
            _ => false,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.from)?;
        match &self.said {
            Said::Master { at, facts: Some(m), .. } => write!(f, "{at} in epoch {}", m.epoch),
            Said::Master { at, facts: None, .. } => write!(f, "{at}"),
            Said::Unknown => f.write_str("knows no such master"),
            Said::Failed(trouble, detail) => write!(f, "{}: {detail}", trouble.summary()),
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

/// No Sentinel names a master. A person has to act on the worst cause, so the cause that is least
/// likely to end by itself decides the fault. Silence comes last.
fn nobody_named(voices: &[Voice<'_>], answers: &[Answer]) -> NodeError {
    let has = |t| answers.iter().any(|a| matches!(a.said, Said::Failed(x, _) if x == t));
    let fault = if voices.iter().any(|v| v.unknown) {
        NodeFault::UnknownMaster
    } else if has(Trouble::Auth) {
        NodeFault::Auth
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
        NodeFault::NoPermission => {
            "; allow this user what users-sentinel.acl in sentinel-conf allows `palisade`"
        }
        _ => "",
    };
    NodeError::not_executed(fault, format!("the Sentinels: {}{change}", all_answers(answers)))
}

fn no_agreement(answers: &[Answer], needed: usize, floor: Option<u64>) -> NodeError {
    let under = floor.map(|e| format!(" in epoch {e}")).unwrap_or_default();
    let detail = format!("{needed} must name one master{under}; {}", all_answers(answers));
    NodeError::not_executed(NodeFault::NoAgreement, detail)
}

#[cfg(test)]
mod tests;
