//! Three nodes, each with its own report of its replicas: which yes counts, and what becomes of
//! those that do not. Under the paused clock.

use std::sync::{Arc, Mutex};

use palisade::Moment;
use palisade::node::spi::BarrierPoint;
use palisade::node::spi::{Batch, NodeSignal, Replies};
use palisade::node::spi::{BoxFuture, LockNode};
use palisade_testing::fault::Fault;
use tokio::sync::broadcast;

use super::*;

/// What a node says when it is asked who has it.
#[derive(Clone)]
enum Says {
    Have(u32),
    /// The fault says "not executed", but the request was executed.
    NotExecuted(NodeFault),
    Nothing,
}

/// A node in memory that claims to have replicas.
#[derive(Clone)]
struct Told {
    memory: MemoryNode,
    says: Arc<Mutex<Says>>,
    asked: Arc<Mutex<Vec<Durability>>>,
}

impl LockNode for Told {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.memory.call(batch, deadline)
    }

    fn barrier(
        &self,
        _after: BarrierPoint,
        level: Durability,
        _deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        self.asked.lock().unwrap().push(level);
        let says = self.says.lock().unwrap().clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            match says {
                Says::Have(n) => Ok(n),
                Says::NotExecuted(fault) => Err(NodeError::not_executed(fault, "so it says")),
                Says::Nothing => std::future::pending().await,
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.memory.events()
    }

    fn name(&self) -> Arc<str> {
        self.memory.name()
    }
}

struct Three {
    nodes: Vec<Told>,
    redlock: Redlock,
}

fn three(says: [Says; 3]) -> Three {
    let reported = |says| Told {
        memory: MemoryNode::new(),
        says: Arc::new(Mutex::new(says)),
        asked: Arc::default(),
    };
    let nodes: Vec<_> = says.into_iter().map(reported).collect();
    // Behind a wrapper, as a user's would be: it hands the question on.
    let builder = nodes.iter().fold(Redlock::builder(), |b, n| b.node(Fault::new(n.clone())));
    Three { nodes, redlock: builder.build().unwrap() }
}

