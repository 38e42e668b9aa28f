//! Which master owns each slot, as a majority of the masters says (cluster 2). Knows no clock and
//! no socket.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::nodes::{Id, Member, View};
use crate::dial::address::Address;
use crate::error::{NodeError, NodeFault};
use crate::name::SLOTS;
use crate::node::redis::barrier::replicas::{Known, Place};
use crate::quorum::majority;
use crate::time::Moment;

/// For how long a word is relied on, whatever the servers' settings are (cluster 4).
pub const WORD: Duration = Duration::from_secs(6);

/// A majority's word on one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Id of the master.
    pub owner: Id,
    /// Configuration epoch of the owner.
    pub epoch: u64,
    /// Just before the question whose answers decided.
    pub asked: Moment,
    /// Its lowest epoch since which all words named it, none much later than the one before.
    pub since: u64,
    /// When the slot was last known to be migrating from this owner (cluster 8).
    pub disturbed: Option<Moment>,
    /// Whom a majority names, in an epoch in which it is not followed.
    passed_over: Option<(Id, u64)>,
}

/// Answers to one round of questions.
#[derive(Clone, Debug, Default)]
pub struct Round<'a> {
    /// Of any servers, each once or more often.
    pub views: &'a [View],
    /// No later than the first question.
    pub asked: Moment,
    /// No earlier than the last answer.
    pub heard: Moment,
    /// The longest time between two words one of which follows the other.
    pub unbroken: Duration,
    /// Why others did not answer.
    pub silence: Option<NodeError>,
    /// Fewer than half of the addresses in the settings answered.
    pub lacks_seeds: bool,
}

/// What a client knows of a cluster.
#[derive(Debug)]
pub struct Map {
    words: Vec<Option<Word>>,
    /// The masters that had slots in the views of the majority that was followed last.
    electorate: BTreeSet<Id>,
    /// What that majority lists.
    servers: BTreeMap<Id, Server>,
    /// Why the last answers decided nothing.
    trouble: Option<NodeError>,
}

#[derive(Debug)]
struct Server {
    at: Option<Address>,
    has_slots: bool,
    master: Option<Id>,
}

impl Default for Map {
    fn default() -> Self {
        Self {
            words: vec![None; SLOTS],
            electorate: BTreeSet::new(),
            servers: BTreeMap::new(),
            trouble: None,
        }
    }
}

impl Map {
    /// # Errors
    /// No majority has named an owner yet.
    pub fn word(&self, slot: u16) -> Result<&Word, NodeError> {
        self.words[usize::from(slot)].as_ref().ok_or_else(|| self.unnamed(slot))
    }

    fn unnamed(&self, slot: u16) -> NodeError {
        let why = self.trouble.clone().unwrap_or_else(|| {
            refused(
                "no majority of the masters names an owner: look at the cluster (`redis-cli \
                 --cluster check <host:port>`)",
            )
        });
        NodeError::not_executed(why.fault(), format!("slot {slot}: {}", why.detail()))
    }

    /// Why the word on the slot gets older.
    pub(super) fn doubt(&self, slot: u16) -> NodeError {
        match self.words[usize::from(slot)].as_ref().and_then(|word| word.passed_over.as_ref()) {
            Some((id, epoch)) => refused(format!(
                "slot {slot}: a majority of the masters names {id} with the lower or equal epoch \
                 {epoch}, which may be from before: if it is the owner, run `redis-cli -h <its \
                 host> -p <its port> CLUSTER BUMPEPOCH`, or restart this program"
            )),
            None => self.unnamed(slot),
        }
    }

    pub(super) fn address(&self, id: &Id) -> Option<&Address> {
        self.servers.get(id)?.at.as_ref()
    }

    /// Masters, and who was one.
    pub(super) fn masters(&self) -> impl Iterator<Item = &Address> {
        let asked =
            |(id, server): &(&Id, &Server)| server.has_slots || self.electorate.contains(*id);
        self.servers.iter().filter(asked).filter_map(|(_, server)| server.at.as_ref())
    }

