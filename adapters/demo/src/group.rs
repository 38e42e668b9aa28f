//! The Sentinel group that remembers what was done.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde::Deserialize;

use crate::Failure;

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

/// One group; taken down on drop, and by its own watcher if this process is killed.
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

    /// Its Sentinels find out and promote a replica.
    pub(crate) async fn kill_master(&self) -> Result<(), Failure> {
        let mut strike = tokio::process::Command::new(script("break"));
        strike.arg(&self.dir).args(["kill", &self.name]);
        good("break", strike.output().await?)?;
        Ok(())
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