impl Three {
    /// The rollback has arrived everywhere: anybody gets the name at once.
    async fn nothing_stands(&self, name: &str) {
        for _ in 0..200 {
            match self.redlock.mutex(name).build().unwrap().try_acquire().await.unwrap() {
                TryAcquire::Acquired(_) => return,
                TryAcquire::Taken(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        panic!("{name} is still held");
    }
}

#[tokio::test]
async fn a_majority_at_the_level_is_enough_and_the_lowest_count_is_reported() {
    let t = three([Says::Have(5), Says::Have(2), Says::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::Replicas(2)).build().unwrap();
    let guard = mutex.try_acquire().await.unwrap().acquired().unwrap();
    assert_eq!(guard.durability().replicas, 2);
    let before = guard.valid_until();
    *t.nodes[1].says.lock().unwrap() = Says::Have(3);
    assert!(guard.extend().await.unwrap() > before);
    assert_eq!(guard.durability().replicas, 3, "the renewal's own word");
    assert!(guard.release().await.is_ok());
    for node in &t.nodes {
        let asked = node.asked.lock().unwrap();
        assert!(asked.iter().all(|l| *l == Durability::Replicas(2)), "{asked:?}");
    }
}

#[tokio::test]
async fn the_default_asks_nobody() {
    let t = three([Says::Nothing, Says::Nothing, Says::Nothing]);
    let guard = t.redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    guard.extend().await.unwrap();
    assert_eq!(guard.durability(), palisade::Achieved::default());
    assert!(t.nodes.iter().all(|n| n.asked.lock().unwrap().is_empty()));
}

#[tokio::test]
async fn a_minority_at_the_level_is_a_refusal_and_all_of_it_is_rolled_back() {
    // Too few, said as if it were enough; a fault that claims nothing was executed; enough.
    let t = three([Says::Have(1), Says::NotExecuted(NodeFault::NotMaster), Says::Have(2)]);
    let mutex =
        t.redlock.mutex("k").durability(Durability::Replicas(2)).auto_renew(false).build().unwrap();
    let error = mutex.try_acquire().await.unwrap_err();
    let AcquireError::NoQuorum(no) = &error else { panic!("{error}") };
    let faults: Vec<_> = no
        .nodes
        .iter()
        .filter_map(|(_, outcome)| match outcome {
            NodeOutcome::Failed(e) => Some((e.fault(), e.is_ambiguous())),
            _ => None,
        })
        .collect();
    assert_eq!(faults, [(NodeFault::NotDurable, true), (NodeFault::NotMaster, true)]);
    t.nothing_stands("k").await;
}

#[tokio::test(start_paused = true)]
async fn a_barrier_that_never_answers_ends_and_is_rolled_back() {
    let t = three([Says::Have(2), Says::Nothing, Says::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let refused = tokio::time::timeout(TTL, mutex.try_acquire()).await.expect("in time");
    assert!(matches!(refused, Err(AcquireError::NoQuorum(_))), "{refused:?}");
    t.nothing_stands("k").await;
}

#[tokio::test]
async fn a_caller_that_leaves_while_replicas_are_asked_leaves_nothing_behind() {
    let t = three([Says::Nothing, Says::Nothing, Says::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let gone = tokio::time::timeout(Duration::from_millis(50), mutex.try_acquire()).await;
    assert!(gone.is_err());
    assert!(t.nodes.iter().all(|n| !n.asked.lock().unwrap().is_empty()), "they were asked");
    t.nothing_stands("k").await;
}

#[tokio::test]
async fn others_do_not_wait_behind_a_barrier() {
    let t = three([Says::Nothing, Says::Nothing, Says::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let stuck = tokio::spawn(async move { mutex.try_acquire().await });
    while t.nodes.iter().any(|n| n.asked.lock().unwrap().is_empty()) {
        tokio::task::yield_now().await;
    }
    for turn in 0..100 {
        assert!(t.redlock.mutex(format!("{turn}")).build().unwrap().acquire().await.is_ok());
    }
    assert!(!stuck.is_finished(), "all of that while the node was asked");
    stuck.abort();
}

#[tokio::test]
async fn a_result_counts_only_at_the_level() {
    let t = three([Says::Have(1), Says::Have(1), Says::Have(1)]);
    let orders = |level| {
        let builder = t.redlock.idempotency("orders").durability(level);
        builder.at_most_once().build().unwrap()
    };
    let one = orders(Durability::Replicas(1));
    let out = one.key("7").run(|_| async { Ok::<_, String>(7) }).await.unwrap();
    let Outcome::Executed { value: 7, durability, .. } = out else { panic!("{out:?}") };
    assert_eq!((durability.level, durability.replicas), (Durability::Replicas(1), 1));
    // Stored, and not as durable as this call requires.
    let two = orders(Durability::Replicas(2));
    let again = two.key("7").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert!(matches!(again, Err(RunError::NoQuorum { .. })), "{again:?}");
    assert!(two.key("7").lookup::<i32>().await.is_err());
    for node in &t.nodes {
        *node.says.lock().unwrap() = Says::Have(2);
    }
    let again = two.key("7").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert_eq!(again.unwrap(), Outcome::Replayed(7));

    // The handler ran, and then the replicas were gone: the error says so, and nothing is lost.
    let says = t.nodes.clone();
    let out = two.key("8").run(|_| async move {
        for node in &says {
            *node.says.lock().unwrap() = Says::Have(0);
        }
        Ok::<_, String>(8)
    });
    match out.await {
        Err(RunError::NotRecorded(not)) => {
            let text = not.to_string();
            assert!(text.contains("0 of 2 replicas have it"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    for node in &t.nodes {
        *node.says.lock().unwrap() = Says::Have(2);
    }
    let again = two.key("8").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert_eq!(again.unwrap(), Outcome::Replayed(8));
}
