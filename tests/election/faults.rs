//! Tests of faults that do not end a leader's term, of faults that end it, and of the election's
//! state after these faults.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade::election::{
    CampaignError, Leader, LeaderError, Observation, ProclaimError, TryCampaign,
};
use palisade::node::spi::{LockNode as _, Op, Reply};
use palisade::{Election, MemoryNode, Redlock};
use palisade_testing::fault::FaultControl;
use tokio::time::{sleep, timeout};

use crate::world::{LONG, TTL, World, shaky};
use crate::wrap::Wrap;

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_cannot_proclaim() {
    let world = World::new(3);
    let (redlock, links) = world.process();
    let leadership = redlock.election("e").build().unwrap().campaign("old").await.unwrap();
    links.iter().for_each(FaultControl::cut);
    assert!(matches!(leadership.proclaim("x").await, Err(ProclaimError::Unknown(_))));
    assert!(leadership.is_valid(), "an error is no reason to stop before the deadline");
    let next = timeout(LONG, world.election().campaign("new")).await.unwrap().unwrap();
    assert!(!leadership.is_valid() && leadership.remaining().is_zero());
    links.iter().for_each(FaultControl::heal);
    assert!(matches!(leadership.proclaim("late").await, Err(ProclaimError::Lost(_))));
    sleep(TTL).await;
    assert!(next.is_valid() && next.term() > leadership.term());
    assert_eq!(world.election().leader().await.unwrap().unwrap().value, "new");
    let late = leadership.resign().await;
    assert!(late.is_err(), "{late:?}");
    assert!(next.is_valid());
    assert_eq!(world.election().leader().await.unwrap().unwrap().value, "new");
}

