//! Sentinel groups on loopback, for the commands that need no network of their own. The groups end
//! when this value is dropped, or when this process ends.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::world::{CANNOT, Cannot, Failure, good, script, words};

/// Running groups, in the JSON form that `sentinel-conf/up` prints.
#[derive(Debug, Deserialize)]
pub(crate) struct Groups {
    dir: PathBuf,
    pub(crate) groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) sentinels: Vec<String>,
    pub(crate) servers: Vec<Member>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) addr: String,
    /// Process id at the start. A restarted server has another one.
    pub(crate) pid: u32,
}

impl Groups {
    pub(crate) async fn up(n: usize, more: &[&str]) -> Result<Self, Failure> {
        let mut up = tokio::process::Command::new(script("up"));
        up.args(["--json", "--groups", &n.to_string()]).args(more);
        up.args(["--owner-pid", &std::process::id().to_string()]).process_group(0);
        let out = up.output().await?;
        if out.status.code() == Some(CANNOT.into()) {
            return Err(Cannot(words(&out.stderr)).into());
        }
        Ok(serde_json::from_slice(&good("up", out)?.stdout)?)
    }

    pub(crate) async fn break_(&self, action: &str, more: &[&str]) -> Result<(), Failure> {
        let mut command = tokio::process::Command::new(script("break"));
        command.arg(&self.dir).args([action, &self.groups[0].name]).args(more).process_group(0);
        good(action, command.output().await?)?;
        Ok(())
    }

    pub(crate) async fn master(&self) -> Option<Member> {
        let group = &self.groups[0];
        let mut named = Vec::new();
        for sentinel in &group.sentinels {
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &group.name];
            named.push(ask(sentinel, &question).await.replace('\n', ":"));
        }
        let votes = |member: &&Member| named.iter().filter(|n| **n == member.addr).count();
        group.servers.iter().find(|m| votes(m) > group.sentinels.len() / 2).cloned()
    }
}

impl Group {
    pub(crate) fn url(&self) -> String {
        let mut url = String::from("sentinel://");
        let _ = write!(url, "{}/{}", self.sentinels.join(","), self.name);
        url
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let down = Command::new(script("down")).arg(&self.dir).process_group(0).output();
        if let Err(e) = down.map_err(Failure::from).and_then(|out| good("down", out)) {
            eprintln!("nemesis: {e}");
        }
    }
}

/// Returns the reply of a server or a Sentinel to one command. Returns an empty text if no reply
/// arrives within two seconds.
pub(crate) async fn ask(addr: &str, words: &[&str]) -> String {
    let (host, port) = addr.rsplit_once(':').unwrap_or((addr, "0"));
    let mut command = tokio::process::Command::new("timeout");
    command.args(["2", "redis-cli", "-h", host, "-p", port]).args(words).process_group(0);
    let out = command.output().await;
    out.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

pub(crate) async fn back_up(addr: &str) -> Result<(), Failure> {
    let (host, port) = addr.rsplit_once(':').ok_or("no port")?;
    let mut command = tokio::process::Command::new("redis-cli");
    command.args(["-h", host, "-p", port, "--rdb", "-"]).process_group(0);
    good("redis-cli --rdb", command.output().await?)?;
    Ok(())
}
