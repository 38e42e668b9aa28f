//! Idempotency as a user sees it, over in-memory nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use palisade::{Idempotency, MemoryNode, Outcome, Redlock};

fn redlock(n: usize) -> (Redlock, Vec<MemoryNode>) {
    let nodes: Vec<_> = (0..n).map(|_| MemoryNode::new()).collect();
    let builder = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    (builder.build().unwrap(), nodes)
}

fn orders(redlock: &Redlock) -> Idempotency {
    Idempotency::builder(redlock).namespace("orders").build().unwrap()
}

/// Counts how often a handler was started.
#[derive(Clone, Default)]
struct Effects(Arc<AtomicU32>);

impl Effects {
    fn act(&self) -> u32 {
        self.0.fetch_add(1, SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

#[tokio::test]
async fn executed_then_replayed() {
    for n in [1, 3, 5] {
        let (r, _nodes) = redlock(n);
        let effects = Effects::default();
        for round in 0..3 {
            let e = effects.clone();
            let out = orders(&r).key("k").run(|_| async move { Ok::<_, String>(e.act()) }).await;
            match out.unwrap() {
                Outcome::Executed { value: 1, attempt: 1 } if round == 0 => {}
                Outcome::Replayed(1) if round > 0 => {}
                other => panic!("{n} nodes, round {round}: {other:?}"),
            }
        }
        assert_eq!(effects.count(), 1);
        assert_eq!(r.held(), 0);
    }
}

#[tokio::test]
async fn thirty_two_duplicates_run_one_handler() {
    for n in [1, 3, 5] {
        let (r, _nodes) = redlock(n);
        let effects = Effects::default();
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let (orders, e) = (orders(&r), effects.clone());
                tokio::spawn(async move {
                    let call = orders.key("k").fingerprint(&("alice", 3));
                    let handler = |_| async move {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Ok::<_, String>(e.act())
                    };
                    call.wait(Duration::from_secs(5)).run(handler).await.unwrap()
                })
            })
            .collect();
        let mut executed = 0;
        for t in tasks {
            match t.await.unwrap() {
                Outcome::Executed { value: 1, attempt: 1 } => executed += 1,
                Outcome::Replayed(1) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((executed, effects.count()), (1, 1));
    }
}
