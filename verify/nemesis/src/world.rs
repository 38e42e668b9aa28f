//! The servers and networks of a run of `nemesis`. All Sentinel groups are in one network. Each
//! client has its own network, with one link to the network of the groups. So each client can be
//! cut off separately.
//!
//! ```text
//! 10.77.<group>.<box>   servers and Sentinels, all in the groups' network
//! 10.77.100.<client>    a client, in a network that exists as long as its holder process
//! ```
//!
//! All processes and networks end with the nemesis, even if the nemesis is killed. A watching
//! process stops the groups. A holder process ends when its input ends. Clients are killed with
//! their parent process. A network ends with its last process.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde::Deserialize;

use crate::machine::{self, Part};

/// Range of the setting `min-replicas-max-lag` of the servers, in seconds.
const LAGS: std::ops::RangeInclusive<u64> = 1..=2;

/// Exit code of a script or program that cannot work on this machine.
pub(crate) const CANNOT: u8 = 77;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Error for a task that is not possible for this user or on this machine.
#[derive(Debug)]
pub(crate) struct Cannot(pub(crate) String);

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Cannot {}

/// Environment variable for the program that `sentinel-conf` starts as a data server.
const SERVER: &str = "PALISADE_REDIS_SERVER";

/// A place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A box, with a data server, a Sentinel or both. Contains the number of the group and the
    /// number of the box, both from 1.
    Box(usize, u8),
    /// Number of a client, from 1.
    Client(u8),
}

impl Place {
    pub(crate) fn address(self) -> String {
        match self {
            Self::Box(group, number) => format!("10.77.{group}.{number}"),
            Self::Client(n) => format!("10.77.100.{n}"),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Deployment {
    dir: PathBuf,
    netns: String,
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) sentinels: Vec<String>,
    pub(crate) servers: Vec<Server>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) addr: String,
    #[serde(rename = "box")]
    pub(crate) number: u8,
}

pub(crate) struct World {
    pub(crate) groups: Vec<Group>,
    dir: PathBuf,
    netns: String,
    holders: Vec<Child>,
    /// Program that starts servers on simulated machines, whose clocks and disks can be disturbed.
    /// `None` if there are no such machines.
    server: Option<PathBuf>,
    /// Constant clock error of each machine, in microseconds. The key is the address of the server
    /// or the number of the client.
    ahead: BTreeMap<String, i64>,
}

impl World {
    pub(crate) fn up(clients: u8, out: &Path) -> Result<Self, Failure> {
        let shape = ["--groups", "3", "--down-after", "4000", "--max-lag", "2"];
        Self::of(clients, &shape, machine::make(out)?)
    }

    pub(crate) fn of(
        clients: u8,
        shape: &[&str],
        server: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let mut up = Command::new(script("up"));
        up.envs(server.iter().map(|s| (SERVER, s)));
        let out = up
            .args(["--json", "--netns"])
            .args(shape)
            .args(["--owner-pid", &std::process::id().to_string()])
            .process_group(0)
            .output()?;
        if out.status.code() == Some(CANNOT.into()) {
            return Err(Cannot(words(&out.stderr)).into());
        }
        let Deployment { dir, netns, groups } = serde_json::from_slice(&good("up", out)?.stdout)?;
        let (holders, ahead) = (Vec::new(), BTreeMap::new());
        let mut world = Self { groups, dir, netns, holders, server, ahead };
        for n in 1..=clients {
            world.connect(n)?;
        }
        let table = "add table inet nemesis; delete table inet nemesis";
        let net = format!("--net=/run/netns/{}", world.netns);
        let out = Command::new("nsenter").args([&*net, "--", "nft", table]).output()?;
        good("nft", out).map_err(|e| Cannot(e.to_string()))?;
        Ok(world)
    }