    /// Every server that counts.
    pub(super) fn servers(&self) -> impl Iterator<Item = (&Id, Option<&Address>)> {
        self.servers.iter().map(|(id, server)| (id, server.at.as_ref()))
    }

    /// Masters that these views name, as far as they come from servers of this cluster.
    pub(super) fn named(&self, views: &[View]) -> BTreeSet<Address> {
        let is_ours = |view: &&View| {
            self.electorate.is_empty()
                || self.electorate.contains(&view.of)
                || self.servers.contains_key(&view.of)
        };
        let masters = views.iter().filter(is_ours).flat_map(View::masters);
        masters.filter_map(|master| master.at.clone()).collect()
    }

    pub(super) fn has_electorate(&self) -> bool {
        !self.electorate.is_empty()
    }

    /// Whether these are answers of a majority of the masters.
    pub(super) fn is_majority(&self, views: &[View]) -> bool {
        self.counted(&views.iter().map(|view| (&view.of, view)).collect()).is_ok()
    }

    pub(super) fn owns(&self, id: &Id) -> bool {
        self.words.iter().flatten().any(|word| word.owner == *id)
    }

    /// One without an address counts, too.
    pub(super) fn replicas(&self, of: &Id) -> Known {
        let is_its = |server: &&Server| server.master.as_ref() == Some(of);
        let all: Vec<&Server> = self.servers.values().filter(is_its).collect();
        let places = all.iter().filter_map(|server| server.at.as_ref());
        let named = places.map(|at| Place::new(at.host(), at.port())).collect();
        Known { count: u32::try_from(all.len()).unwrap_or(u32::MAX), named }
    }

    /// Ranges of slots that nobody owns by a word that is no older than `since`.
    pub(super) fn unowned(&self, since: Moment) -> Vec<(u16, u16)> {
        let is_unowned = |word: &Option<Word>| word.as_ref().is_none_or(|word| word.asked < since);
        self.ranges(is_unowned)
    }

    pub(super) fn slots_of(&self, id: &Id) -> Vec<(u16, u16)> {
        self.ranges(|word| word.as_ref().is_some_and(|word| word.owner == *id))
    }

    fn ranges(&self, chosen: impl Fn(&Option<Word>) -> bool) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in (0_u16..).zip(&self.words).filter(|(_, word)| chosen(word)).map(|(n, _)| n) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// Some of the slot's keys may be another server's, or were, by this owner's own words.
    pub fn disturb(&mut self, slot: u16, owner: &str, heard: Moment) {
        let word = self.words[usize::from(slot)].as_mut().filter(|word| *word.owner == *owner);
        if let Some(word) = word {
            word.disturbed = word.disturbed.max(Some(heard));
        }
    }

