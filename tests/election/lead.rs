//! Tests of `Election::lead`: work that only the leader does. The work starts again after each loss
//! of the leadership. After a loss, a new leader waits for the drain time that the lost leader has
//! declared for its work (the lock-delay).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::election::StepDown;
use palisade::{FencingToken, WorkError};
use palisade_testing::fault::FaultControl;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{LONG, TTL, World};

/// A resource with fencing: refuses a token smaller than the last accepted one. Stores each
/// accepted token with its time.
#[derive(Default)]
struct Ledger(Mutex<Vec<(FencingToken, Instant)>>);

impl Ledger {
    fn write(&self, token: FencingToken) -> bool {
        let mut all = self.0.lock().unwrap();
        let accepted = all.last().is_none_or(|(last, _)| token >= *last);
        if accepted {
            all.push((token, Instant::now()));
        }
        accepted
    }
}

/// A value that the leader's work owns. It records the time at which the work is dropped.
struct Dropped(Arc<Mutex<Vec<Instant>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(Instant::now());
    }
}

/// The leader's work: writes to the ledger every 7 ms, without end.
async fn write(ledger: Arc<Ledger>, term: FencingToken, _until: Dropped) {
    loop {
        assert!(ledger.write(term), "a leader that leads was refused");
        sleep(Duration::from_millis(7)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_leaders_work_is_cancelled_before_another_fenced_write_succeeds() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let (ledger, ends) = (Arc::new(Ledger::default()), Arc::default());
        let mut links = Vec::new();
        let leaders: Vec<_> = ["a", "b"]
            .map(|value| {
                let (redlock, of) = world.process();
                links.push(of);
                let (ledger, ends) = (Arc::clone(&ledger), Arc::clone(&ends));
                tokio::spawn(async move {
                    let election = redlock.election("e").build().unwrap();
                    let work = |leadership: Arc<palisade::Leadership>| {
                        write(Arc::clone(&ledger), leadership.term(), Dropped(Arc::clone(&ends)))
                    };
                    let ended = election.lead(value, work).await;
                    panic!("it campaigns again: {ended:?}");
                })
            })
            .into();
        // The current leader is cut off three times. Each time another leader must follow.
        for round in 1..=3 {
            sleep(3 * TTL).await;
            let leads = world.election().leader().await.unwrap().unwrap().value;
            let of = usize::from(leads == "b");
            links[of].iter().for_each(FaultControl::freeze);
            sleep(3 * TTL).await;
            links[of].iter().for_each(FaultControl::thaw);
            let ends = ends.lock().unwrap().clone();
            assert_eq!(ends.len(), round, "n = {n}: each loss ended one work");
        }
        sleep(TTL).await;
        assert!(leaders.iter().all(|leader| !leader.is_finished()));
        let (all, ends) = (ledger.0.lock().unwrap().clone(), ends.lock().unwrap().clone());
        let mut changes = all.windows(2).filter(|two| two[0].0 != two[1].0);
        for end in &ends {
            let two = changes.next().expect("somebody else wrote after each loss");
            assert!(two[0].1 <= *end && *end < two[1].1, "n = {n}: two at work");
        }
        assert!(changes.next().is_none());
        leaders.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_is_the_end_and_one_term_is_one_term() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let election = redlock.election("e").build().unwrap();
    let (starts, cut) = (AtomicU32::new(0), links.clone());
    let work = |leadership: Arc<palisade::Leadership>| {
        let (first, cut) = (starts.fetch_add(1, Ordering::SeqCst) == 0, cut.clone());
        async move {
            if first {
                cut.iter().for_each(FaultControl::cut);
                tokio::spawn(async move {
                    sleep(2 * TTL).await;
                    cut.iter().for_each(FaultControl::heal);
                });
                std::future::pending::<()>().await;
            }
            assert_eq!(leadership.name(), "e");
            leadership.term()
        }
    };
    let term = timeout(LONG, election.lead("a", work)).await.unwrap().unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    assert_eq!(world.election().leader().await.unwrap(), None, "it has resigned");

    let once = redlock.election("e").one_term().build().unwrap();
    let work = |leadership: Arc<palisade::Leadership>| {
        assert!(leadership.term() > term);
        links.iter().for_each(FaultControl::cut);
        std::future::pending::<()>()
    };
    let lost = once.lead("a", work).await;
    assert!(matches!(lost, Err(WorkError::Lost { value: None, .. })), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn led_work_steps_down_when_asked_and_comes_back_if_no_other_process_campaigns() {
    let world = World::new(3);
    let election = world.election();
    let terms = Arc::new(Mutex::new(Vec::new()));
    let leads = tokio::spawn({
        let terms = Arc::clone(&terms);
        async move {
            let work = |leadership: Arc<palisade::Leadership>| {
                terms.lock().unwrap().push((leadership.term(), Instant::now()));
                std::future::pending::<()>()
            };
            election.lead("a", work).await
        }
    });
    sleep(TTL).await;
    let down = world.election().step_down("drain the host", TTL).await.unwrap();
    assert!(matches!(down, StepDown::Resigned(_)), "{down:?}");
    let resigned = Instant::now();
    sleep(3 * TTL).await;
    let terms = terms.lock().unwrap().clone();
    assert_eq!(terms.len(), 2, "nobody else campaigned");
    assert!(terms[1].0 > terms[0].0);
    let apart = terms[1].1.duration_since(resigned);
    assert!(apart + Duration::from_millis(50) > TTL && apart < 2 * TTL, "{apart:?}");
    leads.abort();
}

#[tokio::test(start_paused = true)]
async fn the_drain_time_applies_after_an_unclean_loss_and_not_after_a_clean_end() {
    for n in [1, 3, 5] {
        for drain in [Duration::ZERO, TTL / 2, TTL] {
            let world = World::new(n);
            let (redlock, links) = world.process();
            let election = redlock.election("e").drain(drain).build().unwrap();
            let leadership = election.campaign("a").await.unwrap();
            assert_eq!(world.election().leader().await.unwrap().unwrap().drain, drain);
            let follows = |who: &'static str| {
                let election = world.election();
                let elect = async move {
                    let next = election.campaign(who).await.unwrap();
                    (next, Instant::now())
                };
                tokio::spawn(elect)
            };
            // A leader that resigns leaves no lock-delay (time in which no other process leads).
            let follower = follows("b");
            sleep(2 * TTL).await;
            assert!(leadership.resign().await.is_ok());
            let resigned = Instant::now();
            let (next, elected) = follower.await.unwrap();
            assert!(elected.duration_since(resigned) < TTL / 10, "n = {n}, {drain:?}");
            assert!(next.resign().await.is_ok());

            // The leader's process disappears, so it does not release the leadership.
            let leadership = election.campaign("a").await.unwrap();
            let follower = follows("b");
            sleep(2 * TTL).await;
            links.iter().for_each(FaultControl::cut);
            let gone = Instant::now();
            leadership.lost().await;
            let lost = Instant::now();
            assert!(lost.duration_since(gone) <= TTL);
            let left = leadership.drain_remaining();
            assert!(left <= drain && left + Duration::from_millis(5) >= drain, "{left:?}");
            let (next, elected) = timeout(LONG, follower).await.unwrap().unwrap();
            assert!(elected >= lost + drain, "n = {n}, {drain:?}: {:?}", elected - lost);
            // The new leader leads at the latest after the ttl, the lock-delay (`drain`, a time
            // without a leader after a loss), one round trip, and the drift between clocks.
            let most = TTL + drain + (TTL + drain) / 50 + Duration::from_millis(50);
            assert!(elected.duration_since(gone) <= most, "{:?}", elected - gone);
            assert!(next.is_valid());
            assert_eq!(leadership.drain_remaining(), Duration::ZERO);
        }
    }
}

#[tokio::test]
async fn a_drain_time_beyond_the_longest_lease_is_refused() {
    let world = World::new(1);
    let long = world.process().0.election("e").drain(TTL + Duration::from_millis(1)).build();
    let text = long.unwrap_err().to_string();
    assert!(text.contains("drain") && text.contains("max_ttl"), "{text}");
}
