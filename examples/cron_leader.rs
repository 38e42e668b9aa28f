//! Singleton cron: one of several candidates leads and runs the ticks. Each tick of a job has an
//! idempotency record. The leader claims and completes this record. So a change of leaders neither
//! doubles nor loses a tick. With the leadership alone, two processes could sometimes run the same
//! tick. The record prevents this.
//!
//! ```text
//! cargo run -p examples --bin cron_leader
//! cargo run -p examples --bin cron_leader -- --node redis://127.0.0.1
//! ```

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser as _;
use palisade::idempotency::Context;
use palisade::{Advice, Election, Idempotency, Outcome, Probed};
use tokio::time::sleep;

type Failure = Box<dyn Error + Send + Sync>;
const EVERY: Duration = Duration::from_millis(150);
const TICKS: u32 = 16;
const LEASE: Duration = Duration::from_millis(600);

/// Effects of the job by tick. The probe reads them.
type Done = Mutex<BTreeMap<String, Vec<String>>>;

/// A candidate. In production each candidate would be a process.
struct Candidate {
    name: String,
    election: Election,
    runs: Idempotency,
    /// Start of the schedule. Each tick is computed from the start, and not from the previous tick.
    start: SystemTime,
    done: Arc<Done>,
    /// Number of the tick at which the candidate dies. It dies after the effect and before it
    /// stores the result.
    dies_at: Option<u32>,
}

impl Candidate {
    /// Campaigns repeatedly until all ticks are done.
    async fn stand(self) -> Result<(), Failure> {
        loop {
            let leadership = self.election.campaign(&*self.name).await?;
            println!("{} leads, term {}", self.name, leadership.term());
            tokio::select! {
                biased;
                // Another candidate may lead now. It can run the claimed tick after the lease of
                // the claim has ended.
                () = leadership.lost() => println!("{} lost its leadership", self.name),
                led = self.lead() => {
                    // Resign even after an error. Then another candidate leads at once. Without
                    // this it would lead only after a lease.
                    match leadership.resign().await {
                        Ok(()) => println!("{} resigns", self.name),
                        Err(why) => println!("{} resigns: {why}", self.name),
                    }
                    return led;
                }
            }
        }
    }

    /// Runs all ticks that are due. Begins with the ticks that an earlier leader may have left.
    async fn lead(&self) -> Result<(), Failure> {
        for n in 0..TICKS {
            let tick = self.start + n * EVERY;
            sleep(tick.duration_since(SystemTime::now()).unwrap_or_default()).await;
            // The key contains the scheduled time of the tick in UTC. This time does not depend on
            // the leader's clock.
            let at = tick.duration_since(UNIX_EPOCH)?.as_millis();
            self.run_once(n, tick, &format!("report@{at}")).await?;
        }
        Ok(())
    }

    /// Runs one tick unless it was already run. Waits if another process runs the tick now.
    async fn run_once(&self, n: u32, tick: SystemTime, key: &str) -> Result<(), Failure> {
        loop {
            // The birth of the request (`created_at`) is the tick's time, because no process can
            // have run the tick earlier.
            let call = self.runs.key(key).created_at(tick).in_flight_timeout(LEASE);
            let outcome = call
                .probe(async |_| match self.done.lock().expect("no one panics").get(key) {
                    Some(by) => Probed::Found(by[0].clone()),
                    None => Probed::NotFound,
                })
                .run(async |cx| self.job(&cx, n, key).await)
                .await;
            match outcome {
                Ok(Outcome::Executed { .. }) => return Ok(()),
                Ok(Outcome::Replayed(by)) => {
                    println!("  {}: tick {n} was run by {by}", self.name);
                    return Ok(());
                }
                Ok(Outcome::InFlight { retry_after }) => sleep(retry_after).await,
                Ok(other) => return Err(format!("{key}: {other:?}").into()),
                Err(e) => match e.advice() {
                    Advice::RetryAfter(wait) => sleep(wait).await,
                    _ => return Err(e.to_string().into()),
                },
            }
        }
    }

    /// Runs the job. A real job sends its fencing token with each write (see `fenced_writer`).
    async fn job(&self, cx: &Context, n: u32, key: &str) -> Result<String, Failure> {
        sleep(Duration::from_millis(10)).await;
        {
            let mut done = self.done.lock().expect("no one panics");
            done.entry(key.to_owned()).or_default().push(self.name.clone());
        }
        println!("  {}: tick {n}, token {}", self.name, cx.fencing_token());
        if self.dies_at == Some(n) {
            println!("  {} dies", self.name);
            std::future::pending::<()>().await;
        }
        Ok(self.name.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let connect = common::Connect::parse();
    let prefix = format!("cron-example-{:08x}:", rand::random::<u32>());
    let lease = connect.ttl(LEASE);
    let redlock = connect.builder(lease)?.prefix(prefix).build()?;
    common::ready(&redlock).await?;
    // An earlier run of a tick may have left no result, or the nodes may have lost the record of
    // the run. With `at_most_once`, the probe decides about such a tick.
    let runs = redlock.idempotency("cron").at_most_once().build()?;
    let (done, start) = (Arc::new(Done::default()), SystemTime::now());
    let election = redlock.election("cron").build()?;
    let candidate = |name: &str, dies_at| Candidate {
        name: name.to_owned(),
        election: election.clone(),
        runs: runs.clone(),
        start,
        done: Arc::clone(&done),
        dies_at,
    };
    let first = tokio::spawn(candidate("Ada", Some(5)).stand());
    sleep(EVERY).await;
    let others = ["Grace", "Edsger"].map(|name| tokio::spawn(candidate(name, None).stand()));

    // The first leader disappears in the middle of a tick. Its task is dropped at its current
    // await.
    sleep(7 * EVERY).await;
    first.abort();
    for other in others {
        other.await??;
    }
    println!("{}", redlock.close(LEASE * 5).await);
    let done = done.lock().expect("no one panics");
    assert_eq!(done.len(), TICKS as usize, "a tick was lost");
    assert!(done.values().all(|by| by.len() == 1), "a tick was run twice: {done:?}");
    println!("{TICKS} ticks, every tick exactly once");
    Ok(())
}
