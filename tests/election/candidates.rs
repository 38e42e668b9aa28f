//! Tests of candidates (processes that want to lead): their list, their priorities, and their
//! eligibility.

use std::time::Duration;

use palisade::election::{CampaignError, Candidate, LeaderError, State, StepDown, TryCampaign};
use palisade::node::spi::MAX_LISTED;
use palisade::{Election, ElectionBuilder, Leadership, Redlock};
use palisade_testing::fault::FaultControl;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{LONG, TTL, World};

/// Longest time for which a candidate makes no attempt, so that a candidate with a higher priority
/// can win first.
const HELD_BACK_MAX: Duration = Duration::from_millis(750);

fn built(redlock: &Redlock, set: impl FnOnce(ElectionBuilder) -> ElectionBuilder) -> Election {
    set(redlock.election("e")).build().unwrap()
}

fn preferred(world: &World, priority: u8) -> Election {
    built(&world.process().0, |e| e.priority(priority))
}

/// Campaigns in a separate task. The value tells the test which candidate leads.
fn campaigns(election: &Election, value: &str) -> JoinHandle<(Leadership, Instant)> {
    let (election, value) = (election.clone(), value.to_owned());
    tokio::spawn(async move { (election.campaign(value).await.unwrap(), Instant::now()) })
}

async fn values(election: &Election) -> Vec<String> {
    let all = election.candidates().await.unwrap();
    all.into_iter().map(|c| c.value.unwrap_or_default()).collect()
}

