//! The map of a client, for simulators: the servers' answers and the time go in as values.

use std::time::Duration;

use super::map::Map;
use super::nodes::View;
use crate::error::NodeError;
use crate::time::Moment;

/// A majority's word on one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// Id of the owner.
    pub owner: String,
    /// Port of the owner.
    pub port: u16,
    /// Configuration epoch of the owner.
    pub epoch: u64,
    /// Just before the question whose answers decided.
    pub asked: Moment,
    /// Its lowest epoch since which all words named it.
    pub since: u64,
}

/// Which master owns each slot, as one client knows it.
pub struct SlotMap(Map);

impl Default for SlotMap {
    fn default() -> Self {
        Self(Map::new())
    }
}

impl SlotMap {
    /// Reads the answers to `CLUSTER NODES` of a round that began at `asked`. `unbroken`: longest
    /// time between two words one of which follows the other.
    pub fn decide(&mut self, answers: &[String], asked: Moment, unbroken: Duration) {
        let views: Vec<View> =
            answers.iter().filter_map(|text| View::parse(text, false)).collect();
        self.0.decide(&views, (asked, unbroken), None);
    }

    /// Returns the last word on a slot.
    ///
    /// # Errors
    /// There is none.
    pub fn word(&self, slot: u16) -> Result<SlotWord, NodeError> {
        let word = self.0.word(slot)?.clone();
        let port = self.0.address(&word.owner).map_or(0, |at| at.port());
        let owner = word.owner.to_string();
        Ok(SlotWord { owner, port, epoch: word.epoch, asked: word.asked, since: word.since })
    }

    /// Returns the ports of all masters that are asked in each round.
    pub fn masters(&self) -> Vec<u16> {
        self.0.masters().map(crate::dial::address::Address::port).collect()
    }
}
