//! Tests of the results of calls that release a guard, or resign a leadership, after its lease has
//! ended. Also tests of the time that operations wait for nodes in quarantine (after a restart,
//! they grant nothing for some time). In virtual time.

use std::sync::Arc;
use std::time::Duration;

use palisade::Drift;
use palisade::election::CampaignError;
use palisade::error::{ExtendError, NoQuorum};
use palisade::{AcquireError, MemoryNode, RedlockBuilder, ReleaseError};
use palisade_testing::fault::{Fault, Step};
use tokio::time::{Instant, sleep};

use crate::support::memory::Timed;

const S: Duration = Duration::from_secs(1);

/// Clock drift so large that a holder's validity ends a tenth of the ttl before the nodes drop the
/// lock.
const EARLY: Drift = Drift::from_ppm(100_000);

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_lost_is_never_released_whatever_the_nodes_still_have() {
    for n in [1, 3] {
        let world = Timed::new(n);
        let redlock = world.builder().drift(EARLY).build().unwrap();
        let mutex = redlock.mutex("late").auto_renew(false).build().unwrap();
        let guard = mutex.acquire().await.unwrap();
        guard.lost().await;
        // The nodes drop the lock later than the holder's validity ends, so they still have the
        // keys.
        let late = guard.release().await.unwrap_err();
        assert!(matches!(late, ReleaseError::Lost(_)), "{late:?}");
        assert!(late.to_string().contains("lock \"late\""), "{late}");
        // The late release freed the lock on the nodes, although it returned an error.
        assert!(mutex.acquire().await.unwrap().release().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_resolves_at_the_instant_at_which_its_guard_is_dropped() {
    let redlock = Timed::new(3).redlock();
    let guard = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    let signal = guard.lost_signal();
    let ended = tokio::spawn(async move {
        signal.lost().await;
        Instant::now()
    });
    sleep(S / 8).await;
    assert!(!ended.is_finished(), "it is held");
    let dropped = Instant::now();
    drop(guard);
    assert_eq!(ended.await.unwrap(), dropped);
}

/// The third node did not grant the acquire, but received a renewal whose reply is lost. So it may
/// have the lock, and the release must be sent to it.
#[tokio::test(start_paused = true)]
async fn a_release_goes_to_nodes_that_may_have_the_lock_by_a_renewal_only() {
    let world = Timed::new(3);
    let link = |node: &MemoryNode| Fault::new(node.clone()).env(Arc::clone(&world.env));
    let links: Vec<_> = world.nodes.iter().map(link).collect();
    let builder = world.settings().ttl(60 * S).max_ttl(60 * S);
    let redlock = links.iter().fold(builder, |b, link| b.node(link.clone())).build().unwrap();
    let mutex = redlock.mutex("m").auto_renew(false).build().unwrap();
    links[2].control().cut();
    let guard = mutex.acquire().await.unwrap();
    links[2].control().heal();
    // The first request after the cut only reads the node's clock. The second request is the
    // renewal.
    links[2].control().script([Step::fine(), Step::lose_reply()]);
    guard.extend().await.unwrap();
    sleep(S).await;
    let third =
        world.settings().node(world.nodes[2].clone()).ttl(60 * S).max_ttl(60 * S).build().unwrap();
    let third = third.mutex("m").build().unwrap();
    assert!(third.try_acquire().await.unwrap().acquired().is_none(), "the renewal arrived");
    guard.release().await.unwrap();
    sleep(S).await;
    assert!(third.try_acquire().await.unwrap().acquired().is_some(), "left on the third node");
}

#[tokio::test(start_paused = true)]
async fn a_leadership_that_was_lost_is_never_resigned() {
    let world = Timed::new(3);
    let redlock = world.builder().drift(EARLY).build().unwrap();
    let election = redlock.election("late").build().unwrap();
    let leadership = election.campaign("me").await.unwrap();
    // The closed handle does not renew the lease. So the leader is in the same state as a process
    // on a machine that sleeps.
    let deadline = leadership.valid_until();
    let left = redlock.close(Duration::ZERO).await;
    assert_eq!(left.held.len(), 1, "{left}");
    leadership.lost().await;
    assert!(world.env.now() >= deadline);
    let late = leadership.resign().await.unwrap_err();
    assert!(matches!(late, ReleaseError::Lost(_)), "{late:?}");
    assert!(late.to_string().contains("election \"late\""), "{late}");
}

/// Returns the builder of a handle over nodes in quarantine, in which they grant nothing yet. The
/// longest lease is 40 s, longer than the waits of the tests.
fn restarted(n: usize) -> RedlockBuilder {
    let world = Timed::new(0);
    let node = |_| MemoryNode::builder().env(Arc::clone(&world.env)).quarantined().build();
    (0..n).map(node).fold(world.settings(), RedlockBuilder::node).max_ttl(40 * S)
}

#[tokio::test(start_paused = true)]
async fn by_default_acquire_waits_until_a_quarantine_is_over() {
    for n in [1, 3] {
        let redlock = restarted(n).build().unwrap();
        let started = Instant::now();
        let guard =
            redlock.mutex("patient").build().unwrap().acquire().await.expect("the quarantine ends");
        assert!((40 * S..42 * S).contains(&started.elapsed()), "{:?}", started.elapsed());
        assert!(guard.release().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_acquire_waits_half_a_minute_without_a_quarantine() {
    let world = Timed::new(1);
    let (redlock, other) = (world.builder(), world.builder());
    let _guard = redlock.build().unwrap().mutex("taken").build().unwrap().acquire().await.unwrap();
    let started = Instant::now();
    let refused =
        other.build().unwrap().mutex("taken").build().unwrap().acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::TimedOut { .. }), "{refused}");
    assert!(refused.to_string().starts_with("lock \"taken\": still taken after waiting 30"));
    assert!(started.elapsed() < 31 * S);
}

fn says_how_long(why: &NoQuorum, started: Instant) {
    let text = why.to_string();
    let left = why.quarantine().expect("nothing else is in the way");
    assert!((37 * S..39 * S).contains(&left), "{text}");
    assert!(started.elapsed() < 3 * S, "the user's word counts: {text}");
    assert!(text.contains("an `acquire_timeout` of 42s would have outlasted it"), "{text}");
    assert!(text.contains("never initialised: new, or emptied; grants begin in"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_too_short_for_a_quarantine_names_one_that_is_long_enough() {
    let redlock = restarted(3).build().unwrap();
    let started = Instant::now();
    let refused =
        redlock.mutex("hasty").acquire_timeout(2 * S).build().unwrap().acquire().await.unwrap_err();
    let AcquireError::NoQuorum(why) = &refused else { panic!("{refused}") };
    assert!(refused.to_string().starts_with("not acquired: lock \"hasty\": no quorum"));
    says_how_long(why, started);

    let redlock = restarted(3).build().unwrap();
    let started = Instant::now();
    let election = redlock.election("hasty").acquire_timeout(2 * S).build().unwrap();
    let refused = election.campaign("me").await.unwrap_err();
    let CampaignError::NoQuorum(why) = &refused else { panic!("{refused}") };
    assert!(refused.to_string().starts_with("cannot campaign now: election \"hasty\": no quorum"));
    says_how_long(why, started);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_outlasts_a_quarantine() {
    let redlock = restarted(3).build().unwrap();
    let started = Instant::now();
    let leadership = redlock.election("patient").build().unwrap().campaign("me").await.unwrap();
    assert!((40 * S..42 * S).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert!(leadership.resign().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_guard_expires_in_virtual_time() {
    let world = Timed::new(3);
    let redlock = world.redlock();
    let guard =
        redlock.mutex("virtual").auto_renew(false).build().unwrap().acquire().await.unwrap();
    assert!(guard.remaining() > 14 * S);
    sleep(10 * S).await;
    assert!(guard.is_valid() && guard.remaining() < 5 * S);
    sleep(5 * S).await;
    assert!(!guard.is_valid());
    let next = redlock.mutex("virtual").build().unwrap().acquire().await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    sleep(3_600 * S).await;
    assert!(next.is_valid(), "renewed in virtual time, too");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_nodes_whose_clocks_stepped_counts_at_once() {
    for n in [1, 3] {
        let world = Timed::new(n);
        let (redlock, other) = (world.redlock(), world.builder());
        let guard =
            redlock.mutex("stepped").auto_renew(false).build().unwrap().acquire().await.unwrap();
        sleep(8 * S).await;
        // The lease has expired by the nodes' clocks, so the nodes grant the lock to another
        // caller.
        for node in &world.nodes {
            node.jump_clock(8 * S);
        }
        let next =
            other.build().unwrap().mutex("stepped").build().unwrap().acquire().await.unwrap();
        assert!(guard.is_valid() && next.is_valid(), "what clocks that step do");
        let asked = Instant::now();
        let renewed = guard.extend().await;
        assert!(matches!(renewed, Err(ExtendError::Lost(_))), "{renewed:?}");
        guard.lost().await;
        assert!(asked.elapsed() < S, "heard {:?} later", asked.elapsed());
    }
}
