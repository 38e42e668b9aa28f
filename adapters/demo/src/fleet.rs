//! The four consumer processes of the demo. The demo replaces a consumer that has died.

use std::io::Read as _;
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
use crate::child::{DELIVERED, DieAt};
use crate::group::Group;
use crate::ledger::Ledger;
use crate::process::{Process, command};

const CONSUMERS: usize = 4;
const POINTS: usize = 5;
/// Maximum number of messages of a consumer before it aborts itself at its crash point. This number
/// is for a crash point at which no consumer has died yet.
const SOON: u32 = 20;
const END: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetCounts {
    pub(crate) delivered: u64,
    pub(crate) killed: u64,
    /// Number of consumers that aborted themselves at each crash point, that is, after each step of
    /// the handling of a message.
    pub(crate) died: [u64; POINTS],
}

impl FleetCounts {
    /// Returns true if at least one consumer died at each crash point, and the demo killed at least
    /// one consumer at random.
    pub(crate) fn is_hard(&self) -> bool {
        self.killed > 0 && self.died.iter().all(|n| *n > 0)
    }
}

/// Dead processes are replaced.
pub(crate) struct Fleet {
    args: Vec<String>,
    inner: Mutex<Inner>,
    /// Maximum number of messages that a consumer handles before it dies at its crash point.
    life: u32,
    calmer: u32,
    counts: Arc<Counts>,
}

/// Numbers of deliveries and deaths. A consumer writes one byte to its output for each delivery,
/// and one byte before its death.
#[derive(Default)]
struct Counts {
    delivered: AtomicU64,
    died: [AtomicU64; POINTS],
}

struct Inner {
    list: Vec<Process>,
    dice: StdRng,
    /// Number of consumers that were started for each crash point.
    started: [u64; POINTS],
    killed: u64,
    /// If true, new consumers get no crash point, so they do not abort themselves.
    no_crash_points: bool,
}

impl Counts {
    fn note(&self, byte: u8) {
        if byte == DELIVERED {
            self.delivered.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(at) = DieAt::value_variants().iter().position(|at| at.mark() == byte) {
            self.died[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn died(&self) -> [u64; POINTS] {
        self.died.each_ref().map(|n| n.load(Ordering::Relaxed))
    }
}

pub(crate) fn consumer(broker: &Broker, group: &Group, ledger: &Ledger) -> Vec<String> {
    let socket = ledger.socket();
    let sentinels = group.sentinels.join(",");
    let named = [
        ("--broker", broker.kind().name()),
        ("--uri", &broker.uri()),
        ("--ledger", &socket.to_string_lossy()),
        ("--master", &group.name),
        ("--sentinels", &sentinels),
    ];
    let named = named.into_iter().flat_map(|(name, value)| [name, value].map(str::to_owned));
    std::iter::once("consumer".to_owned()).chain(named).collect()
}

impl Fleet {
    pub(crate) fn start(
        broker: &Broker,
        group: &Group,
        ledger: &Ledger,
        messages: usize,
        seed: u64,
    ) -> Result<Self, Failure> {
        let args = consumer(broker, group, ledger);
        let dice = StdRng::seed_from_u64(seed ^ 0xf1ee7);
        let calmer = broker.kind().calmer();
        let life = (400 * calmer).min(u32::try_from(messages)?);
        let started = [0; POINTS];
        let inner = Inner { list: Vec::new(), dice, started, killed: 0, no_crash_points: false };
        let fleet = Self { args, inner: Mutex::new(inner), life, calmer, counts: Arc::default() };
        fleet.refill()?;
        Ok(fleet)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn refill(&self) -> Result<(), Failure> {
        let mut inner = self.inner();
        inner.list.retain_mut(|c| !c.has_ended());
        while inner.list.len() < CONSUMERS {
            let process = self.spawn(&mut inner)?;
            inner.list.push(process);
        }
        Ok(())
    }

    fn spawn(&self, inner: &mut Inner) -> Result<Process, Failure> {
        let program = std::env::current_exe()?;
        let mut command = command(&program.to_string_lossy());
        command.args(&self.args).stdout(Stdio::piped());
        if !inner.no_crash_points {
            // Choose the crash point at which the fewest consumers have died so far.
            let died = self.counts.died();
            let least = (0..POINTS).min_by_key(|at| (died[*at], inner.started[*at]));
            let at = least.ok_or("there are crash points")?;
            let name = DieAt::value_variants()[at].to_possible_value();
            let name = name.ok_or("a crash point without a name")?;
            let life = if died[at] == 0 { SOON } else { self.life };
            let after = inner.dice.random_range(1..life);
            inner.started[at] += 1;
            command.args(["--die-at", name.get_name(), "--after", &format!("{after}")]);
        }
        let mut process = Process::spawn(command)?;
        let mut out = process.child().stdout.take().ok_or("no output")?;
        let counts = Arc::clone(&self.counts);
        // The thread ends when the consumer process closes its output.
        std::thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                bytes[..n].iter().for_each(|byte| counts.note(*byte));
            }
        });
        Ok(process)
    }

    /// Kills random consumers for ever and replaces dead consumers. The kills begin after a
    /// consumer has died at each crash point. Returns only if a consumer cannot be started. Then
    /// the result is the error.
    pub(crate) async fn torment(&self, dice: &mut StdRng) -> Failure {
        let mut next = Instant::now();
        loop {
            while Instant::now() < next || self.counts.died().contains(&0) {
                if let Err(e) = self.refill() {
                    return e;
                }
                sleep(Duration::from_millis(100)).await;
            }
            next =
                Instant::now() + self.calmer * Duration::from_millis(dice.random_range(700..2_500));
            let mut inner = self.inner();
            let victim = dice.random_range(0..inner.list.len().max(1));
            if victim < inner.list.len() {
                drop(inner.list.swap_remove(victim));
                inner.killed += 1;
            }
        }
    }

    /// Sends SIGTERM to all consumers and waits until they have ended. Consumers that start after
    /// this call have no crash point.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        self.inner().no_crash_points = true;
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

    pub(crate) fn counts(&self) -> FleetCounts {
        let delivered = self.counts.delivered.load(Ordering::Relaxed);
        FleetCounts { delivered, killed: self.inner().killed, died: self.counts.died() }
    }
}
