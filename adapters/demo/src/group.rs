//! The Sentinel group on which the demo stores the idempotency records.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::Failure;

/// Maximum time for the Sentinels to promote a replica.
const FAILOVER: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Deployment {
    dir: PathBuf,
    groups: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    sentinels: Vec<String>,
}

/// A running Sentinel group. Dropping the value stops the group's servers. If this process is
/// killed, the group's watcher process stops the servers.
pub(crate) struct Group {
    dir: PathBuf,
    pub(crate) name: String,
    pub(crate) sentinels: Vec<String>,
}

impl Group {
    pub(crate) async fn up() -> Result<Self, Failure> {
        let mut up = tokio::process::Command::new(script("up"));
        up.args(["--json", "--groups", "1", "--down-after", "3000", "--max-lag", "1"]);
        up.args(["--owner-pid", &std::process::id().to_string()]);
        let out = good("up", up.output().await?)?;
        let Deployment { dir, groups } = serde_json::from_slice(&out.stdout)?;
        let Named { name, sentinels } = groups.into_iter().next().ok_or("up made no group")?;
        Ok(Self { dir, name, sentinels })
    }

    pub(crate) async fn fail_over(&self) -> Result<(), Failure> {
        let before = self.master().await?;
        let mut strike = tokio::process::Command::new(script("break"));
        strike.arg(&self.dir).args(["kill", &self.name]);
        good("break", strike.output().await?)?;
        let begun = Instant::now();
        while self.master().await? == before {
            if begun.elapsed() > FAILOVER {
                return Err(format!("the Sentinels promote no replica within {FAILOVER:?}").into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Returns the master's address from the first Sentinel that replies. The Sentinel on the host
    /// of a dead master may be down, too. So the function tries all Sentinels in turn.
    async fn master(&self) -> Result<(String, u16), Failure> {
        let mut last: Failure = "the group has no Sentinels".into();
        for sentinel in &self.sentinels {
            let asked = async {
                let client = redis::Client::open(format!("redis://{sentinel}"))?;
                let mut connection = client.get_multiplexed_async_connection().await?;
                let mut ask = redis::cmd("SENTINEL");
                ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
                ask.query_async(&mut connection).await
            };
            match asked.await {
                Ok(address) => return Ok(address),
                Err::<_, redis::RedisError>(e) => last = e.into(),
            }
        }
        Err(last)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(e) = Command::new(script("down")).arg(&self.dir).output() {
            eprintln!("sentinel-conf/down {}: {e}", self.dir.display());
        }
    }
}

fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "sentinel-conf", name].iter().collect()
}

fn good(what: &str, out: Output) -> Result<Output, Failure> {
    if out.status.success() {
        return Ok(out);
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(format!("sentinel-conf/{what}: {said}").into())
}
