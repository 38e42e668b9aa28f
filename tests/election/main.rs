//! Tests of leader election on in-memory nodes in virtual time. tokio's paused clock drives nodes,
//! renewers and candidates.

mod candidates;
mod faults;
mod lead;
mod state;
mod step_down;
mod world;
#[path = "../support/wrap.rs"]
mod wrap;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream as _;
use palisade::election::{
    CampaignError, Identity, LeaderError, MAX_METADATA, Observation, ProclaimError, TryCampaign,
};
use palisade_testing::fault::FaultControl;
use tokio::time::{Instant, sleep, timeout};

use world::{LONG, TTL, World, shaky};

#[tokio::test(start_paused = true)]
async fn a_term_from_campaign_to_resignation() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let (here, there) = (world.election(), world.election());
        assert_eq!(there.leader().await.unwrap(), None);
        let leadership = here.campaign("first").await.unwrap();
        let leader = there.leader().await.unwrap().unwrap();
        assert_eq!((leader.value.as_str(), leader.number), ("first", 1));
        assert_eq!(leader.term, leadership.term());
        assert_eq!(leader.identity, Identity::here());
        assert!(leader.remaining <= TTL && leader.remaining > TTL / 2);
        assert!(matches!(there.try_campaign("x").await.unwrap(), TryCampaign::Following(_)));

        leadership.proclaim("second").await.unwrap();
        let leader = there.leader().await.unwrap().unwrap();
        assert_eq!((leader.value.as_str(), leader.number), ("second", 2));
        assert_eq!((leader.term, &*leadership.value()), (leadership.term(), "second"));

        sleep(10 * TTL).await;
        assert!(leadership.is_valid());
        let leader = there.leader().await.unwrap().unwrap();
        assert_eq!((leader.value.as_str(), leader.term), ("second", leadership.term()));

        let before = leadership.term();
        assert_eq!(leadership.resign().await, Ok(()));
        assert_eq!(there.leader().await.unwrap(), None);
        let next = there.campaign("third").await.unwrap();
        assert!(next.term() > before);
        assert_eq!(here.leader().await.unwrap().unwrap().value, "third");
    }
}

#[tokio::test(start_paused = true)]
async fn sixteen_candidates_lead_one_at_a_time_and_an_observer_sees_them_in_order() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let inside = Arc::new(AtomicU32::new(0));
        let terms = Arc::new(Mutex::new(Vec::new()));
        let mut observer = world.election().observe();
        let watch = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                match timeout(LONG, observer.next()).await {
                    Ok(item) => seen.push(item.unwrap()),
                    Err(_) => return seen,
                }
            }
        });
        let candidates: Vec<_> = (0..16)
            .map(|i| {
                let (election, inside) = (world.election(), Arc::clone(&inside));
                let terms = Arc::clone(&terms);
                tokio::spawn(async move {
                    for _ in 0..3 {
                        let leadership = election.campaign(format!("c{i}")).await.unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                        terms.lock().unwrap().push(leadership.term());
                        sleep(Duration::from_millis(40)).await;
                        leadership.proclaim(format!("c{i}!")).await.unwrap();
                        sleep(Duration::from_millis(40)).await;
                        assert!(leadership.is_valid());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        assert!(leadership.resign().await.is_ok());
                    }
                })
            })
            .collect();
        for candidate in candidates {
            timeout(LONG, candidate).await.unwrap().unwrap();
        }
        let terms = terms.lock().unwrap().clone();
        assert_eq!(terms.len(), 48);
        assert!(terms.is_sorted_by(|a, b| a < b), "terms must grow");
        check_stream(&watch.await.unwrap(), &terms);
    }
}

/// Checks a stream of observations. Each leader's term must be in `terms`, terms and values must
/// come in order, and each gap between values must be marked.
fn check_stream(seen: &[Observation], terms: &[palisade::FencingToken]) {
    let mut last = None;
    for pair in seen.windows(2) {
        assert!(!matches!(pair, [Observation::Vacant, Observation::Vacant]), "reported twice");
    }
    for item in seen {
        if let Observation::Leader { leader, gap } = item {
            assert!(terms.contains(&leader.term));
            let now = (leader.term, leader.number);
            if let Some((term, number)) = last {
                assert!(now > (term, number), "backwards");
                assert!(*gap || now == (term, number + 1), "an unmarked gap");
            }
            last = Some(now);
        }
    }
    let leaders = seen.iter().filter(|i| matches!(i, Observation::Leader { .. })).count();
    assert!(leaders > terms.len() / 2, "hints bring most of them: {leaders}");
    assert!(matches!(seen.last(), Some(Observation::Vacant)));
}

