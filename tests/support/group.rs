//! Real Sentinel groups for tests, started by `sentinel-conf/up` on free loopback ports. The groups
//! stop at the end of the test, even if the test process is killed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One or more running groups. Each group has a master, two replicas and three Sentinels.
pub struct Groups {
    dir: PathBuf,
    json: Value,
}

impl Groups {
    /// Starts `n` groups whose min-replicas setting is strict enough for Sentinel's down-after:
    /// max-lag 1 s, down-after 3 s.
    pub fn up(n: usize) -> Self {
        Self::up_with(n, 3_000, 1, &[])
    }

    /// Starts one group with the default settings of `sentinel-conf/up`.
    pub fn shipped() -> Self {
        let up = Self::try_up(&["--groups", "1"]);
        up.unwrap_or_else(|(_, words)| panic!("sentinel-conf/up failed: {words}"))
    }

    /// Starts `n` Sentinel groups with these settings. A `max_lag` of 0 turns the min-replicas
    /// check off.
    pub fn up_with(n: usize, down_after_ms: u32, max_lag: u32, more: &[&str]) -> Self {
        let up = Self::try_up_with(n, down_after_ms, max_lag, more);
        up.unwrap_or_else(|(_, words)| panic!("sentinel-conf/up failed: {words}"))
    }

    /// Starts Sentinel groups as [`up_with`](Self::up_with) does, and returns an error if that is
    /// impossible.
    ///
    /// # Errors
    ///
    /// Exit code and output of `sentinel-conf/up`. The exit code is 77 if this machine cannot run
    /// Sentinel groups.
    pub fn try_up_with(
        n: usize,
        down_after_ms: u32,
        max_lag: u32,
        more: &[&str],
    ) -> Result<Self, (Option<i32>, String)> {
        let (n, down_after, max_lag) =
            (n.to_string(), down_after_ms.to_string(), max_lag.to_string());
        let args = ["--groups", &n, "--down-after", &down_after, "--max-lag", &max_lag];
        Self::try_up(&[&args, more].concat())
    }

    fn try_up(args: &[&str]) -> Result<Self, (Option<i32>, String)> {
        let out = Command::new(script("up"))
            .args(["--json", "--owner-pid", &std::process::id().to_string()])
            .args(args)
            .output()
            .expect("sentinel-conf/up can be run");
        if !out.status.success() {
            return Err((out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned()));
        }
        let json: Value = serde_json::from_slice(&out.stdout).expect("deployment.json");
        let dir = json["dir"].as_str().expect("dir").into();
        Ok(Self { dir, json })
    }

    /// Returns the network namespace of the groups, if they run in one.
    pub fn netns(&self) -> Option<String> {
        self.json["netns"].as_str().map(str::to_owned)
    }

    /// Returns the name of the group in the configuration of its Sentinels.
    pub fn name(&self, group: usize) -> String {
        text(&self.json["groups"][group]["name"])
    }

    /// Returns `host:port` of the group's Sentinels.
    pub fn sentinels(&self, group: usize) -> Vec<String> {
        let list = self.json["groups"][group]["sentinels"].as_array().expect("sentinels");
        list.iter().map(text).collect()
    }

    /// Returns the group's address in the form that an operator writes: `sentinel://…`.
    pub fn url(&self, group: usize) -> String {
        format!("sentinel://{}/{}", self.sentinels(group).join(","), self.name(group))
    }

    /// Returns `host:port` of the group's data servers. The first server was the master at the
    /// start.
    pub fn servers(&self, group: usize) -> Vec<String> {
        let list = self.json["groups"][group]["servers"].as_array().expect("servers");
        list.iter().map(|s| text(&s["addr"])).collect()
    }

    /// Returns the password of the application's user `palisade`, if the groups were started with
    /// `--acl`.
    pub fn password(&self) -> Option<String> {
        self.json["acl"]["password"].as_str().map(ToOwned::to_owned)
    }

    /// Returns a deployment with the operator's login and without nodes.
    pub fn operated(&self) -> palisade_ops::Deployment {
        let mut settings = palisade::Settings::default();
        if let Some(password) = self.json["acl"]["operator_password"].as_str() {
            settings.username = Some("operator".into());
            settings.password = Some(password.into());
            settings.sentinel_username = Some("operator".into());
            settings.sentinel_password = Some(password.into());
        }
        palisade_ops::Deployment::of(settings)
    }

    /// Runs a command as [`cli`] does. Uses the operator's login if the servers have users.
    pub fn cli(&self, addr: &str, args: &[&str]) -> String {
        match self.json["acl"]["operator_password"].as_str() {
            Some(password) => {
                let login = ["--user", "operator", "--pass", password, "--no-auth-warning"];
                cli(addr, &[&login, args].concat())
            }
            None => cli(addr, args),
        }
    }

    /// Runs `sentinel-conf/break DIR ACTION GROUP …`. The action is `kill`, `freeze`, `resume`,
    /// `restart`, `failover` or another one of this script.
    pub fn break_(&self, action: &str, group: usize, more: &[&str]) -> String {
        // The script refuses the action while the Sentinels do not agree on the master.
        let mut tries = 20;
        loop {
            let out = Command::new(script("break"))
                .arg(&self.dir)
                .args([action, &self.name(group)])
                .args(more)
                .output()
                .expect("sentinel-conf/break can be run");
            let words = String::from_utf8_lossy(&out.stderr);
            if out.status.success() {
                return String::from_utf8_lossy(&out.stdout).into_owned();
            }
            tries -= 1;
            assert!(tries > 0, "break {action} failed: {words}");
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = Command::new(script("down")).arg(&self.dir).output();
    }
}

/// Runs one command at `host:port` and returns the raw reply.
pub fn cli(addr: &str, args: &[&str]) -> String {
    let (host, port) = addr.rsplit_once(':').expect("host:port");
    let out = Command::new("redis-cli")
        .args(["-h", host, "-p", port])
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("redis-cli is missing ({e}): install redis-tools"));
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

/// Returns the number of scripts that the server at `host:port` has run since the last `CONFIG
/// RESETSTAT`.
pub fn scripts_run(addr: &str) -> u64 {
    calls_of(addr, &["cmdstat_eval:", "cmdstat_evalsha:", "cmdstat_fcall:"])
}

/// Returns the number of calls of these commands, as [`scripts_run`] does.
pub fn calls_of(addr: &str, counted: &[&str]) -> u64 {
    let stats = cli(addr, &["INFO", "commandstats"]);
    let calls = |line: &str| {
        let rest = counted.iter().find_map(|c| line.strip_prefix(c))?;
        rest.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
    };
    stats.lines().filter_map(calls).sum()
}

fn script(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scripts = here.ancestors().map(|dir| dir.join("sentinel-conf"));
    scripts.map(|dir| dir.join(name)).find(|script| script.exists()).expect("the scripts")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}
