//! Large results. If a result is larger than `max_result`, the nodes store only that there was a
//! result, without its value. The handler never runs again.

use std::time::Duration;

use palisade::idempotency::{Resolved, Status};
use palisade::{Idempotency, MemoryNode, Outcome, Probed, Redlock, RunError};
use palisade_testing::fault::FaultControl;
use tokio::time::sleep;

use crate::support::idem::{World, secs};

/// Length of a large result in bytes. Its JSON form is two bytes longer.
const LARGE: usize = 64;

fn orders(redlock: &Redlock, most: usize) -> Idempotency {
    let builder = redlock.idempotency("orders").at_most_once();
    builder.max_result(most).build().unwrap()
}

fn large() -> String {
    "x".repeat(LARGE)
}

fn never() -> std::future::Ready<Result<String, String>> {
    panic!("run again")
}

#[tokio::test(start_paused = true)]
async fn its_caller_has_the_value_and_later_ones_the_fact() {
    for n in [1, 3, 5] {
        let w = World::new(n);
        let orders = orders(&w.redlock, LARGE);
        let out = orders.key("k").run(|_| async { Ok::<_, String>(large()) }).await.unwrap();
        let Outcome::Executed { value, attempt: 1, kept: false, .. } = out else {
            panic!("{out:?}")
        };
        assert_eq!(value, large());
        for _ in 0..3 {
            assert_eq!(orders.key("k").run(|_| never()).await.unwrap(), Outcome::NotKept);
            assert_eq!(orders.key("k").rerun(|_| never()).await.unwrap(), Outcome::NotKept);
            let look = orders.key("k").lookup::<String>().await.unwrap();
            assert_eq!(look, Status::NotKept);
            let probe = orders.key("k").probe(|_| async { Probed::<String>::NotFound });
            assert_eq!(probe.run(|_| never()).await.unwrap(), Outcome::NotKept);
            let resolved = orders.key("k").resolve(&"y".to_owned()).await.unwrap();
            assert_eq!(resolved, Resolved::AlreadyStoredNotKept);
            sleep(secs(3_600)).await;
        }
        assert_eq!(orders.metrics().executed, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_to_the_byte() {
    let w = World::new(1);
    for (most, kept) in [(LARGE + 1, false), (LARGE + 2, true)] {
        let orders = orders(&w.redlock, most);
        let key = format!("k{most}");
        let out = orders.key(&key).run(|_| async { Ok::<_, String>(large()) }).await.unwrap();
        assert!(matches!(out, Outcome::Executed { kept: k, .. } if k == kept), "{out:?}");
        let again = orders.key(&key).run(|_| never()).await.unwrap();
        assert_eq!(again, if kept { Outcome::Replayed(large()) } else { Outcome::NotKept });
        let resolved = orders.key(format!("r{most}")).resolve(&large()).await.unwrap();
        assert_eq!(resolved, if kept { Resolved::Stored } else { Resolved::TooLarge });
    }
    let look = orders(&w.redlock, 1).key(format!("r{}", LARGE + 1)).lookup::<String>().await;
    assert_eq!(look.unwrap(), Status::Absent, "what is too large to resolve with leaves nothing");
}

#[tokio::test(start_paused = true)]
async fn on_too_few_nodes_it_is_repaired_as_a_fact() {
    for n in [3, 5] {
        let w = World::new(n);
        let writer = w.handle(0);
        let faults = writer.faults.clone();
        let out = orders(&writer.redlock, LARGE).key("k").run(|_| async move {
            // Only node 0 receives the result.
            faults[1..].iter().for_each(FaultControl::cut);
            Ok::<_, String>(large())
        });
        let out = out.await;
        assert!(matches!(&out, Err(RunError::NotRecorded(_))), "{out:?}");
        sleep(secs(11)).await;
        // The limit of this process would allow the value, but no node has the value.
        let orders = orders(&w.redlock, 1 << 20);
        assert_eq!(orders.key("k").lookup::<String>().await.unwrap(), Status::Unsettled);
        assert_eq!(orders.key("k").run(|_| never()).await.unwrap(), Outcome::NotKept);
        w.nodes[0].restart_empty();
        assert_eq!(orders.key("k").run(|_| never()).await.unwrap(), Outcome::NotKept);
        assert_eq!(orders.key("k").lookup::<String>().await.unwrap(), Status::NotKept);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_probe_found_is_answered_and_kept_as_a_fact() {
    let w = World::new(3);
    let orders = orders(&w.redlock, LARGE);
    let failed = orders.key("k").run(|_| async { Err::<String, _>("crash") }).await;
    assert!(matches!(&failed, Err(RunError::Handler { .. })), "{failed:?}");
    let probe = orders.key("k").probe(|_| async { Probed::Found(large()) });
    assert_eq!(probe.run(|_| never()).await.unwrap(), Outcome::Replayed(large()));
    assert_eq!(orders.key("k").run(|_| never()).await.unwrap(), Outcome::NotKept);
}

#[tokio::test(start_paused = true)]
async fn a_late_result_that_is_too_large_is_reported_as_its_own() {
    // The nodes restart before the result is stored, and so begin a new data history (their data
    // may be incomplete). The first try to store the result fails, and the second try stores only
    // that there was a result.
    for life in [MemoryNode::restart_keeping, MemoryNode::restart_empty] {
        let w = World::new(3);
        let nodes = w.nodes.clone();
        let out = orders(&w.redlock, LARGE).key("k").run(|_| async move {
            nodes.iter().for_each(life);
            sleep(Duration::from_millis(1)).await;
            Ok::<_, String>(large())
        });
        let out = out.await.unwrap();
        assert!(matches!(out, Outcome::Executed { kept: false, .. }), "{out:?}");
        let again = orders(&w.redlock, LARGE).key("k").run(|_| never()).await;
        assert_eq!(again.unwrap(), Outcome::NotKept, "in quarantine, too");
    }
}

#[tokio::test(start_paused = true)]
async fn big_values_and_odd_keys() {
    let w = World::new(3);
    let big = "ü".repeat((1 << 19) - 1);
    for key in ["größe 📦", "a:b:c", "{tag}", "x"] {
        let run = || {
            let big = big.clone();
            w.orders().key(key).run(|cx| async move {
                assert_eq!(cx.key(), key);
                Ok::<_, &str>(big)
            })
        };
        assert!(run().await.unwrap().is_executed());
        assert_eq!(run().await.unwrap(), Outcome::Replayed(big.clone()));
    }
}