/// Waits until the nodes report a leader, and returns it. A node in quarantine (the time after a
/// loss of data) reports a leader only if the leader was certainly written after the loss. Panics
/// if the nodes report no leader, and at an error that would not end by itself.
async fn reported(election: &Election) -> Leader {
    let ask = async {
        loop {
            match election.leader().await {
                Ok(leader) => return leader.expect("somebody leads all the time"),
                Err(LeaderError::NoQuorum(_)) => sleep(TTL / 8).await,
                Err(other) => panic!("{other}"),
            }
        }
    };
    timeout(LONG, ask).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_leader_loses_by_its_own_clock_before_anyone_else_leads() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let (redlock, links) = world.process();
        let leadership = redlock.election("e").build().unwrap().campaign("a").await.unwrap();
        let env = Arc::clone(&world.env);
        let rival = tokio::spawn({
            let (election, env) = (world.election(), Arc::clone(&env));
            async move { (election.campaign("b").await.unwrap(), env.now()) }
        });
        sleep(2 * TTL).await;
        assert!(leadership.is_valid());
        // A majority of the nodes freezes, so these nodes neither refuse nor answer requests.
        links.iter().take(n / 2 + 1).for_each(FaultControl::freeze);
        timeout(LONG, leadership.lost()).await.unwrap();
        let (reported, deadline) = (env.now(), leadership.valid_until());
        assert!(
            reported <= deadline + Duration::from_millis(2),
            "{:?} late",
            reported.since(deadline)
        );
        let (next, elected) = timeout(LONG, rival).await.unwrap().unwrap();
        assert!(elected > deadline, "two leaders");
        assert!(next.term() > leadership.term());
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_restarts_does_not_end_a_term() {
    for n in [3, 5] {
        let world = World::new(n);
        let leadership = world.election().campaign("a").await.unwrap();
        for node in world.nodes.iter().cycle().take(2 * n) {
            node.restart_empty();
            let leader = reported(&world.election()).await;
            assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
            sleep(TTL).await;
            assert!(leadership.is_valid());
        }
        // Each node was emptied twice. The renewals have stored the leader and its value on all
        // nodes again.
        for node in &world.nodes {
            let one = Redlock::builder().ttl(TTL).max_ttl(2 * TTL).env(Arc::clone(&world.env));
            let one = one.node(node.clone()).build().unwrap().election("e").build().unwrap();
            let leader = reported(&one).await;
            assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_total_loss_of_data_the_leader_comes_back_and_no_other_candidate() {
    for n in [1, 3, 5] {
        let world = World::new(n);
        let leadership = world.election().campaign("a").await.unwrap();
        let mut observer = world.election().observe();
        assert!(matches!(observer.next().await, Some(Observation::Leader { gap: false, .. })));
        sleep(TTL).await;
        world.nodes.iter().for_each(MemoryNode::restart_empty);
        // After the loss of data, no node can report if there is a leader. So the call returns an
        // error, and not the result "no leader".
        let unknown = world.election().leader().await;
        assert!(matches!(unknown, Err(LeaderError::NoQuorum(_))), "{unknown:?}");
        let rival = tokio::spawn({
            let election = world.election();
            async move { election.campaign("b").await.unwrap() }
        });
        sleep(TTL).await;
        assert!(leadership.is_valid() && !rival.is_finished());
        let leader = reported(&world.election()).await;
        assert_eq!((leader.term, &*leader.value), (leadership.term(), "a"));
        sleep(4 * TTL).await;
        assert!(leadership.is_valid() && !rival.is_finished());

        let term = leadership.term();
        assert!(leadership.resign().await.is_ok());
        let next = timeout(LONG, rival).await.unwrap().unwrap();
        assert!(next.term() > term);
        // The observer reported no vacancy while a candidate led.
        let mut seen = Vec::new();
        while let Ok(item) = timeout(2 * TTL, observer.next()).await {
            seen.push(item.unwrap());
        }
        let reported: Vec<_> = seen
            .iter()
            .map(|item| match item {
                Observation::Leader { leader, .. } => leader.value.as_str(),
                Observation::Vacant => "vacant",
                _ => "unknown",
            })
            .skip_while(|reported| *reported == "unknown" || *reported == "a")
            .collect();
        assert!(matches!(&reported[..], ["vacant", "b"] | ["b"]), "{seen:?}");
    }
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
            let next = world.process().0.election("e").acquire_timeout(TTL / 2).build().unwrap();
            let next = next.campaign("b").await;
            assert!(next.is_ok(), "{next:?} after {polls} polls");
            if finished {
                assert!(polls > 1, "the resignation never waited");
                break;
            }
        }
    }
}

/// A campaign whose future owns its election.
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

/// The node loses its data just before it receives the new leader's value, so the lock of the new
/// leader is lost too.
#[tokio::test(start_paused = true)]
async fn a_leadership_lost_to_a_failover_is_not_reported_as_led_by_another_process() {
    // The failover window is the time in which a replaced master may still grant. It is so long
    // here that the process may not store its lock and value on this node again.
    let node = MemoryNode::builder().failover_window(Duration::from_secs(60)).unwrap().build();
    let node = Wrap::new(node, |node, batch, deadline| async move {
        if batch.ops.iter().any(is_value) {
            node.restart_empty();
        }
        node.call(batch, deadline).await
    });
    let redlock = Redlock::builder().node(node).build().unwrap();
    let election = redlock.election("cron").build().unwrap();
    let asked = election.try_campaign("me").await;
    assert!(matches!(asked, Err(CampaignError::NoQuorum(_))), "nobody leads: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_campaign_ends_after_a_minute_at_another_programs_value_and_not_before() {
    let key = "election:e";
    for goes_away in [true, false] {
        let world = World::new(3);
        world.nodes.iter().for_each(|node| node.put_foreign(key, None));
        let election = world.election();
        let campaign = tokio::spawn(async move { election.campaign("me").await });
        sleep(Duration::from_secs(59)).await;
        assert!(!campaign.is_finished(), "an operator may delete the value in this time");
        if goes_away {
            world.nodes.iter().for_each(|node| node.delete_foreign(key));
        }
        match timeout(LONG, campaign).await.expect("it ends").unwrap() {
            Ok(leadership) => assert!(goes_away && leadership.is_valid()),
            Err(CampaignError::TimedOut { waited, taken, .. }) => {
                assert!(!goes_away && taken.foreign, "{taken:?}");
                assert!(waited >= Duration::from_secs(60), "{waited:?}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn is_value(op: &Op) -> bool {
    matches!(op, Op::Extend { meta: Some(_), .. })
}

/// The node grants the lock and refuses every value, as if another process had taken the lock
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn a_single_try_that_loses_the_lock_before_its_value_is_stored_tries_once_more() {
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let node = Wrap::new(MemoryNode::new(), move |node, batch, deadline| {
        let refused: Vec<bool> = batch.ops.iter().map(is_value).collect();
        let attempts = batch.ops.iter().filter(|op| matches!(op, Op::Acquire { .. })).count();
        counted.fetch_add(attempts as u32, Ordering::Relaxed);
        async move {
            let mut replies = node.call(batch, deadline).await;
            for (item, _) in replies.items.iter_mut().zip(refused).filter(|(_, refused)| *refused) {
                *item = Ok(Reply::NotOwner);
            }
            replies
        }
    });
    let election = Redlock::builder().node(node).build().unwrap().election("e").build().unwrap();
    let tried = timeout(LONG, election.try_campaign("me")).await.expect("it ends");
    assert!(matches!(tried, Ok(TryCampaign::Following(_))), "{tried:?}");
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_an_earlier_history_is_not_shown_whatever_the_old_servers_clock_said() {
    let world = World::new(1);
    let node = &world.nodes[0];
    let handle = || Redlock::builder().ttl(TTL).env(Arc::clone(&world.env));
    let election = || handle().node(node.clone()).build().unwrap().election("e").build().unwrap();
    // The master's clock is ahead of the replica's clock by 2E, the largest difference between two
    // clocks. E is the largest error of one clock.
    let error = handle().node(node.clone()).build().unwrap().config().clock_error;
    let ahead = MemoryNode::builder().env(Arc::clone(&world.env)).build();
    ahead.jump_clock(2 * error);
    let old = handle().node(ahead.clone()).build().unwrap().election("e").build().unwrap();
    let leadership = old.campaign("old").await.unwrap();
    let replica = ahead.snapshot();
    assert!(leadership.resign().await.is_ok());
    // The replica never received the resignation. The clock of the replica is behind, so the copy
    // of the lock lasts longer there than on the master.
    node.restore(replica);
    for _ in 0..8 {
        let asked = election().leader().await;
        assert!(matches!(asked, Err(LeaderError::NoQuorum(_))), "a ghost leads: {asked:?}");
        sleep(TTL / 10).await;
    }
    // Once all leases from before the promotion must have ended, the node reports that there is no
    // leader.
    let vacant = async {
        while !matches!(election().leader().await, Ok(None)) {
            sleep(TTL / 10).await;
        }
    };
    timeout(LONG, vacant).await.expect("it is seen when the quarantine is over");
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_an_earlier_history_is_not_shown_while_the_servers_clock_does_not_count() {
    let world = World::new(1);
    let node = &world.nodes[0];
    let handle = || Redlock::builder().ttl(TTL).env(Arc::clone(&world.env)).node(node.clone());
    let leadership = handle().build().unwrap().election("e").build().unwrap();
    let leadership = leadership.campaign("old").await.unwrap();
    let replica = node.snapshot();
    assert!(leadership.resign().await.is_ok());
    node.restore(replica);
    let observer = handle().build().unwrap().election("e").build().unwrap();
    for _ in 0..2 {
        let asked = observer.leader().await;
        assert!(matches!(asked, Err(LeaderError::NoQuorum(_))), "a ghost leads: {asked:?}");
        // The server's clock jumps between its answers, so the observer does not count the next
        // answers as votes.
        node.jump_clock(TTL / 3);
    }
}
