//! Tests of each error response of the idempotency layer itself, and of the stored responses of the
//! handler.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::{MemoryNode, Redlock};
use palisade_testing::fault::Fault;
use palisade_tower::Keep;

use crate::lab::{Got, Shop, Wish, got, keys, layer, memory};

fn wish(status: u16) -> Wish {
    Wish { status: Some(status), ..Wish::default() }
}

async fn refused(shop: &Shop, request: reqwest::RequestBuilder, want: (u16, &str)) -> Got {
    let before = shop.ledger.all();
    let got = got(request).await;
    assert_eq!((got.status, &*got.problem()), want, "{got:?}");
    assert!(!got.is_replayed());
    assert_eq!(shop.ledger.all(), before, "nothing was run");
    got
}

#[tokio::test]
async fn a_request_without_a_valid_key_is_answered_400() {
    let shop = Shop::with(layer(keys(&memory())).documentation("https://shop.example/keys")).await;
    let plain = || shop.request("POST", "/orders").json(&Wish::default());
    let got = refused(&shop, plain(), (400, "key-missing")).await;
    assert_eq!(got.header("link"), Some("<https://shop.example/keys>; rel=\"describedby\""));
    assert!(got.text.contains("\"type\":\"https://shop.example/keys#key-missing\""), "{got:?}");
    let long = "k".repeat(256);
    for bad in ["", "\"k", "a b", "a,b", &long] {
        refused(&shop, plain().header("idempotency-key", bad), (400, "key-invalid")).await;
    }
    let twice = plain().header("idempotency-key", "a").header("idempotency-key", "a");
    refused(&shop, twice, (400, "key-invalid")).await;
}

#[tokio::test]
async fn keys_of_another_form_than_is_published_are_answered_400() {
    let strict = layer(keys(&memory())).quoted_keys_only().accept_keys(|key| key.len() >= 8);
    let shop = Shop::with(strict).await;
    for bad in ["12345678", "\"1234567\""] {
        refused(&shop, shop.order(bad, &Wish::default()), (400, "key-invalid")).await;
    }
    assert_eq!(shop.send("\"12345678\"", &Wish::default()).await.status, 201);
}

