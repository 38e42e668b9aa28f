//! Batches of calls with idempotency keys: each call has its own outcome, and the batch needs few
//! requests to the nodes.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::{Failed, Idempotency, Outcome};
use palisade_testing::fault::{FaultControl, Step};
use tokio::sync::Notify;
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
        // One request claims all keys, and one or two requests store the results.
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
    // The handler starts once for each of the three keys with a result. It starts twice for the key
    // `fails`, because a failure without effect frees the key for the duplicate.
    assert_eq!(effects.load(SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_at_once_than_asked_for() {
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
    // Two handlers run at once, for four seconds each. Twelve handlers take 24 s, longer than two
    // leases of ten seconds, so the claims that wait for their handlers must be renewed.
    let done = orders.run_each(calls, 2, handler).await;
    assert!(done.into_iter().all(|outcome| outcome.unwrap().is_executed()));
    assert_eq!(most.load(SeqCst), 2);
    assert!(begun.elapsed() < secs(24) + Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// Way in which a process leaves its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The future is dropped.
    Drop,
    /// The process dies: none of its later requests arrives.
    Kill,
}

const BATCH: usize = 500;

fn names() -> impl Iterator<Item = String> {
    (0..BATCH).map(|i| format!("order-{i:03}"))
}

/// Delivers the whole batch again after all leases have ended. Returns the keys that are parked:
/// their handlers do not run, because an earlier attempt may have had an effect.
async fn parked(orders: &Idempotency) -> Vec<usize> {
    sleep(secs(60)).await;
    let calls = names().map(|name| (orders.key(name), ()));
    let again = orders.run_each(calls, BATCH, |_, ()| async { Ok::<_, Failed>(0) }).await;
    let is_parked = |outcome: &Outcome<usize>| matches!(outcome, Outcome::Parked(_));
    let all = again.iter().map(|outcome| is_parked(outcome.as_ref().unwrap())).enumerate();
    all.filter_map(|(i, parked)| parked.then_some(i)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_ends_in_a_handler_parks_only_what_was_begun() {
    for end in [End::Drop, End::Kill] {
        for (concurrency, last) in
            [(1, 1), (1, 2), (1, 250), (1, 500), (8, 1), (8, 8), (8, 9), (8, 401), (8, 500)]
        {
            let w = World::new(3);
            let handle = w.handle(0);
            let (orders, faults) = (handle.orders(), &handle.faults);
            let (begun, completed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
            let ends = Notify::new();
            let handler = |_, i| {
                let n = {
                    let mut begun = begun.lock().unwrap();
                    begun.push(i);
                    begun.len()
                };
                let (completed, ends) = (&completed, &ends);
                async move {
                    if n == last {
                        if end == End::Kill {
                            faults.iter().for_each(FaultControl::cut);
                        }
                        ends.notify_one();
                    }
                    if n + concurrency > last {
                        std::future::pending::<()>().await;
                    }
                    completed.lock().unwrap().push(i);
                    Ok::<_, Failed>(i)
                }
            };
            let calls = names().enumerate().map(|(i, name)| (orders.key(name), i));
            let run = orders.run_each(calls, concurrency, handler);
            tokio::select! {
                biased;
                _ = run => panic!("handler {last} never ends"),
                () = ends.notified() => {}
            }
            let at = format!("{end:?} in handler {last}, {concurrency} at once");
            let (begun, completed) = (begun.into_inner().unwrap(), completed.into_inner().unwrap());
            // The test drops the batch when the handler number `last` begins. Handlers that were
            // ready at the same time may also begin before that.
            assert!((last..last + concurrency).contains(&begun.len()), "{at}: {begun:?}");
            let parked = parked(&w.orders()).await;
            let unbegun = parked.iter().filter(|i| !begun.contains(i)).count();
            let most = if end == End::Drop { 0 } else { concurrency - 1 };
            assert!(unbegun <= most, "{at}: {unbegun} that were not begun are parked");
            let hang = |i: &&usize| !completed.contains(i);
            for i in begun.iter().filter(hang) {
                assert!(parked.contains(i), "{at}: order {i} may have taken effect");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_ends_at_any_moment_parks_only_what_was_begun() {
    // Each request and each reply takes 10 ms, and a handler takes 5 ms. So the moments cover each
    // phase: the claims, the handlers and the storing of results.
    for end in [End::Drop, End::Kill] {
        for moment in (0..120).step_by(3).map(Duration::from_millis) {
            let w = World::new(3);
            let handle = w.handle(0);
            for fault in &handle.faults {
                fault.script((0..100).map(|_| Step::delay(Duration::from_millis(10))));
            }
            let (orders, begun) = (handle.orders(), Mutex::new(Vec::new()));
            let handler = |_, i| {
                begun.lock().unwrap().push(i);
                async move {
                    sleep(Duration::from_millis(5)).await;
                    Ok::<_, Failed>(i)
                }
            };
            let calls = names().enumerate().map(|(i, name)| (orders.key(name), i));
            let run = orders.run_each(calls, 20, handler);
            tokio::select! {
                biased;
                _ = run => panic!("500 orders take longer"),
                () = sleep(moment) => {
                    if end == End::Kill {
                        handle.faults.iter().for_each(FaultControl::cut);
                    }
                }
            }
            let begun = begun.into_inner().unwrap();
            let parked = parked(&w.orders()).await;
            let unbegun = parked.iter().filter(|i| !begun.contains(i)).count();
            let most = if end == End::Drop { 0 } else { 20 };
            assert!(unbegun <= most, "{end:?} after {moment:?}: {unbegun} were not begun");
        }
    }
}
