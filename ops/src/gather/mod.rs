//! Reads the facts: the given Sentinels, the Sentinels that most of them name, the data servers
//! that most of all Sentinels name, and the lone nodes. Each kind is queried concurrently, each
//! server within one deadline. An address that only one Sentinel names is listed, but no login is
//! sent there.

pub(super) mod conn;
#[cfg(test)]
mod fuzz;
mod sentinel;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::facts::{Fields, Group, Sentinel, Server, majority, place};
use super::login::Login;
use palisade::internal::Endpoint;
use palisade::internal::SENTINELS_MAX;

/// Most servers of a group that are visited, as many as any group has.
const SERVERS_MAX: usize = 64;

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
    /// Where an address that a Sentinel names is reached.
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
    let given: BTreeSet<&str> = watch.sentinels.iter().map(String::as_str).collect();
    // A Sentinel that listens on several addresses is asked under one of them.
    let ids: BTreeSet<String> = seen.iter().flatten().filter_map(|s| s.id.ok().cloned()).collect();
    let here = |f: &Fields| f.get("runid").is_some_and(|id| ids.contains(id));
    let mut skipped = Vec::new();
    let mut new = BTreeSet::new();
    for group in &seen {
        let mut named = Named::by(group, |s| {
            s.others.ok().into_iter().flatten().filter(|f| !here(f)).collect()
        });
        named.votes.retain(|at, _| !given.contains(at.as_str()));
        let (most, few) = named.split(SENTINELS_MAX);
        new.extend(most);
        skipped.push(few);
    }
    let new: Vec<String> = new.into_iter().collect();
    for (group, more) in seen.iter_mut().zip(sentinels(&new, false, watch, ways).await) {
        group.extend(more);
    }
    let all = watch.masters.iter().zip(seen).zip(skipped);
    let asked = all.map(|((name, sentinels), mut skipped)| async move {
        let (servers, few) = servers(&sentinels, ways).await;
        skipped.extend(few);
        // Another group of the same Sentinels may have led there.
        skipped.retain(|at| sentinels.iter().all(|s| s.at != *at));
        Group { name: name.clone(), sentinels, servers, skipped: skipped.into_iter().collect() }
    });
    join_all(asked).await
}

/// Addresses with how many Sentinels name them.
struct Named {
    votes: BTreeMap<String, usize>,
    enough: usize,
}

impl Named {
    /// As each of these Sentinels describes what it knows.
    fn by<'a>(sentinels: &'a [Sentinel], what: impl Fn(&'a Sentinel) -> Vec<&'a Fields>) -> Self {
        let mut votes = BTreeMap::new();
        for sentinel in sentinels {
            let named: BTreeSet<String> = what(sentinel).into_iter().filter_map(place).collect();
            for at in named {
                *votes.entry(at).or_default() += 1;
            }
        }
        Self { votes, enough: majority(sentinels) }
    }

    /// What a majority names, so many of it at most, and the rest.
    fn split(self, most: usize) -> (Vec<String>, Vec<String>) {
        let (mut enough, mut few) = (Vec::new(), Vec::new());
        for (at, votes) in self.votes {
            let fits = votes >= self.enough && enough.len() < most;
            if fits { enough.push(at) } else { few.push(at) }
        }
        (enough, few)
    }
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

/// The servers that a majority names as the master or a replica, and the addresses of others. The
/// master comes first, so that no number of replicas crowds it out.
async fn servers(sentinels: &[Sentinel], ways: &Ways<'_>) -> (Vec<Server>, Vec<String>) {
    let (mut all, mut few) = Named::by(sentinels, |s| s.master.ok().into_iter().collect()).split(1);
    let named = Named::by(sentinels, |s| {
        let replicas = s.replicas.ok().into_iter().flatten();
        s.master.ok().into_iter().chain(replicas).collect()
    });
    let (most, rest) = named.split(SERVERS_MAX);
    all.extend(most);
    few.extend(rest);
    let all: BTreeSet<String> = all.into_iter().collect();
    few.retain(|at| !all.contains(at));
    let until = ways.until();
    let asked = all.into_iter().map(|at| {
        let target = conn::info_for(ways.reach(&at), ways.data);
        let hand = ways.data.by_hand(ways.reach(&at));
        server::ask(at, false, hand, target, ways.whose, until)
    });
    (join_all(asked).await, few)
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
