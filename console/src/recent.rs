//! A cache of what the nodes reported recently about single items, such as one lock. Pages that
//! request the same item share one reading, so many such pages cost as much as one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Number of readings in the cache above which old readings are removed.
const MANY: usize = 64;

/// A report of the nodes, and the time of its reading; `None` before the reading is complete.
type Cell<V> = Arc<tokio::sync::Mutex<Option<(Instant, V)>>>;

/// The last reports of the nodes, by the item that was read.
pub(crate) struct Recent<K, V> {
    /// Time for which a reading counts as recent.
    life: Duration,
    /// Permits to read from the nodes. They limit the concurrent readings, even if a visitor asks
    /// for very many names.
    turns: Semaphore,
    cells: Mutex<BTreeMap<K, Cell<V>>>,
}

impl<K: Ord, V: Clone> Recent<K, V> {
    /// Creates an empty cache. A reading of the nodes is recent for `life`, and at most `turns`
    /// readings are under way at the same time.
    pub(crate) fn new(life: Duration, turns: usize) -> Self {
        Self { life, turns: Semaphore::new(turns), cells: Mutex::default() }
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<K, Cell<V>>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the recent reading of `key`. If there is none, reads with `read`, while other
    /// callers for the same key wait. If the future is dropped, the next caller reads.
    pub(crate) async fn get(&self, key: K, read: impl Future<Output = V>) -> V {
        let cell = {
            let mut cells = self.cells();
            if cells.len() >= MANY {
                let is_old = |cell: &Cell<V>| {
                    let at = cell.try_lock().ok().map(|cell| cell.as_ref().map(|(at, _)| *at));
                    at.is_some_and(|at| at.is_none_or(|at| at.elapsed() >= self.life))
                };
                cells.retain(|_, cell| Arc::strong_count(cell) > 1 || !is_old(cell));
            }
            Arc::clone(cells.entry(key).or_default())
        };
        let mut cell = cell.lock().await;
        if let Some((at, value)) = &*cell
            && at.elapsed() < self.life
        {
            return value.clone();
        }
        let turn = self.turns.acquire().await;
        let value = read.await;
        drop(turn);
        *cell = Some((Instant::now(), value.clone()));
        value
    }

    /// Discards all readings, because an action may have changed the items that were read.
    pub(crate) fn forget(&self) {
        self.cells().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn many_callers_share_one_reading() {
        let recent = Recent::new(Duration::from_secs(60), 4);
        let count = AtomicUsize::new(0);
        let read = async || {
            tokio::task::yield_now().await;
            count.fetch_add(1, Ordering::Relaxed)
        };
        let all = join_all((0..100).map(|_| recent.get("a", read()))).await;
        assert_eq!((all, count.load(Ordering::Relaxed)), (vec![0; 100], 1));
        assert_eq!(recent.get("b", read()).await, 1);
        recent.forget();
        assert_eq!(recent.get("a", read()).await, 2);
        let dropped = Recent::new(Duration::from_secs(60), 1);
        drop(tokio::time::timeout(Duration::ZERO, dropped.get("a", std::future::pending())).await);
        assert_eq!(dropped.get("a", async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn few_readings_are_under_way_however_many_names_are_asked_for() {
        let recent = Recent::new(Duration::from_secs(60), 3);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = async || {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::Relaxed);
        };
        join_all((0..100).map(|n| recent.get(n, read()))).await;
        assert_eq!(most.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn old_readings_are_removed_and_read_again() {
        let recent = Recent::new(Duration::ZERO, 1);
        for n in 0..10 * MANY {
            assert_eq!(recent.get(n % (2 * MANY), async { n }).await, n);
        }
        assert!(recent.cells().len() <= MANY);
    }
}
