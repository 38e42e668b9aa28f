//! A call waits for several names. Callers of the single names hold them so that the names are
//! never free at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use palisade::error::AcquireError;
use palisade::node::spi::{LockNode as _, Reply};
use palisade::test_util::TokioEnv;
use palisade::{LockGuard, MemoryNode, MultiMutex, Mutex, Redlock, TryAcquire};
use palisade_testing::fault::{Fault, Odds};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::nodes::{Nodes, in_memory, is_taken};
use crate::support::memory::Timed;
use crate::support::ops;

const LONG: Duration = Duration::from_secs(60);

fn single(handle: impl Fn() -> Redlock, name: &str) -> Mutex {
    handle().mutex(name).acquire_timeout(LONG).build().unwrap()
}

fn multi(handle: impl Fn() -> Redlock, names: &[&str]) -> MultiMutex {
    handle().multi(names).acquire_timeout(LONG).build().unwrap()
}

/// Callers that hold one name in turn, so that it is never free for long. Each caller has a handle
/// of its own.
struct Busy {
    holds: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    holders: Vec<JoinHandle<()>>,
}

impl Busy {
    fn begin(handle: impl Fn() -> Redlock, name: &str, span: Duration) -> Self {
        let (holds, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let hold = |lock: Mutex| {
            let (holds, stop) = (Arc::clone(&holds), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    let guard = lock.acquire().await.unwrap();
                    holds.fetch_add(1, SeqCst);
                    sleep(span).await;
                    guard.release().await.unwrap();
                }
            })
        };
        let holders = (0..4).map(|_| hold(single(&handle, name))).collect();
        Self { holds, stop, holders }
    }

    fn holds(&self) -> usize {
        self.holds.load(SeqCst)
    }

    async fn end(self) {
        self.stop.store(true, SeqCst);
        for holder in self.holders {
            timeout(LONG, holder).await.expect("each holder has its turns").unwrap();
        }
    }
}

