//! Tests of the state of a process in an election, as `watch_state` returns it, and of the
//! election's metrics.

use std::time::Duration;

use futures_util::StreamExt as _;
use palisade::election::{Observation, State};
use palisade_testing::fault::FaultControl;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{LONG, TTL, World};

#[tokio::test(start_paused = true)]
async fn following_leading_jeopardy_lost_and_following_again() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let (redlock, links) = world.process();
        let election = redlock.election("e").build().unwrap();
        let mut states = election.watch_state();
        assert_eq!(states.next().await, State::Following);
        let leadership = election.campaign("a").await.unwrap();
        let (term, leads) = (leadership.term(), State::Leading { term: leadership.term() });
        assert_eq!((states.next().await, election.state()), (leads, leads));
        assert!(timeout(4 * TTL, states.next()).await.is_err(), "renewals are no news");

        // A majority of the nodes is cut off, so the next renewal fails, and later the lease ends.
        links.iter().take(n / 2 + 1).for_each(FaultControl::cut);
        assert_eq!(states.next().await, State::Jeopardy { term });
        assert!(leadership.is_valid() && leadership.remaining() > TTL / 2, "it is said early");
        links.iter().for_each(FaultControl::heal);
        assert_eq!(states.next().await, leads);
        links.iter().take(n / 2 + 1).for_each(FaultControl::cut);
        assert_eq!(states.next().await, State::Jeopardy { term });
        assert!(election.state().leads());
        assert_eq!(states.next().await, State::Lost { term });
        assert!(!leadership.is_valid());
        links.iter().for_each(FaultControl::heal);
        assert!(timeout(4 * TTL, states.next()).await.is_err(), "what is lost stays lost");

        // The next campaign begins and succeeds before the watcher reads the state, so the watcher
        // receives no state in between.
        let again = election.campaign("a").await.unwrap();
        assert_eq!(states.next().await, State::Leading { term: again.term() });
        drop(leadership);
        assert!(again.is_valid() && election.state().leads());
        assert!(again.resign().await.is_ok());
        assert_eq!(states.next().await, State::Following);
        let counted = election.metrics();
        assert_eq!((counted.won, counted.lost), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_jeopardy_before_a_renewal_has_failed_and_a_loss_is_never_left_out() {
    let world = World::new(1);
    let (redlock, links) = world.process();
    let election = redlock.election("e").build().unwrap();
    let leadership = election.campaign("a").await.unwrap();
    let mut states = election.watch_state();
    assert_eq!(states.next().await, State::Leading { term: leadership.term() });
    links[0].freeze();
    // No renewal has failed yet. The state changes only because the lease has half of its ttl left.
    while leadership.remaining() >= TTL / 2 {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(election.state(), State::Jeopardy { term: leadership.term() });
    sleep(TTL).await;
    links[0].thaw();
    // The process loses the term and wins another one before the watcher reads the state. The
    // watcher must receive the loss all the same.
    let lost = leadership.term();
    drop(leadership);
    let next = timeout(LONG, election.campaign("b")).await.unwrap().unwrap();
    let two: Vec<_> = states.into_stream().take(2).collect().await;
    assert_eq!(two, [State::Lost { term: lost }, State::Leading { term: next.term() }]);
}

#[tokio::test(start_paused = true)]
async fn what_is_counted_is_what_happened() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let drain = TTL / 2;
    let election = redlock.election("e").drain(drain).build().unwrap();
    assert_eq!(election.metrics(), palisade::election::ElectionMetrics::default());
    let leadership = election.campaign("a").await.unwrap();
    sleep(10 * TTL).await;
    let counted = election.metrics();
    assert_eq!((counted.won, counted.lost, counted.least_margin), (1, 0, None));
    assert!(counted.leaderless < TTL / 10, "{counted:?}");
    assert_eq!(counted.leaderless_now, Duration::ZERO);

    // If a renewal succeeds at its second attempt, the metric contains the time of both attempts.
    links.iter().take(2).for_each(FaultControl::cut);
    sleep(TTL / 4 + TTL / 8).await;
    links.iter().for_each(FaultControl::heal);
    sleep(TTL).await;
    let longest = election.metrics().longest_renewal;
    assert!(longest >= TTL / 16 && longest < TTL / 2, "{longest:?}");

    links.iter().for_each(FaultControl::cut);
    leadership.lost().await;
    let margin = election.metrics().least_margin.expect("it was lost");
    assert!(margin >= drain && margin < drain + TTL / 10, "{margin:?}");
    // The process counts the time without a leader only from the end of the lease on the nodes.
    let lost = Instant::now();
    sleep(4 * TTL).await;
    let counted = election.metrics();
    let passed = lost.elapsed();
    assert!(counted.leaderless_now <= passed && counted.leaderless_now + 2 * TTL >= passed);
    links.iter().for_each(FaultControl::heal);
    drop(leadership);
    let again = election.campaign("a").await.unwrap();
    let counted = election.metrics();
    assert_eq!((counted.won, counted.lost, counted.leaderless_now), (2, 1, Duration::ZERO));
    assert!(counted.leaderless >= 2 * TTL && counted.leaderless <= lost.elapsed() + TTL / 10);
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn a_follower_and_an_observer_count_the_time_without_a_leader() {
    let world = World::new(3);
    let leadership = world.election().campaign("a").await.unwrap();
    let follower = world.election();
    let follows = tokio::spawn({
        let follower = follower.clone();
        async move { follower.campaign("b").await }
    });
    let watcher = world.election();
    let mut observer = watcher.observe();
    let watch = tokio::spawn(async move {
        while let Some(seen) = observer.next().await {
            assert!(!matches!(seen, Observation::Disconnected(_)));
        }
    });
    sleep(20 * TTL).await;
    for counted in [follower.metrics(), watcher.metrics()] {
        assert!(counted.leaderless < TTL, "somebody leads all the time: {counted:?}");
    }
    follows.abort();
    let _ = follows.await;
    assert!(leadership.resign().await.is_ok());
    let vacant = Instant::now();
    sleep(10 * TTL).await;
    let counted = watcher.metrics();
    let passed = vacant.elapsed();
    assert!(counted.leaderless_now + TTL > passed && counted.leaderless_now <= passed);
    watch.abort();
}

/// A leader that resigns does not use the rest of its lease. This rest counts as time without a
/// leader.
#[tokio::test(start_paused = true)]
async fn a_read_that_finds_no_leader_begins_the_time_without_one() {
    let world = World::new(3);
    let (leads, watcher) = (world.election(), world.election());
    assert_eq!(watcher.leader().await.unwrap(), None);
    let begun = Instant::now();
    sleep(TTL).await;
    let counted = watcher.metrics();
    assert_eq!((counted.leaderless, counted.leaderless_now), (begun.elapsed(), begun.elapsed()));

    let leadership = leads.campaign("a").await.unwrap();
    assert!(watcher.leader().await.unwrap().is_some());
    let before = watcher.metrics();
    assert_eq!((before.leaderless, before.leaderless_now), (begun.elapsed(), Duration::ZERO));
    assert!(leadership.resign().await.is_ok());
    assert_eq!(watcher.leader().await.unwrap(), None);
    let resigned = Instant::now();
    sleep(TTL / 4).await;
    let counted = watcher.metrics();
    assert_eq!(counted.leaderless_now, resigned.elapsed());
    assert_eq!(counted.leaderless, before.leaderless + resigned.elapsed());
}
