//! Faults of a phase of `nemesis locks`. The servers are frozen, restarted and killed one after the
//! other, or only frozen if the phase tests the fair lock. Clients are killed at the same time.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde::Serialize;

use super::record::{self, Mode, What};
use super::{CLIENTS, Kind, QUARANTINE};
use crate::ordinary::server::Server;
use crate::world::Failure;

/// Time for which a server is frozen or down.
const AWAY: Duration = Duration::from_millis(800);
/// Time between the end of a fault and the next fault, if no server is in quarantine.
const REST: Duration = Duration::from_millis(400);
/// Longest time for which two of three servers are frozen. The clients then cannot get the lock,
/// and do their work without it.
const DARK: Duration = Duration::from_secs(5);

/// Number of faults of each kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Struck {
    pub(super) frozen: u32,
    pub(super) restarted: u32,
    pub(super) killed: u32,
    pub(super) clients_killed: u32,
}

impl Struck {
    pub(super) fn add(&mut self, other: Self) {
        self.frozen += other.frozen;
        self.restarted += other.restarted;
        self.killed += other.killed;
        self.clients_killed += other.clients_killed;
    }
}

/// Injects the faults into the servers, until the sender of `stop` is dropped.
pub(super) struct Faults<'a> {
    pub(super) servers: &'a mut [Server],
    pub(super) stop: Receiver<()>,
    pub(super) kinds: &'a [Kind],
    /// Folder with the files in which the clients record their observations.
    pub(super) dir: &'a Path,
    /// Becomes true when each kind of fault has happened once.
    pub(super) all_happened: &'a AtomicBool,
}

impl Faults<'_> {
    /// Injects faults, and leaves all servers running. The first fault hits the server `first`.
    pub(super) fn strike(&mut self, first: usize) -> Struck {
        let mut struck = Struck::default();
        let _ = if self.kinds.contains(&Kind::Fair) {
            self.freeze_in_turn(first, &mut struck)
        } else {
            self.strike_in_turn(first, &mut struck)
        };
        for server in &*self.servers {
            server.resume();
        }
        struck
    }

    /// Freezes, restarts and kills the servers one after the other, again and again. Returns `None`
    /// when the sender of `stop` is dropped.
    fn strike_in_turn(&mut self, first: usize, struck: &mut Struck) -> Option<()> {
        self.wait(REST)?;
        for n in first.. {
            let all = self.servers.len();
            let [frozen, restarted, killed] = [n, n + 1, n + 2].map(|at| at % all);
            self.freeze(frozen, struck)?;
            if self.kinds.contains(&Kind::Degrade) {
                self.darken()?;
            }
            self.servers[restarted].restart();
            struck.restarted += 1;
            self.wait(QUARANTINE)?;
            self.servers[killed].kill();
            let gone = self.wait(AWAY);
            self.servers[killed].again();
            struck.killed += 1;
            self.all_happened.store(true, Ordering::Relaxed);
            gone?;
            self.wait(QUARANTINE)?;
        }
        Some(())
    }

    /// Freezes one server after the other, again and again. Returns `None` when this part of the
    /// run (the phase) ends.
    fn freeze_in_turn(&mut self, first: usize, struck: &mut Struck) -> Option<()> {
        self.wait(REST)?;
        let all = self.servers.len();
        for n in first.. {
            self.freeze(n % all, struck)?;
            self.all_happened.store(n + 1 >= first + all, Ordering::Relaxed);
        }
        Some(())
    }

    fn freeze(&self, at: usize, struck: &mut Struck) -> Option<()> {
        self.servers[at].freeze();
        struck.frozen += 1;
        let thawed = self.wait(AWAY);
        self.servers[at].resume();
        thawed?;
        self.wait(REST)
    }

    /// Freezes two of three servers until a client has done its work without the lock.
    fn darken(&mut self) -> Option<()> {
        let begun = Instant::now();
        self.servers[1..].iter().for_each(Server::freeze);
        let mut left = Some(());
        while left.is_some() && begun.elapsed() < DARK && !self.is_degraded() {
            left = self.wait(Duration::from_millis(100));
        }
        self.servers[1..].iter().for_each(Server::resume);
        left?;
        self.wait(REST)
    }

    fn is_degraded(&self) -> bool {
        let is = |what| matches!(what, What::Held(grant) if grant.mode == Mode::Degraded);
        record::read(self.dir).is_ok_and(|lines| lines.into_iter().any(|line| is(line.what)))
    }

    /// Waits for the time `span`. Returns `None` if the phase of the run ends meanwhile.
    fn wait(&self, span: Duration) -> Option<()> {
        matches!(self.stop.recv_timeout(span), Err(RecvTimeoutError::Timeout)).then_some(())
    }
}

/// The client processes of one phase of the run, in which they use these kinds of locks. They are
/// killed when this value is dropped, or when the thread that started them ends.
pub(super) struct Clients<'a> {
    pub(super) kinds: &'a [Kind],
    pub(super) urls: &'a [String],
    pub(super) dir: &'a Path,
    pub(super) seed: u64,
    running: Vec<(Child, u16)>,
}

impl<'a> Clients<'a> {
    pub(super) fn start(
        kinds: &'a [Kind],
        urls: &'a [String],
        dir: &'a Path,
        seed: u64,
    ) -> Result<Self, Failure> {
        let mut clients = Self { kinds, urls, dir, seed, running: Vec::new() };
        for id in 1..=CLIENTS {
            let child = clients.spawn(id, 1)?;
            clients.running.push((child, 1));
        }
        Ok(clients)
    }

    fn spawn(&self, id: u8, life: u16) -> Result<Child, Failure> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(std::env::current_exe()?).arg("locks-client").arg("--dir").arg(self.dir);
        command.args(["--id", &id.to_string(), "--life", &life.to_string()]);
        command.args(["--seed", &self.seed.to_string()]);
        command.args(self.urls.iter().flat_map(|url| ["--node", url]));
        command.args(self.kinds.iter().flat_map(|kind| ["--kind", kind.name()]));
        Ok(command.stdin(Stdio::null()).spawn()?)
    }

    pub(super) fn crash_one(&mut self, dice: &mut StdRng) -> Result<(), Failure> {
        let at = dice.random_range(0..self.running.len());
        let (child, life) = &mut self.running[at];
        child.kill()?;
        child.wait()?;
        let next = *life + 1;
        let child = self.spawn(at as u8 + 1, next)?;
        self.running[at] = (child, next);
        Ok(())
    }

    /// Fails if a client has ended by itself.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        for (at, (child, _)) in self.running.iter_mut().enumerate() {
            if let Some(status) = child.try_wait()? {
                return Err(format!("client {} ended by itself: {status}", at + 1).into());
            }
        }
        Ok(())
    }

    pub(super) fn end(&mut self) {
        for (mut child, _) in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Clients<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