/// Other callers hold two of the three names without a gap. Asserts that a call for all three names
/// gets them after a bounded number of these holds.
async fn is_served_beside_busy_names(handle: impl Fn() -> Redlock) {
    let span = Duration::from_millis(20);
    let busy = ["a", "b"].map(|name| Busy::begin(&handle, name, span));
    while busy.iter().any(|busy| busy.holds() < 4) {
        sleep(span).await;
    }
    let all = multi(&handle, &["c", "b", "a"]);
    for _ in 0..3 {
        let before = busy.each_ref().map(Busy::holds);
        let guard = all.acquire().await.expect("it gets its turn");
        let held = busy.each_ref().map(Busy::holds);
        for (before, held) in before.iter().zip(held) {
            assert!(held - before < 60, "{} holds passed it", held - before);
        }
        sleep(5 * span).await;
        assert!(guard.is_valid());
        assert_eq!(busy.each_ref().map(Busy::holds), held, "a single name is held beside it");
        guard.release().await.unwrap();
    }
    let end = busy.map(Busy::end);
    for busy in end {
        busy.await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_are_never_free_together_are_won_in_a_bounded_number_of_holds() {
    for n in [1, 3, 5] {
        is_served_beside_busy_names(in_memory(n)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_on_servers_that_are_never_free_together_are_won_in_a_bounded_number_of_holds() {
    for n in [1, 3] {
        let nodes = Nodes::redis(n);
        is_served_beside_busy_names(|| nodes.handle()).await;
    }
}

/// Name `a` has readers that always overlap, and name `b` is held without a gap. A call for both
/// names gets them nevertheless.
#[tokio::test(start_paused = true)]
async fn names_are_won_beside_readers_that_always_overlap() {
    let handle = in_memory(3);
    let busy = Busy::begin(&handle, "b", Duration::from_millis(20));
    let (stop, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let readers: Vec<_> = (0..5_u64)
        .map(|i| {
            let doc = handle().rw_lock("a").acquire_timeout(LONG).build().unwrap();
            let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
            tokio::spawn(async move {
                sleep(Duration::from_millis(4 * i)).await;
                while !stop.load(SeqCst) {
                    let guard = doc.read().await.unwrap();
                    reads.fetch_add(1, SeqCst);
                    sleep(Duration::from_millis(20)).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(100)).await;
    let before = reads.load(SeqCst);
    let guard = multi(&handle, &["a", "b"]).acquire().await.expect("it gets its turn");
    let passed = reads.load(SeqCst) - before;
    assert!(passed < 300, "{passed} reads passed it");
    guard.release().await.unwrap();
    stop.store(true, SeqCst);
    for reader in readers {
        timeout(LONG, reader).await.expect("readers have their turns").unwrap();
    }
    busy.end().await;
}

/// The name `b` is held for a long time, and a multi-lock waits for `a` and `b`. Before `b` is
/// free, it acquires `a` alone only once, so it delays a caller of `a` only once.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_waits_delays_the_callers_of_one_of_its_names_once() {
    let handle = in_memory(3);
    let held = single(&handle, "b").acquire().await.unwrap();
    let both = multi(&handle, &["a", "b"]);
    let waits = tokio::spawn(async move { both.acquire().await.map(drop) });
    let mut delays = Vec::new();
    for _ in 0..40 {
        let first = single(&handle, "a").acquire().await.unwrap();
        let lock = single(&handle, "a");
        let next = tokio::spawn(async move { lock.acquire().await });
        sleep(Duration::from_millis(100)).await;
        let released = tokio::time::Instant::now();
        first.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        delays.push(released.elapsed());
        next.release().await.unwrap();
    }
    delays.sort_unstable();
    assert!(delays[38] < Duration::from_millis(10), "woken late twice: {delays:?}");
    assert!(delays[39] < Duration::from_millis(600), "kept out for too long: {delays:?}");
    held.release().await.unwrap();
    timeout(LONG, waits).await.unwrap().unwrap().unwrap();
}

/// A caller holds `b` and then waits for `a`, against the order of the names. The multi-lock has
/// already acquired `a` and waits for `b`. It gives `a` back after a short time, so there is no
/// deadlock.
#[tokio::test(start_paused = true)]
async fn names_are_collected_for_a_short_time_while_another_one_is_held() {
    let handle = in_memory(3);
    let both = multi(&handle, &["a", "b"]);
    let held = single(&handle, "b").acquire().await.unwrap();
    let waits = tokio::spawn(async move { both.acquire().await.map(drop) });
    let collects = async {
        while !is_taken(&single(&handle, "a").try_acquire().await) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, collects).await.expect("it collects the first name");
    let second = timeout(LONG, single(&handle, "a").acquire()).await.expect("no ring").unwrap();
    drop((held, second));
    timeout(LONG, waits).await.unwrap().unwrap().unwrap();
}

/// The name `b` is held without a gap, by each caller for longer than the call keeps `a` at first.
/// Each time in vain the call keeps `a` for longer, until that is long enough.
#[tokio::test(start_paused = true)]
async fn names_are_kept_for_longer_each_time_in_vain() {
    for n in [1, 3] {
        let handle = in_memory(n);
        let busy = Busy::begin(&handle, "b", Duration::from_millis(1_300));
        while busy.holds() < 2 {
            sleep(Duration::from_millis(100)).await;
        }
        let both = multi(&handle, &["a", "b"]);
        let guard = both.acquire().await.expect("it gets its turn");
        guard.release().await.unwrap();
        busy.end().await;
    }
}

/// Another owner has `a` on one node. This node grants `b` to the call, and refuses both names
/// together. When the names are released, `b` must become free there, too.
#[tokio::test(start_paused = true)]
async fn a_release_reaches_a_node_that_refused_the_names_together() {
    let timed = Timed::new(3);
    let handle = || timed.builder().node_deadline(Duration::from_secs(3)).build().unwrap();
    let asks = async |op| {
        let batch = ops::batch(LONG, vec![op]);
        let deadline = timed.env.now() + LONG;
        timed.nodes[2].call(batch, deadline).await.items.remove(0).unwrap()
    };
    let taken = asks(ops::acquire("a", ops::owner(), LONG)).await;
    assert!(matches!(taken, Reply::Granted { .. }), "{taken:?}");
    let held = single(handle, "b").acquire().await.unwrap();
    let both = multi(handle, &["a", "b"]);
    let waits = tokio::spawn(async move { both.acquire().await });
    let other = single(handle, "a");
    while !is_taken(&other.try_acquire().await) {
        sleep(Duration::from_millis(10)).await;
    }
    held.release().await.unwrap();
    let guard = timeout(LONG, waits).await.unwrap().unwrap().expect("a majority is enough");
    guard.release().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let free = asks(ops::acquire("b", ops::owner(), LONG)).await;
    assert!(matches!(free, Reply::Granted { .. }), "it is left taken: {free:?}");
}

/// The last of three names is held. So the call acquires the first two names and gives them back,
/// again and again. The call is dropped at many different times.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_back_what_it_collected() {
    for handle in [in_memory(1), in_memory(3)] {
        let held = single(&handle, "c").acquire().await.unwrap();
        let (all, a, b) =
            (multi(&handle, &["a", "b", "c"]), single(&handle, "a"), single(&handle, "b"));
        let mut collected = 0;
        for ms in (0..1_500).step_by(7) {
            let mut call = Box::pin(all.acquire());
            assert!(timeout(Duration::from_millis(ms), &mut call).await.is_err());
            collected += usize::from(is_taken(&a.try_acquire().await));
            drop(call);
            sleep(Duration::from_millis(1)).await;
            for lock in [&a, &b] {
                let free = lock.try_acquire().await.unwrap().acquired();
                drop(free.unwrap_or_else(|| panic!("{} is left taken after {ms} ms", lock.name())));
            }
        }
        assert!(collected > 0, "it collected no name");
        drop(held);
    }
}

/// Each two of these multi-locks have a name in common. Other callers hold single names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_names_exclude_each_other_and_all_callers_are_served() {
    for nodes in [Nodes::memory(3), Nodes::memory(5), Nodes::redis(3)] {
        let handle = || nodes.handle();
        let inside: Arc<[AtomicBool; 3]> = Arc::default();
        let last: Arc<[AtomicU64; 3]> = Arc::default();
        let used = move |names: &[usize], guard: &LockGuard| {
            for name in names {
                assert!(!inside[*name].swap(true, SeqCst), "two hold name {name}");
                let token = guard.fencing_token().get();
                assert!(last[*name].swap(token, SeqCst) < token, "a token came back");
            }
            let (inside, names) = (Arc::clone(&inside), names.to_vec());
            move || names.iter().for_each(|name| inside[*name].store(false, SeqCst))
        };
        let stop = Arc::<AtomicBool>::default();
        let names = ["a", "b", "c"];
        let mut singles = Vec::new();
        for caller in 0..6 {
            let (name, stop, used) = (caller % 3, Arc::clone(&stop), used.clone());
            let lock = single(handle, names[name]);
            singles.push(tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    let guard = lock.acquire().await.unwrap();
                    let leave = used(&[name], &guard);
                    sleep(Duration::from_millis(5)).await;
                    leave();
                    guard.release().await.unwrap();
                }
            }));
        }
        let mut multis = Vec::new();
        for pair in [[0, 1], [1, 2], [2, 0], [1, 0]] {
            let (lock, used) = (multi(handle, &pair.map(|name| names[name])), used.clone());
            multis.push(tokio::spawn(async move {
                for _ in 0..4 {
                    let guard = lock.acquire().await.expect("each has its turn");
                    let leave = used(&pair, &guard);
                    sleep(Duration::from_millis(2)).await;
                    leave();
                    guard.release().await.unwrap();
                }
            }));
        }
        for caller in multis {
            timeout(3 * LONG, caller).await.expect("all are served").unwrap();
        }
        stop.store(true, SeqCst);
        for caller in singles {
            timeout(LONG, caller).await.expect("all are served").unwrap();
        }
    }
}

/// If another program has stored a value under one of the names, the error reports this value as
/// foreign, and no name is acquired.
#[tokio::test]
async fn another_programs_value_under_one_name_is_reported() {
    let node = MemoryNode::new();
    let redlock = Redlock::builder().node(node.clone()).build().unwrap();
    node.put_foreign("b", Some(LONG));
    for wait in [0, 100, 600] {
        let all = redlock.multi(["a", "b", "c"]).acquire_timeout(Duration::from_millis(wait));
        let refused = all.build().unwrap().acquire().await;
        let Err(AcquireError::TimedOut { of, taken, .. }) = refused else { panic!("{refused:?}") };
        assert!(taken.foreign && of.to_string().contains("a, b, c"), "{of}: {taken:?}");
        let a = redlock.mutex("a").acquire_timeout(LONG).build().unwrap().acquire().await.unwrap();
        a.release().await.unwrap();
    }
}

/// The first of 32 names becomes free just before the call's timeout. Each request takes up to 40
/// ms, so acquiring all names one by one would take a second longer than the timeout.
#[tokio::test(start_paused = true)]
async fn a_call_that_collects_ends_at_its_deadline() {
    let env = Arc::new(TokioEnv::new());
    let inner = MemoryNode::builder().env(env.clone()).build();
    let slow = Fault::new(inner.clone()).env(env.clone());
    let delay = Duration::from_millis(40);
    slow.control().dice(7, Odds { delay: 1.0, max_delay: delay, ..Odds::default() });
    let slow = Redlock::builder().node(slow).env(env.clone()).build().unwrap();
    let other = Redlock::builder().node(inner).env(env).build().unwrap();
    let names: Vec<_> = (10..42).map(|i| format!("name-{i}")).collect();
    let first = other.mutex(&names[0]).build().unwrap().acquire().await.unwrap();
    let time = Duration::from_secs(1);
    let all = slow.multi(&names).acquire_timeout(time).build().unwrap();
    let began = tokio::time::Instant::now();
    let waits = tokio::spawn(async move { all.acquire().await.map(drop) });
    sleep(time.saturating_sub(Duration::from_millis(50))).await;
    first.release().await.unwrap();
    let result = waits.await.unwrap();
    let took = began.elapsed();
    assert!(matches!(result, Err(AcquireError::TimedOut { .. })), "{result:?}");
    assert!((time..time + 6 * delay).contains(&took), "{took:?}");
    sleep(time).await;
    let all = other.multi(&names).build().unwrap().try_acquire().await;
    assert!(matches!(all, Ok(TryAcquire::Acquired(_))), "{all:?}");
}

/// A call waits for the names `a` and `b`. Another caller of the same handle begins to wait later,
/// for `b` only. It has the handle's place in the node's queue for `b`. The call for both names has
/// waited longer, and takes over this place.
#[tokio::test(start_paused = true)]
async fn the_wait_of_a_call_counts_beside_a_younger_caller_of_its_handle() {
    let handle = in_memory(1);
    let busy: Vec<_> =
        (0..10).map(|_| Busy::begin(&handle, "b", Duration::from_millis(50))).collect();
    while busy.iter().any(|busy| busy.holds() < 4) {
        sleep(Duration::from_millis(50)).await;
    }
    let held = || busy.iter().map(Busy::holds).sum::<usize>();
    let shared = handle();
    let both = shared.multi(["a", "b"]).ttl(Duration::from_secs(1)).acquire_timeout(LONG);
    let both = both.build().unwrap();
    let (before, waits) = (held(), tokio::spawn(async move { both.acquire().await }));
    sleep(Duration::from_millis(200)).await;
    let younger = single(|| shared.clone(), "b");
    let younger = tokio::spawn(async move { younger.acquire().await.map(drop) });
    let guard = waits.await.unwrap().expect("it gets its turn");
    assert!(held() - before < 120, "{} holds passed it", held() - before);
    guard.release().await.unwrap();
    younger.await.unwrap().expect("it gets its turn");
    for busy in busy {
        busy.end().await;
    }
}