#[tokio::test]
async fn a_request_without_a_known_caller_is_answered_403() {
    let shop = Shop::new().await;
    let url = format!("http://{}/orders", shop.address);
    for user in [None, Some("")] {
        let request = reqwest::Client::new().post(&url).header("idempotency-key", "k");
        let request =
            user.into_iter().fold(request, |request, user| request.header("x-user", user));
        refused(&shop, request.json(&Wish::default()), (403, "caller-unknown")).await;
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_answered_413() {
    let shop = Shop::with(layer(keys(&memory())).max_body(200)).await;
    let long = Wish { note: "n".repeat(200), ..Wish::default() };
    refused(&shop, shop.order("k", &long), (413, "body-too-large")).await;
    // This body has no `Content-Length`.
    let parts = (0..10).map(|_| Ok::<_, std::io::Error>(vec![b' '; 100]));
    let body = http_body_util::StreamBody::new(futures_util::stream::iter(
        parts.map(|part| part.map(|part| http_body::Frame::data(bytes::Bytes::from(part)))),
    ));
    let chunked = shop.request("POST", "/orders").header("idempotency-key", "k");
    let chunked = chunked.body(reqwest::Body::wrap(body));
    refused(&shop, chunked, (413, "body-too-large")).await;
    // The refused requests did not claim the key, so the next request with this key runs.
    assert_eq!(shop.send("k", &Wish::default()).await.status, 201);
}

#[tokio::test]
async fn a_key_that_was_used_for_another_request_is_answered_422() {
    let shop = Shop::new().await;
    let send = |method: &str, path: &str, note: &str| {
        let wish = Wish { note: note.into(), ..Wish::default() };
        shop.request(method, path).header("idempotency-key", "k").json(&wish)
    };
    assert_eq!(got(send("POST", "/orders?a=1", "n")).await.status, 201);
    let others = [
        ("POST", "/orders?a=1", "another"),
        ("POST", "/orders?a=2", "n"),
        ("POST", "/orders", "n"),
        ("POST", "/other?a=1", "n"),
        ("PATCH", "/orders?a=1", "n"),
    ];
    for (method, path, note) in others {
        refused(&shop, send(method, path, note), (422, "key-reused")).await;
    }
    assert!(got(send("POST", "/orders?a=1", "n")).await.is_replayed());
}

#[tokio::test]
async fn another_request_under_a_running_key_is_answered_422() {
    let shop = Shop::new().await;
    let slow = Wish { sleep_ms: 500, ..Wish::default() };
    let (first, second) = tokio::join!(shop.send("k", &slow), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        shop.send("k", &Wish::default()).await
    });
    assert_eq!((first.status, second.status), (201, 422), "{second:?}");
}

#[tokio::test]
async fn what_is_kept_of_each_status() {
    let shop = Shop::new().await;
    // Responses with all statuses except `refusals` and `unknown` are stored and replayed as
    // results, even if they are errors.
    let refusals = [400, 401, 403, 404, 405, 407, 413, 415, 422, 425, 429];
    let unknown = [408, 499];
    let kept = |status: &u16| !refusals.contains(status) && !unknown.contains(status);
    for status in (200..600).filter(kept) {
        // 206 is not a complete response. The other statuses have no body by definition.
        if [204, 205, 206, 304].contains(&status) {
            continue;
        }
        let key = format!("kept-{status}");
        let first = got(shop.order(&key, &wish(status))).await;
        let again = got(shop.order(&key, &wish(status))).await;
        assert_eq!((first.status, again.status), (status, status), "{again:?}");
        assert!(first.is_stored() && again.is_replayed(), "{again:?}");
        assert_eq!(shop.ledger.of(&format!("alice:{key}")), 1, "{status}");
    }
    // With these statuses a layer may have dropped the handler in the middle of its work.
    for status in unknown {
        let key = format!("unknown-{status}");
        let got = shop.send(&key, &wish(status)).await;
        assert_eq!((got.status, got.is_stored()), (status, false));
        refused(&shop, shop.order(&key, &wish(status)), (409, "outcome-unknown")).await;
    }
    // With these statuses the request was refused before any effect. So a repetition or a corrected
    // request runs.
    for status in refusals {
        let key = format!("free-{status}");
        for _ in 0..2 {
            let got = shop.send(&key, &wish(status)).await;
            assert_eq!((got.status, got.is_replayed(), got.is_stored()), (status, false, false));
        }
        let corrected = Wish { note: "corrected".into(), ..Wish::default() };
        let got = shop.send(&key, &corrected).await;
        assert_eq!((got.status, got.is_replayed(), got.is_stored()), (201, false, true));
        assert!(shop.send(&key, &corrected).await.is_replayed());
        assert_eq!(shop.ledger.of(&format!("alice:{key}")), 3, "{status}");
        refused(&shop, shop.order(&key, &wish(status)), (422, "key-reused")).await;
    }
}

#[tokio::test]
async fn a_server_error_is_kept_as_it_was_chosen() {
    let server_errors = |keep| layer(keys(&memory())).server_errors(keep);
    let shop = Shop::with(server_errors(Keep::Unknown)).await;
    let repeats = Shop::with(server_errors(Keep::Repeatable)).await;
    for status in [500, 501, 502, 503, 504, 599] {
        let key = format!("unknown-{status}");
        let first = shop.send(&key, &wish(status)).await;
        assert_eq!((first.status, first.is_stored()), (status, false));
        let again = refused(&shop, shop.order(&key, &wish(status)), (409, "outcome-unknown")).await;
        assert_eq!(again.retry_after(), None, "only a person can tell");
        for _ in 0..2 {
            let got = repeats.send(&key, &wish(status)).await;
            assert_eq!((got.status, got.is_replayed()), (status, false));
        }
        assert_eq!(repeats.ledger.of(&format!("alice:{key}")), 2, "{status}");
    }
    // `server_errors` affects only 5xx statuses. A response with the status 402 is stored and
    // replayed, as by default.
    assert_eq!(shop.send("k", &wish(402)).await.status, 402);
    assert!(shop.send("k", &wish(402)).await.is_replayed());
}

#[tokio::test]
async fn a_handler_that_knows_more_than_its_status_says_so() {
    let shop = Shop::new().await;
    for (keep, runs) in [("no-effect", 2), ("repeatable", 2), ("response", 1)] {
        let wish = Wish { keep: Some(keep.into()), ..wish(503) };
        let first = shop.send(keep, &wish).await;
        let again = shop.send(keep, &wish).await;
        assert_eq!((first.status, again.status, again.is_replayed()), (503, 503, runs == 1));
        assert_eq!(shop.ledger.of(&format!("alice:{keep}")), runs, "{keep}");
    }
}

#[tokio::test]
async fn at_least_once_runs_again_after_a_failure() {
    let keys = memory().idempotency("orders").at_least_once().build();
    let shop = Shop::with(layer(keys.expect("settings"))).await;
    for _ in 0..2 {
        assert_eq!(shop.send("k", &wish(500)).await.status, 500);
    }
    assert_eq!(shop.ledger.of("alice:k"), 2);
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_500_and_not_run_again() {
    let shop = Shop::new().await;
    let panics = Wish { panic: true, ..Wish::default() };
    let first = shop.send("k", &panics).await;
    assert_eq!((first.status, &*first.problem()), (500, "handler-failed"));
    refused(&shop, shop.order("k", &panics), (409, "outcome-unknown")).await;
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_response_that_is_too_long_is_sent_whole_and_later_answered_410() {
    let shop = Shop::with(layer(keys(&memory())).max_response(1_000)).await;
    let long = Wish { bytes: 100_000, ..Wish::default() };
    let first = shop.send("k", &long).await;
    assert_eq!((first.status, first.is_stored()), (201, false));
    assert!(first.text.len() > 100_000);
    let again = refused(&shop, shop.order("k", &long), (410, "response-not-kept")).await;
    assert!(again.text.contains("\"original_status\":201"), "{again:?}");
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_response_above_the_limit_of_the_namespace_is_answered_410() {
    let keys = memory().idempotency("orders").at_most_once();
    let shop = Shop::with(layer(keys.max_result(1_000).build().expect("settings"))).await;
    let long = Wish { bytes: 2_000, ..Wish::default() };
    assert!(!shop.send("k", &long).await.is_stored());
    refused(&shop, shop.order("k", &long), (410, "response-not-kept")).await;
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_request_that_says_when_it_was_made_may_be_too_old_or_too_young() {
    let timed = layer(keys(&memory())).created_at(|parts, _| {
        let seconds = parts.headers.get("x-made")?.to_str().ok()?.parse().ok()?;
        Some(UNIX_EPOCH + Duration::from_secs(seconds))
    });
    let shop = Shop::with(timed).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let made = |at: u64| shop.order(&format!("made-{at}"), &Wish::default()).header("x-made", at);
    assert_eq!(got(made(now)).await.status, 201);
    refused(&shop, made(now + 3_600), (400, "created-later")).await;
    // The retention is one day, so a request that was made two days ago is too old.
    refused(&shop, made(now - 2 * 86_400), (410, "too-old")).await;
}

#[tokio::test]
async fn keys_that_nodes_forgot_are_answered_503_as_long_as_it_is_undecided() {
    let node = MemoryNode::new();
    let second = Duration::from_secs(1);
    let redlock = Redlock::builder().node(node.clone()).node_deadline(second / 10).ttl(second);
    let shop = Shop::with(layer(keys(&redlock.build().expect("settings")))).await;
    assert_eq!(shop.send("before", &Wish::default()).await.status, 201);
    node.restart_empty();
    let mut seen = Vec::new();
    loop {
        let got = shop.send("after", &Wish::default()).await;
        match (got.status, &*got.problem()) {
            // In its quarantine, the time after its restart, the node grants no keys.
            (503, "unavailable") => seen.push(got.retry_after().expect("a wait")),
            (503, "past-undecided") => {
                assert_eq!(got.retry_after(), Some(10));
                break;
            }
            _ => panic!("{got:?}"),
        }
        assert!(seen.len() < 200, "{seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(shop.ledger.all(), 1);
}

#[tokio::test]
async fn without_nodes_a_request_is_answered_503_and_run_where_that_is_chosen() {
    let node = Fault::new(MemoryNode::new());
    let control = node.control();
    let redlock = Redlock::builder().node(node).build().expect("settings");
    let closed = Shop::with(layer(keys(&redlock))).await;
    let open = Shop::with(layer(keys(&redlock)).fail_open()).await;
    control.cut();
    let got = refused(&closed, closed.order("k", &Wish::default()), (503, "unavailable")).await;
    assert!(got.retry_after().is_some_and(|wait| wait >= 1), "{got:?}");
    let got = open.send("k", &Wish::default()).await;
    assert_eq!((got.status, got.is_stored()), (201, false), "{got:?}");
    assert_eq!(open.ledger.of("none"), 1);
    control.heal();
    assert_eq!(closed.send("k", &Wish::default()).await.status, 201);
}
