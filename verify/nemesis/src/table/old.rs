//! The old master, which a failover replaced while it was frozen: the commands of clients that it
//! executed after it was resumed, and the number of those commands that were sent after the
//! Sentinels reported the new master.
//!
//! If a frozen server executes a command late, the time of sending is not visible, because the
//! server's kernel accepts bytes during the freeze. So the number of unread bytes of each
//! connection is read twice: when the new master is reported, and just before the old master is
//! resumed.
//!
//! A command counts as sent late in three cases: its connection did not exist at the first reading,
//! its connection has received bytes between the readings, or its client had not closed the
//! connection at the second reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::world::{Failure, World};

/// Commands that are not work of a client, for example those of the handshake.
const HARMLESS: [&str; 13] = [
    "HELLO",
    "CLIENT",
    "INFO",
    "CONFIG",
    "SCRIPT",
    "PING",
    "SELECT",
    "AUTH",
    "TIME",
    "COMMAND",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "MONITOR",
];
/// Prefix of all clients' addresses.
const CLIENTS: &str = "10.77.100.";

/// Number of unread bytes of each connection. The flag is true if the client has closed the
/// connection.
type Sockets = BTreeMap<String, (u64, bool)>;

pub(super) struct OldMaster {
    monitor: Child,
    lines: PathBuf,
    addr: String,
    named: Sockets,
    before: Sockets,
    /// Wall-clock time of the server's resume, in seconds since 1970.
    resumed: f64,
}

impl OldMaster {
    pub(super) fn watch(world: &World, addr: &str, mut watcher: Command) -> Result<Self, Failure> {
        let lines = world.socket().with_file_name("monitor");
        watcher.args(["--monitor", addr]).arg("--into").arg(&lines);
        std::os::unix::process::CommandExt::process_group(&mut watcher, 0);
        let monitor = watcher.stdin(Stdio::null()).spawn()?;
        let (named, before) = (Sockets::new(), Sockets::new());
        // Some commands must be recorded before the fault, as a proof that the recording works.
        std::thread::sleep(Duration::from_millis(500));
        Ok(Self { monitor, lines, addr: addr.to_owned(), named, before, resumed: 0.0 })
    }

    /// Reads the number of unread bytes of each connection. Call this when the Sentinels report the
    /// new master.
    pub(super) fn named(&mut self, world: &World) -> Result<(), Failure> {
        self.named = sockets(world, &self.addr)?;
        Ok(())
    }

    /// Reads the number of unread bytes of each connection. Call this just before the server is
    /// resumed.
    pub(super) fn before_resume(&mut self, world: &World) -> Result<(), Failure> {
        self.before = sockets(world, &self.addr)?;
        self.resumed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        Ok(())
    }

    /// Returns the number of scripts and writes of clients that the server executed, although they
    /// were sent after the Sentinels reported the new master.
    pub(super) fn sent_after(&mut self) -> Result<usize, Failure> {
        self.monitor.kill()?;
        self.monitor.wait()?;
        let text = fs::read_to_string(&self.lines)?;
        let seen: Vec<_> = text.lines().filter_map(Ran::parse).collect();
        let before: BTreeSet<_> =
            seen.iter().filter(|r| r.at < self.resumed && r.is_work()).map(Ran::host).collect();
        if before.len() < 2 {
            return Err("MONITOR showed no work of clients before the freeze".into());
        }
        let after = seen.iter().filter(|r| r.at >= self.resumed && r.is_work());
        Ok(after.filter(|r| sent_late(r.peer, &self.named, &self.before)).count())
    }
}

impl Drop for OldMaster {
    fn drop(&mut self) {
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
    }
}

/// Returns true if unread bytes of this connection may have been sent after the Sentinels reported
/// (named) the new master. `named` is the reading at that time, `before` the one before the resume.
fn sent_late(peer: &str, named: &Sockets, before: &Sockets) -> bool {
    let (Some((bytes, was_closed)), Some((later, closed))) = (named.get(peer), before.get(peer))
    else {
        return true;
    };
    // The kernel counts the end of a stream as one unread byte.
    let end = u64::from(*closed && !was_closed);
    !closed || *later > bytes + end
}

/// Command of a client in the output of MONITOR.
struct Ran<'a> {
    at: f64,
    peer: &'a str,
    command: &'a str,
}

impl<'a> Ran<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (at, rest) = line.split_once(" [")?;
        let (from, words) = rest.split_once("] \"")?;
        let peer = from.split_once(' ')?.1;
        let command = words.split('"').next()?;
        peer.starts_with(CLIENTS).then_some(Self { at: at.parse().ok()?, peer, command })
    }

    fn is_work(&self) -> bool {
        !HARMLESS.iter().any(|h| h.eq_ignore_ascii_case(self.command))
    }

    fn host(&self) -> &'a str {
        self.peer.split(':').next().unwrap_or(self.peer)
    }
}

fn sockets(world: &World, addr: &str) -> Result<Sockets, Failure> {
    let pid = world.pid(0, "a1").ok_or("the old master does not run")?;
    let text = fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    Ok(text.lines().skip(1).filter_map(|line| socket(line, addr)).collect())
}

/// Parses a line `sl local remote state tx:rx …`. Addresses are hexadecimal. The bytes of a host
/// are in reverse order.
fn socket(line: &str, addr: &str) -> Option<(String, (u64, bool))> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    let closed = words.next()? == "08";
    let unread = u64::from_str_radix(words.next()?.split_once(':')?.1, 16).ok()?;
    (local == addr && remote.starts_with(CLIENTS)).then_some((remote, (unread, closed)))
}

fn address(hex: &str) -> Option<String> {
    let (host, port) = hex.split_once(':')?;
    let host = u32::from_str_radix(host, 16).ok()?.swap_bytes();
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(format!("{}:{port}", std::net::Ipv4Addr::from(host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_late_is_told_from_what_ran_late() {
        let peer = |n: u8| format!("10.77.100.{n}:4000");
        let at = |list: &[(u8, u64, bool)]| -> Sockets {
            list.iter().map(|(n, bytes, closed)| (peer(*n), (*bytes, *closed))).collect()
        };
        let named = at(&[(1, 100, true), (2, 100, false), (3, 100, true), (4, 100, false)]);
        let before =
            at(&[(1, 100, true), (2, 101, true), (3, 150, true), (4, 100, false), (5, 9, true)]);
        let late: Vec<_> = (1..=6).filter(|n| sent_late(&peer(*n), &named, &before)).collect();
        // Connection 3 has received bytes, connection 4 is still open, and connections 5 and 6 are
        // new.
        assert_eq!(late, [3, 4, 5, 6]);
    }

    #[test]
    fn lines_of_monitor_and_of_the_kernel() {
        let lua = "1700000000.123456 [0 lua] \"SET\" \"k\"";
        assert!(Ran::parse(lua).is_none());
        let script = "1700000000.5 [0 10.77.100.3:4711] \"EVALSHA\" \"ab\"";
        let ran = Ran::parse(script).expect("a client's");
        assert!(ran.is_work() && ran.host() == "10.77.100.3" && ran.at > 1.7e9);
        let hello = "1700000000.5 [0 10.77.100.3:4711] \"hello\" \"3\"";
        assert!(!Ran::parse(hello).expect("a client's").is_work());
        let line = "   0: 01014D0A:4E21 03644D0A:1267 08 00000000:00000010 00:00000000 0 0 0 0";
        let found = socket(line, "10.77.1.1:20001");
        assert_eq!(found, Some(("10.77.100.3:4711".to_owned(), (16, true))));
    }
}
