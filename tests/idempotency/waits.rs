//! Waiting for the result of another caller's handler. A hint (a message from a node that the
//! handler has ended) wakes the waiter, so the wait needs few requests.

use std::time::Duration;

use palisade::{Failed, Outcome};
use tokio::time::{Instant, sleep, timeout};

use crate::support::idem::{Effects, World, boom, secs};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_the_result_and_asks_three_times() {
    for n in [1, 3, 5] {
        let w = World::new(n);
        let e = Effects::default();
        let (orders, worker) = (w.orders(), e.clone());
        let runs = tokio::spawn(async move { orders.key("k").run(|_| worker.act(800 * MS)).await });
        sleep(10 * MS).await;
        let begun = Instant::now();
        let waiter = w.handle(1);
        let call = waiter.orders().key("k").in_flight_timeout(secs(30));
        let out = call.run(|_| e.act(Duration::ZERO)).await.unwrap();
        assert_eq!(out, Outcome::Replayed(1), "{n} nodes");
        assert!(runs.await.unwrap().unwrap().is_executed());
        assert!(begun.elapsed() <= 800 * MS, "{n} nodes: {:?}", begun.elapsed());
        for fault in &waiter.faults {
            // The waiter sends three claims: the first claim, a claim that asks for a hint (a
            // message at the end of the handler), and a claim that gets the result. After each of
            // the first two, the waiter sends a request that undoes a possible grant.
            assert!(fault.calls() <= 5, "{n} nodes: {} requests", fault.calls());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_are_woken_at_once() {
    let w = World::new(3);
    let e = Effects::default();
    let (orders, worker) = (w.orders(), e.clone());
    let runs = tokio::spawn(async move { orders.key("k").run(|_| worker.act(900 * MS)).await });
    sleep(10 * MS).await;
    let begun = Instant::now();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let call = w.orders().key("k").in_flight_timeout(secs(30));
            tokio::spawn(call.run(|_| async { Ok::<_, Failed>(0) }))
        })
        .collect();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap(), Outcome::Replayed(1));
    }
    assert!(begun.elapsed() <= 900 * MS, "{:?}", begun.elapsed());
    assert!(runs.await.unwrap().unwrap().is_executed());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_given_back_wakes_the_next_one() {
    let w = World::new(3);
    let orders = w.orders();
    let fails = tokio::spawn(orders.key("k").run(|_| async {
        sleep(700 * MS).await;
        Err::<u32, _>(Failed::no_effect("closed"))
    }));
    sleep(10 * MS).await;
    let begun = Instant::now();
    let e = Effects::default();
    let call = w.orders().key("k").in_flight_timeout(secs(30));
    assert!(call.run(|_| e.act(Duration::ZERO)).await.unwrap().is_executed());
    assert!(begun.elapsed() <= 700 * MS, "{:?}", begun.elapsed());
    assert!(fails.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_died_wakes_no_waiter_and_its_lease_ends_the_wait() {
    let w = World::new(3);
    let e = Effects::default();
    let died = w.orders().key("k").run(|_| e.act(secs(60)));
    assert!(timeout(MS, died).await.is_err());
    let begun = Instant::now();
    let call = w.orders().key("k").in_flight_timeout(secs(30));
    let out = call.run(|_| boom()).await.unwrap();
    assert!(matches!(out, Outcome::Parked(_)), "{out:?}");
    // The wait ends at the end of the lease. One more check of the key may follow.
    assert!(begun.elapsed() <= secs(11), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_at_its_own_deadline() {
    let w = World::new(3);
    let e = Effects::default();
    let (orders, worker) = (w.orders(), e.clone());
    let runs = tokio::spawn(async move { orders.key("k").run(|_| worker.act(secs(20))).await });
    sleep(10 * MS).await;
    let begun = Instant::now();
    let call = w.orders().key("k").in_flight_timeout(secs(2));
    let out = call.run(|_| boom()).await.unwrap();
    assert!(matches!(out, Outcome::InFlight { .. }), "{out:?}");
    assert!(begun.elapsed() >= secs(2) && begun.elapsed() <= secs(2) + 10 * MS);
    runs.abort();
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_a_second_and_then_comes_back_soon() {
    let w = World::new(3);
    let e = Effects::default();
    let (orders, worker) = (w.orders(), e.clone());
    let runs = tokio::spawn(async move { orders.key("k").run(|_| worker.act(secs(60))).await });
    sleep(10 * MS).await;
    let others = w.handle(0).orders();
    let mut pauses = Vec::new();
    let ended = loop {
        let begun = Instant::now();
        let retry_after = match others.key("k").run(|_| boom()).await.unwrap() {
            Outcome::InFlight { retry_after } => retry_after,
            other => break other,
        };
        assert!(begun.elapsed() >= secs(1) && begun.elapsed() <= secs(1) + 10 * MS);
        assert!(retry_after <= secs(5), "half a lease: {retry_after:?}");
        pauses.push(retry_after);
        sleep(retry_after).await;
    };
    assert_eq!(ended, Outcome::Replayed(1));
    assert!(pauses[0] >= 500 * MS && pauses[0] <= secs(1), "{pauses:?}");
    assert!(pauses[1] >= secs(1) && pauses[1] <= secs(2), "{pauses:?}");
    assert!((10..30).contains(&pauses.len()), "{pauses:?}");
    assert!(runs.await.unwrap().unwrap().is_executed());
}
