//! Four consumer processes that die and are replaced.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::brokers::Broker;
use crate::child::DieAt;
use crate::group::Group;
use crate::ledger::Ledger;
use crate::process::{Process, command};

const CONSUMERS: usize = 4;
/// How long a consumer may take to end when it is asked to.
const END: Duration = Duration::from_secs(30);

/// What the fleet went through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Went {
    pub(crate) delivered: u64,
    pub(crate) killed: u64,
    pub(crate) died: u64,
}

/// The consumers.
pub(crate) struct Fleet {
    words: Vec<String>,
    inner: Mutex<Inner>,
    /// After how many messages at most a consumer dies by itself.
    life: u32,
    calmer: u32,
    delivered: Arc<AtomicU64>,
}

struct Inner {
    list: Vec<Process>,
    dice: StdRng,
    /// Those that die by themselves.
    started: usize,
    killed: u64,
    died: u64,
    /// From now on nobody dies by itself.
    calm: bool,
}

impl Fleet {
    pub(crate) fn start(
        broker: &Broker,
        group: &Group,
        ledger: &Ledger,
        messages: usize,
        seed: u64,
    ) -> Result<Self, Failure> {
        let mut words: Vec<String> =
            ["consumer", "--broker", broker.kind().name()].map(str::to_owned).to_vec();
        words.extend(["--uri".to_owned(), broker.uri()]);
        let socket: PathBuf = ledger.socket();
        words.extend(["--ledger".to_owned(), socket.to_string_lossy().into_owned()]);
        words.extend(["--master".to_owned(), group.name.clone()]);
        words.extend(["--sentinels".to_owned(), group.sentinels.join(",")]);
        let dice = StdRng::seed_from_u64(seed ^ 0xf1ee7);
        let calmer = broker.kind().calmer();
        let life = (400 * calmer).min(u32::try_from(messages)?);
        let inner = Inner { list: Vec::new(), dice, started: 0, killed: 0, died: 0, calm: false };
        let fleet =
            Self { words, inner: Mutex::new(inner), life, calmer, delivered: Arc::default() };
        fleet.refill()?;
        Ok(fleet)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts as many as are missing.
    pub(crate) fn refill(&self) -> Result<(), Failure> {
        let mut inner = self.inner();
        let before = inner.list.len();
        inner.list.retain_mut(|c| !c.has_ended());
        inner.died += (before - inner.list.len()) as u64;
        while inner.list.len() < CONSUMERS {
            let process = self.spawn(&mut inner)?;
            inner.list.push(process);
        }
        Ok(())
    }

    fn spawn(&self, inner: &mut Inner) -> Result<Process, Failure> {
        let program = std::env::current_exe()?;
        let mut command = command(&program.to_string_lossy());
        command.args(&self.words).stdout(Stdio::piped());
        if !inner.calm {
            // Each arrow in turn, the first time soon.
            let arrows = DieAt::value_variants();
            let at = arrows[inner.started % arrows.len()];
            let name = at.to_possible_value().ok_or("an arrow without a name")?;
            let life = if inner.started < arrows.len() { 20 } else { self.life };
            let after = inner.dice.random_range(1..life);
            inner.started += 1;
            command.args(["--die-at", name.get_name(), "--after", &format!("{after}")]);
        }
        let mut process = Process::spawn(command)?;
        let mut out = process.child().stdout.take().ok_or("no output")?;
        let delivered = Arc::clone(&self.delivered);
        // Ends with the process.
        std::thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                delivered.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        Ok(process)
    }

    /// Kills one after the other, for ever; an error if no consumer can be started.
    pub(crate) async fn torment(&self, dice: &mut StdRng) -> Failure {
        loop {
            let next =
                Instant::now() + self.calmer * Duration::from_millis(dice.random_range(700..2_500));
            while Instant::now() < next {
                if let Err(e) = self.refill() {
                    return e;
                }
                sleep(Duration::from_millis(100)).await;
            }
            let mut inner = self.inner();
            let victim = dice.random_range(0..inner.list.len().max(1));
            if victim < inner.list.len() {
                drop(inner.list.swap_remove(victim));
                inner.killed += 1;
            }
        }
    }

    /// Asks all to end, and waits for it. Those that are started later do not die by themselves.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        self.inner().calm = true;
        self.inner().list.iter().for_each(|c| c.signal("TERM"));
        let begun = Instant::now();
        while !self.inner().list.iter_mut().all(Process::has_ended) {
            if begun.elapsed() > END {
                return Err(format!("a consumer does not end within {END:?}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.inner().list.clear();
        Ok(())
    }

    pub(crate) fn ended(&self) -> Went {
        let inner = self.inner();
        let delivered = self.delivered.load(Ordering::Relaxed);
        Went { delivered, killed: inner.killed, died: inner.died }
    }
}
