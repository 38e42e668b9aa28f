//! Work of an application while an ordinary event happens to its servers: locks, new requests with
//! an idempotency key, and repeated deliveries of requests with a result.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use palisade::{
    Durability, Failed, Idempotency, LockGuard, Outcome, Redlock, RunError, TryAcquire,
};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::world::Failure;

/// Interval between two new requests of a kind. Also the interval between two deliveries of old
/// requests, which already have a result.
const BEAT: Duration = Duration::from_millis(100);
/// Pause between two attempts to acquire a lock. Each lock has a new name.
const PAUSE: Duration = Duration::from_millis(20);
/// Time after which a request without an outcome is delivered again.
const AGAIN: Duration = Duration::from_secs(1);
/// Length of a loss of data that half of the requests accept. The manual recommends this value.
pub(super) const ACCEPTED: Duration = palisade::IdempotencyBuilder::SHORT_LOSS;
/// Number of backlog requests: they are made before the event (such as a restart of a server) and
/// delivered after it.
pub(super) const BACKLOG: usize = 1_000;
/// Namespace of the idempotency keys of requests that accept no loss of data.
pub(super) const STRICT: &str = "orders";
/// Maximum number of backlog requests that are delivered at the same time.
const AT_ONCE: usize = 50;
/// Number of old requests: they have a result before the event that happens to the servers.
pub(super) const OLD: usize = 20;
/// Maximum gap between two grants or two executions while the deployment works well.
const WELL: Duration = Duration::from_secs(1);

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Executed,
    /// The request was parked, so its handler did not run. Contains the time for which new keys of
    /// this kind will be parked.
    Parked(Duration),
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// True if the requests have a birth: their creation time (`created_at`).
    pub(super) births: bool,
    /// True if the requests accept a loss of data of up to [`ACCEPTED`]: they run even if the nodes
    /// may have lost their records in a loss of this length.
    pub(super) accepts: bool,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [
        Self { births: false, accepts: false },
        Self { births: true, accepts: false },
        Self { births: false, accepts: true },
        Self { births: true, accepts: true },
    ];

    fn at(self) -> usize {
        usize::from(self.births) + 2 * usize::from(self.accepts)
    }

    fn key(self, n: usize) -> String {
        format!("{}-{n}", if self.births { "born" } else { "plain" })
    }
}

/// Time at which a request was made. Also the time and the kind of its outcome, once it has one.
pub(super) type Request = (Instant, Option<(Instant, End)>);

/// Observations of the application, with the times at which they were made.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) grants: Vec<Instant>,
    /// Requests of each kind, in the order in which they were made.
    requests: [Vec<Request>; 4],
    /// Deliveries of old requests: the time, and true if the delivery returned the stored result.
    pub(super) old: Vec<(Instant, bool)>,
    /// Descriptions of broken rules.
    pub(super) broken: Vec<String>,
}

impl Seen {
    pub(super) fn requests(&self, kind: Kind) -> &[Request] {
        &self.requests[kind.at()]
    }

    /// Returns the keys of the requests that were executed and accept no loss.
    pub(super) fn strict_keys(&self) -> Vec<String> {
        let strict = Kind::ALL.into_iter().filter(|kind| !kind.accepts);
        let of = |kind: Kind| {
            let ends = self.requests(kind).iter().enumerate();
            let done = ends.filter(|(_, (_, end))| matches!(end, Some((_, End::Executed))));
            done.map(move |(n, _)| kind.key(n)).collect::<Vec<_>>()
        };
        strict.flat_map(of).collect()
    }

    /// Returns the times of executions whose result is not among the `stored` ones.
    pub(super) fn lost(&self, kind: Kind, stored: &BTreeSet<String>) -> Vec<Instant> {
        let all = self.requests(kind).iter().enumerate();
        let lost = all.filter_map(|(n, (_, end))| match end {
            Some((at, End::Executed)) if !stored.contains(&kind.key(n)) => Some(*at),
            _ => None,
        });
        lost.collect()
    }

