//! Defects of other lock libraries. Each test asserts that this library does not have the defect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade::{AcquireError, ReleaseError, TryAcquire};
use palisade_testing::fault::Step;
use tokio::time::{sleep, timeout};

use crate::nodes::{becomes_free, is_free};
use crate::support::memory::Cluster;

const LONG: Duration = Duration::from_secs(20);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test]
async fn an_extension_below_quorum_releases_nothing() {
    let c = Cluster::new(3);
    let r = c.redlock();
    let guard = r.mutex("a").ttl(LONG).auto_renew(false).build().unwrap().acquire().await.unwrap();
    c.controls[0].cut();
    c.controls[1].cut();
    let before = guard.valid_until();
    guard.extend().await.unwrap_err();
    assert!(guard.is_valid(), "the old deadline counts");
    assert_eq!(guard.valid_until(), before);
    assert_eq!(c.nodes[2].len(), c.nodes[0].len(), "the healthy node still has the key");
    c.controls[0].heal();
    assert!(guard.extend().await.unwrap() > before);
    c.controls[1].heal();
    assert_eq!(guard.release().await, Ok(()));
}

#[tokio::test]
async fn a_frozen_node_of_three_blocks_no_caller() {
    let c = Cluster::new(3);
    // The node deadline is longer than the limit below, so a wait for the frozen node would fail
    // the test.
    let r = c.builder().node_deadline(Duration::from_secs(3)).ttl(LONG).build().unwrap();
    assert!(is_free(&r, "warm").await);
    c.controls[1].freeze();
    for i in 0..10 {
        let name = format!("f{i}");
        let pair =
            async { r.mutex(name).build().unwrap().acquire().await.unwrap().release().await };
        assert!(timeout(Duration::from_secs(2), pair).await.expect("blocked").is_ok());
    }
}

#[tokio::test]
async fn what_a_frozen_node_grants_late_is_released_when_it_thaws() {
    let c = Cluster::new(3);
    let r = c.builder().node_deadline(ms(50)).build().unwrap();
    c.controls[1].freeze();
    c.controls[2].freeze();
    r.mutex("late").ttl(LONG).build().unwrap().try_acquire().await.unwrap_err();
    c.controls[1].thaw();
    c.controls[2].thaw();
    becomes_free(&r, "late").await;
}

#[tokio::test]
async fn a_short_ttl_and_a_long_job() {
    let c = Cluster::new(3);
    let r = c.builder().ttl(ms(400)).node_deadline(ms(50)).build().unwrap();
    let guard = r.mutex("short").build().unwrap().acquire().await.unwrap();
    sleep(ms(1_500)).await;
    // A lock that is not valid must be reported as lost.
    if guard.is_valid() {
        assert!(!is_free(&r, "short").await);
        assert!(guard.release().await.is_ok());
    } else {
        timeout(LONG, guard.lost()).await.unwrap();
        assert!(guard.release().await.is_err());
    }
    // Without automatic renewal, the guard reports the loss, and its release returns an error.
    let guard = r.mutex("short").auto_renew(false).build().unwrap().acquire().await.unwrap();
    timeout(LONG, guard.lost()).await.expect("loss is reported by the local deadline");
    assert!(!guard.is_valid());
    sleep(ms(100)).await;
    let late = guard.release().await.unwrap_err();
    assert!(matches!(late, ReleaseError::Lost(_)), "{late}");
}

#[tokio::test]
async fn split_votes_with_even_numbers_always_settle() {
    for clients in [2, 4] {
        let c = Cluster::new(2);
        let wins = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..clients)
            .map(|_| {
                let r = c.builder().allow_even_nodes().build().unwrap();
                let wins = Arc::clone(&wins);
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let guard = r.mutex("split").build().unwrap().acquire().await.unwrap();
                        wins.fetch_add(1, Ordering::Relaxed);
                        assert!(guard.release().await.is_ok());
                    }
                })
            })
            .collect();
        for t in tasks {
            timeout(LONG, t).await.expect("an acquire never settled").unwrap();
        }
        assert_eq!(wins.load(Ordering::Relaxed), clients * 20);
    }
}

#[tokio::test]
async fn an_expired_lock_is_never_returned() {
    let c = Cluster::new(3);
    let r = c.builder().node_deadline(Duration::from_secs(2)).ttl(LONG).build().unwrap();
    for control in &c.controls {
        control.script([Step::delay_reply(ms(400))]);
    }
    let m = r.mutex("slow").ttl(ms(100)).auto_renew(false).build().unwrap();
    match m.try_acquire().await {
        Err(AcquireError::NoQuorum(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_faulty_node_never_fails_a_won_quorum() {
    let c = Cluster::new(3);
    let r = c.redlock();
    c.controls[0].cut();
    for i in 0..20 {
        let guard = r.mutex(format!("q{i}")).build().unwrap().acquire().await.unwrap();
        assert!(guard.release().await.is_ok());
    }
}

#[tokio::test]
async fn a_late_release_of_one_attempt_never_deletes_the_next() {
    let c = Cluster::new(1);
    let r = c.redlock();
    let first = r.mutex("reuse").build().unwrap().acquire().await.unwrap();
    // The node executes the release a second time, when the next holder already has the lock.
    c.controls[0].script([Step::duplicate(ms(50))]);
    assert!(first.release().await.is_ok());
    let second = r.mutex("reuse").build().unwrap().acquire().await.unwrap();
    sleep(ms(120)).await;
    assert!(!is_free(&r, "reuse").await);
    assert!(second.release().await.is_ok());
}

#[tokio::test]
async fn taken_broken_and_unknown_are_different_errors() {
    let c = Cluster::new(3);
    let r = c.builder().node_deadline(ms(50)).build().unwrap();
    let guard = r.mutex("t").build().unwrap().acquire().await.unwrap();
    assert!(matches!(r.mutex("t").build().unwrap().try_acquire().await, Ok(TryAcquire::Taken(_))));
    c.controls[0].cut();
    c.controls[1].freeze();
    let e = r.mutex("t").build().unwrap().try_acquire().await.unwrap_err();
    let text = e.to_string();
    assert!(
        text.contains("2 of 3 nodes needed") && text.contains("held by another owner"),
        "{text}"
    );
    match guard.release().await {
        Err(ReleaseError::Unconfirmed(why)) => assert_eq!(why.nodes.len(), 3),
        other => panic!("{other:?}"),
    }
}
