//! Nodes that restart just before the result of a handler is stored. A restarted node begins a new
//! data history: it may have lost writes, so it grants nothing for some time.

use std::time::Duration;

use palisade::{MemoryNode, Outcome, Redlock, RunError};

use crate::support::idem::World;

#[tokio::test(start_paused = true)]
async fn a_result_is_stored_on_nodes_with_a_new_data_history() {
    for n in [1, 3] {
        for life in [MemoryNode::restart_keeping, MemoryNode::restart_empty] {
            let w = World::new(n);
            let nodes = w.nodes.clone();
            let call = w.orders().key("k").run(async |_| {
                nodes.iter().for_each(life);
                Ok::<_, String>(7)
            });
            let out = call.await.unwrap();
            assert!(matches!(out, Outcome::Executed { value: 7, attempt: 1, .. }), "{out:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_only_forgotten_was_not_overtaken() {
    // The failover window (the time in which a replaced master may still grant) is longer than the
    // claim's lease. So the claim may not be renewed on the restarted node.
    let node = MemoryNode::builder().failover_window(Duration::from_secs(60)).unwrap().build();
    let redlock = Redlock::builder().node(node.clone()).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let call = orders.key("k").run(async |_| {
        node.restart_keeping();
        Ok::<_, String>(7)
    });
    let Err(RunError::NotRecorded(not)) = call.await else { panic!("nothing can be stored") };
    assert!(!not.overtaken, "nobody else was promised anything: {not}");
}
