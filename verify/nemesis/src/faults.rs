//! Injects faults into the running servers and clients of `nemesis`, and ends the faults.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::client::CLOCK_ERROR;
use crate::clients::Clients;
use crate::cut::{Cut, cut, mend};
use crate::detour::Detour;
use crate::event::EventKind;
use crate::handover::Running;
use crate::kind::{Kind as K, Lane, PlannedFault};
use crate::ledger::Shared;
use crate::machine::Part;
use crate::world::{Failure, Group, Place, Server, World, signal};

/// Time for which a stuttering master is stopped. Between two stops the master runs for a third of
/// this time.
const STUTTER: Duration = Duration::from_millis(180);

/// Maximum time until another master is promoted.
const PROMOTED: Duration = Duration::from_secs(15);

/// Action that ends a fault.
enum Undo {
    Nothing,
    Restart(Vec<String>),
    Resume(String),
    Mend(Vec<Cut>),
    Spawn(u8),
    ResumeClient(u8),
    Machine(String, Part),
    LeadHome(Detour),
}

/// Signal that becomes true when no more faults may begin.
pub(crate) type Stop = watch::Receiver<bool>;

pub(crate) struct Faults {
    pub(crate) world: Rc<World>,
    pub(crate) clients: Rc<Clients>,
    pub(crate) ledger: Shared,
    begun: Instant,
    count: RefCell<u32>,
    /// Names of the servers and clients with a current fault. Two sequences of faults (lanes) run
    /// at the same time, and never use the same server or client at once.
    busy: RefCell<BTreeSet<String>>,
}

impl Faults {
    pub(crate) fn new(world: Rc<World>, clients: Rc<Clients>, ledger: Shared) -> Self {
        let (count, busy) = (RefCell::new(0), RefCell::default());
        Self { world, clients, ledger, begun: Instant::now(), count, busy }
    }

    /// Injects the faults of one sequence (lane) one after another until `stop`. Before this method
    /// returns, it ends the last fault. It also waits until every script that injects or ends a
    /// fault has exited.
    pub(crate) async fn run(&self, lane: Lane, mut stop: Stop) -> Result<(), Failure> {
        let rest = lane.rest;
        for planned in lane {
            if wait(&mut stop, planned.gap).await {
                break;
            }
            let begun = Instant::now();
            let Some(id) = self.fault(&planned, &mut stop).await? else { continue };
            self.ledger.borrow_mut().note(EventKind::Healed { id })?;
            let rest =
                if planned.patient { rest.saturating_sub(begun.elapsed()) } else { Duration::ZERO };
            if wait(&mut stop, rest).await {
                break;
            }
        }
        Ok(())
    }

    /// Injects one fault and ends it. Returns `None` if no server or client was available for this
    /// fault.
    async fn fault(&self, planned: &PlannedFault, stop: &mut Stop) -> Result<Option<u32>, Failure> {
        let Some(victims) = self.victims(planned).await else { return Ok(None) };
        let names: BTreeSet<_> = victims.names().into_iter().collect();
        if !self.busy.borrow().is_disjoint(&names) {
            return Ok(None);
        }
        self.busy.borrow_mut().extend(names.iter().cloned());
        let id = *self.count.borrow() + 1;
        let mut target = names.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        if matches!(planned.kind, K::FlushTwo | K::EmptyTwo | K::FailoverTwo | K::Elsewhere) {
            target = format!("{target} and {}", self.next_group(planned.group).name);
        }
        // The fault is logged before it begins, so its effects come later in the log.
        let kind = planned.kind.name().into();
        *self.count.borrow_mut() = id;
        self.ledger.borrow_mut().note(EventKind::Fault { id, kind, target: (&*target).into() })?;
        let at = self.begun.elapsed().as_secs_f64();
        let line = format!("{at:7.1} s  {} ({target})", planned.kind.name());
        let struck = self.strike(id, planned, &victims, stop).await;
        match struck {
            Ok(undo) => {
                println!("{line}, {:.1} s", planned.length.as_secs_f64());
                // `strike` returns only after the whole stutter, so no further wait is needed.
                if planned.kind != K::StutterMaster {
                    wait(stop, planned.length).await;
                }
                self.undo(id, planned.group, undo).await;
            }
            Err(e) => {
                println!("{line} failed: {e}");
                self.ledger.borrow_mut().note(EventKind::Missed { id })?;
            }
        }
        self.busy.borrow_mut().retain(|b| !names.contains(b));
        Ok(Some(id))
    }

