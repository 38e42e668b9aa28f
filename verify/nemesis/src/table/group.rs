//! A new Sentinel group with its clients and its watcher. The methods of [`Group`] wait for states
//! of the group.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::client::{SITTING, clock_error};
use super::facts::Facts;
use super::fault::Fault;
use super::old::OldMaster;
use crate::Signals;
use crate::cut::{Cut, cut, mend};
use crate::event::{Event, EventKind, Nanos, now};
use crate::handover::Running;
use crate::ledger::{self, Shared};
use crate::world::{Failure, Place, World, signal};

/// Maximum wait for a state of the group, for example the end of a failover and its quarantine.
const PATIENCE: Duration = Duration::from_secs(75);

/// Settings of the group and the clients of one row of the failover table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// All clients use the first one.
    pub(super) groups: u8,
    pub(super) clients: u8,
    pub(super) down_after_ms: u64,
    /// Maximum lag of a replica, in seconds.
    pub(super) max_lag: u64,
    pub(super) max_ttl_ms: u64,
    /// True if a grant counts only when all replicas have it.
    pub(super) all_replicas: bool,
    /// True if all safety checks of the library are off. The check of the log of events must then
    /// find broken rules.
    pub(super) defeat: bool,
}

impl Shape {
    /// Returns the failover window L, the time for which a replaced master may still grant, as the
    /// library derives it from the group's settings.
    pub(super) fn window(self) -> Nanos {
        (self.max_lag + 2) * 1_000_000_000
    }
}

/// Waits for signals that end the program.
pub(super) struct Stop(pub(super) Signals);

impl Stop {
    pub(super) async fn wait(&mut self, length: Duration) -> Result<(), Failure> {
        if self.0.within(length).await {
            return Err("interrupted; everything is taken down".into());
        }
        Ok(())
    }
}

pub(super) struct Group {
    // Fields are dropped in this order, so the processes end before their networks.
    processes: Vec<Child>,
    serving: JoinHandle<std::io::Result<()>>,
    pub(super) ledger: Shared,
    pub(super) world: World,
    pub(super) shape: Shape,
    cuts: Vec<Cut>,
}

impl Group {
    pub(super) fn up(shape: Shape, ledger: Shared) -> Result<Self, Failure> {
        let (down_after, max_lag) = (shape.down_after_ms.to_string(), shape.max_lag.to_string());
        let groups = shape.groups.to_string();
        let max_lag = if shape.defeat { "0" } else { &max_lag };
        let words = ["--groups", &groups, "--down-after", &down_after, "--max-lag", max_lag];
        let words = [&words[..], &["--sentinels-apart"]].concat();
        let world = World::of(shape.clients, &words, None)?;
        let listener = UnixListener::bind(world.socket())?;
        let serving = tokio::task::spawn_local(ledger::serve(ledger.clone(), listener));
        let mut group =
            Self { processes: Vec::new(), serving, ledger, world, shape, cuts: Vec::new() };
        let mut watcher = group.world.inside();
        watcher.arg(std::env::current_exe()?).arg("table-watch");
        group.tell_of_group(&mut watcher);
        for server in &group.world.groups[0].servers {
            watcher.args(["--server", &server.addr]);
        }
        group.start(watcher)?;
        Ok(group)
    }

    fn tell_of_group(&self, command: &mut Command) {
        let group = &self.world.groups[0];
        command.arg("--ledger").arg(self.world.socket()).args(["--group", &group.name]);
        for sentinel in &group.sentinels {
            command.args(["--sentinel", sentinel]);
        }
    }