    /// Another owner is followed only with a higher epoch, by a majority of the last electorate and
    /// of each that is shown (cluster 2).
    pub fn decide(&mut self, round: Round<'_>) {
        let Round { views, asked, heard, unbroken, silence, lacks_seeds } = round;
        let views: BTreeMap<&Id, &View> = views.iter().map(|view| (&view.of, view)).collect();
        // Before the words, as there may be no majority, and behind them, as there may be new ones.
        let migrate = |map: &mut Self| {
            for (of, view) in &views {
                view.migrating.iter().for_each(|slot| map.disturb(*slot, of, heard));
            }
        };
        migrate(self);
        self.trouble = None;
        if lacks_seeds && self.electorate.is_empty() {
            let why = "fewer than half of the addresses in the settings answered, and one may \
                       lead to another cluster";
            return self.trouble = Some(with_silence(why.to_owned(), silence));
        }
        let counted = match self.counted(&views) {
            Ok(counted) => counted,
            Err(why) => return self.trouble = Some(with_silence(why, silence)),
        };
        let last = Some(self.electorate.clone()).filter(|last| !last.is_empty());
        let electorates: BTreeSet<_> =
            counted.iter().map(|view| view.electorate()).chain(last).collect();
        let passes = |of: &BTreeSet<&Id>| electorates.iter().all(|all| agree(of, all));
        let who_shows = |electorate: &&BTreeSet<Id>| {
            let of = counted.iter().filter(|view| view.electorate() == **electorate);
            passes(&of.map(|view| &view.of).collect())
        };
        match electorates.iter().find(who_shows) {
            Some(next) => self.electorate.clone_from(next),
            None if self.electorate.is_empty() => {
                let why = "the masters do not show the same masters yet".to_owned();
                return self.trouble = Some(with_silence(why, silence));
            }
            None => {}
        }
        let was = self.servers.iter();
        let was_of: BTreeMap<Id, Id> =
            was.filter_map(|(id, server)| Some((id.clone(), server.master.clone()?))).collect();
        self.learn_servers(&counted);
        for ((first, last), owner, epoch) in agreed(&counted, passes) {
            let new = Word {
                owner: owner.clone(),
                epoch,
                asked,
                since: epoch,
                disturbed: None,
                passed_over: None,
            };
            let master = self.servers.get(owner).and_then(|server| server.master.clone());
            let before = was_of.get(owner).or(master.as_ref());
            for word in &mut self.words[usize::from(first)..=usize::from(last)] {
                follow(word, new.clone(), before, unbroken);
            }
        }
        migrate(self);
    }

    /// The views that have a say, or why none has.
    fn counted<'v>(&self, views: &BTreeMap<&Id, &'v View>) -> Result<Vec<&'v View>, String> {
        let last = &self.electorate;
        // A master that was replaced answers for the masters that others still show.
        let shown: BTreeSet<Id> =
            views.values().filter(|v| v.votes()).flat_map(|v| v.electorate()).collect();
        let is_elector = |of: &Id| last.contains(of) || shown.contains(of);
        let voters = || {
            let votes = |view: &&View| view.votes() || is_elector(&view.of) && !view.is_empty();
            views.values().copied().filter(votes)
        };
        let answered = |of: &BTreeSet<&Id>, all: &BTreeSet<Id>| {
            let (n, of) = (all.len(), of.iter().filter(|id| all.contains(**id)).count());
            format!("{of} of the cluster's {n} masters answered")
        };
        let counted: Vec<&View> = if last.is_empty() {
            let strange = |view: &View| {
                let known: BTreeSet<&Id> = view.members.iter().map(|member| &member.id).collect();
                voters().find(|other| !known.contains(&other.of))
            };
            if let Some((one, other)) = voters().find_map(|view| Some((view, strange(view)?))) {
                return Err(format!(
                    "the addresses lead to two clusters, or to a server that was forgotten: {} \
                     does not know {}; take the wrong one out of the settings",
                    one.own_name(),
                    other.own_name()
                ));
            }
            voters().collect()
        } else {
            let electors: BTreeSet<&Id> =
                voters().map(|view| &view.of).filter(|of| last.contains(*of)).collect();
            if !agree(&electors, last) {
                return Err(format!(
                    "{}; if at least half of the masters were replaced at once (TAKEOVER), \
                     restart this program",
                    answered(&electors, last)
                ));
            }
            let mut listed = BTreeMap::<&Id, usize>::new();
            let lists = voters().filter(|view| electors.contains(&view.of));
            for member in lists.flat_map(|view| &view.members) {
                *listed.entry(&member.id).or_default() += 1;
            }
            let needed = majority(last.len());
            voters().filter(|view| listed.get(&view.of).is_some_and(|n| *n >= needed)).collect()
        };
        let sizes = counted.iter().map(|view| view.electorate().len());
        match sizes.max() {
            Some(1) => {
                // Nobody else can say who took its place (TAKEOVER), and when.
                return Err("a cluster with one master cannot say who has replaced it: use three \
                            masters, or a group that Sentinels watch"
                    .to_owned());
            }
            Some(_) => {}
            None => {
                let all = views.values().map(|view| view.electorate());
                return Err(match all.max_by_key(BTreeSet::len) {
                    None => String::new(),
                    Some(all) if all.is_empty() => "no server of the cluster has slots \
                                                    (`redis-cli --cluster create`)"
                        .to_owned(),
                    Some(all) => answered(&BTreeSet::new(), &all),
                });
            }
        }
        let of: BTreeSet<&Id> = counted.iter().map(|view| &view.of).collect();
        let unheard = counted.iter().map(|view| view.electorate()).find(|all| !agree(&of, all));
        unheard.map_or(Ok(counted), |all| Err(answered(&of, &all)))
    }

    fn learn_servers(&mut self, views: &[&View]) {
        self.servers.clear();
        for Member { id, at, master, slots, .. } in views.iter().flat_map(|view| &view.members) {
            let new = || Server { at: None, has_slots: false, master: None };
            let server = self.servers.entry(id.clone()).or_insert_with(new);
            server.at = at.clone().or_else(|| server.at.take());
            server.has_slots |= !slots.is_empty();
            server.master = master.clone().or_else(|| server.master.take());
        }
    }
}

