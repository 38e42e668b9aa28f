//! Leader election as a user sees it, over in-memory nodes and in virtual time: tokio's paused
//! clock drives nodes, keeper and candidates alike, so seconds pass at once and in order.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream as _;
use palisade::election::{
    CampaignError, LeaderError, Observation, ProclaimError, TryCampaign, WORDS_MAX,
};
use palisade::env::Env;
use palisade::node::fault::{Fault, FaultControl, Odds};
use palisade::time::Moment;
use palisade::{Election, MemoryNode, Redlock, ReleaseOutcome};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(600);

/// tokio's clock and dice by seed.
#[derive(Debug)]
struct Virtual {
    start: Instant,
    dice: AtomicU64,
}

impl Env for Virtual {
    fn now(&self) -> Moment {
        Moment::from_nanos(1) + self.start.elapsed()
    }
    fn wall_micros(&self) -> u64 {
        1_800_000_000_000_000 + self.start.elapsed().as_micros() as u64
    }
    fn random(&self) -> u128 {
        let half = || {
            let mut z = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            u128::from(z ^ (z >> 31))
        };
        half() << 64 | half()
    }
}

/// Nodes that several handles (as it were: processes) share.
struct World {
    env: Arc<dyn Env>,
    nodes: Vec<MemoryNode>,
}

impl World {
    fn new(n: usize) -> Self {
        let dice = AtomicU64::new(n as u64);
        let env: Arc<dyn Env> = Arc::new(Virtual { start: Instant::now(), dice });
        let node = |_| MemoryNode::builder().env(Arc::clone(&env)).build();
        Self { nodes: (0..n).map(node).collect(), env }
    }

    /// A handle of its own, with connections that can be broken.
    fn process(&self) -> (Redlock, Vec<FaultControl>) {
        let mut builder = Redlock::builder().ttl(TTL).max_ttl(2 * TTL).env(Arc::clone(&self.env));
        let mut links = Vec::new();
        for node in &self.nodes {
            let fault = Fault::new(node.clone()).env(Arc::clone(&self.env));
            links.push(fault.control());
            builder = builder.node(fault);
        }
        (builder.build().unwrap(), links)
    }

    fn election(&self) -> Election {
        Election::new(&self.process().0, "e")
    }
}

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
        assert_eq!(leader.pid, std::process::id());
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
        assert_eq!(leadership.resign().await, ReleaseOutcome::Released);
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
        let mut observer = world.election().observe().unwrap();
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
                        assert!(leadership.resign().await.is_released());
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

/// Terms in order and real, values of one term in order, whatever was missed is marked.
fn check_stream(seen: &[Observation], terms: &[palisade::FencingToken]) {
    let mut last = None;
    for pair in seen.windows(2) {
        assert!(!matches!(pair, [Observation::Vacant, Observation::Vacant]), "told twice");
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

/// A candidate whose requests to the nodes are late, out of step, and sometimes arrive twice.
fn shaky(world: &World, seed: u64) -> Election {
    let (redlock, links) = world.process();
    let max_delay = Duration::from_millis(8);
    let odds = Odds { delay: 0.7, duplicate: 0.1, max_delay, ..Odds::default() };
    for (i, link) in links.iter().enumerate() {
        link.dice(10 * seed + i as u64, odds);
    }
    Election::new(&redlock, "e")
}

#[tokio::test(start_paused = true)]
async fn nobody_is_ever_shown_a_value_of_another_term() {
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
                            assert!(leadership.resign().await.is_released());
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
async fn a_deposed_leader_cannot_proclaim() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let leadership = Election::new(&redlock, "e").campaign("old").await.unwrap();
    links.iter().for_each(FaultControl::cut);
    assert!(matches!(leadership.proclaim("x").await, Err(ProclaimError::Unknown(_))));
    assert!(leadership.is_valid(), "an error is no reason to stop before the deadline");
    let next = timeout(LONG, world.election().campaign("new")).await.unwrap().unwrap();
    assert!(!leadership.is_valid() && leadership.remaining().is_zero());
    links.iter().for_each(FaultControl::heal);
    assert_eq!(leadership.proclaim("late").await, Err(ProclaimError::Lost));
    sleep(TTL).await;
    assert!(next.is_valid() && next.term() > leadership.term());
    assert_eq!(world.election().leader().await.unwrap().unwrap().value, "new");
    let late = leadership.resign().await;
    assert_ne!(late, ReleaseOutcome::Released);
    assert!(next.is_valid());
    assert_eq!(world.election().leader().await.unwrap().unwrap().value, "new");
}

#[tokio::test(start_paused = true)]
async fn loss_is_told_by_the_own_clock_before_anyone_else_leads() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let (redlock, links) = world.process();
        let leadership = Election::new(&redlock, "e").campaign("a").await.unwrap();
        let env = Arc::clone(&world.env);
        let rival = tokio::spawn({
            let (election, env) = (world.election(), Arc::clone(&env));
            async move { (election.campaign("b").await.unwrap(), env.now()) }
        });
        sleep(2 * TTL).await;
        assert!(leadership.is_valid());
        // A majority falls silent, as if frozen: requests are neither refused nor answered.
        links.iter().take(n / 2 + 1).for_each(FaultControl::freeze);
        timeout(LONG, leadership.lost()).await.unwrap();
        let (told, deadline) = (env.now(), leadership.valid_until());
        assert!(told <= deadline + Duration::from_millis(2), "{:?} late", told.since(deadline));
        let (next, elected) = timeout(LONG, rival).await.unwrap().unwrap();
        assert!(elected > deadline, "two leaders");
        assert!(next.term() > leadership.term());
    }
}