    fn start(&mut self, mut command: Command) -> Result<(), Failure> {
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        self.processes.push(command.stdin(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Starts the clients. Waits until they hold the locks that they keep all the time, and have
    /// worked for some time.
    pub(super) async fn clients(&mut self, stop: &mut Stop) -> Result<(), Failure> {
        for n in 1..=self.shape.clients {
            let mut client = self.world.in_client(n);
            client.arg(std::env::current_exe()?).arg("table-client");
            self.tell_of_group(&mut client);
            let (id, of) = (n.to_string(), self.shape.clients.to_string());
            let max_ttl = self.shape.max_ttl_ms.to_string();
            client.args(["--id", &id, "--of", &of, "--max-ttl", &max_ttl]);
            if self.shape.all_replicas {
                client.arg("--all-replicas");
            }
            if self.shape.defeat {
                client.arg("--defeat");
            }
            self.start(client)?;
        }
        let seats = usize::from(self.shape.clients) * usize::from(SITTING);
        self.until(stop, now(), "all clients to hold their locks", |events| {
            let sits = |e: &&Event| match &e.kind {
                EventKind::Held { name, .. } => name.starts_with("sit-"),
                _ => false,
            };
            (events.iter().filter(sits).count() >= seats).then_some(())
        })
        .await?;
        stop.wait(Duration::from_secs(2)).await
    }

    pub(super) fn name(&self) -> &str {
        &self.world.groups[0].name
    }

    /// Returns the address of the server `n`, counted from 0. Server 0 is the first master.
    pub(super) fn server(&self, n: usize) -> &str {
        &self.world.groups[0].servers[n].addr
    }

    pub(super) fn near(&self) -> Vec<u8> {
        (1..=self.shape.clients / 2).collect()
    }

    pub(super) fn far(&self) -> Vec<u8> {
        (self.shape.clients / 2 + 1..=self.shape.clients).collect()
    }

    /// Sends a command to the server `n`. Returns an error if the reply is not `OK`.
    pub(super) async fn ask_ok(&self, n: usize, words: &[&str]) -> Result<(), Failure> {
        let answer = self.world.ask(self.server(n), words).await;
        if answer == "OK" { Ok(()) } else { Err(format!("{}: {answer}", words.join(" ")).into()) }
    }

    pub(super) async fn cut(&mut self, near: &[Place], far: &[Place]) -> Result<(), Failure> {
        self.cuts = Cut::both_ways(near, far);
        cut(&self.world, 1, &self.cuts).await
    }

    pub(super) async fn mend(&mut self) -> Result<Nanos, Failure> {
        let cuts = std::mem::take(&mut self.cuts);
        mend(&self.world, 1, &cuts).await?;
        Ok(now())
    }

    pub(super) fn watch_old(&self) -> Result<OldMaster, Failure> {
        let mut command = self.world.inside();
        command.arg(std::env::current_exe()?).arg("table-watch");
        self.tell_of_group(&mut command);
        OldMaster::watch(&self.world, self.server(0), command)
    }

    /// Reads the log repeatedly until `shown` returns a value. Fails when `PATIENCE` has passed
    /// since the time `since`.
    pub(super) async fn until<T>(
        &self,
        stop: &mut Stop,
        since: Nanos,
        what: &str,
        mut shown: impl FnMut(&[Event]) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            if let Some(found) = shown(self.ledger.borrow().so_far()) {
                return Ok(found);
            }
            if now() - since > PATIENCE.as_nanos() as u64 {
                return Err(format!("waited {PATIENCE:?} for {what}").into());
            }
            stop.wait(Duration::from_millis(100)).await?;
        }
    }

    /// Waits until a majority of the Sentinels reports another master than at the time `since`.
    /// Returns the time of this change.
    pub(super) async fn until_named(
        &self,
        since: Nanos,
        stop: &mut Stop,
    ) -> Result<Nanos, Failure> {
        self.until(stop, since, "a new master to be named", |events| {
            let facts = Facts::of(events);
            let (at, master) = facts.master()?;
            (at > since && facts.named_at(since) != Some(master)).then_some(at)
        })
        .await
    }

    /// Waits until the master that the Sentinels report accepts writes and its quarantine has
    /// ended. Then waits two more seconds.
    pub(super) async fn until_served(
        &mut self,
        fault: Fault,
        since: Nanos,
        stop: &mut Stop,
    ) -> Result<(), Failure> {
        let writable = |events: &[Event]| {
            let facts = Facts::of(events);
            let (named, master) = facts.master()?;
            let writable = facts.writable(master, since).filter(|at| *at > since)?;
            Some((named.max(writable), master.to_string()))
        };
        self.until(stop, since, "a master to take writes", writable).await?;
        self.until(stop, since, "the new master to be through its quarantine", |events| {
            let facts = Facts::of(events);
            let (begun, master) = writable(events)?;
            let ready = if fault.is_seamless() {
                begun
            } else {
                facts.quarantine_ends(&master).filter(|ends| *ends > since)?
            };
            (now() > begun.max(ready) + 2_000_000_000).then_some(())
        })
        .await
    }

    /// Stops all Sentinels for three seconds. They are then in tilt: they begin no failover for 30
    /// s.
    pub(super) async fn tilt(&self, stop: &mut Stop) -> Result<(), Failure> {
        let ids = ["sa1", "sa2", "sa3"];
        let pids: Vec<u32> = ids.iter().filter_map(|id| self.world.pid(0, id)).collect();
        for pid in &pids {
            signal(*pid, "STOP");
        }
        let waited = stop.wait(Duration::from_secs(3)).await;
        for pid in &pids {
            signal(*pid, "CONT");
        }
        waited?;
        stop.wait(Duration::from_millis(500)).await
    }

    pub(super) fn hand_over(&self) -> Result<Running, Failure> {
        Running::begin(&self.world, 0, clock_error(self.shape.max_ttl_ms))
    }

    /// Waits until each of the first `sentinels` Sentinels reports that both replicas are healthy
    /// and that one of them has the priority 10.
    pub(super) async fn until_ready_for_failover(
        &self,
        sentinels: usize,
        stop: &mut Stop,
    ) -> Result<(), Failure> {
        let begun = now();
        loop {
            stop.wait(Duration::from_millis(500)).await?;
            let question = ["SENTINEL", "REPLICAS", self.name()];
            let mut good = true;
            for sentinel in self.world.groups[0].sentinels.iter().take(sentinels) {
                let text = self.world.ask(sentinel, &question).await;
                good &= text.matches("\nok\n").count() >= 2 && text.contains("\n10\n");
            }
            if good {
                return Ok(());
            }
            if now() - begun > PATIENCE.as_nanos() as u64 {
                return Err("the Sentinels do not see two good replicas".into());
            }
        }
    }

    /// Requests failovers until the server `n` is the master.
    pub(super) async fn until_master_is(&self, n: usize, stop: &mut Stop) -> Result<(), Failure> {
        let begun = now();
        loop {
            self.until_ready_for_failover(1, stop).await?;
            if self.world.break_(&["failover", self.name()]).await.is_ok() {
                break;
            }
            if now() - begun > PATIENCE.as_nanos() as u64 {
                return Err("no Sentinel would fail back".into());
            }
        }
        let server = self.server(n).to_owned();
        self.until(stop, begun, "the first master to be master again", |events| {
            Facts::of(events).master().filter(|(_, m)| ***m == *server).map(|_| ())
        })
        .await
    }

    pub(super) async fn end(mut self) -> Result<Vec<Event>, Failure> {
        for process in &mut self.processes {
            if let Some(status) = process.try_wait()? {
                return Err(format!("a client or the watcher ended by itself: {status}").into());
            }
        }
        self.kill();
        // The last lines of the clients may still be in the sockets. Wait until no more events
        // arrive.
        let mut before = usize::MAX;
        while self.ledger.borrow().events() != before {
            before = self.ledger.borrow().events();
            sleep(Duration::from_millis(100)).await;
        }
        let mut events = self.ledger.borrow_mut().close()?;
        crate::judge::sort(&mut events);
        Ok(events)
    }

    fn kill(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        self.serving.abort();
    }
}
