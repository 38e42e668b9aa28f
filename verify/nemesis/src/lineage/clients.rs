//! The clients of one run, and what they may never see: two holders at a time, and a second run of
//! a request whose result was seen.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use palisade::election::TryCampaign;
use palisade::{
    Election, Failed, Idempotency, Leadership, LockGuard, Mutex as Lock, Outcome, Redlock,
    TryAcquire,
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::world::Failure;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(40);
/// Names of the locks and of the election. `long` is renewed, and so is the leadership.
const JOB: &str = "job";
const LONG: &str = "long";
const SEAT: &str = "seat";
/// Loss of data that the requests of one namespace accept: longer than a failover's, shorter than
/// that of a master which was away for a quarantine and returns.
const ACCEPTED: Duration = palisade::IdempotencyBuilder::SHORT_LOSS;

/// Facts about one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Shown {
    /// Names that two clients held at one moment.
    pub(super) held_twice: BTreeSet<String>,
    /// Requests whose handler was started again after their result was seen.
    pub(super) run_twice: BTreeSet<String>,
    /// Requests for which another result was returned than the one that was seen.
    pub(super) changed: BTreeSet<String>,
    pub(super) parked: BTreeSet<String>,
    /// Reasons for which the run proves nothing.
    pub(super) doubts: Vec<String>,
    /// Clients that were not served in the end.
    pub(super) unserved: Vec<String>,
    /// Longest time from the end of the faults until a client was served, in seconds.
    pub(super) served_s: f64,
}

impl Shown {
    pub(super) fn violations(&self) -> usize {
        self.held_twice.len() + self.run_twice.len() + self.changed.len() + self.unserved.len()
    }
}

/// Facts about a run that its clients share.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Shown>>);

