//! Tasks that lock a few names beside the orders, and a table outside of the library in which each
//! of them looks whether another one holds its name at the same time.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use palisade::{FencingToken, LockGuard, Redlock, TryAcquire};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Time between two looks into the table.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Table {
    names: Mutex<BTreeMap<String, Seen>>,
    over: AtomicBool,
    holds: AtomicU64,
    lost: AtomicU64,
    twice: AtomicU64,
}

/// The holder of a name with the largest token, and the first and the last instant at which its
/// guard was seen to be valid.
#[derive(Debug)]
struct Seen {
    hold: u64,
    token: FencingToken,
    from: Instant,
    last: Instant,
}

impl Table {
    /// Notes that the guard of this hold was valid at the instant `at`. Returns false if another
    /// holder was inside, or if the token is not above that of an earlier holder.
    fn is_alone(&self, name: &str, hold: u64, token: FencingToken, at: Instant) -> bool {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Seen { hold, token, from: at, last: at };
        let Some(seen) = names.get_mut(name) else {
            names.insert(name.to_owned(), new);
            return true;
        };
        if seen.hold == hold {
            seen.last = at;
            return true;
        }
        // A task may come late with its instant, so instants are compared, not the order of calls.
        if token < seen.token {
            return at < seen.from;
        }
        let alone = token > seen.token && at > seen.last;
        *seen = new;
        alone
    }

    async fn hold(&self, name: &str, guard: &LockGuard) {
        let hold = self.holds.fetch_add(1, Relaxed);
        // One in ten lasts as long as several renewals.
        let most = if rand::random_ratio(1, 10) { 3_000 } else { 100 };
        let end = Instant::now() + Duration::from_millis(rand::random_range(0..most));
        loop {
            let at = Instant::now();
            if !guard.is_valid() {
                self.lost.fetch_add(1, Relaxed);
                return;
            }
            if !self.is_alone(name, hold, guard.fencing_token(), at) {
                self.twice.fetch_add(1, Relaxed);
                return;
            }
            if at >= end {
                return;
            }
            sleep(LOOK).await;
        }
    }
}

/// The tasks. They run until `end`.
pub struct Holders {
    table: Arc<Table>,
    tasks: Vec<JoinHandle<()>>,
}

impl Holders {
    /// For each name, each client (`Redlock` handle) gets a task that locks it again and again.
    pub fn start(
        clients: &[Redlock],
        names: &[String],
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let table = Arc::new(Table::default());
        let mut tasks = Vec::new();
        for (client, name) in clients.iter().flat_map(|c| names.iter().map(move |n| (c, n))) {
            let (mutex, name) = (client.mutex(name.as_str()).build()?, name.clone());
            let table = Arc::clone(&table);
            tasks.push(tokio::spawn(async move {
                while !table.over.load(Relaxed) {
                    // During a fault the answer may be an error. The next attempt comes soon.
                    if let Ok(TryAcquire::Acquired(guard)) = mutex.try_acquire().await {
                        table.hold(&name, &guard).await;
                        let _ = guard.release().await;
                    }
                    sleep(Duration::from_millis(rand::random_range(20..100))).await;
                }
            }));
        }
        Ok(Self { table, tasks })
    }

    /// Ends all tasks. Returns how often a name was held, how many of these holds were lost, and
    /// how often another one held the name at the same time.
    pub async fn end(self) -> Result<[u64; 3], Box<dyn Error + Send + Sync>> {
        self.table.over.store(true, Relaxed);
        for task in self.tasks {
            task.await?;
        }
        let Table { holds, lost, twice, .. } = &*self.table;
        Ok([holds, lost, twice].map(|count| count.load(Relaxed)))
    }
}
