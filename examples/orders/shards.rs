//! Starts a cluster of three masters with a replica each, and disturbs one shard after the other
//! while orders are delivered: a master is killed and comes back as a replica, a replica is
//! promoted by hand, a master is frozen until it has been replaced, and a range of slots moves.

use std::ops::RangeInclusive;
use std::time::Duration;

use palisade::node::ClusterNode;
use palisade::{Redlock, RedlockBuilder};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::faults::{Endured, Failure, PATIENCE, Survived, wait};
use crate::holders::Holders;
use crate::report::Pulse;
use crate::stream::TAGS;
use crate::support::cluster::Cluster;
use crate::support::server::Server;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The master is replaced meanwhile.
const FREEZE: Duration = Duration::from_secs(4);
const SLOTS: u16 = 16_384;
/// Number of slots that move.
const RANGE: u16 = 300;
const CLIENTS: usize = 3;

/// The cluster. Dropping this value ends the servers.
pub struct Shards {
    cluster: Cluster,
    /// The present master of each shard. At first master `n` has the replica `n + 3`.
    masters: [usize; 3],
    /// The slot of each hash tag.
    slots: Vec<u16>,
}

impl Shards {
    /// Starts the cluster, and marks its slots as new.
    pub async fn up() -> Result<Self, Failure> {
        let cluster = block_in_place(|| Cluster::start(3, 1, NODE_TIMEOUT));
        let ask: Vec<String> = (0..TAGS).map(|tag| format!("cluster keyslot {tag:02}\n")).collect();
        let ask = ask.concat();
        let slots = cluster.servers[0].session(&ask);
        let slots = slots.lines().map(str::parse).collect::<Result<_, _>>()?;
        let url = format!("cluster://{}", cluster.addresses().join(","));
        let deployment = palisade_ops::Deployment::new().node(url).timeout(Duration::from_secs(20));
        let marked = palisade_ops::init(&deployment, "").await?;
        if !marked.is_done() {
            return Err(marked.to_string().into());
        }
        Ok(Self { cluster, masters: [0, 1, 2], slots })
    }

    /// Returns a builder of a client (`Redlock` handle) whose node is the cluster.
    pub fn builder(&self) -> Result<RedlockBuilder, Failure> {
        Ok(Redlock::builder().node(ClusterNode::new(self.cluster.addresses())?))
    }

    /// Injects the faults, one after the other. `seed` decides their order, shards and times.
    /// `tune` sets the times that all clients (`Redlock` handles) must share.
    pub async fn torment(
        &mut self,
        seed: u64,
        pulse: &Pulse,
        tune: impl Fn(RedlockBuilder) -> RedlockBuilder,
        say: impl Fn(String),
    ) -> Result<Endured, Failure> {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut kinds = ["kill", "promote", "freeze", "move"];
        kinds.shuffle(&mut dice);
        let mut shards = [0, 1, 2];
        shards.shuffle(&mut dice);
        let (from, to) = (shards[0], shards[1]);
        let moving = self.range(from);
        let canary = |shard, moves| {
            let fits = |slot| self.cluster.owner(slot) == shard && moving.contains(&slot) == moves;
            let tag = self.slots.iter().position(|slot| fits(*slot)).ok_or("no tag fits")?;
            Ok::<_, Failure>(format!("{{{tag:02}}}canary"))
        };
        let (mut canaries, moved) = (Vec::new(), canary(from, true)?);
        for shard in 0..3 {
            canaries.push(canary(shard, false)?);
        }
        let mut names: Vec<_> = (0..TAGS).step_by(12).map(|n| format!("{{{n:02}}}held")).collect();
        names.extend(canaries.iter().chain([&moved]).map(|c| c.replace("canary", "held")));
        names.sort_unstable();
        names.dedup();
        let client = || Ok::<_, Failure>(tune(self.builder()?).build()?);
        let clients = (0..CLIENTS).map(|_| client()).collect::<Result<Vec<_>, _>>()?;
        let holders = Holders::start(&clients, &names)?;

        let (mut endured, mut rest) = (Endured::default(), shards.into_iter());
        for kind in kinds {
            sleep(Duration::from_millis(dice.random_range(1_500..3_000))).await;
            let (begun, at) = (Instant::now(), pulse.elapsed());
            let (old, group, canary) = if kind == "move" {
                let group = format!("slots {}-{}", moving.start(), moving.end());
                let (from, to) = (self.masters[from], self.masters[to]);
                endured.slots_moved +=
                    block_in_place(|| move_slots(&self.cluster, &moving, from, to))?;
                (None, group, &moved)
            } else {
                let shard = rest.next().ok_or("there is a shard for each")?;
                let old = self.masters[shard];
                self.replace(kind, shard).await?;
                endured.failovers += 1;
                (Some(old), format!("shard {shard}"), &canaries[shard])
            };
            say(format!("{:5.1} s  {kind}: {group}", at.as_secs_f64()));
            let observer = tune(self.builder()?).build()?;
            wait(&observer, true, canary, &group).await?;
            let (away, gap) = (begun.elapsed(), pulse.longest_gap(at, pulse.elapsed()));
            if let Some(old) = old {
                if kind == "kill" {
                    block_in_place(|| self.cluster.servers[old].again());
                }
                until_role(&self.cluster.servers[old], "slave").await?;
            }
            let at_end = pulse.elapsed().as_secs_f64();
            say(format!("{at_end:5.1} s  granted again: {group}"));
            endured.faults.push(Survived { kind, group, at, gap, away });
        }
        let [holds, lost, twice] = holders.end().await?;
        say(format!("{holds} holds of {} names, {lost} of them lost, {twice} twice", names.len()));
        if holds == 0 {
            return Err("no name was ever held".into());
        }
        endured.held_twice = twice;
        Ok(endured)
    }

