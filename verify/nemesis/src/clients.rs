//! Starts, kills, stops and continues the client processes of a run with faults. Also watches these
//! processes, because a client must not end by itself.

use std::cell::RefCell;
use std::process::{Child, Stdio};
use std::rc::Rc;

use crate::event::{EventKind, now};
use crate::ledger::Shared;
use crate::world::{Failure, World, signal};

struct Client {
    process: Option<Child>,
    life: u16,
    /// Time at which the client process was stopped by a signal. `None` if it is not stopped.
    frozen: Option<u64>,
}

pub(crate) struct Clients {
    world: Rc<World>,
    ledger: Shared,
    seed: u64,
    /// Subcommand of this program that each client process runs.
    verb: &'static str,
    list: RefCell<Vec<Client>>,
}

impl Clients {
    pub(crate) fn start(
        world: Rc<World>,
        ledger: Shared,
        seed: u64,
        n: u8,
    ) -> Result<Self, Failure> {
        Self::start_as("client", world, ledger, seed, n)
    }

    pub(crate) fn start_as(
        verb: &'static str,
        world: Rc<World>,
        ledger: Shared,
        seed: u64,
        n: u8,
    ) -> Result<Self, Failure> {
        let list = (0..n).map(|_| Client { process: None, life: 0, frozen: None }).collect();
        let clients = Self { world, ledger, seed, verb, list: RefCell::new(list) };
        for client in 1..=n {
            clients.spawn(client)?;
        }
        Ok(clients)
    }

    pub(crate) fn count(&self) -> u8 {
        self.list.borrow().len() as u8
    }

    /// Starts a client, if it is not running.
    pub(crate) fn spawn(&self, n: u8) -> Result<(), Failure> {
        let mut list = self.list.borrow_mut();
        let client = &mut list[usize::from(n) - 1];
        if client.process.is_some() {
            return Ok(());
        }
        client.life += 1;
        let mut command = self.world.in_client(n);
        command.arg(std::env::current_exe()?).arg(self.verb);
        command.args(["--id", &n.to_string(), "--life", &client.life.to_string()]);
        command.args(["--seed", &self.seed.to_string()]);
        command.arg("--ledger").arg(self.world.socket());
        for group in &self.world.groups {
            command.args(["--group", &format!("{}={}", group.name, group.sentinels.join(","))]);
        }
        self.world.place(n, &mut command)?;
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        client.process = Some(command.stdin(Stdio::null()).spawn()?);
        self.ledger.borrow_mut().note_of(n, client.life, now(), EventKind::Born)?;
        Ok(())
    }

    pub(crate) fn signal(&self, n: u8, name: &str) {
        if let Some(process) = &self.list.borrow()[usize::from(n) - 1].process {
            signal(process.id(), name);
        }
    }

    pub(crate) fn kill(&self, n: u8) -> Result<(), Failure> {
        self.resume(n)?;
        let mut list = self.list.borrow_mut();
        let client = &mut list[usize::from(n) - 1];
        let Some(mut process) = client.process.take() else { return Ok(()) };
        process.kill()?;
        process.wait()?;
        self.ledger.borrow_mut().note_of(
            n,
            client.life,
            now(),
            EventKind::Died { wanted: true },
        )?;
        Ok(())
    }

    /// Stops a client with SIGSTOP. Returns false if the client is already stopped or not running.
    pub(crate) fn freeze(&self, n: u8) -> bool {
        let mut list = self.list.borrow_mut();
        let client = &mut list[usize::from(n) - 1];
        match &client.process {
            Some(process) if client.frozen.is_none() => {
                client.frozen = Some(now());
                signal(process.id(), "STOP");
                true
            }
            _ => false,
        }
    }

    /// Continues a stopped client with SIGCONT.
    pub(crate) fn resume(&self, n: u8) -> Result<(), Failure> {
        let mut list = self.list.borrow_mut();
        let client = &mut list[usize::from(n) - 1];
        let (Some(since), Some(process)) = (client.frozen.take(), &client.process) else {
            return Ok(());
        };
        signal(process.id(), "CONT");
        let life = client.life;
        self.ledger.borrow_mut().note_of(n, life, since, EventKind::Frozen { until: now() })?;
        Ok(())
    }

    pub(crate) fn look(&self) -> Result<(), Failure> {
        for n in 1..=self.count() {
            let ended = {
                let mut list = self.list.borrow_mut();
                let client = &mut list[usize::from(n) - 1];
                let ended = match &mut client.process {
                    Some(process) => process.try_wait()?,
                    None => None,
                };
                if let Some(status) = ended {
                    println!("client {n} ended by itself: {status}");
                    client.process = None;
                    let died = EventKind::Died { wanted: false };
                    self.ledger.borrow_mut().note_of(n, client.life, now(), died)?;
                }
                ended.is_some()
            };
            if ended {
                self.spawn(n)?;
            }
        }
        Ok(())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for n in 1..=self.count() {
            if let Err(e) = self.kill(n) {
                eprintln!("nemesis: client {n} could not be ended: {e}");
            }
        }
    }
}
