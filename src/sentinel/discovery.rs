//! Decides which server is the master: a pure state machine that reads the Sentinels' answers.
//!
//! One Sentinel's answer is not enough: a Sentinel that is cut off together with the old master
//! still names it. So a master counts only if a majority of the *known* Sentinels name it, none of
//! them under an older configuration epoch than was decided before. Nor can one Sentinel's answer
//! prevent a decision: an epoch, a peer or the number of peers counts only if more Sentinels than a
//! minority report it. There is no clock and no IO, and the order of the answers never matters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::address::Address;
use crate::error::{NodeError, NodeFault};

/// Most Sentinels that are remembered, the configured ones included.
pub const SENTINELS_MAX: usize = 16;

/// Answer of one Sentinel in one round.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    /// Address at which the Sentinel was asked.
    pub from: Address,
    /// The Sentinel's id (`SENTINEL MYID`). By it, one Sentinel under two addresses has one vote.
    pub id: Option<Box<str>>,
    /// Content of the answer.
    pub reply: SentinelReply,
}

/// Content of an [`Answer`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SentinelReply {
    /// The Sentinel names a master.
    Master {
        /// Address of the master as the Sentinel reports it.
        at: Address,
        /// Facts from `SENTINEL MASTER`; `None` if the user may not read them.
        facts: Option<MasterFacts>,
        /// Other Sentinels of this group that this one knows (`SENTINEL SENTINELS`).
        peers: Vec<Peer>,
    },
    /// The Sentinel monitors no master of the name that it was asked for.
    Unknown,
    /// The answer does not count, for this reason and with this text about it.
    Failed(Trouble, Box<str>),
}

/// Reason for which an answer does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// No connection could be made, or it broke.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// A server that is not a Sentinel listens at the address.
    NotSentinel,
    /// User name or password was refused.
    Auth,
    /// The user may not even ask for the master's address.
    NoPermission,
    /// The TLS handshake failed, or the server does not speak TLS.
    Tls,
    /// The answer cannot be understood, or is an error that none of the other reasons covers.
    Strange,
}

/// Answer to `SENTINEL MASTER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MasterFacts {
    /// Configuration epoch; grows by at least one with every failover.
    pub epoch: u64,
    /// Number of Sentinels that must agree that the master is down.
    pub quorum: u32,
    /// Number of other Sentinels of the group that this one knows, dead or alive.
    pub others: u32,
    /// Number of replicas of the group that this Sentinel knows, dead or alive.
    pub replicas: u32,
    /// Time for which the master may be silent before this Sentinel considers it down.
    pub down_after: Duration,
    /// True if the Sentinel considers the master down, or if a failover runs.
    pub troubled: bool,
}

/// A Sentinel of the group, as another Sentinel reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    /// Address of the reported Sentinel.
    pub at: Address,
    /// Id of the reported Sentinel, if it is known.
    pub id: Option<Box<str>>,
}

/// The master that a majority names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// Address of the master, as the Sentinels report it.
    pub at: Address,
    /// Configuration epoch; `None` if no Sentinel reports it.
    pub epoch: Option<u64>,
    /// Shortest `down-after-milliseconds` that any Sentinel reported.
    pub down_after: Option<Duration>,
    /// Largest number of replicas that any Sentinel knows.
    pub replicas: Option<u32>,
}

/// State of discovery: the known Sentinels, and the highest epoch decided so far.
#[derive(Clone, Debug)]
pub(crate) struct Discovery {
    /// Sentinels in the order in which they are asked; the one that replied first comes first.
    sentinels: Vec<Address>,
    learned: BTreeSet<Address>,
    configured: usize,
    ids: BTreeMap<Address, Box<str>>,
    /// Last `down-after-milliseconds` that each Sentinel reported. It is kept while a Sentinel is
    /// silent, because the Sentinel may still begin a failover.
    down_after: BTreeMap<Address, Duration>,
    seen: Option<u64>,
}

impl Discovery {
    /// Makes the state that knows the configured Sentinels.
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

    /// Returns the Sentinels to ask, in order.
    pub(crate) fn sentinels(&self) -> &[Address] {
        &self.sentinels
    }

    /// Puts the Sentinel that replied first at the head of the list (Redis' guideline for Sentinel
    /// clients, step 1).
    pub(crate) fn first_replier(&mut self, at: &Address) {
        if let Some(i) = self.sentinels.iter().position(|s| s == at) {
            self.sentinels[..=i].rotate_right(1);
        }
    }