#[tokio::test(start_paused = true)]
async fn resigning_wakes_the_next_candidate() {
    // The pauses between its own attempts are a minute: only a hint can wake it in time.
    let minute = Duration::from_secs(60);
    let lazy = palisade::RetryPolicy::exponential(minute, minute, 1.0).unwrap();
    for dropped in [false, true] {
        let world = World::new(3);
        let leadership = world.election().campaign("a").await.unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let waiting = tokio::spawn({
            let (election, log) = (world.election().retry(lazy), Arc::clone(&log));
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
            assert!(leadership.resign().await.is_released());
        }
        let next = timeout(LONG, waiting).await.unwrap().unwrap();
        assert_eq!(*log.lock().unwrap(), ["a resigns", "b leads"]);
        assert!(next.term() > first);
        assert!(resigned.elapsed() < TTL / 3, "woken by a timer, not by the hint");
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_restarts_does_not_end_a_term() {
    for n in [3, 5] {
        let world = World::new(n);
        let leadership = world.election().campaign("a").await.unwrap();
        for node in world.nodes.iter().cycle().take(2 * n) {
            node.restart_empty();
            let leader = world.election().leader().await.unwrap().unwrap();
            assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
            sleep(TTL).await;
            assert!(leadership.is_valid());
        }
        // Each node has been emptied twice; all of them know the leader and its words again.
        for node in &world.nodes {
            let one = Redlock::builder().ttl(TTL).max_ttl(2 * TTL).env(Arc::clone(&world.env));
            let one = Election::new(&one.node(node.clone()).build().unwrap(), "e");
            let leader = one.leader().await.unwrap().unwrap();
            assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_total_loss_of_data_the_leader_comes_back_and_nobody_else() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let leadership = world.election().campaign("a").await.unwrap();
        let mut observer = world.election().observe().unwrap();
        assert!(matches!(observer.next().await, Some(Observation::Leader { gap: false, .. })));
        sleep(TTL).await;
        world.nodes.iter().for_each(MemoryNode::restart_empty);
        // Nobody remembers: that is not the same as nobody leads.
        let unknown = world.election().leader().await;
        assert!(matches!(unknown, Err(LeaderError::NoQuorum(_))), "{unknown:?}");
        let rival = tokio::spawn({
            let election = world.election();
            async move { election.campaign("b").await.unwrap() }
        });
        sleep(TTL).await;
        assert!(leadership.is_valid() && !rival.is_finished());
        let leader = world.election().leader().await.unwrap().unwrap();
        assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
        sleep(4 * TTL).await;
        assert!(leadership.is_valid() && !rival.is_finished());

        let term = leadership.term();
        assert!(leadership.resign().await.is_released());
        let next = timeout(LONG, rival).await.unwrap().unwrap();
        assert!(next.term() > term);
        // The observer never saw a vacancy that was none.
        let mut seen = Vec::new();
        while let Ok(item) = timeout(2 * TTL, observer.next()).await {
            seen.push(item.unwrap());
        }
        let told: Vec<_> = seen
            .iter()
            .map(|item| match item {
                Observation::Leader { leader, .. } => leader.value.as_str(),
                Observation::Vacant => "vacant",
                _ => "unknown",
            })
            .skip_while(|told| *told == "unknown" || *told == "a")
            .collect();
        assert!(matches!(&told[..], ["vacant", "b"] | ["b"]), "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_tells_vacancy_doubt_and_what_it_missed() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let mut observer = Election::new(&redlock, "e").observe().unwrap();
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
    let Some(Observation::Unknown(why)) = observer.next().await else { panic!("told too much") };
    assert_eq!((why.needed, why.nodes.len()), (2, 3));
    assert!(timeout(4 * TTL, observer.next()).await.is_err(), "no change, no item");
    links[0].heal();
    let again = observer.next().await;
    assert!(
        matches!(&again, Some(Observation::Leader { leader, gap: false }) if leader.number == 4)
    );
    drop(leadership);
    // The same as a stream.
    let vacant = std::future::poll_fn(|cx| Pin::new(&mut observer).poll_next(cx)).await;
    assert_eq!(vacant, Some(Observation::Vacant));
}

#[tokio::test(start_paused = true)]
async fn a_campaign_dropped_at_any_poll_leaves_nothing_behind() {
    for n in [1, 3] {
        for polls in 1.. {
            let world = World::new(n);
            let mut campaign = Box::pin(world.election().campaign_owned("dropped"));
            let mut left = polls;
            let won = std::future::poll_fn(|cx| match campaign.as_mut().poll(cx) {
                std::task::Poll::Ready(won) => std::task::Poll::Ready(Some(won)),
                std::task::Poll::Pending if left == 1 => std::task::Poll::Ready(None),
                std::task::Poll::Pending => {
                    left -= 1;
                    std::task::Poll::Pending
                }
            })
            .await;
            let finished = won.is_some();
            drop((campaign, won));
            sleep(TTL + Duration::from_millis(1)).await;
            assert_eq!(world.election().leader().await.unwrap(), None);
            assert!(world.election().try_campaign("next").await.unwrap().won().is_some());
            if finished {
                assert!(polls > 2, "the campaign never waited");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_resignation_dropped_at_any_poll_goes_on() {
    for n in [1, 3] {
        for polls in 1.. {
            let world = World::new(n);
            let election = shaky(&world, polls);
            let mut resign = Box::pin(election.campaign("a").await.unwrap().resign());
            let mut left = polls;
            let finished = std::future::poll_fn(|cx| match resign.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
                std::task::Poll::Pending if left == 1 => std::task::Poll::Ready(false),
                std::task::Poll::Pending => {
                    left -= 1;
                    std::task::Poll::Pending
                }
            })
            .await;
            drop(resign);
            let next = world.election().campaign_within("b", TTL / 2).await;
            assert!(next.is_ok(), "{next:?} after {polls} polls");
            if finished {
                assert!(polls > 1, "the resignation never waited");
                break;
            }
        }
    }
}

/// A campaign that owns its election.
trait Owned {
    fn campaign_owned(
        self,
        value: &'static str,
    ) -> impl Future<Output = Result<palisade::Leadership, CampaignError>>;
}

impl Owned for Election {
    async fn campaign_owned(
        self,
        value: &'static str,
    ) -> Result<palisade::Leadership, CampaignError> {
        self.campaign(value).await
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart_and_in_time() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    for name in ["", "a\nb"] {
        let bad = Election::new(&redlock, name);
        assert!(matches!(bad.campaign("x").await, Err(CampaignError::Config(_))));
        assert!(matches!(bad.leader().await, Err(LeaderError::Config(_))));
        assert!(bad.observe().is_err() && bad.check().is_err());
    }
    let election = Election::new(&redlock, "e");
    let short = election.clone().ttl(Duration::from_millis(1));
    assert!(matches!(short.try_campaign("x").await, Err(CampaignError::Config(_))));
    let long = "x".repeat(WORDS_MAX);
    assert!(matches!(election.campaign(&long).await, Err(CampaignError::Config(_))));

    let leadership = election.campaign("a").await.unwrap();
    assert!(matches!(leadership.proclaim(long).await, Err(ProclaimError::Config(_))));
    assert_eq!(&*leadership.value(), "a");
    let start = Instant::now();
    let within = 3 * TTL;
    let late = world.election().campaign_within("b", within).await;
    assert!(matches!(late, Err(CampaignError::TimedOut { waited, .. }) if waited >= within));
    assert!(start.elapsed() < within + Duration::from_secs(1));

    links.iter().take(2).for_each(FaultControl::cut);
    let Err(LeaderError::NoQuorum(why)) = election.leader().await else { panic!("a guess") };
    assert!(why.to_string().contains("2 of 3 nodes needed"), "{why}");
    let election = election.wait(Some(TTL));
    assert!(matches!(election.campaign("c").await, Err(CampaignError::NoQuorum(_))));
    // Without a deadline it goes on, and wins when it can.
    let patient = Election::new(&redlock, "other");
    let campaign = tokio::spawn(async move { patient.campaign("d").await });
    sleep(10 * TTL).await;
    assert!(!campaign.is_finished());
    links.iter().for_each(FaultControl::heal);
    assert!(timeout(LONG, campaign).await.unwrap().unwrap().unwrap().is_valid());
}