    /// Gives each server and each client a random clock error of at most `clock_error`. Gives each
    /// server a random `min-replicas-max-lag`. Returns a line with these settings.
    pub(crate) async fn make_unequal(
        &mut self,
        dice: &mut StdRng,
        clock_error: Duration,
    ) -> Result<String, Failure> {
        let mut done = Vec::new();
        let most = i64::try_from(clock_error.as_micros())?;
        let clients = self.holders.len();
        let servers: Vec<_> = self.groups.iter().flat_map(|g| &g.servers).cloned().collect();
        for client in 1..=clients {
            self.ahead.insert(client.to_string(), off(dice, most));
        }
        for (n, server) in servers.iter().enumerate() {
            let lag = dice.random_range(LAGS).to_string();
            let ahead = off(dice, most);
            for words in
                [&["CONFIG", "SET", "min-replicas-max-lag", &lag][..], &["CONFIG", "REWRITE"]]
            {
                let answer = self.ask(&server.addr, words).await;
                if answer != "OK" {
                    return Err(format!("{}: {}: {answer}", server.addr, words.join(" ")).into());
                }
            }
            let mut clock = String::new();
            if self.server.is_some() {
                self.ahead.insert(server.addr.clone(), ahead);
                self.machine(n / 3, &server.id, Part::Clock, 0)?;
                clock = format!(" clock {:+} ms", ahead / 1_000);
            }
            done.push(format!("{} lag {lag} s{clock}", server.id));
        }
        Ok(done.join(", "))
    }

    fn connect(&mut self, n: u8) -> Result<(), Failure> {
        let holder = Command::new("unshare")
            .args(["--net", "--"])
            .arg(std::env::current_exe()?)
            .arg("hold")
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let pid = holder.id();
        self.holders.push(holder);
        let mine = std::fs::read_link("/proc/self/ns/net")?;
        let begun = Instant::now();
        while std::fs::read_link(format!("/proc/{pid}/ns/net"))? == mine {
            if begun.elapsed() > Duration::from_secs(10) {
                return Err("a client's network is not made".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (ns, me) = (&self.netns, Place::Client(n).address());
        let script = format!(
            "ip -n {ns} link add vc{n} type veth peer name eth0 netns {pid}
             ip -n {ns} addr add 10.77.100.254/32 dev vc{n}
             ip -n {ns} link set vc{n} up
             ip -n {ns} route add {me}/32 dev vc{n}
             nsenter --net=/proc/{pid}/ns/net sh -euc '
                 ip link set lo up
                 ip addr add {me}/32 dev eth0
                 ip link set eth0 up
                 ip route add 10.77.0.0/16 dev eth0'"
        );
        good("ip", Command::new("sh").args(["-euc", &script]).output()?)?;
        Ok(())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("ledger.sock")
    }

    pub(crate) fn in_client(&self, n: u8) -> Command {
        let pid = self.holders[usize::from(n) - 1].id();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net"));
        command.args(["--", "setpriv", "--pdeathsig", "KILL", "--"]);
        command
    }

    pub(crate) fn place(&self, n: u8, command: &mut Command) -> Result<(), Failure> {
        let (Some(server), Some(ahead)) = (&self.server, self.ahead.get(&n.to_string())) else {
            return Ok(());
        };
        machine::place(command, server, &self.dir.join(format!("client{n}.machine")), *ahead)
    }

    pub(crate) fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.netns));
        command.args(["--", "setpriv", "--pdeathsig", "KILL", "--"]);
        command
    }

    /// Runs the script `sentinel-conf/break` with these arguments. An error contains the script's
    /// message.
    ///
    /// The future must not be dropped before its end, because the script must not stop in the
    /// middle.
    pub(crate) async fn break_(&self, words: &[&str]) -> Result<(), Failure> {
        let mut command = tokio::process::Command::new(script("break"));
        command.arg(&self.dir).args(words).process_group(0);
        command.envs(self.server.iter().map(|s| (SERVER, s)));
        good(words[0], command.output().await?)?;
        Ok(())
    }

    /// Returns the reply of a server or a Sentinel. Returns an empty text if no reply arrives
    /// within one second.
    pub(crate) async fn ask(&self, addr: &str, words: &[&str]) -> String {
        let (host, port) = addr.rsplit_once(':').unwrap_or((addr, "0"));
        let mut command = tokio::process::Command::new("timeout");
        command.args(["1", "nsenter", &format!("--net=/run/netns/{}", self.netns), "--"]);
        command.args(["redis-cli", "-h", host, "-p", port]).args(words).process_group(0);
        let out = command.output().await;
        out.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    }