#[tokio::test(start_paused = true)]
async fn no_reader_is_ever_shown_a_value_of_another_term() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let said: Arc<Mutex<BTreeMap<_, Vec<String>>>> = Arc::default();
        let leaders: Vec<_> = (0..4)
            .map(|i| {
                let (election, said) = (shaky(&world, i), Arc::clone(&said));
                tokio::spawn(async move {
                    for round in 0..20 {
                        let value = format!("c{i}r{round}");
                        let leadership = election.campaign(&value).await.unwrap();
                        let term = leadership.term();
                        let more = format!("{value} in {term}");
                        said.lock().unwrap().insert(term, vec![value, more.clone()]);
                        leadership.proclaim(more).await.unwrap();
                        sleep(Duration::from_millis(20)).await;
                        if round % 2 == 0 {
                            assert!(leadership.resign().await.is_ok());
                        }
                    }
                })
            })
            .collect();
        let reader = shaky(&world, 99);
        let mut shown = Vec::new();
        while !leaders.iter().all(tokio::task::JoinHandle::is_finished) {
            shown.extend(reader.leader().await.unwrap());
            sleep(Duration::from_micros(700)).await;
        }
        for leader in leaders {
            leader.await.unwrap();
        }
        let said = said.lock().unwrap();
        assert!(shown.len() > 80, "the reader was too slow: {}", shown.len());
        for leader in &shown {
            assert!(said[&leader.term].contains(&leader.value), "{leader:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resigning_wakes_the_next_candidate() {
    // The candidate attempts to lead once a minute, so only a hint (a message from a node that the
    // lock is free) can wake it in time.
    let minute = Duration::from_secs(60);
    let lazy = palisade::RetryPolicy::exponential(minute, minute, 1.0).unwrap();
    for dropped in [false, true] {
        let world = World::new(3);
        let leadership = world.election().campaign("a").await.unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let second = world.process().0.election("e").retry(lazy).build().unwrap();
        let waiting = tokio::spawn({
            let (election, log) = (second, Arc::clone(&log));
            async move {
                let leadership = election.campaign("b").await.unwrap();
                log.lock().unwrap().push("b leads");
                leadership
            }
        });
        sleep(TTL / 2).await;
        log.lock().unwrap().push("a resigns");
        let resigned = Instant::now();
        let first = leadership.term();
        if dropped {
            drop(leadership);
        } else {
            assert!(leadership.resign().await.is_ok());
        }
        let next = timeout(LONG, waiting).await.unwrap().unwrap();
        assert_eq!(*log.lock().unwrap(), ["a resigns", "b leads"]);
        assert!(next.term() > first);
        assert!(resigned.elapsed() < TTL / 3, "woken by a timer, not by the hint");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_yields_vacancy_doubt_and_missed_changes() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let mut observer = redlock.election("e").build().unwrap().observe();
    assert_eq!(observer.next().await, Some(Observation::Vacant));
    let leadership = world.election().campaign("1").await.unwrap();
    let Some(Observation::Leader { leader, gap: false }) = observer.next().await else {
        panic!("the first leader of a stream follows on nothing")
    };
    assert_eq!(leader.value, "1");
    leadership.proclaim("2").await.unwrap();
    let two = observer.next().await;
    assert!(matches!(&two, Some(Observation::Leader { leader, gap: false }) if leader.number == 2));
    leadership.proclaim("3").await.unwrap();
    leadership.proclaim("4").await.unwrap();
    let four = observer.next().await;
    assert!(matches!(&four, Some(Observation::Leader { leader, gap: true }) if leader.number == 4));
    links[0].cut();
    assert!(timeout(4 * TTL, observer.next()).await.is_err(), "no change, no item");
    links[1].cut();
    let Some(Observation::Disconnected(why)) = observer.next().await else {
        panic!("more than the nodes can know")
    };
    assert_eq!((why.needed, why.nodes.len()), (2, 3));
    assert!(timeout(4 * TTL, observer.next()).await.is_err(), "no change, no item");
    links[0].heal();
    assert_eq!(observer.next().await, Some(Observation::Resynced { gap: false }));
    let again = observer.next().await;
    assert!(
        matches!(&again, Some(Observation::Leader { leader, gap: false }) if leader.number == 4)
    );
    // The leader proclaims two values while the observer is disconnected. The observer misses the
    // first of them, so it must mark its next observations with a gap.
    links.iter().take(2).for_each(FaultControl::cut);
    assert!(matches!(observer.next().await, Some(Observation::Disconnected(_))));
    leadership.proclaim("5").await.unwrap();
    leadership.proclaim("6").await.unwrap();
    links.iter().for_each(FaultControl::heal);
    assert_eq!(observer.next().await, Some(Observation::Resynced { gap: true }));
    let six = observer.next().await;
    assert!(matches!(&six, Some(Observation::Leader { leader, gap: true }) if leader.number == 6));
    drop(leadership);
    // The observer can also be polled as a stream.
    let vacant = std::future::poll_fn(|cx| Pin::new(&mut observer).poll_next(cx)).await;
    assert_eq!(vacant, Some(Observation::Vacant));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_distinguished_and_in_time() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let election = redlock.election("e").build().unwrap();
    let long = "x".repeat(MAX_METADATA);
    assert!(matches!(election.campaign(&long).await, Err(CampaignError::Config(_))));

    let leadership = election.campaign("a").await.unwrap();
    assert!(matches!(leadership.proclaim(long).await, Err(ProclaimError::Config(_))));
    assert_eq!(&*leadership.value(), "a");
    let start = Instant::now();
    let within = 3 * TTL;
    let rival = world.process().0.election("e").acquire_timeout(within).build().unwrap();
    let late = rival.campaign("b").await;
    assert!(matches!(late, Err(CampaignError::TimedOut { waited, .. }) if waited >= within));
    assert!(start.elapsed() < within + Duration::from_secs(1));

    links.iter().take(2).for_each(FaultControl::cut);
    let Err(LeaderError::NoQuorum(why)) = election.leader().await else { panic!("a guess") };
    assert!(why.to_string().contains("2 of 3 nodes needed"), "{why}");
    let election = redlock.election("e").acquire_timeout(TTL).build().unwrap();
    assert!(matches!(election.campaign("c").await, Err(CampaignError::NoQuorum(_))));
    // A campaign without a deadline continues, and wins when the nodes reply again.
    let patient = redlock.election("other").build().unwrap();
    let campaign = tokio::spawn(async move { patient.campaign("d").await });
    sleep(10 * TTL).await;
    assert!(!campaign.is_finished());
    links.iter().for_each(FaultControl::heal);
    assert!(timeout(LONG, campaign).await.unwrap().unwrap().unwrap().is_valid());
}