    /// Remembers the Sentinels' ids, appends Sentinels that were not known yet (guideline, step 9),
    /// and removes learned Sentinels that turn out to be configured ones under another address.
    /// Returns true if there are new ones to ask.
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
        // A peer counts only if more Sentinels than a minority name it. Otherwise one Sentinel
        // could name many that do not exist or that repeat its answer.
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
        // Addresses that are no longer asked (a Sentinel redeployed elsewhere) need no entry.
        let sentinels = &self.sentinels;
        self.ids.retain(|at, _| sentinels.contains(at));
        self.down_after.retain(|at, _| sentinels.contains(at));
        self.learned.retain(|at| sentinels.contains(at));
        self.sentinels.len() > before
    }

    /// Returns the number of Sentinels of the group: the largest of the number that was configured,
    /// the number that answers, and the number that the Sentinels report. Sentinels never forget
    /// each other by themselves, so a part of them that is cut off still counts the others; that
    /// makes a minority recognisable. If more than a majority report a number, the highest numbers
    /// are ignored: as many of them as may be wrong.
    fn known(&self, voices: &[Voice<'_>]) -> usize {
        let mut reported: Vec<usize> = voices.iter().filter_map(|v| v.sentinels).collect();
        reported.sort_unstable_by(|a, b| b.cmp(a));
        let count = self.sentinels.len();
        let lies = minority(count).min(reported.len().saturating_sub(count / 2 + 1));
        let reported = reported.get(lies).copied().unwrap_or(0);
        reported.max(self.configured).max(voices.len()).max(1)
    }

    /// Decides by the answers of one round which server is the master.
    ///
    /// # Errors
    /// The fault that tells what to do, with every Sentinel's answer in the detail.
    pub(crate) fn decide(&mut self, answers: &[Answer]) -> Result<Master, NodeError> {
        let voices = voices(answers);
        let known = self.known(&voices);
        let needed = known / 2 + 1;
        let named: Vec<(&Address, &Voice<'_>)> =
            voices.iter().filter_map(|v| Some((v.at?, v))).collect();
        let Some((first, _)) = named.first() else {
            return Err(no_master_named(&voices, answers));
        };
        // An answer below the epoch that was decided before is stale: that Sentinel does not know
        // of the last failover and would lead back to the master that was replaced (sentinel 1). A
        // higher epoch that no majority reports decides nothing: either the others will soon know
        // of it, or it is wrong. Epochs decrease only when an operator resets the Sentinels; then
        // all of them report that.
        let top = named.iter().filter_map(|(_, v)| v.epoch()).max();
        let all_agree =
            named.len() >= known && named.iter().all(|(at, v)| at == first && v.epoch() == top);
        let floor = if all_agree { top } else { self.seen };
        let current = |v: &Voice<'_>| v.epoch().is_none() || v.epoch() >= floor;
        let mut votes: BTreeMap<&Address, Vec<&Voice<'_>>> = BTreeMap::new();
        for (at, v) in named.iter().filter(|(_, v)| current(v)) {
            votes.entry(at).or_default().push(v);
        }
        let winner = votes.into_iter().find(|(_, by)| by.len() >= needed);
        let Some((at, by)) = winner else {
            return Err(no_agreement(answers, needed, floor));
        };
        // Any Sentinel may begin the next failover, even one that does not know of the last, so the
        // shortest `down-after-milliseconds` counts.
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
            // A Sentinel may promote a replica that only it knows, so the largest number counts.
            replicas: voices.iter().filter_map(|v| v.facts).map(|f| f.replicas).max(),
        })
    }
}

/// Returns how many of this number of Sentinels may be wrong, cut off or lying while the others are
/// a majority.
pub(crate) fn minority(sentinels: usize) -> usize {
    sentinels.saturating_sub(1) / 2
}

/// Returns the highest epoch that at least `needed` of the Sentinels have reached or, if fewer
/// report an epoch, that all of those have reached.
fn agreed_epoch(by: &[&Voice<'_>], needed: usize) -> Option<u64> {
    let mut epochs: Vec<u64> = by.iter().filter_map(|v| v.epoch()).collect();
    epochs.sort_unstable_by(|a, b| b.cmp(a));
    epochs.get(needed.min(epochs.len()).checked_sub(1)?).copied()
}

/// The answer of one Sentinel, which may have several addresses.
struct Voice<'a> {
    at: Option<&'a Address>,
    facts: Option<&'a MasterFacts>,
    /// Number of Sentinels that this one knows, itself included.
    sentinels: Option<usize>,
    unknown: bool,
}

impl Voice<'_> {
    fn epoch(&self) -> Option<u64> {
        self.facts.map(|f| f.epoch)
    }
}

fn voices(answers: &[Answer]) -> Vec<Voice<'_>> {
    // Of two answers with the same id, the one counts whose address more of the other Sentinels
    // know under this id, and then the one with the higher epoch (two connections to one Sentinel
    // may straddle a switch). The choice must not depend on which answer came first, hence a total
    // order.
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
        out.push(match &a.reply {
            SentinelReply::Master { at, facts, peers } => {
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
    /// Returns the other Sentinels that this Sentinel names.
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

    /// Returns true if the Sentinel reports the master as down, or a failover as running: then the
    /// Sentinels are asked again soon.
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
            SentinelReply::Unknown => f.write_str("knows no such master"),
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

/// Returns the error if no Sentinel names a master. Of several causes, the one that is least likely
/// to end by itself decides the fault, because a person has to act on it. Silence comes last.
fn no_master_named(voices: &[Voice<'_>], answers: &[Answer]) -> NodeError {
    let has = |t| answers.iter().any(|a| matches!(a.reply, SentinelReply::Failed(x, _) if x == t));
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