    async fn victims(&self, planned: &PlannedFault) -> Option<Victims> {
        if matches!(planned.kind, K::ClockStep | K::SlowDisk) && !self.world.has_machines() {
            return None;
        }
        let group = &self.world.groups[planned.group];
        let pick = planned.pick as usize;
        let master = self.world.master(planned.group).await?;
        Some(match planned.kind {
            K::KillReplica | K::FreezeReplica => {
                let mut replicas = group.servers.iter().filter(|s| s.id != master.id);
                Victims::Server(replicas.nth(pick % 2).cloned()?)
            }
            K::KillSentinel | K::FreezeSentinel => {
                Victims::Sentinel(format!("s{}", group.servers[pick % 3].id))
            }
            K::KillClient | K::FreezeClient | K::IsolateClient | K::OneWayClient => {
                Victims::Client((pick % usize::from(self.clients.count())) as u8 + 1)
            }
            _ => Victims::Server(master),
        })
    }

    async fn strike(
        &self,
        id: u32,
        planned: &PlannedFault,
        victims: &Victims,
        stop: &mut Stop,
    ) -> Result<Undo, Failure> {
        match victims {
            Victims::Client(n) => self.strike_client(id, planned, *n).await,
            Victims::Sentinel(id) => self.strike_process(planned, id).await,
            Victims::Server(server) => match planned.kind {
                K::KillReplica | K::FreezeReplica | K::KillMaster | K::FreezeMaster => {
                    self.strike_process(planned, &server.id).await
                }
                _ => self.strike_master(id, planned, server, stop).await,
            },
        }
    }

    async fn strike_client(&self, id: u32, planned: &PlannedFault, n: u8) -> Result<Undo, Failure> {
        let (client, all) = ([Place::Client(n)], self.boxes(|_, _| true));
        Ok(match planned.kind {
            K::KillClient => {
                self.clients.kill(n)?;
                Undo::Spawn(n)
            }
            K::FreezeClient if self.clients.freeze(n) => Undo::ResumeClient(n),
            K::IsolateClient => self.cut(id, Cut::both_ways(&client, &all)).await?,
            K::OneWayClient if planned.pick & 8 == 0 => {
                self.cut(id, Cut::one_way(client.into(), all)).await?
            }
            K::OneWayClient => self.cut(id, Cut::one_way(all, client.into())).await?,
            _ => Undo::Nothing,
        })
    }

    async fn strike_process(&self, planned: &PlannedFault, id: &str) -> Result<Undo, Failure> {
        let group = &*self.world.groups[planned.group].name;
        if matches!(planned.kind, K::FreezeMaster | K::FreezeReplica | K::FreezeSentinel) {
            self.world.break_(&["freeze", group, "--server", id]).await?;
            return Ok(Undo::Resume(id.to_owned()));
        }
        self.world.break_(&["kill", group, "--server", id]).await?;
        Ok(Undo::Restart(vec![id.to_owned()]))
    }

    async fn strike_master(
        &self,
        id: u32,
        planned: &PlannedFault,
        master: &Server,
        stop: &mut Stop,
    ) -> Result<Undo, Failure> {
        let (group, name) = (planned.group, &*self.world.groups[planned.group].name);
        let own = [Place::Box(group + 1, master.number)];
        let others = self.boxes(|g, b| g == group + 1 && b != master.number);
        let clients: Vec<_> = (1..=self.clients.count()).map(Place::Client).collect();
        let on_master = |action| [action, name, "--server", &*master.id];
        match planned.kind {
            K::IsolateMaster => return self.cut(id, Cut::both_ways(&own, &others)).await,
            K::IsolateBox => {
                let rest = [others, clients].concat();
                return self.cut(id, Cut::both_ways(&own, &rest)).await;
            }
            K::OneWayMaster if planned.pick & 8 == 0 => {
                return self.cut(id, Cut::one_way(own.into(), others)).await;
            }
            K::OneWayMaster => return self.cut(id, Cut::one_way(others, own.into())).await,
            K::Split => {
                let (with, without) = clients.split_at(clients.len() / 2);
                let (a, b) = ([&own, with].concat(), [&others, without].concat());
                return self.cut(id, Cut::both_ways(&a, &b)).await;
            }
            K::KillBox => {
                let sentinel = format!("s{}", master.id);
                self.world.break_(&on_master("kill")).await?;
                // Two sequences of faults run at the same time. The other one may have killed this
                // Sentinel before.
                let too = self.world.break_(&["kill", name, "--server", &sentinel]).await.is_ok();
                let sentinel = too.then_some(sentinel);
                return Ok(Undo::Restart(
                    [master.id.clone()].into_iter().chain(sentinel).collect(),
                ));
            }
            K::Failover => self.world.break_(&["failover", name]).await?,
            K::FlushAll => self.world.break_(&on_master("flushall")).await?,
            K::RestartEmpty => self.world.break_(&on_master("restart-empty")).await?,
            K::RestartMaster => self.world.break_(&on_master("restart")).await?,
            K::FlushTwo => self.both("flushall", (name, &master.id), group).await?,
            K::EmptyTwo => self.both("restart-empty", (name, &master.id), group).await?,
            K::FailoverTwo => {
                self.world.break_(&["failover", name]).await?;
                self.world.break_(&["failover", &self.next_group(group).name]).await?;
            }
            K::Handover => self.hand_over(planned).await?,
            K::PauseMaster => {
                let length = planned.length.as_millis().to_string();
                self.world.ask(&master.addr, &["CLIENT", "PAUSE", &length, "ALL"]).await;
            }
            K::StutterMaster => self.stutter(planned, master, stop).await,
            K::Returning => return self.returning(planned, master, stop).await,
            K::BackUp => {
                self.world.ask(&master.addr, &["--rdb", "-"]).await;
            }
            K::Reset => {
                let sentinels = self.world.groups[group].sentinels.iter();
                // One of them, or all of them.
                let some = sentinels.skip(if planned.pick & 8 == 0 { 2 } else { 0 });
                for sentinel in some {
                    self.world.ask(sentinel, &["SENTINEL", "RESET", name]).await;
                }
            }
            K::Tilt => self.tilt(group, stop).await,
            K::Elsewhere => return self.lead_elsewhere(id, planned, master).await,
            K::ClockStep => return self.machine(planned, &master.id, Part::Clock),
            K::SlowDisk => return self.machine(planned, &master.id, Part::Disk),
            other => return Err(format!("{} is not done to a master", other.name()).into()),
        }
        Ok(Undo::Nothing)
    }

