//! Tests of requests that ask a leader to resign.

use std::sync::Arc;
use std::time::Duration;

use palisade::election::{Identity, LeaderError, StepDown, TryCampaign};
use palisade::node::spi::NodeSignal;
use palisade::{Redlock, RedlockBuilder};
use palisade_testing::fault::FaultControl;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{LONG, TTL, World};

#[tokio::test(start_paused = true)]
async fn a_leader_that_listens_resigns_and_lets_others_come_first() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let nobody = world.election().step_down("why not", TTL).await.unwrap();
        assert_eq!(nobody, StepDown::Vacant);

        let leads = world.election();
        let leadership = leads.campaign("a").await.unwrap();
        let term = leadership.term();
        let follows = tokio::spawn({
            let election = world.election();
            async move { (election.campaign("b").await.unwrap(), Instant::now()) }
        });
        let leader = tokio::spawn(async move {
            let request = leadership.asked_to_resign().await;
            assert!(leadership.is_valid(), "it is asked, not forced");
            let asked = Instant::now();
            assert!(leadership.resign().await.is_ok());
            (request, asked)
        });
        sleep(TTL).await;
        let begun = Instant::now();
        let down = world.election().step_down("maintenance", 10 * TTL).await.unwrap();
        assert!(matches!(&down, StepDown::Resigned(l) if l.value == "a" && l.term == term));
        let (request, asked) = leader.await.unwrap();
        assert_eq!((&*request.reason, request.by), ("maintenance", Identity::here()));
        assert!(asked.duration_since(begun) < TTL / 4, "the hint brings it before a renewal");
        // A leader that resigned on request makes no attempt for some time, so another candidate
        // wins.
        assert!(matches!(leads.try_campaign("a").await.unwrap(), TryCampaign::Following(_)));
        let (next, elected) = timeout(LONG, follows).await.unwrap().unwrap();
        assert!(elected.duration_since(begun) < TTL / 4 && next.term() > term);
        assert!(next.resign().await.is_ok());
        let again = leads.campaign("a").await.unwrap();
        assert!(asked.elapsed() >= TTL && asked.elapsed() < 2 * TTL);
        // A request to resign from an earlier term does not apply to a new term.
        assert!(timeout(4 * TTL, again.asked_to_resign()).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_listen_still_leads_and_that_is_said() {
    let world = World::new(3);
    let leadership = world.election().campaign("a").await.unwrap();
    let begun = Instant::now();
    let down = world.election().step_down("", 2 * TTL).await.unwrap();
    assert!(matches!(down, StepDown::StillLeads(l) if l.term == leadership.term()));
    assert!(begun.elapsed() >= 2 * TTL && begun.elapsed() < 3 * TTL);
    assert!(leadership.is_valid());
    // `step_down` withdraws its request before it returns.
    assert!(timeout(4 * TTL, leadership.asked_to_resign()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn without_hints_the_leader_is_asked_within_a_renewal() {
    // A memory node always sends hints (messages about changes). These nodes are wrapped so that
    // they send no hints, and the leader must find the request to step down at its next renewal.
    let world = World::new(3);
    let silent = || {
        let nodes = world.nodes.iter().cloned().map(Silent);
        let handle = Redlock::builder().ttl(TTL).max_ttl(2 * TTL).env(Arc::clone(&world.env));
        nodes.fold(handle, RedlockBuilder::node).build().unwrap()
    };
    let election = silent().election("e").build().unwrap();
    let leadership = election.campaign("a").await.unwrap();
    let leader = tokio::spawn(async move {
        drop(leadership.asked_to_resign().await);
        leadership.resign().await
    });
    sleep(TTL).await;
    let begun = Instant::now();
    let asks = silent().election("e").build().unwrap();
    let down = asks.step_down("", 10 * TTL).await.unwrap();
    assert!(matches!(down, StepDown::Resigned(_)), "{down:?}");
    assert!(begun.elapsed() <= TTL, "{:?}", begun.elapsed());
    assert_eq!(leader.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn two_who_ask_both_have_their_answer_and_who_cannot_ask_says_so() {
    let world = World::new(3);
    let leadership = world.election().campaign("a").await.unwrap();
    let leader = tokio::spawn(async move {
        drop(leadership.asked_to_resign().await);
        leadership.resign().await
    });
    let ask = || {
        let election = world.election();
        async move { election.step_down("both", 10 * TTL).await.unwrap() }
    };
    let (one, two) = tokio::join!(ask(), ask());
    let is_down = |down: &StepDown| matches!(down, StepDown::Resigned(_) | StepDown::Vacant);
    assert!(is_down(&one) && is_down(&two), "{one:?} {two:?}");
    assert_eq!(leader.await.unwrap(), Ok(()));

    let (redlock, links) = world.process();
    links.iter().for_each(FaultControl::cut);
    let cut = redlock.election("e").build().unwrap().step_down("", TTL).await;
    assert!(matches!(cut, Err(LeaderError::NoQuorum(_))), "{cut:?}");
    drop(redlock.close(Duration::ZERO).await);
    let closed = redlock.election("e").build().unwrap().step_down("", TTL).await;
    assert!(matches!(closed, Err(LeaderError::Closed(_))), "{closed:?}");
}

/// A memory node that sends no hints (messages about changes).
struct Silent(palisade::MemoryNode);

impl palisade::node::spi::LockNode for Silent {
    fn call(
        &self,
        batch: palisade::node::spi::Batch,
        deadline: palisade::Moment,
    ) -> palisade::node::spi::BoxFuture<'_, palisade::node::spi::Replies> {
        self.0.call(batch, deadline)
    }

    fn events(&self) -> tokio::sync::broadcast::Receiver<NodeSignal> {
        tokio::sync::broadcast::channel(1).1
    }

    fn name(&self) -> Arc<str> {
        self.0.name()
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_another_term_than_the_named_one_is_not_asked() {
    let world = World::new(3);
    let first = world.election().campaign("a").await.unwrap();
    let shown = first.term();
    first.resign().await.unwrap();
    let second = world.election().campaign("b").await.unwrap();
    let (term, operator) = (second.term(), world.election());
    let asked = timeout(2 * TTL, second.asked_to_resign());
    let down = operator.step_down_from(shown, "it hangs", 3 * TTL);
    let (down, asked) = tokio::join!(down, asked);
    assert!(matches!(down, Ok(StepDown::OtherTerm(l)) if l.term == term));
    assert!(asked.is_err(), "{asked:?}");
    let down = operator.step_down_from(term, "it hangs", 3 * TTL);
    let (down, ()) = tokio::join!(down, async {
        let _ = second.asked_to_resign().await;
        second.resign().await.unwrap();
    });
    assert!(matches!(down, Ok(StepDown::Resigned(l)) if l.value == "b"));
}