#[tokio::test(start_paused = true)]
async fn candidates_are_listed_in_order_and_the_leader_is_marked() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let asks = world.election();
        assert_eq!(asks.candidates().await.unwrap(), []);
        let leads = preferred(&world, 3);
        let leadership = leads.campaign("leads").await.unwrap();
        let shown = asks.candidates().await.unwrap();
        let [one] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!((one.term, one.priority, one.eligible), (Some(leadership.term()), 3, true));
        assert_eq!(one.value.as_deref(), Some("leads"));
        assert_eq!(one.identity, palisade::election::Identity::here());

        let idle = built(&world.process().0, |e| e.eligible(false).priority(9));
        let mut tasks = vec![campaigns(&idle, "idle")];
        for (value, priority) in [("first", None), ("second", None), ("preferred", Some(200))] {
            sleep(Duration::from_millis(10)).await;
            let set = |e: ElectionBuilder| match priority {
                Some(priority) => e.priority(priority),
                None => e,
            };
            tasks.push(campaigns(&built(&world.process().0, set), value));
        }
        sleep(TTL).await;
        let order = ["leads", "preferred", "first", "second", "idle"];
        assert_eq!(values(&asks).await, order);
        let shown = asks.candidates().await.unwrap();
        assert!(shown[1..].iter().all(|c| c.term.is_none() && c.remaining <= TTL), "{shown:?}");
        let eligible: Vec<_> = shown.iter().map(|c| c.eligible).collect();
        assert_eq!(eligible, [true, true, true, true, false]);
        assert!(shown[2].since <= shown[3].since);
        // A candidate stays in the list of candidates while it campaigns.
        sleep(10 * TTL).await;
        assert_eq!(values(&asks).await, order);
        tasks.iter().for_each(JoinHandle::abort);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(values(&asks).await, ["leads"]);
        drop(leadership);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(asks.candidates().await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_dies_is_gone_after_its_ttl() {
    let world = World::new(3);
    let leadership = world.election().campaign("leads").await.unwrap();
    let (redlock, links) = world.process();
    let ghost = campaigns(&built(&redlock, |e| e), "dies");
    sleep(TTL).await;
    let asks = world.election();
    assert_eq!(values(&asks).await, ["leads", "dies"]);
    // No further request of the candidate arrives, not even the request that removes it from the
    // list of candidates.
    links.iter().for_each(FaultControl::cut);
    ghost.abort();
    let died = Instant::now();
    while values(&asks).await.len() > 1 {
        sleep(Duration::from_millis(20)).await;
    }
    assert!(died.elapsed() > TTL / 2 && died.elapsed() < TTL + TTL / 8, "{:?}", died.elapsed());
    drop(leadership);
}

#[tokio::test(start_paused = true)]
async fn the_list_is_bounded_and_who_finds_no_room_campaigns_all_the_same() {
    let world = World::new(3);
    let redlock = world.process().0;
    let leadership = world.election().campaign("leads").await.unwrap();
    let leads_once = |_| {
        let election = built(&redlock, |e| e);
        tokio::spawn(async move { election.campaign("c").await.unwrap().resign().await })
    };
    let crowd: Vec<_> = (0..MAX_LISTED + 6).map(leads_once).collect();
    sleep(2 * TTL).await;
    let asks = world.election();
    assert_eq!(asks.candidates().await.unwrap().len(), 1 + MAX_LISTED);
    leadership.resign().await.unwrap();
    // All candidates lead, one after the other. This includes those for whom the list of candidates
    // had no room.
    for task in crowd {
        assert_eq!(timeout(LONG, task).await.unwrap().unwrap(), Ok(()));
    }
    sleep(TTL).await;
    assert_eq!(asks.candidates().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_in_the_quorum_is_told_that_the_list_is_unknown() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let election = built(&redlock, |e| e);
    links[0].cut();
    assert_eq!(election.candidates().await.unwrap(), []);
    links[1].cut();
    let unknown = election.candidates().await;
    assert!(matches!(&unknown, Err(LeaderError::NoQuorum(_))), "{unknown:?}");
    drop(redlock.close(Duration::ZERO).await);
    let closed = election.candidates().await;
    assert!(matches!(closed, Err(LeaderError::Closed(_))), "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn the_preferred_candidate_leads_next_whichever_way_the_leader_goes() {
    for n in [1, 3] {
        for resigns in [true, false] {
            let world = World::new(n);
            let (redlock, links) = world.process();
            let leadership = built(&redlock, |e| e).campaign("leads").await.unwrap();
            let mut all = Vec::new();
            // All candidates wait for the lock when the leader goes. If the pause between their
            // starts is `TTL`, they have also renewed their entries in the list before.
            let apart = if resigns { Duration::from_millis(20) } else { TTL };
            for (value, priority) in [("low", 0), ("middle", 5), ("high", 9)] {
                all.push(campaigns(&preferred(&world, priority), value));
                sleep(apart).await;
            }
            assert_eq!(values(&world.election()).await, ["leads", "high", "middle", "low"]);
            if resigns {
                leadership.resign().await.unwrap();
            } else {
                links.iter().for_each(FaultControl::cut);
                std::mem::forget(leadership);
            }
            for name in ["high", "middle", "low"] {
                let task = all.pop().unwrap();
                let (next, _) = timeout(LONG, task).await.unwrap().unwrap();
                assert_eq!(&*next.value(), name);
                let leader = world.election().leader().await.unwrap().unwrap();
                assert_eq!(leader.priority, if name == "high" { 9 } else { leader.priority });
                // Each candidate leads until it resigns, although other candidates wait.
                sleep(TTL).await;
                assert!(next.is_valid());
                next.resign().await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn candidates_of_one_handle_are_preferred_as_those_of_many() {
    let world = World::new(3);
    let redlock = world.process().0;
    let leadership = built(&redlock, |e| e).campaign("leads").await.unwrap();
    let low = campaigns(&built(&redlock, |e| e), "low");
    sleep(TTL).await;
    let high = campaigns(&built(&redlock, |e| e.priority(1)), "high");
    sleep(TTL).await;
    leadership.resign().await.unwrap();
    let (next, _) = timeout(LONG, high).await.unwrap().unwrap();
    assert!(!low.is_finished());
    drop(next);
    drop(timeout(LONG, low).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_listed_candidate_that_cannot_lead_delays_the_others_for_a_bounded_time() {
    // The preferred candidates are dead, or they can reach only one node. They are still in the
    // list, but cannot be elected.
    for dead in [true, false] {
        let world = World::new(3);
        let leadership = world.election().campaign("leads").await.unwrap();
        let low = campaigns(&world.election(), "low");
        let mut links = Vec::new();
        let mut ghosts = Vec::new();
        for priority in 1..=8 {
            let (redlock, l) = world.process();
            ghosts.push(campaigns(&built(&redlock, |e| e.priority(priority)), "ghost"));
            links.push(l);
        }
        sleep(2 * TTL).await;
        for l in &links {
            l[usize::from(!dead)..].iter().for_each(FaultControl::cut);
        }
        let resigned = Instant::now();
        leadership.resign().await.unwrap();
        let (next, elected) = timeout(LONG, low).await.unwrap().unwrap();
        let took = elected.duration_since(resigned);
        assert!(took <= HELD_BACK_MAX + Duration::from_millis(50), "{took:?}");
        assert_eq!(&*next.value(), "low");
        ghosts.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test(start_paused = true)]
async fn without_priorities_nothing_is_held_back() {
    let world = World::new(3);
    let leadership = world.election().campaign("leads").await.unwrap();
    let others: Vec<_> = (0..5).map(|_| campaigns(&world.election(), "other")).collect();
    sleep(2 * TTL).await;
    let resigned = Instant::now();
    leadership.resign().await.unwrap();
    let first = async {
        loop {
            if let Some(leader) = world.election().leader().await.unwrap() {
                return leader;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert_eq!(first.await.priority, 0);
    assert!(resigned.elapsed() < Duration::from_millis(25), "{:?}", resigned.elapsed());
    others.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_eligible_observes_and_campaigns_when_it_becomes_so() {
    let world = World::new(3);
    let idle = built(&world.process().0, |e| e.eligible(false));
    assert!(!idle.is_eligible());
    let attempt = idle.try_campaign("x").await;
    assert!(matches!(attempt, Err(CampaignError::Ineligible { .. })), "{attempt:?}");
    let waits = campaigns(&idle, "idle");
    sleep(3 * TTL).await;
    // No process leads, but a candidate that is not eligible does not try to lead.
    assert!(!waits.is_finished());
    assert_eq!(idle.leader().await.unwrap(), None);
    assert_eq!(idle.state(), State::Following);
    let shown: Vec<Candidate> = idle.candidates().await.unwrap();
    assert!(matches!(&shown[..], [c] if !c.eligible && c.term.is_none()), "{shown:?}");
    idle.set_eligible(true);
    let (leadership, _) = timeout(TTL, waits).await.unwrap().unwrap();
    assert_eq!(idle.candidates().await.unwrap()[0].term, Some(leadership.term()));

    // If a leader becomes ineligible, it still leads. After its term it does not campaign again.
    idle.set_eligible(false);
    sleep(TTL).await;
    assert!(leadership.is_valid());
    leadership.resign().await.unwrap();
    let limited = built(&world.process().0, |e| e.eligible(false).acquire_timeout(TTL));
    let begun = Instant::now();
    let refused = limited.campaign("x").await.unwrap_err();
    assert!(matches!(&refused, CampaignError::Ineligible { waited, .. } if *waited >= TTL));
    assert!(refused.to_string().contains("set_eligible"), "{refused}");
    assert!(begun.elapsed() < TTL + TTL / 4);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_becomes_ineligible_stops_attempting() {
    let world = World::new(3);
    let leadership = world.election().campaign("leads").await.unwrap();
    let election = world.election();
    let waits = campaigns(&election, "waits");
    sleep(TTL).await;
    election.set_eligible(false);
    sleep(Duration::from_millis(50)).await;
    let shown = world.election().candidates().await.unwrap();
    assert_eq!(shown.iter().map(|c| c.eligible).collect::<Vec<_>>(), [true, false]);
    leadership.resign().await.unwrap();
    sleep(3 * TTL).await;
    assert_eq!(world.election().leader().await.unwrap(), None);
    election.set_eligible(true);
    drop(timeout(TTL, waits).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_preferred_candidate_takes_over_where_the_leader_is_asked_to_step_down() {
    let world = World::new(3);
    let low = preferred(&world, 1);
    let leads = tokio::spawn(async move {
        let work = |_| std::future::pending::<()>();
        low.lead("low", work).await.map_err(|e| e.to_string())
    });
    sleep(TTL).await;
    let high = preferred(&world, 2);
    let waits = campaigns(&high, "high");
    sleep(3 * TTL).await;
    assert!(!waits.is_finished(), "a higher priority deposes nobody");
    // The following steps are the ones that the manual gives to a candidate that wants to replace a
    // leader with a lower priority.
    let all = high.candidates().await.unwrap();
    assert!(all[0].term.is_some() && all[0].priority < high.priority());
    let down = high.step_down("a higher priority waits", TTL).await.unwrap();
    assert!(matches!(down, StepDown::Resigned(_)), "{down:?}");
    let (leadership, _) = timeout(TTL, waits).await.unwrap().unwrap();
    sleep(3 * TTL).await;
    assert!(leadership.is_valid());
    leads.abort();
}

#[tokio::test(start_paused = true)]
async fn one_attempt_with_a_priority_is_left_to_a_higher_one_and_then_made() {
    let world = World::new(3);
    let leadership = world.election().campaign("leads").await.unwrap();
    let high = campaigns(&preferred(&world, 2), "high");
    sleep(TTL).await;
    leadership.resign().await.unwrap();
    let attempt = preferred(&world, 1).try_campaign("low").await.unwrap();
    assert!(matches!(attempt, TryCampaign::Following(_)), "{attempt:?}");
    drop(timeout(TTL, high).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn one_attempt_with_a_priority_waits_for_each_higher_one_that_is_listed() {
    for higher in [0, 1, 2] {
        let world = World::new(3);
        let leadership = world.election().campaign("leads").await.unwrap();
        let mut ghosts = Vec::new();
        for priority in 2..2 + higher {
            let (redlock, links) = world.process();
            let ghost = campaigns(&built(&redlock, |e| e.priority(priority)), "ghost");
            ghosts.push((ghost, links));
        }
        sleep(TTL).await;
        // The candidates of higher priority are still in the list of candidates, but cannot be
        // elected. So the attempt waits only because of the list, and then wins.
        ghosts.iter().flat_map(|(_, links)| links).for_each(FaultControl::cut);
        leadership.resign().await.unwrap();
        let resigned = Instant::now();
        let attempt = preferred(&world, 1).try_campaign("low").await.unwrap();
        let (took, wait) = (resigned.elapsed(), TTL / 16 * u32::from(higher));
        assert!(matches!(attempt, TryCampaign::Won(_)), "{attempt:?}");
        assert!(took >= wait && took < wait + Duration::from_millis(50), "{higher}: {took:?}");
        for (ghost, _) in ghosts {
            ghost.abort();
        }
    }
}