    pub(super) fn executed(&self, kind: Kind) -> Vec<Instant> {
        let ends = self.requests(kind).iter().filter_map(|(_, end)| *end);
        let mut all: Vec<_> =
            ends.filter(|(_, end)| *end == End::Executed).map(|(at, _)| at).collect();
        all.sort_unstable();
        all
    }

    /// Returns true if the deployment has worked well for the time `since`: locks were granted, and
    /// requests with a creation time were executed, both without a gap of [`WELL`].
    pub(super) fn is_well(&self, since: Duration) -> bool {
        let now = Instant::now();
        let steady = |all: &[Instant]| {
            let from = now.checked_sub(since).unwrap_or(now);
            let points = all.iter().copied().filter(|at| *at > from);
            let (mut last, mut gap) = (from, Duration::ZERO);
            for at in points.chain([now]) {
                gap = gap.max(at - last);
                last = at;
            }
            gap < WELL
        };
        steady(&self.grants) && steady(&self.executed(Kind { births: true, accepts: false }))
    }

    /// Returns the number of requests without an outcome.
    pub(super) fn open(&self) -> usize {
        self.requests.iter().flatten().filter(|(_, end)| end.is_none()).count()
    }
}

/// The application whose requests are measured. Dropping this value ends its tasks.
pub(super) struct Load {
    seen: Arc<Mutex<Seen>>,
    // A `JoinSet` aborts its tasks when it is dropped.
    tasks: JoinSet<()>,
    enough: Arc<AtomicBool>,
    redlock: Redlock,
    /// Namespace of the requests that accept no loss of data, and namespace of the requests that
    /// accept a short one.
    orders: [Orders; 2],
}

/// Requests whose idempotency keys are in the same namespace.
#[derive(Clone)]
struct Orders {
    keys: Idempotency,
    accepts: bool,
    seen: Arc<Mutex<Seen>>,
}

impl Load {
    /// Starts the application, which acquires locks and sends requests.
    ///
    /// `rival` is another handle on the same deployment. The two compete for one lock.
    pub(super) fn begin(
        redlock: &Redlock,
        rival: &Redlock,
        durability: Durability,
    ) -> Result<Self, Failure> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let namespace = |name| redlock.idempotency(name).at_most_once().durability(durability);
        let builders = [namespace(STRICT), namespace("accepting").accept_loss(ACCEPTED)];
        let [strict, accepting] = builders.map(|builder| {
            let (accepts, seen) = (false, Arc::clone(&seen));
            builder.build().map(|keys| Orders { keys, accepts, seen })
        });
        let orders = [strict?, Orders { accepts: true, ..accepting? }];
        let mut tasks = JoinSet::new();
        tasks.spawn(locks(redlock.clone(), durability, Arc::clone(&seen)));
        tasks.spawn(orders[0].clone().deliver_old());
        tasks.spawn(compete([redlock.clone(), rival.clone()], durability, Arc::clone(&seen)));
        let enough = Arc::new(AtomicBool::new(false));
        for orders in &orders {
            tasks.spawn(orders.clone().make(Arc::clone(&enough)));
        }
        Ok(Self { seen, tasks, enough, redlock: redlock.clone(), orders })
    }

    pub(super) fn look<T>(&self, at: impl FnOnce(&Seen) -> T) -> T {
        at(&lock(&self.seen))
    }

    /// Waits until the deployment has worked well for 3 s. Returns an error if this takes longer
    /// than `within`.
    pub(super) async fn until_well(&self, within: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.look(|seen| seen.is_well(Duration::from_secs(3))) {
            if begun.elapsed() > within {
                return Err(format!("not served for {within:?}").into());
            }
            sleep(BEAT).await;
        }
        Ok(())
    }

    /// Delivers [`BACKLOG`] requests of each kind for the first time. Their creation time is
    /// `made`. Returns the number of requests of each kind that were parked.
    pub(super) async fn deliver_backlog(&self, made: SystemTime) -> Result<[usize; 4], Failure> {
        let mut parked = [0; 4];
        for kind in Kind::ALL {
            let (orders, mut under_way) = (&self.orders[usize::from(kind.accepts)], JoinSet::new());
            for n in 0..BACKLOG {
                if under_way.len() == AT_ONCE {
                    parked[kind.at()] += parked_one(under_way.join_next().await)?;
                }
                let (orders, born) = (orders.clone(), kind.births.then_some(made));
                under_way.spawn(async move {
                    orders.decide(&format!("late-{}", kind.key(n)), born).await
                });
            }
            while let Some(ended) = under_way.join_next().await {
                parked[kind.at()] += parked_one(Some(ended))?;
            }
        }
        Ok(parked)
    }

    /// Delivers each executed request of the strict namespace again. Its result was seen, so its
    /// handler may not start again, whatever became of the servers.
    pub(super) async fn deliver_again(&self) {
        let orders = &self.orders[0];
        for kind in Kind::ALL.into_iter().filter(|kind| !kind.accepts) {
            let executed = self.look(|seen| {
                let all = seen.requests(kind).iter().enumerate();
                let done = all.filter(|(_, (_, end))| matches!(end, Some((_, End::Executed))));
                done.map(|(n, (made, _))| (n, *made)).collect::<Vec<_>>()
            });
            for (n, made) in executed {
                let (key, runs) = (kind.key(n), AtomicU32::new(0));
                // Before the request was made, so that it is not older than its first delivery.
                let born = SystemTime::now() - made.elapsed();
                let _ = orders.run(&key, kind.births.then_some(born), &runs).await;
                if runs.into_inner() > 0 {
                    let why = format!("{key} was started again after its result was seen");
                    lock(&self.seen).broken.push(why);
                }
            }
        }
    }

    pub(super) async fn end(mut self) -> Seen {
        self.enough.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        while self.look(|seen| seen.open() > 0) && begun.elapsed() < 5 * AGAIN {
            sleep(BEAT).await;
        }
        self.tasks.shutdown().await;
        // The servers end next, so pending releases do not matter.
        let _ = self.redlock.close(Duration::from_secs(1)).await;
        std::mem::take(&mut *lock(&self.seen))
    }
}