    fn next_group(&self, group: usize) -> &Group {
        &self.world.groups[(group + 1) % self.world.groups.len()]
    }

    async fn both(
        &self,
        action: &str,
        (name, master): (&str, &str),
        group: usize,
    ) -> Result<(), Failure> {
        let next = (group + 1) % self.world.groups.len();
        let second = self.world.master(next).await.ok_or("the other group has no master")?;
        let first = [action, name, "--server", master];
        let second = [action, &*self.world.groups[next].name, "--server", &*second.id];
        tokio::try_join!(self.world.break_(&first), self.world.break_(&second))?;
        Ok(())
    }

    /// Performs a planned handover. Kills the process of one handover in four before it has ended.
    async fn hand_over(&self, planned: &PlannedFault) -> Result<(), Failure> {
        let mut running = Running::begin(&self.world, planned.group, CLOCK_ERROR)?;
        let step = match planned.pick >> 16 & 7 {
            0 => "is closed",
            1 => "is promoted",
            _ => "goes on where",
        };
        if let Err(why) = running.until(step).await {
            println!("            {why}");
        }
        Ok(())
    }

    /// Stops and continues the server repeatedly, to imitate a machine that gives the server almost
    /// no time.
    async fn stutter(&self, planned: &PlannedFault, master: &Server, stop: &mut Stop) {
        let until = Instant::now() + planned.length;
        while Instant::now() < until && !*stop.borrow() {
            let Some(pid) = self.world.pid(planned.group, &master.id) else { return };
            signal(pid, "STOP");
            sleep(STUTTER).await;
            signal(pid, "CONT");
            sleep(STUTTER / 3).await;
        }
    }

    /// Freezes the master until another one is promoted, and some seconds longer. Then the first
    /// master thaws, and the others die. The Sentinels promote the first one, which never learnt
    /// that it was replaced. The others are restarted at the end of the fault.
    async fn returning(
        &self,
        planned: &PlannedFault,
        master: &Server,
        stop: &mut Stop,
    ) -> Result<Undo, Failure> {
        let group = planned.group;
        let pid = self.world.pid(group, &master.id).ok_or("the master does not run")?;
        signal(pid, "STOP");
        let begun = Instant::now();
        let replaced = loop {
            if self.world.master(group).await.is_some_and(|m| m.id != master.id) {
                break true;
            }
            if begun.elapsed() > PROMOTED || wait(stop, STUTTER).await {
                break false;
            }
        };
        // From no grant at the new master to some of them after its quarantine.
        wait(stop, Duration::from_millis(planned.pick >> 16 & 0x3fff)).await;
        signal(pid, "CONT");
        if !replaced {
            return Err("nobody was promoted".into());
        }
        wait(stop, Duration::from_millis(1_500)).await;
        let servers = self.world.groups[group].servers.iter();
        let others: Vec<_> = servers.filter(|s| s.id != master.id).map(|s| s.id.clone()).collect();
        for id in &others {
            if let Some(pid) = self.world.pid(group, id) {
                signal(pid, "KILL");
            }
        }
        Ok(Undo::Restart(others))
    }

    /// Stops the group's Sentinels for three seconds. They then begin no failover for 30 s.
    async fn tilt(&self, group: usize, stop: &mut Stop) {
        let ids = self.world.groups[group].servers.iter().map(|s| format!("s{}", s.id));
        let pids: Vec<_> = ids.filter_map(|id| self.world.pid(group, &id)).collect();
        for pid in &pids {
            signal(*pid, "STOP");
        }
        wait(stop, Duration::from_secs(3)).await;
        for pid in &pids {
            signal(*pid, "CONT");
        }
    }

