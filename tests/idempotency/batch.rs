//! Many calls together: an outcome each, in few requests to the nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use palisade::{Failed, Outcome};
use tokio::time::{Instant, sleep};

use crate::support::idem::{World, secs};

#[tokio::test(start_paused = true)]
async fn a_batch_costs_each_node_few_requests() {
    let w = World::new(3);
    let handle = w.handle(0);
    let orders = handle.orders();
    let calls = |n: u32| (0..n).map(|i| (orders.key(format!("order-{i}")), i));
    let run = |n| orders.run_each(calls(n), 1_000, |_, i| async move { Ok::<_, Failed>(i) });
    for outcome in run(100).await {
        assert!(outcome.unwrap().is_executed());
    }
    for fault in &handle.faults {
        // Claims in one, results in one or two.
        assert!(fault.calls() <= 3, "{} requests for 100 orders", fault.calls());
    }
    let replayed: Vec<_> = run(100).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(replayed, (0..100).map(Outcome::Replayed).collect::<Vec<_>>());
    for fault in &handle.faults {
        assert!(fault.calls() <= 4, "{} requests with 100 replays", fault.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_has_its_own_outcome_and_duplicates_have_that_of_the_first() {
    let w = World::new(3);
    let orders = w.orders();
    let names = ["a", "b", "a", "fails", "c", "b", "fails", "a"];
    let mut calls: Vec<_> = names.map(|name| (orders.key(name).fingerprint("x"), name)).to_vec();
    calls.push((orders.key("a").fingerprint("y"), "a"));
    let effects = Arc::new(AtomicU32::new(0));
    let handler = |_, name: &'static str| {
        let n = effects.fetch_add(1, SeqCst);
        async move {
            sleep(secs(1)).await;
            if name == "fails" { Err(Failed::no_effect("no")) } else { Ok(format!("{name}{n}")) }
        }
    };
    let done = orders.run_each(calls, 8, handler).await;
    let short: Vec<_> = done
        .iter()
        .map(|outcome| match outcome {
            Ok(Outcome::Executed { value, .. }) => format!("executed {}", &value[..1]),
            Ok(Outcome::Replayed(value)) => format!("replayed {}", &value[..1]),
            Ok(other) => format!("{other:?}"),
            Err(_) => "failed".to_owned(),
        })
        .collect();
    let want = [
        "executed a",
        "executed b",
        "replayed a",
        "failed",
        "executed c",
        "replayed b",
        "failed",
        "replayed a",
        "Mismatch",
    ];
    assert_eq!(short, want);
    // Three results, and a failure without effect is tried by its duplicate, too.
    assert_eq!(effects.load(SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_at_once_than_asked_for_and_waiting_claims_are_kept() {
    let w = World::new(3);
    let orders = w.orders();
    let (now, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let handler = |_, ()| {
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        async {
            sleep(secs(4)).await;
            now.fetch_sub(1, SeqCst);
            Ok::<_, Failed>(())
        }
    };
    let calls: Vec<_> = (0..12).map(|i| (orders.key(format!("order-{i}")), ())).collect();
    let begun = Instant::now();
    // Six turns of four seconds: longer than two leases of ten.
    let done = orders.run_each(calls, 2, handler).await;
    assert!(done.into_iter().all(|outcome| outcome.unwrap().is_executed()));
    assert_eq!(most.load(SeqCst), 2);
    assert!(begun.elapsed() < secs(24) + Duration::from_secs(1), "{:?}", begun.elapsed());
}
