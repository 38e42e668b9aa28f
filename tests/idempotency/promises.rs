//! A stored result never changes, neither by a late completion with a wrong clock nor by another
//! request with the same key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use palisade::error::NodeFault;
use palisade::idempotency::{Call, Status};
use palisade::node::spi::{Op, Reply};
use palisade::{Idempotency, MemoryNode, Outcome, Redlock, RunError, node::spi::LockNode};
use palisade_testing::fault::FaultControl;
use tokio::time::sleep;

use crate::support::idem::{World, secs};
use crate::support::wrap::{Wrap, refused};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// E is the largest error of any clock, here 4.9 s. A process whose clock is ahead by up to E is
/// paused in its handler. Meanwhile the nodes' record of the key expires, and a process whose clock
/// is behind by up to E runs the key. Then the paused process stores its result.
#[tokio::test(start_paused = true)]
async fn a_paused_process_that_completes_late_changes_no_result() {
    for n in [1, 3] {
        for (ahead, behind) in [(4_900, -4_900), (0, -4_900), (4_900, 0)] {
            for pause in [1_200, 2_500, 6_000, 15_000, 29_000, 40_000] {
                let w = World::with_nodes(&vec![0; n], Duration::ZERO);
                let (late, faults) = w.faulty(ahead);
                let orders = |b: palisade::RedlockBuilder| {
                    let b = b.ttl(secs(1)).max_ttl(secs(10)).clock_error(ms(4_900));
                    let b = b.build().unwrap().idempotency("orders");
                    b.retention(ms(1_100)).at_least_once().build().unwrap()
                };
                let (late, soon) = (orders(late), orders(w.builder(behind)));
                let first = late.key("k").run(|_| async {
                    faults.iter().for_each(FaultControl::cut);
                    sleep(ms(pause)).await;
                    sleep(ms(300)).await;
                    faults.iter().for_each(FaultControl::heal);
                    Ok::<_, String>("late".to_owned())
                });
                let second = async {
                    sleep(ms(pause)).await;
                    let run = soon.key("k").run(|_| async { Ok::<_, String>("soon".to_owned()) });
                    run.await.unwrap()
                };
                let (first, second) = tokio::join!(first, second);
                let what = format!("{n} nodes, {ahead} and {behind} ms, paused for {pause} ms");
                let ran = matches!(&second, Outcome::Executed { value, .. } if value == "soon");
                assert!(ran, "{what}: {second:?}");
                // The paused process is late, so its result was not stored. Its call returns the
                // result of the other process or an error.
                if let Ok(first) = &first {
                    assert_eq!(first, &Outcome::Replayed("soon".to_owned()), "{what}");
                }
                let again = soon.key("k").lookup::<String>().await.unwrap();
                assert_eq!(again, Status::Stored("soon".into()), "{what}");
            }
        }
    }
}

/// Stores the result of a request with the fingerprint `alice`. Two of three nodes grant the claim.
/// The third node rejects claims at first, and receives only the result.
async fn alices(w: &World, at_least_once: bool) -> Idempotency {
    let deaf = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&deaf);
    let node = Wrap::new(w.nodes[2].clone(), move |node, batch, deadline| {
        let deaf = flag.load(SeqCst) && batch.ops.iter().any(|op| matches!(op, Op::Claim(_)));
        async move {
            if deaf {
                return refused(&batch, NodeFault::Unreachable);
            }
            node.call(batch, deadline).await
        }
    });
    let builder = w.over(&w.nodes[..2], 0).node(node);
    let redlock: Redlock = builder.build().unwrap();
    let builder = redlock.idempotency("orders");
    let builder = if at_least_once { builder.at_least_once() } else { builder.at_most_once() };
    let orders = builder.build().unwrap();
    assert!(run(orders.key("k").fingerprint("alice"), "alice's").await.unwrap().is_executed());
    deaf.store(false, SeqCst);
    sleep(secs(1)).await;
    orders
}

async fn run(call: Call, receipt: &'static str) -> Result<Outcome<String>, palisade::RunError> {
    call.run(|_| async move { Ok::<_, String>(receipt.to_owned()) }).await
}

#[tokio::test(start_paused = true)]
async fn another_requests_receipt_is_never_shown() {
    // In turn, each node restarts, without its data or with its data.
    for at_least_once in [false, true] {
        for gone in 0..3 {
            for life in [MemoryNode::restart_empty, MemoryNode::restart_keeping] {
                let w = World::with_nodes(&[0; 3], Duration::ZERO);
                let orders = alices(&w, at_least_once).await;
                let bob = || orders.key("k").fingerprint("bob");
                assert_eq!(run(bob(), "bob's").await.unwrap(), Outcome::Mismatch);
                life(&w.nodes[gone]);
                for _ in 0..80 {
                    let said = run(bob(), "bob's").await;
                    assert_eq!(said.unwrap(), Outcome::Mismatch, "node {gone} is gone");
                    assert_eq!(bob().lookup::<String>().await.unwrap(), Status::Mismatch);
                    sleep(ms(600)).await;
                }
                // A request with the fingerprint `alice` still gets its result.
                let alice = run(orders.key("k").fingerprint("alice"), "again").await.unwrap();
                assert_eq!(alice, Outcome::Replayed("alice's".to_owned()));
                let look = orders.key("k").fingerprint("alice").lookup::<String>().await.unwrap();
                assert_eq!(look, Status::Stored("alice's".to_owned()));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_forgot_runs_nothing_for_another_request_while_one_node_knows() {
    let w = World::with_nodes(&[0; 3], Duration::ZERO);
    let orders = alices(&w, true).await;
    w.nodes[..2].iter().for_each(MemoryNode::restart_empty);
    let _ = run(orders.key("other"), "other").await;
    sleep(secs(40)).await;
    for _ in 0..3 {
        let said = run(orders.key("k").fingerprint("bob"), "bob's").await.unwrap();
        assert_eq!(said, Outcome::Mismatch);
    }
    // The third node still has the result of the request with the fingerprint `alice`, so a
    // repetition of this request gets the result.
    let alice = run(orders.key("k").fingerprint("alice"), "again").await.unwrap();
    assert_eq!(alice, Outcome::Replayed("alice's".to_owned()));
}

/// This node answers each request that stores a result as if another claim had replaced the claim
/// of the result.
#[tokio::test]
async fn a_result_that_others_overtake_again_and_again_is_given_up() {
    let w = World::new(1);
    let node = Wrap::new(w.nodes[0].clone(), |node, batch, deadline| async move {
        let results: Vec<_> =
            batch.ops.iter().map(|op| matches!(op, Op::Complete { .. })).collect();
        let mut replies = node.call(batch, deadline).await;
        for (item, _) in replies.items.iter_mut().zip(results).filter(|(_, is)| *is) {
            *item = Ok(Reply::NotOwner);
        }
        replies
    });
    let redlock = w.over(&[], 0).node(node).build().unwrap();
    let orders = redlock.idempotency("orders").at_least_once().build().unwrap();
    let resolved = tokio::time::timeout(secs(20), orders.key("k").resolve(&9)).await;
    let resolved = resolved.expect("every wait has an end");
    assert!(matches!(resolved, Err(RunError::NotRecorded(_))), "{resolved:?}");
}
