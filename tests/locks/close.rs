//! `Redlock::close`: the calls that it refuses, the work that it waits for, the locks that it does
//! not release, and its report.

use std::process::{Command, Stdio};
use std::time::Duration;

use palisade::election::{CampaignError, LeaderError, Observation};
use palisade::error::Resource;
use palisade::{AcquireError, Advice, LockGuard, RedisNode, Redlock};
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::is_free;
use crate::support::memory::{Cluster, Timed};
use crate::support::server::Server;

const S: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

/// Returns two handles on the same memory node, in virtual time.
fn two_handles() -> [Redlock; 2] {
    let world = Timed::new(1);
    [world.redlock(), world.redlock()]
}

#[tokio::test(start_paused = true)]
async fn nothing_new_is_begun() {
    let [redlock, _other] = two_handles();
    let election = redlock.election("e").build().unwrap();
    let mut observer = election.observe();
    assert_eq!(observer.next().await, Some(Observation::Vacant));
    let orders = redlock.idempotency("n").at_most_once().build().unwrap();
    let left = redlock.close(S).await;
    assert!(left.is_clean(), "{left}");

    let mutex = redlock.mutex("m").build().unwrap();
    let tried = mutex.try_acquire().await.map(|_| ()).unwrap_err();
    let read = redlock.rw_lock("m").build().unwrap().read().await.map(drop).unwrap_err();
    for refused in [mutex.acquire().await.map(|_| ()).unwrap_err(), tried, read] {
        assert_eq!(refused, AcquireError::Closed(Resource::Lock("m".into())));
        assert_eq!(refused.advice(), Advice::Rebuild);
        assert!(refused.to_string().contains("lock \"m\": not acquired, the handle was closed"));
    }
    let permit = redlock.semaphore("s", 1).build().unwrap().acquire().await.map(drop);
    assert_eq!(permit, Err(AcquireError::Closed(Resource::Semaphore("s".into()))));
    let of = Resource::Election("e".into());
    let refused = election.campaign("x").await.unwrap_err();
    assert_eq!(refused, CampaignError::Closed(of.clone()));
    let refused = election.try_campaign("x").await.map(|_| ()).unwrap_err();
    assert_eq!(refused, CampaignError::Closed(of.clone()));
    assert_eq!(election.leader().await, Err(LeaderError::Closed(of)));
    assert_eq!(observer.next().await, None);
    assert_eq!(observer.next().await, None);
    let ran = orders.key("k").run(async |_| Ok::<_, String>(1)).await;
    let refused = ran.expect_err("no claim is made");
    assert!(refused.to_string().contains("closed"), "{refused}");
    assert_eq!(refused.advice(), Advice::Rebuild);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_of_it_at_once() {
    let [redlock, _other] = two_handles();
    let guard = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    let leadership = redlock.election("e").build().unwrap().campaign("a").await.unwrap();
    let (m, e) = (
        redlock.mutex("m").acquire_timeout(3_600 * S).build().unwrap(),
        redlock.election("e").build().unwrap(),
    );
    let waiting = tokio::spawn(async move { m.acquire().await.map(|_| ()) });
    let following = tokio::spawn(async move { e.campaign("b").await.map(|_| ()) });
    let mut observer = redlock.election("e").build().unwrap().observe();
    assert!(matches!(observer.next().await, Some(Observation::Leader { .. })));
    let observing = tokio::spawn(async move { observer.next().await });
    sleep(10 * S).await;
    let begun = Instant::now();
    let closing = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.close(LONG).await }
    });
    assert!(matches!(waiting.await.unwrap(), Err(AcquireError::Closed(_))));
    assert!(matches!(following.await.unwrap(), Err(CampaignError::Closed(_))));
    assert_eq!(observing.await.unwrap(), None);
    assert!(begun.elapsed() < S, "{:?}", begun.elapsed());
    drop((guard, leadership));
    assert!(closing.await.unwrap().is_clean());
    assert!(begun.elapsed() < S, "it waits no longer than for what is held");
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_release_locks_in_use() {
    let [redlock, other] = two_handles();
    let guard = redlock.mutex("work").build().unwrap().acquire().await.unwrap();
    let quiet = redlock.mutex("quiet").auto_renew(false).build().unwrap().acquire().await.unwrap();
    let begun = Instant::now();
    let left = redlock.close(40 * S).await;
    // While `close` waits, the lock of `guard` is renewed. The lock without automatic renewal has
    // expired.
    assert!(begun.elapsed() >= 40 * S);
    assert!(!quiet.is_valid());
    assert_eq!(left.held, [Resource::Lock("work".into())]);
    assert!(left.owed.is_empty(), "{left}");
    assert!(left.to_string().contains("lock \"work\" is still held, until its ttl"), "{left}");
    assert!(guard.is_valid(), "its holder may finish");
    let taken = other.mutex("work").build().unwrap().try_acquire().await.unwrap();
    assert!(taken.acquired().is_none(), "somebody else has it already");
    // After `close`, the lock is not renewed. The guard reports the loss in time.
    timeout(16 * S, guard.lost()).await.expect("renewed although the handle is closed");
    // The guard's deadline comes earlier than the end of the lock on the nodes. So the next caller
    // may have to wait.
    let next = other.mutex("work").acquire_timeout(S).build().unwrap().acquire().await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_holders_who_come_to_an_end() {
    for kind in ["mutex", "reader", "permit"] {
        waits_for_a_holder(kind).await;
    }
}

async fn waits_for_a_holder(kind: &str) {
    let [redlock, other] = two_handles();
    let pool = |redlock: &Redlock| redlock.semaphore("work", 1).build().unwrap();
    let guard: LockGuard = match kind {
        "reader" => redlock.rw_lock("work").build().unwrap().read().await.unwrap().into(),
        "permit" => pool(&redlock).acquire().await.unwrap().into(),
        _ => redlock.mutex("work").build().unwrap().acquire().await.unwrap(),
    };
    assert_eq!(redlock.held(), 1);
    let begun = Instant::now();
    let work = tokio::spawn(async move {
        sleep(60 * S).await;
        assert!(guard.is_valid(), "it is renewed while it is waited for");
        guard.release().await
    });
    let left = redlock.close(600 * S).await;
    assert!(left.is_clean(), "{left}");
    assert!((60 * S..61 * S).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert!(work.await.unwrap().is_ok());
    if kind == "permit" {
        assert!(pool(&other).try_acquire().await.unwrap().acquired().is_some());
    } else {
        assert!(is_free(&other, "work").await, "{kind}");
    }
}

#[tokio::test]
async fn a_close_sends_pending_releases_or_reports_them() {
    let c = Cluster::new(3);
    let r = c.builder().node_deadline(Duration::from_millis(50)).ttl(LONG).build().unwrap();
    let (a, b) = (
        r.mutex("a").build().unwrap().acquire().await.unwrap(),
        r.mutex("b").build().unwrap().acquire().await.unwrap(),
    );
    c.controls[2].cut();
    drop((a, b));
    let left = r.close(Duration::from_millis(300)).await;
    assert!(left.held.is_empty(), "{left}");
    let owed: Vec<usize> = left.owed.iter().map(|(_, owed)| *owed).collect();
    assert_eq!(owed, [2], "{left}");
    let cut = &left.owed[0].0;
    assert!(left.to_string().contains(&format!("{cut}: 2 releases without an answer")), "{left}");
    c.controls[2].heal();
    // A second call continues the work of the first one.
    let left = r.close(LONG).await;
    assert!(left.is_clean(), "{left}");
    let other = c.redlock();
    for name in ["a", "b"] {
        assert!(
            other.mutex(name).build().unwrap().try_acquire().await.unwrap().acquired().is_some()
        );
    }
}

#[tokio::test]
async fn a_close_that_is_dropped_takes_nothing_away() {
    let c = Cluster::new(3);
    let r = c.builder().ttl(Duration::from_millis(900)).build().unwrap();
    let guard = r.mutex("a").build().unwrap().acquire().await.unwrap();
    let until = guard.valid_until();
    assert!(timeout(Duration::from_millis(20), r.close(LONG)).await.is_err());
    sleep(Duration::from_millis(700)).await;
    assert!(guard.valid_until() > until, "not renewed any more");
    assert!(matches!(r.mutex("b").build().unwrap().acquire().await, Err(AcquireError::Closed(_))));
    assert!(guard.release().await.is_ok());
}

/// Environment variable for the test `a_program`, which other tests run as a process. It contains
/// the name to lock and the server's URL.
const ORDER: &str = "PALISADE_TEST_CLOSE";

/// Other tests start this test as a separate process. It acts as the `main` of a user's program.
#[test]
fn a_program() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let (name, url) = order.split_once(' ').expect("name and url");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let node = RedisNode::builder(url).trust_fresh(true).build().unwrap();
        let redlock = Redlock::builder().node(node).build().unwrap();
        let guard = redlock.mutex(name).build().unwrap().acquire().await.unwrap();
        assert!(guard.is_valid());
        drop(guard);
        let left = redlock.close(LONG).await;
        assert!(left.is_clean(), "{left}");
    });
}

#[test]
fn what_a_program_drops_last_is_released() {
    let server = Server::start(&[]);
    let mut stayed = Vec::new();
    for run in 0..20 {
        let name = format!("last-{run}");
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "close::a_program"])
            .env(ORDER, format!("{name} {}", server.url()))
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(ended.success());
        // The key with the lock's last fencing token (the fence) remains longer than the lock. So
        // this key shows that the program has held the lock.
        assert_eq!(server.cli(&["exists", &format!("{{{name}}}:fence")]), "1");
        if server.cli(&["exists", &name]) != "0" {
            stayed.push(name);
        }
    }
    assert!(stayed.is_empty(), "still locked after the program's end: {stayed:?}");
}
