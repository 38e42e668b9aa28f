//! Histories of one Sentinel group: a master that returns unchanged, replicas that copied the data
//! of another deployment, an address that leads to another group, and backups.

use std::future::Future;
use std::time::Duration;

use palisade::{RedisNode, Redlock, SentinelNode};
use palisade_ops::{Deployment, init};
use tokio::time::{Instant, sleep};

use super::clients::{Client, Held, Log, Request};
use super::nights::{self, Nights};
use crate::groups::{Groups, Member, ask};
use crate::ordinary::server::Server;
use crate::switch::Switch;
use crate::world::{Failure, signal};

/// Maximum time for a step of a history, for example a failover.
const STEP: Duration = Duration::from_secs(60);
/// Maximum time until each client is served again: a quarantine, a failover that Sentinel begins
/// anew, and a busy machine.
const SERVED: Duration = Duration::from_secs(120);

/// A running group, with the longest lease of its clients.
struct Site {
    groups: Groups,
    ttl: Duration,
    log: Log,
}

impl Site {
    async fn up(ttl: Duration, log: &Log) -> Result<Self, Failure> {
        Self::beside(0, ttl, log).await
    }

    async fn beside(others: usize, ttl: Duration, log: &Log) -> Result<Self, Failure> {
        let more = ["--down-after", "3000", "--max-lag", "1"];
        let groups = Groups::up(1 + others, &more).await?;
        let site = Self { groups, ttl, log: log.clone() };
        // So a replica that comes back with the address of a dead master is led to the new one
        // within six seconds, not fifteen.
        for sentinel in &site.groups.groups[0].sentinels {
            let words = ["SENTINEL", "SET", site.name(), "failover-timeout", "6000"];
            ask(sentinel, &words).await;
        }
        Ok(site)
    }

    fn name(&self) -> &str {
        &self.groups.groups[0].name
    }

    fn server(&self, n: usize) -> &Member {
        &self.groups.groups[0].servers[n]
    }

    fn client(&self, name: &'static str) -> Result<Client, Failure> {
        let sentinels = self.groups.groups[0].sentinels.clone();
        let node = SentinelNode::new(self.name(), sentinels)?;
        let redlock = Redlock::builder().ttl(self.ttl).max_ttl(self.ttl).node(node).build()?;
        Client::new(name, redlock, &self.log)
    }

    fn client_by(&self, name: &'static str, at: &str, to: &str) -> Result<Client, Failure> {
        let node = SentinelNode::builder(self.name(), self.groups.groups[0].sentinels.clone());
        let node = node.map_address([(at.to_owned(), to.to_owned())]).build()?;
        let redlock = Redlock::builder().ttl(self.ttl).max_ttl(self.ttl).node(node).build()?;
        Client::new(name, redlock, &self.log)
    }

    async fn until_master<T>(&self, what: &str, is: impl Fn(Member) -> Option<T>) -> Made<T> {
        until(what, || async { self.groups.master().await.and_then(&is) }).await
    }
}

type Made<T> = Result<T, Failure>;