impl Log {
    pub(super) fn note(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests that the first client made, whose results were seen.
#[derive(Clone)]
pub(super) struct Request {
    key: &'static str,
    /// True if the request has a creation time.
    born: bool,
    /// True if the request accepts a loss of data.
    accepts: bool,
    made: SystemTime,
    runs: Arc<AtomicU32>,
}

impl Request {
    /// Requests that are made now. After a failover only those of `after_a_loss` can run: a key
    /// without a creation time, in a namespace that accepts no loss, counts as forgotten.
    pub(super) fn made(after_a_loss: bool) -> Vec<Self> {
        let all = [
            ("order-plain", false, false),
            ("order-born", true, false),
            ("order-accepts", false, true),
            ("order-accepts-born", true, true),
        ];
        let (all, made) = (all.into_iter(), SystemTime::now());
        let can_run = all.filter(|(_, born, accepts)| !after_a_loss || *born || *accepts);
        let of = |(key, born, accepts)| Self { key, born, accepts, made, runs: Arc::default() };
        can_run.map(of).collect()
    }
}

/// One client of the library, with a handle of its own.
pub(super) struct Client {
    name: &'static str,
    redlock: Redlock,
    strict: Idempotency,
    accepting: Idempotency,
    log: Log,
}

/// What the first client holds.
pub(super) struct Held {
    /// Not renewed, so it is valid until its deadline whatever becomes of the servers.
    job: LockGuard,
    long: LockGuard,
    seat: Leadership,
}

impl Held {
    /// Returns true if the lock that is not renewed is held.
    pub(super) fn is_valid(&self) -> bool {
        self.job.is_valid()
    }

    pub(super) async fn give_up(self) {
        let _ = self.job.release().await;
        let _ = self.long.release().await;
        let _ = self.seat.resign().await;
    }
}

impl Client {
    pub(super) fn new(name: &'static str, redlock: Redlock, log: &Log) -> Result<Self, Failure> {
        let strict = redlock.idempotency("strict").at_most_once().build()?;
        let accepting = redlock.idempotency("accepting").at_most_once().accept_loss(ACCEPTED);
        Ok(Self { name, strict, accepting: accepting.build()?, redlock, log: log.clone() })
    }

    fn lock(&self, name: &str, renew: bool) -> Lock {
        self.redlock.mutex(name).auto_renew(renew).build().expect("settings fit together")
    }

    fn election(&self) -> Election {
        self.redlock.election(SEAT).build().expect("settings fit together")
    }

    pub(super) async fn hold(
        &self,
        name: &str,
        renew: bool,
        within: Duration,
    ) -> Result<LockGuard, Failure> {
        let begun = Instant::now();
        loop {
            let last = match self.lock(name, renew).try_acquire().await {
                Ok(TryAcquire::Acquired(guard)) => return Ok(guard),
                Ok(TryAcquire::Taken(_)) => "it is taken".to_owned(),
                Err(e) => e.to_string(),
            };
            if begun.elapsed() > within {
                return Err(format!("{}: {name}: not in {within:?}: {last}", self.name).into());
            }
            sleep(PAUSE).await;
        }
    }

    pub(super) async fn long(&self) -> Result<LockGuard, Failure> {
        self.hold(LONG, true, Duration::from_secs(60)).await
    }

    /// Holds the rest of the names: the election, and last the lock that is not renewed.
    pub(super) async fn held(&self, long: LockGuard) -> Result<Held, Failure> {
        let begun = Instant::now();
        let seat = loop {
            if let Some(won) = self.election().try_campaign(self.name).await?.won() {
                break won;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("no term was won".into());
            }
            sleep(PAUSE).await;
        };
        Ok(Held { job: self.hold(JOB, false, Duration::from_secs(60)).await?, long, seat })
    }

    /// Runs or repeats a request until it has an outcome. Returns the receipt, or `None` if the
    /// request was parked or had no outcome at the time `end`.
    async fn ask(&self, of: &Request, end: Instant) -> Option<String> {
        let keys = if of.accepts { &self.accepting } else { &self.strict };
        while Instant::now() < end {
            let call = keys.key(of.key);
            let call = if of.born { call.created_at(of.made) } else { call };
            let runs = Arc::clone(&of.runs);
            let handler = async move {
                let run = runs.fetch_add(1, SeqCst) + 1;
                Ok::<_, Failed>(format!("receipt {run}"))
            };
            let done = call.run(|_| handler).await;
            match done {
                Ok(Outcome::Executed { value, .. } | Outcome::Replayed(value)) => {
                    return Some(value);
                }
                Ok(Outcome::Parked(_)) => {
                    self.log.note().parked.insert(of.key.to_owned());
                    return None;
                }
                _ => sleep(PAUSE).await,
            }
        }
        None
    }

    /// Has every request executed, or reads its result.
    pub(super) async fn see(&self, requests: &[Request]) -> Result<(), Failure> {
        for request in requests {
            let receipt = self.ask(request, Instant::now() + Duration::from_secs(60)).await;
            if receipt.as_deref() != Some("receipt 1") {
                return Err(format!("{}: {}: {receipt:?}", self.name, request.key).into());
            }
        }
        Ok(())
    }

    pub(super) async fn contest(&self, held: &Held, requests: &[Request], end: Instant) {
        let repeated = async {
            for request in requests {
                let receipt = self.ask(request, end).await;
                if receipt.is_some_and(|receipt| receipt != "receipt 1") {
                    self.log.note().changed.insert(request.key.to_owned());
                }
                if request.runs.load(SeqCst) > 1 {
                    self.log.note().run_twice.insert(request.key.to_owned());
                }
            }
        };
        tokio::join!(
            self.contest_lock(&held.job, end),
            self.contest_lock(&held.long, end),
            self.contest_seat(&held.seat, end),
            repeated
        );
    }

    async fn contest_lock(&self, of: &LockGuard, end: Instant) {
        while Instant::now() < end {
            if let Ok(TryAcquire::Acquired(guard)) = self.lock(of.name(), false).try_acquire().await
            {
                self.compare(of.name(), || of.is_valid(), || guard.is_valid());
                let _ = guard.release().await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn contest_seat(&self, of: &Leadership, end: Instant) {
        while Instant::now() < end {
            let won = self.election().try_campaign(self.name).await;
            if let Some(won) = won.ok().and_then(TryCampaign::won) {
                self.compare(SEAT, || of.is_valid(), || won.is_valid());
                let _ = won.resign().await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Two are valid at one moment if the first one is, and the second one still is after that.
    fn compare(&self, name: &str, first: impl Fn() -> bool, second: impl Fn() -> bool) {
        if first() && second() {
            self.log.note().held_twice.insert(name.to_owned());
        }
    }

    pub(super) async fn served(&self, within: Duration) {
        let begun = Instant::now();
        let name = format!("after-{}", self.name);
        match self.hold(&name, false, within).await {
            Ok(guard) => {
                let took = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
                {
                    let mut log = self.log.note();
                    log.served_s = log.served_s.max(took);
                }
                let _ = guard.release().await;
            }
            Err(e) => self.log.note().unserved.push(e.to_string()),
        }
    }

    pub(super) async fn close(self) {
        let _ = self.redlock.close(Duration::from_secs(1)).await;
    }
}
