//! Work under a lock or a leadership. A loss of the lease stops the work. The end of the work
//! releases the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use palisade::election::CampaignError;
use palisade::{AcquireError, Mutex, TryAcquire, WorkError};
use palisade_testing::fault::FaultControl;
use tokio::time::{Instant, sleep};

use crate::support::memory::{Cluster, linked};

const S: Duration = Duration::from_secs(1);

async fn is_free(mutex: &Mutex) -> bool {
    matches!(mutex.try_acquire().await, Ok(TryAcquire::Acquired(_)))
}

/// A value that the work owns. Its drop records that the work was stopped.
struct Stopped(Arc<AtomicBool>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_done_under_the_lock_and_the_lock_released_after_it() {
    let (redlock, _) = linked();
    let mutex = redlock.mutex("m").build().unwrap();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let (rival, outlives) = (mutex.clone(), Arc::clone(&kept));
    let token = mutex.run(|guard| async move {
        sleep(60 * S).await;
        assert!(guard.is_valid() && !is_free(&rival).await);
        *outlives.lock().unwrap() = Some(Arc::clone(&guard));
        guard.fencing_token()
    });
    let token = token.await.unwrap();
    assert!(is_free(&mutex).await, "released, although a clone of the guard is left");
    let late = kept.lock().unwrap().take().unwrap();
    assert!(!late.is_valid() && late.fencing_token() == token);
    // `run` returns an error of the work as a value.
    let failed = mutex.run(|_| async { Err::<(), _>("no paper") }).await.unwrap();
    assert_eq!(failed, Err("no paper"));
    assert!(is_free(&mutex).await);
}

#[tokio::test(start_paused = true)]
async fn work_is_stopped_when_the_lock_is_lost() {
    let (redlock, link) = linked();
    let mutex = redlock.mutex("m").auto_renew(false).ttl(5 * S).build().unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let guard = Stopped(Arc::clone(&stopped));
    let begun = Instant::now();
    let ended = mutex.run(|_| async move {
        let _guard = guard;
        sleep(3_600 * S).await;
    });
    let e = ended.await.unwrap_err();
    assert!(matches!(e, WorkError::Lost { value: None, .. }), "{e}");
    assert!(e.to_string().starts_with("lock \"m\": lost, and the work was stopped"), "{e}");
    assert!(stopped.load(SeqCst) && begun.elapsed() <= 5 * S);
    // The election cannot renew its leadership, so the leadership is lost, too.
    let election = redlock.election("e").one_term().build().unwrap();
    let lost = election.lead("me", |_| async {
        link.cut();
        sleep(3_600 * S).await;
    });
    let e = lost.await.unwrap_err();
    assert!(e.to_string().starts_with("election \"e\": lost, and the work was stopped"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn what_was_finished_too_late_is_kept_and_called_so() {
    let (redlock, _) = linked();
    let mutex = redlock.mutex("m").auto_renew(false).ttl(S).build().unwrap();
    // The work does not yield to the runtime while its lease ends, as if the process were paused.
    // So it ends before it can be stopped.
    let ended = mutex.run(|_| async {
        let before = Instant::now();
        tokio::time::advance(2 * S).await;
        before.elapsed()
    });
    let e = ended.await.unwrap_err();
    let WorkError::Lost { .. } = &e else { panic!("{e}") };
    // The work may be stopped at its only await, or it may end after the lease. In both cases `run`
    // returns the error `Lost`.
    assert!(e.to_string().starts_with("lock \"m\": lost"), "{e}");
}

#[tokio::test]
async fn an_unconfirmed_release_keeps_the_value() {
    let cluster = Cluster::new(3);
    let redlock = cluster.builder().node_deadline(Duration::from_millis(50)).build().unwrap();
    let mutex = redlock.mutex("m").build().unwrap();
    let e = mutex.run(|_| async {
        cluster.controls.iter().for_each(FaultControl::cut);
        7
    });
    let e = e.await.unwrap_err();
    assert!(matches!(e, WorkError::Unconfirmed { .. }), "{e}");
    assert!(e.to_string().contains("lock \"m\""), "{e}");
    assert_eq!(e.into_value(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn work_that_cannot_begin_is_not_begun() {
    let (redlock, _) = linked();
    let _held = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    let _leads = redlock.election("e").build().unwrap().campaign("a").await.unwrap();
    let begun = AtomicU32::new(0);
    let mutex = redlock.mutex("m").acquire_timeout(S).build().unwrap();
    let e = mutex.run(|_| async { begun.fetch_add(1, SeqCst) }).await.unwrap_err();
    assert!(matches!(e, WorkError::NotStarted(AcquireError::TimedOut { .. })), "{e}");
    let election = redlock.election("e").acquire_timeout(S).build().unwrap();
    let e = election.lead("b", |_| async { begun.fetch_add(1, SeqCst) }).await.unwrap_err();
    assert!(matches!(e, WorkError::NotStarted(CampaignError::TimedOut { .. })), "{e}");
    assert_eq!(begun.into_inner(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_drops_its_work_and_gives_the_lock_back() {
    let (redlock, _) = linked();
    let mutex = redlock.mutex("m").build().unwrap();
    let stopped = Arc::new(AtomicBool::new(false));
    let guard = Stopped(Arc::clone(&stopped));
    let run = mutex.run(|_| async move {
        let _guard = guard;
        sleep(3_600 * S).await;
    });
    assert!(tokio::time::timeout(S, run).await.is_err());
    assert!(stopped.load(SeqCst));
    let again = redlock.mutex("m").acquire_timeout(S).build().unwrap().acquire().await;
    drop(again.expect("given back"));
}

#[tokio::test(start_paused = true)]
async fn a_signal_outlives_its_guard_and_resolves_at_each_kind_of_end() {
    let (redlock, _) = linked();
    let mutex = redlock.mutex("m").auto_renew(false).ttl(5 * S).build().unwrap();
    for how in ["expired", "released", "dropped"] {
        let guard = mutex.acquire().await.unwrap();
        let (signal, again) = (guard.lost_signal(), guard.lost_signal().clone());
        assert!(!signal.is_lost());
        let task = tokio::spawn(async move { signal.lost().await });
        match how {
            "expired" => sleep(6 * S).await,
            "released" => guard.release().await.unwrap(),
            _ => drop(guard),
        }
        tokio::time::timeout(S, task).await.expect(how).unwrap();
        assert!(again.is_lost(), "{how}");
        again.lost().await;
    }
}
