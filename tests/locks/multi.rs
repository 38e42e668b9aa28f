//! Locks of several names. A caller gets all names or none, with one fencing token. Callers do not
//! deadlock. A waiting call delays the callers of single names only a little.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use palisade::{FencingToken, MultiMutex, Mutex, Redlock};
use tokio::time::{sleep, timeout};

use crate::nodes::{Nodes, is_taken};

const PATIENCE: Duration = Duration::from_secs(120);

impl Nodes {
    fn brief(&self) -> Redlock {
        self.builder().ttl(Duration::from_secs(5)).build().unwrap()
    }

    fn multi(&self, names: &[&str]) -> MultiMutex {
        self.brief().multi(names).acquire_timeout(PATIENCE).build().unwrap()
    }

    fn single(&self, name: &str) -> Mutex {
        self.brief().mutex(name).acquire_timeout(PATIENCE).build().unwrap()
    }
}

#[tokio::test]
async fn all_names_are_held_or_none() {
    for nodes in Nodes::all() {
        let both = nodes.multi(&["b", "a"]);
        let (a, b) = (nodes.single("a"), nodes.single("b"));
        let doc = nodes.brief().rw_lock("b").build().unwrap();
        let one = b.acquire().await.unwrap();
        assert!(is_taken(&both.try_acquire().await), "one name is taken");
        let other = a.acquire().await.unwrap();
        other.release().await.unwrap();
        one.release().await.unwrap();
        let guard = both.acquire().await.unwrap();
        assert_eq!(guard.names().iter().map(|n| &**n).collect::<Vec<_>>(), ["a", "b"]);
        assert!(is_taken(&a.try_acquire().await) && is_taken(&b.try_acquire().await));
        assert!(is_taken(&doc.try_read().await), "a reader beside it");
        assert!(guard.extend().await.is_ok());
        guard.release().await.unwrap();
        let reader = doc.read().await.unwrap();
        assert!(is_taken(&both.try_acquire().await), "readers keep it out");
        reader.release().await.unwrap();
        drop(both.acquire().await.unwrap());
        let one = a.acquire().await.unwrap();
        one.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_token_is_above_all_earlier_ones_and_below_all_later_ones() {
    for nodes in Nodes::all() {
        let both = nodes.multi(&["a", "b", "c"]);
        let singles = ["a", "b", "c"].map(|name| nodes.single(name));
        let mut last = FencingToken::default();
        for round in 0..9 {
            let single = &singles[round % 3];
            let guard = single.acquire().await.unwrap();
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            guard.release().await.unwrap();
            let guard = both.acquire().await.unwrap();
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_lock_of_several_names_is_renewed_and_lost_as_one() {
    let nodes = Nodes::memory(3);
    let redlock = nodes.brief();
    let second = Duration::from_secs(1);
    let both = redlock.multi(["a", "b"]).ttl(second).build().unwrap();
    let guard = both.acquire().await.unwrap();
    sleep(2 * second).await;
    assert!(guard.is_valid() && is_taken(&nodes.single("b").try_acquire().await));
    // An operator takes over one of the two names, `b`, from the holder of both.
    let b = nodes.single("b");
    let holder = b.inspect().await.unwrap().holder().unwrap();
    let taken = b.take_over(&holder, "it hangs").await.unwrap();
    timeout(2 * second, guard.lost()).await.expect("one name is lost, so all are");
    assert!(guard.release().await.is_err());
    drop(taken);
    let next = nodes.single("a").acquire().await.unwrap();
    next.release().await.unwrap();
}

/// Two callers acquire the same names again and again, in opposite orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_block_each_other() {
    for nodes in [Nodes::memory(3), Nodes::redis(1), Nodes::redis(3)] {
        let inside = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let rounds = if matches!(nodes, Nodes::Memory(_)) { 1_000 } else { 300 };
        let work = |names: [&'static str; 2]| {
            let (multi, inside) = (nodes.multi(&names), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let guard = multi.acquire().await.unwrap();
                    for flag in inside.iter() {
                        assert!(!flag.swap(true, SeqCst), "two are inside");
                    }
                    tokio::task::yield_now().await;
                    for flag in inside.iter() {
                        flag.store(false, SeqCst);
                    }
                    guard.release().await.unwrap();
                }
            })
        };
        let (ab, ba) = (work(["a", "b"]), work(["b", "a"]));
        for worker in [ab, ba] {
            timeout(3 * PATIENCE, worker).await.expect("they block each other").unwrap();
        }
    }
}

/// Two callers hold one name each, again and again: for 5 ms, with pauses of 7 ms. The multi-lock
/// gets both names in a common pause.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_gets_its_turn_in_the_gaps_of_single_locks() {
    let nodes = Nodes::memory(3);
    let stop = Arc::new(AtomicBool::new(false));
    let busy = ["a", "b"].map(|name| {
        let (lock, stop) = (nodes.single(name), stop.clone());
        tokio::spawn(async move {
            while !stop.load(SeqCst) {
                let guard = lock.acquire().await.unwrap();
                sleep(Duration::from_millis(5)).await;
                guard.release().await.unwrap();
                sleep(Duration::from_millis(7)).await;
            }
        })
    });
    let both = nodes.multi(&["a", "b"]);
    for _ in 0..20 {
        let guard = both.acquire().await.expect("there are gaps");
        guard.release().await.unwrap();
    }
    stop.store(true, SeqCst);
    for worker in busy {
        worker.await.unwrap();
    }
}