    /// Returns the server that at least two Sentinels of the group report as master.
    pub(crate) async fn master(&self, group: usize) -> Option<Server> {
        let group = &self.groups[group];
        let mut votes = vec![0; group.servers.len()];
        for sentinel in &group.sentinels {
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &group.name];
            let addr = self.ask(sentinel, &question).await.replace('\n', ":");
            if let Some(at) = group.servers.iter().position(|s| s.addr == addr) {
                votes[at] += 1;
            }
        }
        let best = votes.iter().position(|v| *v >= 2)?;
        Some(group.servers[best].clone())
    }

    pub(crate) fn pid(&self, group: usize, id: &str) -> Option<u32> {
        let text = std::fs::read_to_string(self.home(group, id).join("pid")).ok()?;
        let (pid, start) = text.trim().split_once(' ')?;
        let facts = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let started = facts.rsplit_once(") ")?.1.split(' ').nth(19)?;
        (started == start).then(|| pid.parse().ok())?
    }

    fn home(&self, group: usize, id: &str) -> PathBuf {
        self.dir.join(&self.groups[group].name).join(id)
    }

    /// Returns true if the machines are simulated: their clocks can be changed and their disks
    /// slowed.
    pub(crate) fn has_machines(&self) -> bool {
        self.server.is_some()
    }

    /// Changes the clock of a server's simulated machine, starting from the clock's constant error,
    /// or makes the machine's disk slower.
    pub(crate) fn machine(
        &self,
        group: usize,
        id: &str,
        part: Part,
        micros: i64,
    ) -> Result<(), Failure> {
        let server = self.groups[group].servers.iter().find(|s| s.id == id);
        let own = server.and_then(|s| self.ahead.get(&s.addr)).copied().unwrap_or(0);
        let ahead = if matches!(part, Part::Clock) { own } else { 0 };
        Ok(machine::set(&machine::of(&self.home(group, id)), part, micros + ahead)?)
    }

    /// Returns true if this server's process has loaded the library `machine.so`. Only then can its
    /// machine be disturbed.
    pub(crate) fn on_machine(&self, group: usize, id: &str) -> bool {
        let maps = self.pid(group, id).map(|pid| format!("/proc/{pid}/maps"));
        maps.and_then(|m| std::fs::read_to_string(m).ok()).is_some_and(|m| m.contains("machine.so"))
    }

    /// Applies packet-filter rules in the network in which the packets arrive. This is the network
    /// of a client, or the network of the groups for `None`.
    pub(crate) async fn rules(&self, client: Option<u8>, rules: &str) -> Result<(), Failure> {
        let net = match client {
            None => format!("--net=/run/netns/{}", self.netns),
            Some(n) => format!("--net=/proc/{}/ns/net", self.holders[usize::from(n) - 1].id()),
        };
        let mut command = tokio::process::Command::new("nsenter");
        command.args([&*net, "--", "nft", rules]).process_group(0);
        good("nft", command.output().await?)?;
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
        let down = Command::new(script("down")).arg(&self.dir).process_group(0).output();
        if let Err(e) = down.map_err(Failure::from).and_then(|out| good("down", out)) {
            eprintln!("nemesis: {e}");
        }
    }
}

/// Returns a random clock error of at most `most`. Half of the errors are exactly `most`, positive
/// or negative.
fn off(dice: &mut StdRng, most: i64) -> i64 {
    match dice.random_range(0..4) {
        0 => most,
        1 => -most,
        _ => dice.random_range(-most..=most),
    }
}

pub(crate) fn hold() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(|_| ())
}

pub(crate) fn signal(pid: u32, name: &str) {
    let _ =
        Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status();
}

pub(crate) fn script(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "sentinel-conf", name].iter().collect()
}

pub(crate) fn good(what: &str, out: Output) -> Result<Output, Failure> {
    if out.status.success() {
        return Ok(out);
    }
    Err(format!("{what}: {}", words(&out.stderr)).into())
}

pub(crate) fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
