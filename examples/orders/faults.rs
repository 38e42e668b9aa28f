//! Starts three Sentinel groups on this machine and injects a fault into each group while orders
//! are delivered: it kills the master of one group, freezes the master of another group for 8 s,
//! and makes the third group fail over by command.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use palisade::node::SentinelNode;
use palisade::{Redlock, RedlockBuilder};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::report::Pulse;

pub type Failure = Box<dyn Error + Send + Sync>;

/// Longest time to wait until a group grants locks again.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The name of the lock by which Sentinel groups are asked whether they grant.
const CANARY: &str = "orders-demo-canary";

/// A fault that was injected into a Sentinel group or a cluster, and its cost.
#[derive(Clone, Debug)]
pub struct Survived {
    pub kind: &'static str,
    pub group: String,
    /// Time from the start of the stream to the fault.
    pub at: Duration,
    /// Longest time without a completed order while the group granted no locks.
    pub gap: Duration,
    /// Time from the fault until the group granted locks again.
    pub away: Duration,
}

/// The faults of a run.
#[derive(Debug, Default)]
pub struct Endured {
    pub faults: Vec<Survived>,
    /// Number of replicas that a cluster made masters.
    pub failovers: usize,
    pub slots_moved: usize,
    /// How often a name had two holders.
    pub held_twice: u64,
}

/// The Sentinel groups. Dropping this value stops the groups. If this process is killed, a watcher
/// process stops the groups.
pub struct Groups {
    dir: PathBuf,
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    name: String,
    sentinels: Vec<String>,
}

#[derive(Deserialize)]
struct Deployment {
    dir: PathBuf,
    groups: Vec<Group>,
}

impl Groups {
    /// Starts three groups. A master that has lost its replicas refuses writes (`--max-lag`) before
    /// the Sentinels replace it (`--down-after`).
    pub async fn up() -> Result<Self, Failure> {
        let mut up = tokio::process::Command::new(script("up"));
        up.args(["--json", "--groups", "3", "--down-after", "3000", "--max-lag", "1"]);
        up.args(["--owner-pid", &std::process::id().to_string()]);
        let out = up.output().await?;
        if !out.status.success() {
            return Err(format!("sentinel-conf/up: {}", text(&out.stderr)).into());
        }
        let Deployment { dir, groups } = serde_json::from_slice(&out.stdout)?;
        Ok(Self { dir, groups })
    }

    /// Returns a builder of a client (`Redlock` handle) whose nodes are the Sentinel groups.
    pub fn builder(&self) -> Result<RedlockBuilder, Failure> {
        self.groups.iter().try_fold(Redlock::builder(), |b, g| Ok(b.node(g.node()?)))
    }

    async fn strike(&self, kind: &str, group: &Group) -> Result<(), Failure> {
        let mut strike = tokio::process::Command::new(script("break"));
        strike.arg(&self.dir).args([kind, &group.name]);
        if kind == "freeze" {
            strike.args(["--for", "8"]);
        }
        let out = strike.output().await?;
        if out.status.success() {
            return Ok(());
        }
        Err(format!("sentinel-conf/break {kind}: {}", text(&out.stderr)).into())
    }

    /// Injects the three faults into the three groups, one after the other. `seed` decides the
    /// order and the times. A fault begins only after the group with the fault before it grants
    /// locks again, so two of the three groups always grant locks. `tune` sets the times that all
    /// clients (`Redlock` handles) must share.
    pub async fn torment(
        &self,
        seed: u64,
        pulse: &Pulse,
        tune: impl Fn(RedlockBuilder) -> RedlockBuilder,
        say: impl Fn(String),
    ) -> Result<Endured, Failure> {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut kinds = ["kill", "freeze", "failover"];
        kinds.shuffle(&mut dice);
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.shuffle(&mut dice);
        let mut survived = Vec::new();
        for (kind, group) in kinds.into_iter().zip(groups) {
            sleep(Duration::from_millis(dice.random_range(1_500..4_000))).await;
            let observer = tune(Redlock::builder().node(group.node()?)).build()?;
            let (from, at) = (Instant::now(), pulse.elapsed());
            self.strike(kind, group).await?;
            say(format!("{:5.1} s  {kind} the master of {}", at.as_secs_f64(), group.name));
            wait(&observer, false, CANARY, &group.name).await?;
            wait(&observer, true, CANARY, &group.name).await?;
            let away = from.elapsed();
            let gap = pulse.longest_gap(at, pulse.elapsed());
            let at_end = pulse.elapsed().as_secs_f64();
            say(format!(
                "{at_end:5.1} s  {} votes again after {:.1} s",
                group.name,
                away.as_secs_f64()
            ));
            survived.push(Survived { kind, group: group.name.clone(), at, gap, away });
        }
        Ok(Endured { faults: survived, ..Endured::default() })
    }
}

impl Group {
    fn node(&self) -> Result<SentinelNode, Failure> {
        Ok(SentinelNode::new(&self.name, &self.sentinels)?)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let Err(e) = Command::new(script("down")).arg(&self.dir).output() {
            eprintln!("sentinel-conf/down {}: {e}", self.dir.display());
        }
    }
}

/// Waits until the nodes of `observer` grant the lock `canary` (`granting` is true) or do not grant
/// it (`granting` is false).
pub async fn wait(
    observer: &Redlock,
    granting: bool,
    canary: &str,
    name: &str,
) -> Result<(), Failure> {
    let canary = observer.mutex(canary).build()?;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let guard = canary.try_acquire().await;
        let granted = guard.as_ref().is_ok();
        if granted == granting {
            return Ok(());
        }
        drop(guard);
        sleep(Duration::from_millis(100)).await;
    }
    let verb = if granting { "grants nothing" } else { "still grants" };
    Err(format!("{name} {verb} after {PATIENCE:?}").into())
}

fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "sentinel-conf", name].iter().collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
