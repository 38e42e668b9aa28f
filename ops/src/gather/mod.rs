//! Reads the facts of a deployment, all servers of one kind concurrently, each with one deadline.
//! If no majority of the Sentinels reports an address, no login is sent there.

pub(super) mod conn;
#[cfg(test)]
mod fuzz;
pub(super) mod sentinel;
pub(super) mod server;

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Deployment;
use super::deployment::{Access, GroupLogin};
use super::facts::{Fields, Group, Sentinel, Server, majority, place};
use palisade::internal::SENTINELS_MAX;

/// Real groups have fewer servers.
const SERVERS_MAX: usize = 64;

/// In the order of `access`. `whose`: the user whose rights are examined; `None` for that of the
/// login.
pub(super) async fn everything(
    deployment: &Deployment,
    access: &Access,
    whose: Option<&str>,
) -> (Vec<Group>, Vec<Server>) {
    gather(Gather { deployment, depth: Depth::All(whose) }, access).await
}

/// Of each group the answers of the Sentinels and of the server that most of them report as the
/// master.
pub(super) async fn masters(deployment: &Deployment, access: &Access) -> (Vec<Group>, Vec<Server>) {
    gather(Gather { deployment, depth: Depth::Role }, access).await
}

async fn gather(gather: Gather<'_>, access: &Access) -> (Vec<Group>, Vec<Server>) {
    let groups = join_all(access.groups.iter().map(|login| gather.group(login)));
    let until = gather.until();
    let nodes = access.lone.iter().map(|node| {
        let (at, hand, target) = (node.at.clone(), node.hand.clone(), node.target.clone());
        let asked = server::ask(at, true, hand, target, gather.depth, until);
        asked.map(|server| Server {
            url: node.url.clone(),
            allows_eviction: node.allows_eviction,
            durable: node.durable,
            window: node.window,
            ..server
        })
    });
    tokio::join!(groups, join_all(nodes))
}

#[derive(Clone, Copy)]
enum Depth<'a> {
    Role,
    /// With the rights of this user; `None` for that of the login.
    All(Option<&'a str>),
}

struct Gather<'a> {
    deployment: &'a Deployment,
    depth: Depth<'a>,
}

impl Gather<'_> {
    fn until(&self) -> Instant {
        Instant::now() + self.deployment.within()
    }

    async fn group(&self, login: &GroupLogin) -> Group {
        let mut sentinels = self.sentinels(login, &login.sentinels, true).await;
        // A Sentinel may listen on several addresses.
        let ids: BTreeSet<&String> = sentinels.iter().filter_map(|s| s.id.as_ref().ok()).collect();
        let is_new = |f: &&Fields| f.get("runid").is_none_or(|id| !ids.contains(id));
        let mut named =
            Named::by(&sentinels, |s| s.others.iter().flatten().filter(is_new).collect());
        named.votes.retain(|at, _| !login.sentinels.contains(at));
        let (new, mut skipped) = named.split(SENTINELS_MAX);
        sentinels.extend(self.sentinels(login, &new, false).await);
        let (servers, few) = self.servers(login, &sentinels).await;
        skipped.extend(few);
        skipped.retain(|at| sentinels.iter().all(|s| s.at != *at));
        let (name, url) = (login.name.clone(), login.url.clone());
        let skipped = skipped.into_iter().collect();
        let (rule, hand) = (login.rule, login.data.hand());
        Group { name, url, rule, hand, sentinels, servers, skipped }
    }

    async fn sentinels(&self, login: &GroupLogin, at: &[String], given: bool) -> Vec<Sentinel> {
        let until = self.until();
        let asked = at.iter().map(|at| {
            let reached = if given { at } else { self.deployment.reach(at) };
            let (target, hand) = (login.sentinel.at(reached), login.sentinel.hand().to(reached));
            sentinel::ask(at, given, hand, target, &login.name, until)
        });
        join_all(asked).await
    }

    /// Returns also the addresses that were not queried. The master comes first, so that
    /// `SERVERS_MAX` cannot exclude it.
    async fn servers(
        &self,
        login: &GroupLogin,
        sentinels: &[Sentinel],
    ) -> (Vec<Server>, Vec<String>) {
        let masters = Named::by(sentinels, |s| s.master.iter().collect());
        let (mut all, mut few) = masters.split(1);
        let named =
            Named::by(sentinels, |s| s.master.iter().chain(s.replicas.iter().flatten()).collect());
        let (most, rest) = named.split(match self.depth {
            Depth::All(_) => SERVERS_MAX,
            Depth::Role => 0,
        });
        all.extend(most);
        few.extend(rest);
        let all: BTreeSet<String> = all.into_iter().collect();
        few.retain(|at| !all.contains(at));
        let until = self.until();
        let asked = all.into_iter().map(|at| {
            let reached = self.deployment.reach(&at);
            let (target, hand) = (login.data.at(reached), login.data.hand().to(reached));
            let asked = server::ask(at, false, hand, target, self.depth, until);
            asked.map(|server| Server { allows_eviction: login.allows_eviction, ..server })
        });
        (join_all(asked).await, few)
    }
}

/// With the number of Sentinels that report it.
struct Named {
    votes: BTreeMap<String, usize>,
    enough: usize,
}

impl Named {
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

    /// At most `most` addresses that a majority of the Sentinels report, and all others.
    fn split(self, most: usize) -> (Vec<String>, Vec<String>) {
        let (mut enough, mut few) = (Vec::new(), Vec::new());
        for (at, votes) in self.votes {
            let fits = votes >= self.enough && enough.len() < most;
            if fits { enough.push(at) } else { few.push(at) }
        }
        (enough, few)
    }
}