async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> Made<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return Ok(found);
        }
        if begun.elapsed() > STEP {
            return Err(format!("waited {STEP:?} for {what}").into());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn replid(addr: &str) -> String {
    let info = ask(addr, &["INFO", "replication"]).await;
    let id = info.lines().find_map(|l| l.strip_prefix("master_replid:"));
    id.unwrap_or_default().trim().to_owned()
}

/// A is frozen and another server promoted; A thaws; the promoted one dies, and the Sentinels
/// promote A, which never learnt that it was replaced, so nothing changes there. In one form the
/// third server may not be promoted, in the other one it dies with the promoted one.
pub(super) async fn returning(third_dies: bool, log: &Log) -> Result<(), Failure> {
    let ttl = Duration::from_secs(if third_dies { 30 } else { 15 });
    let site = Site::up(ttl, log).await?;
    let first = site.server(0).clone();
    let before = replid(&first.addr).await;
    if !third_dies {
        ask(&site.server(2).addr, &["CONFIG", "SET", "replica-priority", "0"]).await;
        until("the Sentinels to see the priority", || async {
            let question = ["SENTINEL", "REPLICAS", site.name()];
            for sentinel in &site.groups.groups[0].sentinels {
                let replicas = ask(sentinel, &question).await;
                if !replicas.contains("slave-priority\n0\n") {
                    return None;
                }
            }
            Some(())
        })
        .await?;
    }
    let (one, two) = (site.client("one")?, site.client("two")?);
    let guard = one.long().await?;
    let _ = two.hold("touch", false, STEP).await?.release().await;

    signal(first.pid, "STOP");
    let other = |m: Member| (m.addr != first.addr).then_some(m);
    let promoted = site.until_master("another master", other).await;
    let rest = match promoted {
        Ok(promoted) => {
            Box::pin(beyond(&site, (&one, &two), guard, (&first, &promoted), third_dies)).await
        }
        Err(e) => Err(e),
    };
    signal(first.pid, "CONT");
    rest?;

    if site.groups.master().await.is_none_or(|m| m.addr != first.addr)
        || replid(&first.addr).await != before
    {
        log.note().doubts.push("the first master did not return unchanged".to_owned());
    }
    for client in [one, two] {
        client.close().await;
    }
    Ok(())
}

/// From the promotion of the second master on.
async fn beyond(
    site: &Site,
    (one, two): (&Client, &Client),
    long: palisade::LockGuard,
    (first, promoted): (&Member, &Member),
    third_dies: bool,
) -> Result<(), Failure> {
    // This takes as long as the quarantine.
    let _ = one.hold("here", false, STEP).await?.release().await;
    let requests = Request::made(true);
    one.see(&requests).await?;
    two.see(&requests).await?;
    signal(first.pid, "CONT");
    sleep(Duration::from_secs(1)).await;
    let held = one.held(long).await?;
    signal(promoted.pid, "KILL");
    let third = site.server(if promoted.id == site.server(1).id { 2 } else { 1 });
    if third_dies {
        signal(third.pid, "KILL");
    }
    let new = site.client("new")?;
    let end = Instant::now() + site.ttl + Duration::from_secs(5);
    let back = async {
        site.until_master("the first master", |m| (m.addr == first.addr).then_some(())).await?;
        if third_dies {
            site.groups.break_("restart", &["--server", &third.id]).await?;
        }
        Ok::<_, Failure>(())
    };
    let (back, (), ()) =
        tokio::join!(back, two.contest(&held, &requests, end), new.contest(&held, &requests, end));
    back?;
    finish(&[one, two, &new], held).await;
    new.close().await;
    Ok(())
}

async fn finish(clients: &[&Client], held: Held) {
    held.give_up().await;
    for client in clients {
        client.served(SERVED).await;
    }
}

/// The group's replicas are led to the master of another deployment and copy its data; the group's
/// master dies; a replica with foreign data is promoted. In the end the group is emptied, as an
/// operator does who has found out.
pub(super) async fn copied(log: &Log) -> Result<(), Failure> {
    let site = Site::up(Duration::from_secs(8), log).await?;
    let foreign = tokio::task::block_in_place(|| Server::start(&["--appendonly", "yes"]));
    let made = init(&Deployment::new().node(foreign.url()), "").await?;
    if !made.is_done() {
        return Err(made.to_string().into());
    }
    // Others use the foreign deployment all the time.
    let theirs = Redlock::builder().ttl(site.ttl).node(RedisNode::new(foreign.url())?).build()?;
    let theirs = Client::new("theirs", theirs, &Log::default())?;
    let busy = theirs.hold("theirs", true, STEP).await?;

    let (one, two) = (site.client("one")?, site.client("two")?);
    let guard = one.long().await?;
    let requests = Request::made(false);
    one.see(&requests).await?;
    two.see(&requests).await?;
    // What is older than twice the clocks' error is not in the loss that a copy admits by chance.
    sleep(Duration::from_secs(6)).await;
    let held = one.held(guard).await?;
    let port = foreign.port().to_string();
    for n in 1..3 {
        ask(&site.server(n).addr, &["REPLICAOF", "127.0.0.1", &port]).await;
    }
    until("the replicas to copy", || async {
        let info = ask(&foreign.addr(), &["INFO", "replication"]).await;
        (info.matches("state=online").count() >= 2).then_some(())
    })
    .await?;
    signal(site.server(0).pid, "KILL");
    let end = Instant::now() + Duration::from_secs(35);
    let first = site.server(0).addr.clone();
    let other = |m: Member| (m.addr != first).then_some(m);
    let (promoted, (), ()) = tokio::join!(
        site.until_master("another master", other),
        one.contest(&held, &requests, end),
        two.contest(&held, &requests, end)
    );
    ask(&promoted?.addr, &["FLUSHALL"]).await;
    let again = Instant::now() + Duration::from_secs(15);
    tokio::join!(one.contest(&held, &requests, again), two.contest(&held, &requests, again));
    finish(&[&one, &two], held).await;
    drop(busy);
    for client in [one, two, theirs] {
        client.close().await;
    }
    Ok(())
}

/// The address of the group's master leads to the master of another group, longer than a lease, and
/// home again.
pub(super) async fn elsewhere(log: &Log) -> Result<(), Failure> {
    let site = Site::beside(1, Duration::from_secs(8), log).await?;
    let (home, foreign) = (&site.server(0).addr, &site.groups.groups[1].servers[0].addr);
    let address = Switch::to(home).await?;
    let client = |name| site.client_by(name, home, address.addr());
    let (one, two) = (client("one")?, client("two")?);
    let guard = one.long().await?;
    let requests = Request::made(false);
    one.see(&requests).await?;
    two.see(&requests).await?;
    let held = one.held(guard).await?;

    let before = marker(foreign).await;
    address.lead_to(foreign);
    two.contest(&held, &requests, Instant::now() + site.ttl + Duration::from_secs(2)).await;
    if marker(foreign).await != before {
        log.note().changed.insert("the marker of the other group".to_owned());
    }
    address.lead_to(home);
    let end = Instant::now() + site.ttl;
    tokio::join!(two.contest(&held, &requests, end), one.served(SERVED));
    finish(&[&one, &two], held).await;
    for client in [one, two] {
        client.close().await;
    }
    Ok(())
}

async fn marker(addr: &str) -> String {
    ask(addr, &["GET", "palisade:generation"]).await
}

/// Seven nights with a backup of the group's master. Its replicas stay, so it renames nothing.
pub(super) async fn nights() -> Result<Nights, Failure> {
    let site = Site::up(nights::TTL, &Log::default()).await?;
    let node = SentinelNode::new(site.name(), site.groups.groups[0].sentinels.clone())?;
    let redlock = Redlock::builder().ttl(site.ttl).max_ttl(site.ttl).node(node).build()?;
    let first = redlock.mutex("first").acquire_timeout(STEP).build()?;
    let _ = first.acquire().await?.release().await;
    nights::of(&redlock, &site.server(0).addr, false).await
}
