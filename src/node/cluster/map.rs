//! Which master owns each slot, as a majority of the masters says (cluster 2). Knows no clock and
//! no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::nodes::{Id, View};
use crate::dial::address::Address;
use crate::error::{NodeError, NodeFault};
use crate::name::SLOTS;
use crate::node::redis::barrier::replicas::{Known, Place};
use crate::quorum::majority;
use crate::time::Moment;

/// A majority's word on one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) owner: Id,
    /// Configuration epoch of the owner.
    pub(super) epoch: u64,
    /// Just before the question whose answers decided.
    pub(super) asked: Moment,
    /// Its lowest epoch since which all words named it, none much later than the one before.
    pub(super) since: u64,
}

pub(super) struct Map {
    words: Vec<Option<Word>>,
    /// Of the last answers.
    masters: BTreeMap<Id, Address>,
    replicas: BTreeMap<Id, BTreeSet<Address>>,
    /// Masters that have slots, the most that one of them counts.
    size: usize,
    voters: usize,
    /// Why the last answers decided nothing, or not all.
    trouble: Option<NodeError>,
}

impl Map {
    pub(super) fn new() -> Self {
        let (masters, replicas) = (BTreeMap::new(), BTreeMap::new());
        let words = vec![None; SLOTS];
        Self { words, masters, replicas, size: 0, voters: 0, trouble: None }
    }

    pub(super) fn word(&self, slot: u16) -> Result<&Word, NodeError> {
        self.words[usize::from(slot)].as_ref().ok_or_else(|| {
            let why = self.trouble.clone().unwrap_or_else(|| {
                let detail = "no master owns it: look at the cluster (`redis-cli --cluster check \
                              <host:port>`)";
                NodeError::not_executed(NodeFault::NoAgreement, detail)
            });
            NodeError::not_executed(why.fault(), format!("slot {slot}: {}", why.detail()))
        })
    }

