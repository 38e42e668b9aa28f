//! Tests of requests that are repeated while the first request runs.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lab::{Got, Shop, Wish, keys, layer, memory};

fn slow() -> Wish {
    Wish { sleep_ms: 200, ..Wish::default() }
}

async fn all_at_once(shops: &[&Shop], key: &str, wish: &Wish, n: usize) -> Vec<Got> {
    let sent = (0..n).map(|i| shops[i % shops.len()].send(key, wish));
    futures_util::future::join_all(sent).await
}

fn executed(all: &[Got]) -> Vec<&Got> {
    all.iter().filter(|got| got.status == 201 && !got.is_replayed()).collect()
}

#[tokio::test]
async fn concurrent_duplicates_take_effect_once() {
    let shop = Shop::with(layer(keys(&memory())).in_flight_timeout(Duration::ZERO)).await;
    let all = all_at_once(&[&shop], "k", &slow(), 40).await;
    let ran = executed(&all);
    assert_eq!(ran.len(), 1, "{all:?}");
    for got in &all {
        match got.status {
            201 => assert_eq!(got.text, ran[0].text),
            409 => {
                assert_eq!(got.problem(), "in-progress");
                // The client has to wait for at most half a lease of 15 seconds, in whole seconds.
                let wait = got.retry_after().expect("a wait");
                assert!((1..=8).contains(&wait), "{wait}");
            }
            _ => panic!("{got:?}"),
        }
    }
    assert!(all.iter().any(|got| got.status == 409));
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn duplicates_of_a_short_handler_are_answered_soon() {
    let server = crate::redis::fresh(&[]);
    for keys in [keys(&memory()), keys(&crate::redis::handle(&server))] {
        let lease = Duration::from_secs(15);
        let shop = Shop::with(layer(keys)).await;
        let wish = Wish { sleep_ms: 700, ..Wish::default() };
        let begun = tokio::time::Instant::now();
        let all = all_at_once(&[&shop], "k", &wish, 20).await;
        assert!(begun.elapsed() < lease / 2, "{:?}", begun.elapsed());
        assert_eq!(executed(&all).len(), 1, "{all:?}");
        for got in &all {
            // On a busy machine a repetition may have waited for the maximum time of one second.
            let later = (got.status, got.retry_after()) == (409, Some(1));
            assert!(got.status == 201 || later, "{got:?}");
        }
        assert!(all.iter().any(Got::is_replayed), "{all:?}");
        assert_eq!(shop.ledger.of("alice:k"), 1);
    }
}

#[tokio::test]
async fn who_comes_back_to_a_long_handler_is_told_to_wait_longer_each_time() {
    let shop = Shop::with(layer(keys(&memory())).in_flight_timeout(Duration::ZERO)).await;
    let wish = Wish { sleep_ms: 60_000, ..Wish::default() };
    let long = shop.send("k", &wish);
    let asks = async {
        crate::lab::until("the handler runs", || shop.ledger.all() == 1).await;
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(shop.send("k", &wish).await.retry_after().expect("a wait"));
        }
        waits
    };
    let waits = tokio::select! {
        biased;
        waits = asks => waits,
        got = long => panic!("{got:?}"),
    };
    assert_eq!(waits[0], 1, "{waits:?}");
    assert!(waits[7] >= 4 && waits.iter().all(|wait| *wait <= 8), "{waits:?}");
}

#[tokio::test]
async fn duplicates_that_wait_are_answered_with_the_response() {
    let shop = Shop::with(layer(keys(&memory())).in_flight_timeout(Duration::from_secs(10))).await;
    let all = all_at_once(&[&shop], "k", &slow(), 20).await;
    assert_eq!(executed(&all).len(), 1, "{all:?}");
    let bodies: BTreeSet<_> = all.iter().map(|got| (got.status, &got.text)).collect();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn the_wait_for_a_running_request_has_an_end() {
    let shop =
        Shop::with(layer(keys(&memory())).in_flight_timeout(Duration::from_millis(100))).await;
    let wish = Wish { sleep_ms: 3_000, ..Wish::default() };
    let (first, second) = tokio::join!(shop.send("k", &wish), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = tokio::time::Instant::now();
        let got = shop.send("k", &wish).await;
        (got, begun.elapsed())
    });
    let (second, took) = second;
    assert_eq!((first.status, second.status), (201, 409));
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(2), "{took:?}");
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn two_processes_on_a_real_server_run_each_key_once() {
    let server = crate::redis::fresh(&[]);
    let wait = Duration::from_secs(20);
    let one = Shop::with(layer(keys(&crate::redis::handle(&server))).in_flight_timeout(wait)).await;
    let other = layer(keys(&crate::redis::handle(&server))).in_flight_timeout(wait);
    let other = Shop::with_ledger(other, one.ledger.clone()).await;
    let keys: Vec<_> = (0..25).map(|i| format!("k-{i}")).collect();
    let wish = Wish { sleep_ms: 50, ..Wish::default() };
    let shops = [&one, &other];
    let sent = keys.iter().map(|key| all_at_once(&shops, key, &wish, 6));
    for (key, all) in keys.iter().zip(futures_util::future::join_all(sent).await) {
        assert_eq!(executed(&all).len(), 1, "{key}: {all:?}");
        assert!(all.iter().all(|got| got.status == 201), "{key}: {all:?}");
        assert_eq!(one.ledger.of(&format!("alice:{key}")), 1, "{key}");
    }
    assert_eq!(one.ledger.all(), 25);
}