    /// Makes the replica of a shard its master.
    async fn replace(&mut self, kind: &str, shard: usize) -> Result<(), Failure> {
        let (old, new) = (self.masters[shard], self.masters[shard] + 3);
        let begun = Instant::now();
        match kind {
            "kill" => block_in_place(|| self.cluster.servers[old].kill()),
            "freeze" => self.cluster.servers[old].freeze(),
            _ => {
                let answer = self.cluster.servers[new].cli(&["cluster", "failover"]);
                if answer != "OK" {
                    return Err(format!("CLUSTER FAILOVER: {answer}").into());
                }
            }
        }
        until_role(&self.cluster.servers[new], "master").await?;
        if kind == "freeze" {
            sleep(FREEZE.saturating_sub(begun.elapsed())).await;
            self.cluster.servers[old].resume();
        }
        self.masters[shard] = new;
        Ok(())
    }

    /// Returns slots of a shard around the first of its tags.
    fn range(&self, shard: usize) -> RangeInclusive<u16> {
        let of = |slot: &u16| self.cluster.owner(*slot) == shard;
        let middle = self.slots.iter().copied().find(of).unwrap_or(0);
        let near = middle.saturating_sub(RANGE / 2)..SLOTS;
        let mut slots = near.filter(of).take(usize::from(RANGE));
        let first = slots.next().unwrap_or(middle);
        first..=slots.last().unwrap_or(first)
    }
}

/// Moves slots and their keys as `redis-cli --cluster reshard` does, but all of them at once.
/// Returns their number.
fn move_slots(
    cluster: &Cluster,
    slots: &RangeInclusive<u16>,
    from: usize,
    to: usize,
) -> Result<usize, Failure> {
    let (source, target) = (&cluster.servers[from], &cluster.servers[to]);
    let each = |server: &Server, command: &str, id: &str| {
        let line = |slot| format!("cluster {}\n", command.replace("SLOT", &format!("{slot}")) + id);
        server.session(&slots.clone().map(line).collect::<String>())
    };
    let set = |server, what, id: &str| {
        let answer = each(server, &format!("setslot SLOT {what} "), id);
        let bad = answer.lines().find(|line| !["", "OK"].contains(line));
        bad.map_or(Ok(()), |bad| Err(format!("CLUSTER SETSLOT {what}: {bad}")))
    };
    set(target, "importing", &cluster.id(from))?;
    set(source, "migrating", &cluster.id(to))?;
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let keys = each(source, "getkeysinslot SLOT 1000", "");
        let keys = keys.lines().filter(|key| !key.is_empty());
        let port = target.port();
        let migrate = keys.map(|key| format!("migrate 127.0.0.1 {port} \"{key}\" 0 5000\n"));
        let migrate = migrate.collect::<String>();
        if migrate.is_empty() {
            break;
        }
        let answer = source.session(&migrate);
        if std::time::Instant::now() > end {
            return Err(format!("keys are still not moved: {answer}").into());
        }
    }
    set(target, "node", &cluster.id(to))?;
    set(source, "node", &cluster.id(to))?;
    cluster.until_owned(*slots.start(), to);
    cluster.until_owned(*slots.end(), to);
    Ok(slots.len())
}

async fn until_role(server: &Server, role: &str) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    while !server.cli(&["role"]).starts_with(role) {
        if Instant::now() > end {
            return Err(format!("{} is no {role} after {PATIENCE:?}", server.addr()).into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
