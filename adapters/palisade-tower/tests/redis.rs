//! Tests of the idempotency layer with its records on a real Redis server, which dies while
//! requests run.

use std::time::Duration;

use axum::http::StatusCode;
use palisade::{Probed, RedisNode, Redlock};
use palisade_tower::StoredResponse;

use crate::lab::{Got, Shop, Wish, keys, layer, until};
use crate::server::Server;

pub(crate) fn fresh(args: &[&str]) -> Server {
    Server::start(args)
}

/// Returns a new client of the server, as another process would have it. The lease is one second.
pub(crate) fn handle(server: &Server) -> Redlock {
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().expect("a node");
    let second = Duration::from_secs(1);
    Redlock::builder().node(node).node_deadline(second / 8).ttl(second).build().expect("settings")
}

#[tokio::test]
async fn an_uninitialised_server_is_unavailable_and_no_conflict() {
    let server = fresh(&[]);
    let node = RedisNode::new(server.url()).expect("a node");
    let second = Duration::from_secs(1);
    let redlock = Redlock::builder().node(node).ttl(second).build().expect("settings");
    let shop = Shop::with(layer(keys(&redlock))).await;
    let wish = Wish::default();
    let until = tokio::time::Instant::now() + 30 * second;
    let got = loop {
        let got = shop.send("k", &wish).await;
        assert_eq!(got.status, 503, "{got:?}");
        if got.problem() != "unavailable" {
            break got;
        }
        assert!(tokio::time::Instant::now() < until, "a quarantine ends");
        tokio::time::sleep(second / 10).await;
    };
    assert_eq!(got.problem(), "not-initialised", "{got:?}");
    assert_eq!(got.retry_after(), Some(5), "{got:?}");
    let deployment = palisade_ops::Deployment::new().node(server.url());
    assert!(palisade_ops::init(&deployment, "").await.expect("settings").is_done());
    assert_eq!(decided(&shop, "k", &wish).await.status, 201);
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

fn slow() -> Wish {
    Wish { sleep_ms: 700, ..Wish::default() }
}

async fn decided(shop: &Shop, key: &str, wish: &Wish) -> Got {
    let mut seen = Vec::new();
    for _ in 0..300 {
        let got = shop.send(key, wish).await;
        let passes = match got.status {
            503 => got.problem() != "past-undecided",
            409 => got.problem() == "in-progress",
            _ => false,
        };
        if !passes {
            return got;
        }
        assert!(got.retry_after().is_some(), "{got:?}");
        seen.push(got.problem());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no decision in 30 s: {seen:?}");
}

#[tokio::test]
async fn redis_killed_while_a_handler_runs_costs_no_second_effect() {
    let mut server = fresh(&["--appendonly", "yes", "--appendfsync", "always"]);
    let shop = Shop::with(layer(keys(&handle(&server)))).await;
    let wish = slow();
    let (first, ()) = tokio::join!(shop.send("k", &wish), async {
        until("it runs", || shop.ledger.of("alice:k") == 1).await;
        server.kill();
    });
    assert_eq!((first.status, &*first.problem()), (503, "not-recorded"), "{first:?}");
    assert!(first.retry_after().is_some());
    // While the server is down, no handler runs.
    let down = shop.send("k", &wish).await;
    assert_eq!((down.status, &*down.problem()), (503, "unavailable"), "{down:?}");
    server.again();
    // The record shows that an attempt has begun and has no result. So a person has to decide.
    let after = decided(&shop, "k", &wish).await;
    assert_eq!(after.status, 409, "{after:?}");
    assert!(["outcome-unknown", "past-unknown"].contains(&&*after.problem()), "{after:?}");
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_probe_answers_what_redis_lost() {
    let mut server = fresh(&["--appendonly", "yes", "--appendfsync", "always"]);
    let plain = layer(keys(&handle(&server)));
    let ledger = crate::lab::Ledger::default();
    let book = ledger.clone();
    let probed = plain.probe(move |cx| {
        let booked = book.of(cx.key()) > 0;
        async move {
            let found = StoredResponse::new(StatusCode::CREATED, "found in the book");
            if booked { Probed::Found(found) } else { Probed::NotFound }
        }
    });
    let shop = Shop::with_ledger(probed, ledger).await;
    let wish = slow();
    let (first, ()) = tokio::join!(shop.send("k", &wish), async {
        until("it runs", || shop.ledger.of("alice:k") == 1).await;
        server.kill();
    });
    assert_eq!(first.status, 503, "{first:?}");
    server.again();
    let after = decided(&shop, "k", &wish).await;
    assert_eq!((after.status, after.is_replayed(), &*after.text), (201, true, "found in the book"));
    // For a new key the probe finds no effect. So the request runs.
    assert_eq!(decided(&shop, "new", &Wish::default()).await.status, 201);
    assert_eq!((shop.ledger.of("alice:k"), shop.ledger.of("alice:new")), (1, 1));
}

#[tokio::test]
async fn redis_killed_at_any_moment_costs_no_second_effect() {
    let mut server = fresh(&["--appendonly", "yes", "--appendfsync", "always"]);
    let shop = Shop::with(layer(keys(&handle(&server)))).await;
    let wish = Wish { sleep_ms: 30, ..Wish::default() };
    let all: Vec<String> = (0..60).map(|i| format!("k-{i}")).collect();
    let requests = futures_util::future::join_all(all.iter().enumerate().map(|(i, key)| {
        let (shop, wish) = (&shop, &wish);
        async move {
            tokio::time::sleep(Duration::from_millis(5 * i as u64)).await;
            shop.send(key, wish).await
        }
    }));
    let (first, ()) = tokio::join!(requests, async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.kill();
    });
    server.again();
    let mut table = std::collections::BTreeMap::<(u16, u16), u32>::new();
    for (key, first) in all.iter().zip(&first) {
        let after = decided(&shop, key, &wish).await;
        let times = shop.ledger.of(&format!("alice:{key}"));
        assert!(times <= 1, "{key}: {times} effects, {first:?}, {after:?}");
        if first.status == 201 {
            // After the restart of the server the key still has the first response.
            assert_eq!((times, after.is_replayed(), &after.text), (1, true, &first.text), "{key}");
        }
        *table.entry((first.status, after.status)).or_default() += 1;
    }
    println!("(first answer, answer after the restart) -> requests: {table:?}");
    assert!(table.keys().any(|(first, _)| *first == 201), "{table:?}");
    assert!(table.keys().any(|(first, _)| *first == 503), "{table:?}");
}

#[tokio::test]
async fn redis_killed_while_a_handler_runs_gives_its_answer_where_that_is_chosen() {
    let mut server = fresh(&[]);
    let shop = Shop::with(layer(keys(&handle(&server))).fail_open()).await;
    let wish = slow();
    let (first, ()) = tokio::join!(shop.send("k", &wish), async {
        until("it runs", || shop.ledger.of("alice:k") == 1).await;
        server.kill();
    });
    assert_eq!((first.status, first.is_stored()), (201, false), "{first:?}");
    let unprotected = shop.send("k", &wish).await;
    assert_eq!((unprotected.status, unprotected.is_stored()), (201, false), "{unprotected:?}");
    assert_eq!((shop.ledger.of("alice:k"), shop.ledger.of("none")), (1, 1));
}