/// `master`: whose replica the new owner was.
fn follow(word: &mut Option<Word>, mut new: Word, master: Option<&Id>, unbroken: Duration) {
    if let Some(old) = word {
        let is_same = old.owner == new.owner;
        if new.epoch < old.epoch || new.epoch == old.epoch && !is_same {
            old.passed_over = Some((new.owner, new.epoch));
            return;
        }
        // A replica lacks what its master has moved away.
        if is_same || master == Some(&old.owner) {
            new.disturbed = old.disturbed;
        }
        if is_same && new.asked <= old.asked + unbroken {
            new.since = old.since;
        }
    }
    *word = Some(new);
}

/// A majority of the electorate is among them.
fn agree(of: &BTreeSet<&Id>, electorate: &BTreeSet<Id>) -> bool {
    of.iter().filter(|id| electorate.contains(**id)).count() >= majority(electorate.len())
}

fn refused(detail: impl Into<String>) -> NodeError {
    NodeError::not_executed(NodeFault::NoAgreement, detail.into())
}

fn with_silence(why: String, silence: Option<NodeError>) -> NodeError {
    match silence {
        Some(silence) if why.is_empty() => silence,
        Some(silence) => refused(format!("{why}; {}", silence.detail())),
        None => refused(why),
    }
}

/// Ranges of slots, each with the owner and the epoch that enough of the views name.
fn agreed<'v>(
    views: &[&'v View],
    passes: impl Fn(&BTreeSet<&Id>) -> bool,
) -> Vec<((u16, u16), &'v Id, u64)> {
    let claims: Vec<BTreeMap<u16, (u16, &Member)>> = views.iter().map(|v| v.claims()).collect();
    let ranges = claims.iter().flatten();
    let ends = ranges.flat_map(|(first, (last, _))| [*first, *last + 1]);
    let ends: BTreeSet<u16> = ends.collect();
    let mut agreed = Vec::new();
    for (first, next) in ends.iter().zip(ends.iter().skip(1)) {
        let mut said = BTreeMap::<(&Id, u64), BTreeSet<&Id>>::new();
        for (view, claims) in views.iter().zip(&claims) {
            let claim = claims.range(..=first).next_back().filter(|(_, (last, _))| first <= last);
            if let Some((_, (_, owner))) = claim {
                said.entry((&owner.id, owner.epoch)).or_default().insert(&view.of);
            }
        }
        let named = said.into_iter().find(|(_, of)| passes(of));
        agreed.extend(named.map(|((owner, epoch), _)| ((*first, next - 1), owner, epoch)));
    }
    agreed
}
