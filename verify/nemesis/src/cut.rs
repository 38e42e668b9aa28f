//! Cuts in the network between clients and servers, one for each direction. The receiving side
//! drops the packets. So the sender gets no error, as with a broken cable.

use crate::world::{Failure, Place, World};

/// A cut of the network: all packets from the machines in `from` to the machines in `to` are
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) from: Vec<Place>,
    pub(crate) to: Vec<Place>,
}

impl Cut {
    pub(crate) fn one_way(from: Vec<Place>, to: Vec<Place>) -> Vec<Self> {
        vec![Self { from, to }]
    }

    pub(crate) fn both_ways(a: &[Place], b: &[Place]) -> Vec<Self> {
        let cut = |from: &[Place], to: &[Place]| Self { from: from.into(), to: to.into() };
        vec![cut(a, b), cut(b, a)]
    }

    fn boxes(&self) -> Vec<Place> {
        self.to.iter().copied().filter(|p| matches!(p, Place::Box(..))).collect()
    }

    fn clients(&self) -> impl Iterator<Item = u8> {
        self.to.iter().filter_map(|p| if let Place::Client(n) = p { Some(*n) } else { None })
    }
}

pub(crate) async fn cut(world: &World, id: u32, cuts: &[Cut]) -> Result<(), Failure> {
    for (n, cut) in cuts.iter().enumerate() {
        let chain = format!("inet nemesis cut_{id}_{n}");
        let head = format!(
            "add table inet nemesis; \
             add chain {chain} {{ type filter hook input priority 0; policy accept; }}; "
        );
        let from = set(&cut.from);
        let boxes = cut.boxes();
        if !boxes.is_empty() {
            let to = set(&boxes);
            let rule = format!("add rule {chain} ip saddr {from} ip daddr {to} drop");
            world.rules(None, &format!("{head}{rule}")).await?;
        }
        for client in cut.clients() {
            let rule = format!("add rule {chain} ip saddr {from} drop");
            world.rules(Some(client), &format!("{head}{rule}")).await?;
        }
    }
    Ok(())
}

/// Ends all cuts of the fault `id`. After an error, continues with the other cuts, and returns the
/// first error at the end.
pub(crate) async fn mend(world: &World, id: u32, cuts: &[Cut]) -> Result<(), Failure> {
    let mut result = Ok(());
    for (n, cut) in cuts.iter().enumerate() {
        let chain = format!("inet nemesis cut_{id}_{n}");
        let rules = format!("flush chain {chain}; delete chain {chain}");
        let here = (!cut.boxes().is_empty()).then_some(None);
        for place in here.into_iter().chain(cut.clients().map(Some)) {
            let ended = world.rules(place, &rules).await;
            result = result.and(ended);
        }
    }
    result
}

fn set(places: &[Place]) -> String {
    let all: Vec<_> = places.iter().map(|p| p.address()).collect();
    format!("{{ {} }}", all.join(", "))
}
