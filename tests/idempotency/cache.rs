//! Results that a process keeps: answered without a request, and never more than is certain.

use std::time::Duration;

use palisade::Outcome;

use crate::support::idem::{Effects, Handle, World, boom, secs};

fn orders(handle: &Handle, bytes: u64) -> palisade::Idempotency {
    let orders = handle.redlock.idempotency("orders").lease(secs(10)).at_most_once();
    orders.cache(bytes, secs(600)).build().unwrap()
}

fn calls(handle: &Handle) -> u64 {
    handle.faults.iter().map(palisade::test_util::fault::FaultControl::calls).sum()
}

#[tokio::test(start_paused = true)]
async fn a_result_that_was_seen_is_answered_without_a_request() {
    let w = World::new(3);
    let e = Effects::default();
    let handle = w.handle(0);
    let orders = orders(&handle, 1 << 20);
    let run = || orders.key("k").fingerprint("x").run(|_| e.act(Duration::ZERO));
    assert!(run().await.unwrap().is_executed());
    tokio::time::sleep(secs(1)).await;
    let before = calls(&handle);
    for _ in 0..10 {
        assert_eq!(run().await.unwrap(), Outcome::Replayed(1));
    }
    // A clone has it too, and nobody needs the nodes.
    handle.faults.iter().for_each(palisade::test_util::fault::FaultControl::cut);
    let clone = orders.clone();
    let out = clone.key("k").fingerprint("x").run(|_| e.act(Duration::ZERO)).await;
    assert_eq!(out.unwrap(), Outcome::Replayed(1));
    assert_eq!(calls(&handle), before);
    assert_eq!(orders.metrics().replayed, 11);
}

#[tokio::test(start_paused = true)]
async fn another_request_is_never_answered_out_of_it() {
    let w = World::new(3);
    let e = Effects::default();
    let handle = w.handle(0);
    let orders = orders(&handle, 1 << 20);
    let run = |print| orders.key("k").fingerprint(print).run(|_| e.act(Duration::ZERO));
    assert!(run("x").await.unwrap().is_executed());
    assert_eq!(run("y").await.unwrap(), Outcome::Mismatch);
    assert_eq!(run("x").await.unwrap(), Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_certain_does_not_get_in() {
    let w = World::new(3);
    let handle = w.handle(0);
    let orders = orders(&handle, 1 << 20);
    assert!(orders.key("failed").run(|_| boom()).await.is_err());
    for _ in 0..2 {
        let out = orders.key("failed").run(|_| boom()).await.unwrap();
        assert!(matches!(out, Outcome::Parked(_)), "{out:?}");
    }
    // The result reaches one node only.
    let e = Effects::default();
    let network = handle.faults.clone();
    let alone = orders.key("alone").run(|_| async {
        network[1].cut();
        network[2].cut();
        e.act(Duration::ZERO).await
    });
    assert!(alone.await.is_err());
    let before = calls(&handle);
    assert!(orders.key("alone").run(|_| e.act(Duration::ZERO)).await.is_err());
    assert!(calls(&handle) > before, "it was looked for at the nodes");
}

#[tokio::test(start_paused = true)]
async fn it_is_bounded() {
    let w = World::new(1);
    let e = Effects::default();
    let handle = w.handle(0);
    let small = orders(&handle, 20_000);
    let run = async |i: u32| small.key(format!("k{i}")).run(|_| e.act(Duration::ZERO)).await;
    for i in 0..3_000 {
        assert!(run(i).await.unwrap().is_executed());
    }
    let before = calls(&handle);
    for i in 0..3_000 {
        assert!(matches!(run(i).await.unwrap(), Outcome::Replayed(_)));
    }
    // A hundred entries fit, and some that wait to be weighed.
    assert!(calls(&handle) - before > 2_000, "{} were asked for", calls(&handle) - before);
    let longer = handle.redlock.idempotency("o").retention(secs(60)).at_most_once();
    let error = longer.cache(1 << 20, secs(61)).build().unwrap_err();
    assert!(error.to_string().contains("retention"), "{error}");
}
