//! Child processes (servers and consumers) that end together with this process.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Failure;

/// A child process. Dropping the value kills the process. If this process dies, the kernel kills
/// the child.
pub(crate) struct Process(Child);

/// Returns a command for a new process. The kernel kills the new process when the thread that
/// started it ends. So that thread must live as long as the demo.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command.stdin(Stdio::null()).process_group(0);
    command
}

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Result<Self, Failure> {
        Ok(Self(command.spawn()?))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-s", name, &pid]).stderr(Stdio::null()).status();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)) | Err(_))
    }

    pub(crate) fn crash(&mut self) -> Result<(), Failure> {
        if self.has_ended() {
            return Err("a server that was to be killed had ended by itself".into());
        }
        self.kill();
        Ok(())
    }

    /// Fails after `within`.
    pub(crate) async fn ended(&mut self, within: Duration) -> Result<ExitStatus, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if begun.elapsed() > within {
                return Err(format!("a process has not ended within {within:?}").into());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn kill(&mut self) {
        if self.has_ended() {
            return;
        }
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn directory() -> Result<PathBuf, Failure> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("broker-demo-{}-{number}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Ports for servers. The system assigns larger ports to outgoing connections. So an outgoing
/// connection cannot take the port of a server that is down.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Number of ports in a block. A process of the demo reserves a block for its lifetime: it listens
/// on the first port of the block. So no other demo uses a port of that block.
const BLOCK: u16 = 16;

/// Returns a free port for a server. No process listens on the port, and no other demo uses it.
pub(crate) fn free_port() -> Result<u16, Failure> {
    static OWN: Mutex<Vec<(TcpListener, std::ops::Range<u16>)>> = Mutex::new(Vec::new());
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
    let mut blocks = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1_000 {
        if let Some((_, rest)) = blocks.last_mut()
            && let Some(port) = rest.find(|&port| listen(port).is_some())
        {
            return Ok(port);
        }
        let first = rand::random_range(PORTS.start / BLOCK..PORTS.end / BLOCK) * BLOCK;
        blocks.extend(listen(first).map(|held| (held, first + 1..first + BLOCK)));
    }
    Err(format!("no port of {PORTS:?} is free").into())
}