    pub(super) fn address(&self, id: &Id) -> Option<&Address> {
        self.masters.get(id)
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Address> {
        self.masters.values()
    }

    pub(super) fn owns(&self, id: &Id) -> bool {
        self.words.iter().flatten().any(|word| word.owner == *id)
    }

    pub(super) fn replicas(&self, of: &Id) -> Known {
        let all = self.replicas.get(of).into_iter().flatten();
        let named: BTreeSet<Place> = all.map(|at| Place::new(at.host(), at.port())).collect();
        Known { count: u32::try_from(named.len()).unwrap_or(u32::MAX), named }
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

    /// `views`: answers to questions that were sent at `asked` or later. `unbroken`: longest time
    /// between two words one of which follows the other. `silence`: why others did not answer.
    /// Another owner is followed only with a higher epoch (cluster 2).
    pub(super) fn decide(
        &mut self,
        views: &[View],
        (asked, unbroken): (Moment, Duration),
        silence: Option<NodeError>,
    ) {
        let counts = views.iter().map(|view| view.masters().count());
        self.size = counts.max().unwrap_or(self.size);
        let voters: BTreeMap<&Id, &View> = views
            .iter()
            .filter(|view| view.masters().any(|member| member.id == view.of))
            .map(|view| (&view.of, view))
            .collect();
        self.voters = voters.len();
        self.learn_addresses(views);
        if let Some(trouble) = self.undecided(silence) {
            self.trouble = Some(trouble);
            return;
        }
        self.trouble = None;
        let claims: Vec<Vec<Option<(&Id, u64)>>> =
            voters.values().map(|view| claims(view)).collect();
        let needed = majority(self.size);
        for (slot, word) in self.words.iter_mut().enumerate() {
            let said: Vec<_> = claims.iter().filter_map(|claims| claims[slot]).collect();
            let agreed =
                said.iter().find(|one| said.iter().filter(|other| other == one).count() >= needed);
            let Some((owner, epoch)) = agreed else { continue };
            let (owner, epoch) = ((*owner).clone(), *epoch);
            let since = match word {
                Some(word) if epoch < word.epoch || epoch == word.epoch && word.owner != owner => {
                    continue;
                }
                Some(word) if word.owner == owner && asked <= word.asked + unbroken => word.since,
                _ => epoch,
            };
            *word = Some(Word { owner, epoch, asked, since });
        }
    }

    fn undecided(&self, silence: Option<NodeError>) -> Option<NodeError> {
        let refused = |detail| Some(NodeError::not_executed(NodeFault::NoAgreement, detail));
        match (self.size, self.voters) {
            (0, 0) => silence,
            (0, _) => refused(
                "no server of the cluster has slots (`redis-cli --cluster create`)".to_owned(),
            ),
            // Nobody else can say who took its place (TAKEOVER), and when.
            (1, _) => refused(
                "a cluster with one master cannot say who has replaced it: use three masters, or \
                 a group that Sentinels watch"
                    .to_owned(),
            ),
            (size, voters) if voters < majority(size) => {
                let why = silence.map_or(String::new(), |e| format!("; {}", e.detail()));
                refused(format!("{voters} of the cluster's {size} masters answered{why}"))
            }
            _ => None,
        }
    }

    fn learn_addresses(&mut self, views: &[View]) {
        if views.is_empty() {
            return;
        }
        // Also of a master that does not answer now.
        let members = || views.iter().flat_map(|view| &view.members);
        for member in members() {
            let Some(at) = &member.at else { continue };
            if !member.slots.is_empty() {
                self.masters.insert(member.id.clone(), at.clone());
            }
        }
        let named = |id: &Id| members().any(|member| member.id == *id && member.master.is_none());
        self.masters.retain(|id, _| named(id));
        self.replicas.clear();
        for member in members() {
            if let (Some(master), Some(at)) = (&member.master, &member.at) {
                self.replicas.entry(master.clone()).or_default().insert(at.clone());
            }
        }
    }
}

/// For each slot its owner, with the owner's epoch.
fn claims(view: &View) -> Vec<Option<(&Id, u64)>> {
    let mut claims = vec![None; SLOTS];
    for member in view.masters() {
        for (first, last) in &member.slots {
            claims[usize::from(*first)..=usize::from(*last)].fill(Some((&member.id, member.epoch)));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::nodes::Member;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    /// `a1=0-9 b2=10-19`: name, epoch and slots of each master, as `of` sees it.
    fn view(of: &str, text: &str) -> View {
        let member = |word: &str| {
            let (name, slots) = word.split_once('=').unwrap();
            let (id, epoch) = name.split_at(1);
            let (first, last) = slots.split_once('-').unwrap();
            let port = 7_000 + u16::from(id.as_bytes()[0]);
            Member {
                id: id.into(),
                at: Address::new("h", port),
                epoch: epoch.parse().unwrap(),
                master: None,
                slots: vec![(first.parse().unwrap(), last.parse().unwrap())],
            }
        };
        View { of: of.into(), members: text.split(' ').map(member).collect() }
    }

    fn owner(map: &Map, slot: u16) -> Option<String> {
        map.word(slot).ok().map(|word| {
            format!("{}{}@{}", word.owner, word.epoch, word.asked.as_nanos() / 1_000_000)
        })
    }

    const ALL: &str = "a1=0-9 b2=10-19 c3=20-29";

    #[test]
    fn a_majority_of_the_masters_names_an_owner_with_its_epoch() {
        let mut map = Map::new();
        map.decide(&[view("a", ALL)], (at(1), MS), None);
        assert_eq!(owner(&map, 0), None, "one of three");
        assert!(map.word(0).unwrap_err().detail().contains("1 of the cluster's 3 masters"));
        map.decide(&[view("a", ALL), view("a", ALL)], (at(2), MS), None);
        assert_eq!(owner(&map, 0), None, "the same one twice");
        map.decide(&[view("a", ALL), view("b", ALL)], (at(3), MS), None);
        assert_eq!(owner(&map, 9).as_deref(), Some("a1@3"));
        assert_eq!(map.unowned(at(0)), [(30, 16_383)]);
        assert!(map.word(30).unwrap_err().detail().contains("no master owns it"));
        // `c` took a slot, and only it knows.
        let claims = "a1=0-8 b2=10-19 c4=9-29";
        map.decide(&[view("a", ALL), view("c", claims)], (at(4), MS), None);
        assert_eq!(owner(&map, 9).as_deref(), Some("a1@3"), "its word gets older");
        assert_eq!(owner(&map, 0).as_deref(), Some("a1@4"));
        map.decide(&[view("b", claims), view("c", claims)], (at(5), MS), None);
        assert_eq!(owner(&map, 9).as_deref(), Some("c4@5"));
        // Two that are behind do not bring it back.
        map.decide(&[view("a", ALL), view("b", ALL)], (at(6), MS), None);
        assert_eq!(owner(&map, 9).as_deref(), Some("c4@5"));
        let back = "a5=0-9 b2=10-19 c4=20-29";
        map.decide(&[view("a", back), view("b", back)], (at(7), MS), None);
        assert_eq!(owner(&map, 9).as_deref(), Some("a5@7"));
    }

    #[test]
    fn an_owner_is_watched_as_long_as_the_words_follow_each_other() {
        let mut map = Map::new();
        let mut since = |text: &str, ms| {
            map.decide(&[view("a", text), view("b", text)], (at(ms), MS), None);
            map.word(0).unwrap().since
        };
        let later = "a4=0-9 b2=10-19 c3=20-29";
        assert_eq!([since(ALL, 1), since(ALL, 2), since(later, 3)], [1, 1, 1]);
        assert_eq!(since(later, 5), 4, "nobody looked in between");
        assert_eq!(since("a4=1-9 b5=0-19 c3=20-29", 6), 5);
        assert_eq!(since("a6=0-9 b5=10-19 c3=20-29", 7), 6);
    }

    #[test]
    fn a_master_that_only_the_others_know_counts() {
        let mut map = Map::new();
        let more = format!("{ALL} d4=30-39 e5=40-49");
        map.decide(&[view("a", ALL), view("b", ALL)], (at(1), MS), None);
        map.decide(&[view("a", ALL), view("b", &more)], (at(2), MS), None);
        assert_eq!(owner(&map, 0).as_deref(), Some("a1@1"), "two of five");
        map.decide(&[view("a", ALL), view("b", &more), view("d", &more)], (at(3), MS), None);
        assert_eq!(owner(&map, 0).as_deref(), Some("a1@3"));
    }

    #[test]
    fn a_cluster_with_one_master_is_refused() {
        let mut map = Map::new();
        map.decide(&[view("a", "a1=0-9")], (at(1), MS), None);
        assert!(map.word(0).unwrap_err().detail().contains("use three masters"));
    }

    #[test]
    fn the_slots_of_a_master_are_shown_as_ranges() {
        let mut map = Map::new();
        map.decide(&[view("a", ALL), view("b", ALL)], (at(3), MS), None);
        assert_eq!(map.slots_of(&"b".into()), [(10, 19)]);
        assert_eq!(map.unowned(at(4)), [(0, 16_383)], "all words are older");
    }
}
