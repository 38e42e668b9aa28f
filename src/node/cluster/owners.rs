//! Who owns the slots of a cluster, for the commands of operators.

use super::map::{Map, Round};
use super::nodes::View;
use crate::error::{NodeError, NodeFault};

/// A master of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOwner {
    /// Host and port, as the cluster names them.
    pub at: (String, u16),
    /// Configuration epoch in which a majority of the masters names it.
    pub epoch: u64,
    /// Its slots.
    pub slots: Vec<u16>,
    /// `host:port` of its replicas.
    pub replicas: Vec<String>,
}

/// Returns host and port of each master that an answer to `CLUSTER NODES` names. `by_name`: by its
/// host name, if it has one.
pub fn cluster_masters(answer: &str, by_name: bool) -> Vec<(String, u16)> {
    let view = View::parse(answer, by_name);
    let masters = view.iter().flat_map(View::masters).filter_map(|master| master.at.as_ref());
    masters.map(|at| (at.host().to_owned(), at.port())).collect()
}

/// Returns the owners of all slots by the answers of the masters to `CLUSTER NODES`.
///
/// # Errors
/// No majority of the masters names the owner of each slot.
pub fn slot_owners(answers: &[String], by_name: bool) -> Result<Vec<SlotOwner>, NodeError> {
    let views: Vec<View> = answers.iter().filter_map(|text| View::parse(text, by_name)).collect();
    let mut map = Map::default();
    let strange = NodeError::not_executed(NodeFault::Protocol, "no server showed the cluster");
    let silence = Some(strange).filter(|_| views.is_empty());
    map.decide(Round { views: &views, silence, ..Round::default() });
    let mut owners = std::collections::BTreeMap::<_, SlotOwner>::new();
    for slot in 0..crate::name::SLOTS as u16 {
        let word = map.word(slot)?;
        let Some(at) = map.address(&word.owner) else { continue };
        let new = || {
            let at = (at.host().to_owned(), at.port());
            let known = map.replicas(&word.owner);
            let replicas = known.named.iter().map(ToString::to_string).collect();
            SlotOwner { at, epoch: word.epoch, slots: Vec::new(), replicas }
        };
        owners.entry(&word.owner).or_insert_with(new).slots.push(slot);
    }
    Ok(owners.into_values().collect())
}