    /// For one client, or for all, the master's address leads to the next group's master.
    async fn lead_elsewhere(
        &self,
        id: u32,
        planned: &PlannedFault,
        master: &Server,
    ) -> Result<Undo, Failure> {
        let next = (planned.group + 1) % self.world.groups.len();
        let other = self.world.master(next).await.ok_or("the other group has no master")?;
        let all = 1..=self.clients.count();
        let one = (planned.pick >> 16) as usize % all.len();
        let detour = Detour {
            table: format!("nemesis_detour_{id}"),
            clients: if planned.pick & 8 == 0 {
                all.collect()
            } else {
                all.skip(one).take(1).collect()
            },
            from: master.addr.clone(),
            to: other.addr,
        };
        let begun = detour.begin(&self.world).await;
        if begun.is_err() {
            let _ = detour.end(&self.world).await;
        }
        begun.map(|()| Undo::LeadHome(detour))
    }

    /// Disturbs a machine until the end of the fault. Either its clock is wrong by 0.1 s to 20 s,
    /// or each flush to disk takes 0.3 s to 2.5 s longer.
    fn machine(&self, planned: &PlannedFault, id: &str, part: Part) -> Result<Undo, Failure> {
        let pick = i64::try_from(planned.pick >> 16).unwrap_or(0);
        let micros = match part {
            Part::Clock if planned.pick & 8 == 0 => -100_000 - pick % 19_900_000,
            Part::Clock => 100_000 + pick % 19_900_000,
            Part::Disk => 300_000 + pick % 2_200_000,
        };
        if !self.world.on_machine(planned.group, id) {
            return Err(format!("{id} is not on a machine that can be disturbed").into());
        }
        self.world.machine(planned.group, id, part, micros)?;
        Ok(Undo::Machine(id.to_owned(), part))
    }

    async fn cut(&self, id: u32, cuts: Vec<Cut>) -> Result<Undo, Failure> {
        let made = cut(&self.world, id, &cuts).await;
        if made.is_err() {
            // After an error, some of the network cuts may have begun, so all of them are ended.
            let _ = mend(&self.world, id, &cuts).await;
        }
        made.map(|()| Undo::Mend(cuts))
    }

    async fn undo(&self, id: u32, of: usize, undo: Undo) {
        let group = &*self.world.groups[of].name;
        let mut undone = Ok(());
        match undo {
            Undo::Nothing => {}
            Undo::Restart(ids) => {
                for id in ids {
                    let restarted = self.world.break_(&["restart", group, "--server", &id]).await;
                    undone = undone.and(restarted);
                }
            }
            Undo::Resume(id) => {
                undone = self.world.break_(&["resume", group, "--server", &id]).await;
            }
            Undo::Mend(cuts) => undone = mend(&self.world, id, &cuts).await,
            Undo::Spawn(n) => undone = self.clients.spawn(n),
            Undo::Machine(id, part) => {
                undone = self.world.machine(of, &id, part, 0);
            }
            Undo::ResumeClient(n) => undone = self.clients.resume(n),
            Undo::LeadHome(detour) => undone = detour.end(&self.world).await,
        }
        if let Err(e) = undone {
            println!("            fault {id} was not undone at once: {e}");
        }
    }

    /// Continues all servers that are still stopped, and restarts all servers that are down.
    pub(crate) async fn heal(&self) {
        for group in &self.world.groups {
            // If no server is stopped or down, the script `sentinel-conf/break` fails. This is the
            // normal case, so the error is ignored.
            let _ = self.world.break_(&["resume", &group.name]).await;
            let _ = self.world.break_(&["restart", &group.name]).await;
        }
    }

    fn boxes(&self, which: impl Fn(usize, u8) -> bool) -> Vec<Place> {
        let all = (1..=self.world.groups.len()).flat_map(|g| (1..=3).map(move |b| (g, b)));
        all.filter(|(g, b)| which(*g, *b)).map(|(g, b)| Place::Box(g, b)).collect()
    }
}

/// Servers or clients that a fault affects.
enum Victims {
    Server(Server),
    Sentinel(String),
    Client(u8),
}

impl Victims {
    fn names(&self) -> Vec<String> {
        match self {
            Self::Server(s) => vec![s.id.clone()],
            Self::Sentinel(id) => vec![id.clone()],
            Self::Client(n) => vec![format!("client {n}")],
        }
    }
}

/// Waits for `length`. Returns true at once if `stop` becomes true.
async fn wait(stop: &mut Stop, length: Duration) -> bool {
    timeout(length, stop.wait_for(|stopped| *stopped)).await.is_ok()
}
