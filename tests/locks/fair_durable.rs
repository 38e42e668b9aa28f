//! Fair callers whose durability some nodes do not reach, beside others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use palisade::Durability;
use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{LockNode as _, Reply};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fair::{LONG, Served, fair, queue_up};
use crate::support::memory::Timed;
use crate::support::wrap::{Wrap, refused};

/// Four callers of other handles want the lock again and again, beside one whose durability is out
/// of reach: of three nodes, the first has no replica, and the second is down.
#[tokio::test(start_paused = true)]
async fn a_caller_that_cannot_succeed_is_not_the_head_of_the_line_again() {
    for n in [1, 3] {
        let world = Timed::new(n);
        let handle = || {
            let mut settings = world.settings();
            for (i, node) in world.nodes.iter().enumerate() {
                let slow = Wrap::new(node.clone(), move |inner, batch, deadline| async move {
                    if i == 1 {
                        return refused(&batch, NodeFault::Unreachable);
                    }
                    sleep(Duration::from_millis(1)).await;
                    inner.call(batch, deadline).await
                });
                settings = settings.node(slow.barrier(move |_| async move {
                    if i > 0 {
                        return Ok(1);
                    }
                    sleep(Duration::from_millis(250)).await;
                    Err(NodeError::maybe_executed(NodeFault::NotDurable, "no replica"))
                }));
            }
            settings.build().unwrap()
        };
        let turns = Arc::new([const { AtomicUsize::new(0) }; 4]);
        let mut callers = JoinSet::new();
        for caller in 0..4 {
            let (mutex, turns) = (fair(&handle()), Arc::clone(&turns));
            callers.spawn(async move {
                for _ in 0..1_000_000 {
                    mutex.acquire().await.unwrap().release().await.unwrap();
                    turns[caller].fetch_add(1, SeqCst);
                }
            });
        }
        let durable = handle().mutex("plotter").fair(true).durability(Durability::Replicas(1));
        let durable = durable.acquire_timeout(Duration::from_secs(8)).build().unwrap();
        assert!(durable.acquire().await.is_err());
        let turns = turns.each_ref().map(|turns| turns.load(SeqCst));
        assert!(turns.iter().all(|turns| *turns > 50), "{turns:?} in 8 s, {n} nodes");
        callers.shutdown().await;
    }
}

/// One node does not reach the durability of the first in line, and one grant of another node is
/// lost on its way.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_beside_a_node_without_the_durability_costs_no_place() {
    let world = Timed::new(3);
    let loses = Arc::<AtomicBool>::default();
    let mut settings = world.settings();
    for (i, node) in world.nodes.iter().enumerate() {
        let losing = Arc::clone(&loses);
        let node = Wrap::new(node.clone(), move |inner, batch, deadline| {
            let losing = Arc::clone(&losing);
            async move {
                let replies = inner.call(batch, deadline).await;
                let is_granted = |item: &_| matches!(item, Ok(Reply::Granted { .. }));
                if i == 2 && replies.items.iter().any(is_granted) && losing.swap(false, SeqCst) {
                    std::future::pending::<()>().await;
                }
                replies
            }
        });
        settings = settings.node(node.barrier(move |_| async move {
            if i > 0 {
                return Ok(1);
            }
            Err(NodeError::maybe_executed(NodeFault::NotDurable, "no replica"))
        }));
    }
    let holder = fair(&world.redlock()).acquire().await.unwrap();
    let served = Served::default();
    let durable = settings.build().unwrap().mutex("plotter").fair(true);
    let durable = durable.durability(Durability::Replicas(1)).acquire_timeout(LONG);
    let first = queue_up(durable.build().unwrap(), 0, &served).await;
    let second = queue_up(fair(&world.redlock()), 1, &served).await;
    loses.store(true, SeqCst);
    holder.release().await.unwrap();
    for task in [first, second] {
        timeout(LONG, task).await.unwrap().unwrap();
    }
    assert!(!loses.load(SeqCst), "a grant was lost");
    assert_eq!(*served.lock().unwrap(), [0, 1]);
}
