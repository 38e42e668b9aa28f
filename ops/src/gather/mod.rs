//! Reads the facts of a deployment: the values that the doctor's checks examine. The sources are:
//! the Sentinels that the user named, the Sentinels that most of the named Sentinels report, the
//! data servers that most of all Sentinels report, and the lone servers. The servers of one kind
//! are queried concurrently, each with one deadline. If no majority of the Sentinels reports an
//! address, the address is listed, but no login is sent there.

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

/// Largest number of servers of a group that are examined. Real groups have fewer servers.
const SERVERS_MAX: usize = 64;

/// Reads the facts (the values that checks examine) of all groups and lone servers, in the order of
/// `access`. Examines the rights of the user `whose`; if `whose` is `None`, the rights of the user
/// that the connection logs in as.
pub(super) async fn everything(
    deployment: &Deployment,
    access: &Access,
    whose: Option<&str>,
) -> (Vec<Group>, Vec<Server>) {
    gather(Gather { deployment, depth: Depth::All(whose) }, access).await
}

/// Reads only the facts that show which server is the master. Of each group, these are the answers
/// of the Sentinels and of the server that most Sentinels report as the master. Of each lone
/// server, these are its role and its `INFO`.
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
            window: node.window,
            ..server
        })
    });
    tokio::join!(groups, join_all(nodes))
}

/// Selection of the facts (values) that are read from a data server.
#[derive(Clone, Copy)]
enum Depth<'a> {
    /// The role and `INFO`.
    Role,
    /// All facts, with the rights of this user at the server. `None` selects the user that the
    /// connection logs in as.
    All(Option<&'a str>),
}

/// The parameters of one call of [`everything`] or [`masters`].
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
        // A Sentinel may listen on several addresses. Such a Sentinel is queried at one address
        // only.
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

    /// Queries the Sentinels at these addresses.
    async fn sentinels(&self, login: &GroupLogin, at: &[String], given: bool) -> Vec<Sentinel> {
        let until = self.until();
        let asked = at.iter().map(|at| {
            let reached = if given { at } else { self.deployment.reach(at) };
            let (target, hand) = (login.sentinel.at(reached), login.sentinel.hand().to(reached));
            sentinel::ask(at, given, hand, target, &login.name, until)
        });
        join_all(asked).await
    }

    /// Queries the servers that a majority of the Sentinels report as the master or a replica.
    /// Returns the answers, and the addresses of the servers that were not queried. The master is
    /// chosen first, so that the limit `SERVERS_MAX` cannot exclude the master.
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

/// Addresses, each with the number of Sentinels that report it.
struct Named {
    votes: BTreeMap<String, usize>,
    enough: usize,
}

impl Named {
    /// Counts, for each address, the Sentinels that report it. `what` returns the instances in a
    /// Sentinel's answers that are counted.
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

    /// Returns two lists: at most `most` addresses that a majority of the Sentinels report, and all
    /// other addresses.
    fn split(self, most: usize) -> (Vec<String>, Vec<String>) {
        let (mut enough, mut few) = (Vec::new(), Vec::new());
        for (at, votes) in self.votes {
            let fits = votes >= self.enough && enough.len() < most;
            if fits { enough.push(at) } else { few.push(at) }
        }
        (enough, few)
    }
}