fn parked_one(ended: Option<Result<Result<End, String>, JoinError>>) -> Result<usize, Failure> {
    let end = ended.ok_or("none was under way")???;
    Ok(usize::from(matches!(end, End::Parked(_))))
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn locks(redlock: Redlock, durability: Durability, seen: Arc<Mutex<Seen>>) {
    for n in 0_u64.. {
        let mutex = redlock
            .mutex(format!("fresh-{n}"))
            .durability(durability)
            .auto_renew(false)
            .build()
            .expect("settings fit together");
        if let Ok(TryAcquire::Acquired(guard)) = mutex.try_acquire().await {
            lock(&seen).grants.push(Instant::now());
            let _ = guard.release().await;
        }
        sleep(PAUSE).await;
    }
}

/// Two handles compete for one lock, each of which keeps it until its lease is over. Two guards
/// that are valid at one moment are two holders.
async fn compete(handles: [Redlock; 2], durability: Durability, seen: Arc<Mutex<Seen>>) {
    let guards = [Mutex::new(None::<LockGuard>), Mutex::new(None)];
    let valid = |n: usize| {
        let guard = guards[n].lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().is_some_and(LockGuard::is_valid)
    };
    let one = |n: usize| {
        let mutex = handles[n].mutex("contested").durability(durability).auto_renew(false);
        let mutex = mutex.build().expect("settings fit together");
        let (guards, seen, valid) = (&guards, &seen, &valid);
        async move {
            for _ in 0_u64.. {
                if !valid(n)
                    && let Ok(TryAcquire::Acquired(guard)) = mutex.try_acquire().await
                {
                    *guards[n].lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
                    if valid(1 - n) && valid(n) {
                        lock(seen).broken.push("a lock was held twice".to_owned());
                    }
                }
                sleep(PAUSE).await;
            }
        }
    };
    tokio::join!(one(0), one(1));
}

impl Orders {
    /// Makes two requests every 100 ms, one with a creation time and one without. Each request is
    /// delivered until it has an outcome.
    async fn make(self, enough: Arc<AtomicBool>) {
        let mut deliveries = JoinSet::new();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for n in 0.. {
            beat.tick().await;
            for births in [false, true] {
                let kind = Kind { births, accepts: self.accepts };
                lock(&self.seen).requests[kind.at()].push((Instant::now(), None));
                deliveries.spawn(self.clone().deliver(n, kind));
            }
            while deliveries.try_join_next().is_some() {}
            if enough.load(Ordering::Relaxed) {
                break;
            }
        }
        while deliveries.join_next().await.is_some() {}
    }

    /// Delivers a request until it has an outcome.
    async fn decide(&self, key: &str, born: Option<SystemTime>) -> Result<End, String> {
        let runs = AtomicU32::new(0);
        let end = loop {
            match self.run(key, born, &runs).await {
                Ok(Outcome::Executed { .. } | Outcome::Replayed(_)) => break End::Executed,
                Ok(Outcome::Parked(parked)) => break End::Parked(parked.forgotten_for),
                // No operator has initialised the server. The request stays parked until an
                // operator does, or else for one retention.
                Err(RunError::NotInitialised { .. }) => {
                    break End::Parked(Duration::from_secs(24 * 3_600));
                }
                Ok(Outcome::InFlight { .. })
                | Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_)) => sleep(AGAIN).await,
                other => return Err(format!("{key}: {other:?}")),
            }
        };
        let runs = runs.load(Ordering::Relaxed);
        // If the requests accept a loss of data, the claim of a handler may be lost. Then a second
        // handler may run.
        if (runs > 1 && !self.accepts) || (runs == 0 && end == End::Executed) {
            return Err(format!("{key}: its handler was started {runs} times, and {end:?}"));
        }
        Ok(end)
    }

    async fn deliver(self, n: usize, kind: Kind) {
        let born = kind.births.then(SystemTime::now);
        let end = self.decide(&kind.key(n), born).await;
        let at = Instant::now();
        let mut seen = lock(&self.seen);
        match end {
            Ok(end) => {
                if let Some(request) = seen.requests[kind.at()].get_mut(n) {
                    request.1 = Some((at, end));
                }
            }
            Err(why) => seen.broken.push(why),
        }
    }
    async fn run(
        &self,
        key: &str,
        born: Option<SystemTime>,
        runs: &AtomicU32,
    ) -> Result<Outcome<String>, RunError> {
        let call = self.keys.key(key);
        let call = if let Some(born) = born { call.created_at(born) } else { call };
        let handler = async |key: &str| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Failed>(key.to_owned())
        };
        call.run(|_| handler(key)).await
    }

    /// Delivers [`OLD`] requests repeatedly. The first delivery of each request stores its result.
    async fn deliver_old(self) {
        let mut keys: VecDeque<(String, SystemTime, bool)> =
            (0..OLD).map(|n| (format!("old-{n}"), SystemTime::now(), false)).collect();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some((key, born, had)) = keys.pop_front() {
            if had {
                beat.tick().await;
            }
            let runs = AtomicU32::new(0);
            let outcome = self.run(&key, Some(born), &runs).await;
            let replayed = matches!(outcome, Ok(Outcome::Replayed(_)));
            if had {
                let mut seen = lock(&self.seen);
                seen.old.push((Instant::now(), replayed));
                if runs.load(Ordering::Relaxed) > 0 {
                    seen.broken.push(format!("{key} was started again after its result was seen"));
                }
            } else if outcome.is_err() {
                sleep(PAUSE).await;
            }
            let has = had || matches!(outcome, Ok(Outcome::Executed { .. } | Outcome::Replayed(_)));
            // The request was parked before it had a result. A new request replaces it.
            let (key, born) = match outcome {
                Ok(Outcome::Parked(_)) if !has => (format!("{key}'"), SystemTime::now()),
                _ => (key, born),
            };
            keys.push_back((key, born, has));
        }
    }
}
