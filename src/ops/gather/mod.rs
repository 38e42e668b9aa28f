//! Reads the facts: the given Sentinels, those that they name, the data servers that any of them
//! names, and the lone nodes. All of a kind at once, each within one deadline.

pub(super) mod conn;
#[cfg(test)]
mod fuzz;
mod sentinel;
mod server;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::facts::{Group, Sentinel, Server, place};
use super::login::Login;
use crate::dial::endpoint::Endpoint;

/// Sentinels and the masters that they are asked about.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) sentinels: Vec<String>,
    pub(super) masters: Vec<String>,
}

/// A lone server.
#[derive(Clone)]
pub(super) struct Lone {
    pub(super) at: String,
    pub(super) hand: String,
    pub(super) target: Endpoint,
}

/// How to reach everything.
pub(super) struct Ways<'a> {
    pub(super) data: &'a Login,
    pub(super) sentinels: &'a Login,
    /// Whose rights are looked at, if not our own.
    pub(super) whose: Option<&'a str>,
    /// Where an address that was told is reached.
    pub(super) map: &'a BTreeMap<String, String>,
    /// For one server or Sentinel, connecting included.
    pub(super) within: Duration,
}

impl Ways<'_> {
    pub(super) fn reach<'a>(&'a self, at: &'a str) -> &'a str {
        self.map.get(at).map_or(at, String::as_str)
    }

    fn until(&self) -> Instant {
        Instant::now() + self.within
    }
}

/// All groups, and the lone servers.
pub(super) async fn everything(
    watches: &[Watch],
    lone: &[Lone],
    ways: &Ways<'_>,
) -> (Vec<Group>, Vec<Server>) {
    let all = join_all(watches.iter().map(|watch| groups(watch, ways)));
    let (groups, nodes) = tokio::join!(all, nodes(lone, ways));
    (groups.into_iter().flatten().collect(), nodes)
}

/// Everything about the groups of one set of Sentinels.
async fn groups(watch: &Watch, ways: &Ways<'_>) -> Vec<Group> {
    let mut seen: Vec<Vec<Sentinel>> = sentinels(&watch.sentinels, true, watch, ways).await;
    let mut known: BTreeSet<String> = watch.sentinels.iter().cloned().collect();
    let named = seen.iter().flatten().filter_map(|s| s.others.ok()).flatten();
    let learned: BTreeSet<String> = named.filter_map(place).collect();
    // A Sentinel that listens on several addresses is asked under one of them.
    let ids: BTreeSet<String> = seen.iter().flatten().filter_map(|s| s.id.ok().cloned()).collect();
    let elsewhere = known_by_id(&seen, &ids);
    let new: Vec<String> = learned
        .into_iter()
        .filter(|at| !elsewhere.contains(at) && known.insert(at.clone()))
        .collect();
    for (group, more) in seen.iter_mut().zip(sentinels(&new, false, watch, ways).await) {
        group.extend(more);
    }
    let asked = watch.masters.iter().zip(seen).map(|(name, sentinels)| async move {
        let servers = servers(&sentinels, ways).await;
        Group { name: name.clone(), sentinels, servers }
    });
    join_all(asked).await
}

/// Addresses at which others name a Sentinel that has answered under another one.
fn known_by_id(seen: &[Vec<Sentinel>], ids: &BTreeSet<String>) -> BTreeSet<String> {
    let named = seen.iter().flatten().filter_map(|s| s.others.ok()).flatten();
    named.filter(|f| f.get("runid").is_some_and(|id| ids.contains(id))).filter_map(place).collect()
}

/// Per master the Sentinels at these addresses.
async fn sentinels(
    at: &[String],
    given: bool,
    watch: &Watch,
    ways: &Ways<'_>,
) -> Vec<Vec<Sentinel>> {
    let until = ways.until();
    let asked = at.iter().map(|at| {
        let reached = if given { at } else { ways.reach(at) };
        let target = conn::info_for(reached, ways.sentinels);
        let hand = ways.sentinels.by_hand(reached);
        sentinel::ask(at, given, hand, target, &watch.masters, until)
    });
    let mut groups = vec![Vec::new(); watch.masters.len()];
    for answers in join_all(asked).await {
        for (group, answer) in groups.iter_mut().zip(answers) {
            group.push(answer);
        }
    }
    groups
}

/// Every address that any Sentinel names as the master or a replica.
async fn servers(sentinels: &[Sentinel], ways: &Ways<'_>) -> Vec<Server> {
    let masters = sentinels.iter().filter_map(Sentinel::master_at);
    let replicas = sentinels.iter().filter_map(|s| s.replicas.ok()).flatten().filter_map(place);
    let all: BTreeSet<String> = masters.chain(replicas).collect();
    let until = ways.until();
    let asked = all.into_iter().map(|at| {
        let target = conn::info_for(ways.reach(&at), ways.data);
        let hand = ways.data.by_hand(ways.reach(&at));
        server::ask(at, false, hand, target, ways.whose, until)
    });
    join_all(asked).await
}

/// The lone servers.
async fn nodes(lone: &[Lone], ways: &Ways<'_>) -> Vec<Server> {
    let until = ways.until();
    let asked = lone.iter().map(|node| {
        let target = node.target.clone();
        server::ask(node.at.clone(), true, node.hand.clone(), target, ways.whose, until)
    });
    join_all(asked).await
}
