//! Tests of requests that are repeated after the response to the first request.

use axum::http::HeaderName;
use palisade_tower::{Keep, Scope, StoredResponse};

use crate::lab::{Shop, Wish, got, keys, layer, memory};

#[tokio::test]
async fn a_repetition_is_answered_as_the_first_was() {
    let shop = Shop::new().await;
    let first = shop.send("k", &Wish::default()).await;
    let again = shop.send("k", &Wish::default()).await;
    assert_eq!((first.status, first.is_replayed(), first.is_stored()), (201, false, true));
    assert_eq!((again.status, again.is_replayed(), &again.text), (201, true, &first.text));
    for name in ["content-type", "location", "content-length"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    // Some headers belong to one caller's session or to one moment. These headers are not stored.
    assert_eq!((first.header("set-cookie"), first.header("x-trace")).0, Some("session=secret"));
    assert_eq!((again.header("set-cookie"), again.header("x-trace")), (None, None));
    assert_eq!(shop.ledger.of("alice:k"), 1);
}

#[tokio::test]
async fn a_key_is_the_same_with_and_without_quotation_marks() {
    let shop = Shop::new().await;
    let first = shop.send("\"8e03978e-40d5\"", &Wish::default()).await;
    let again = shop.send("8e03978e-40d5", &Wish::default()).await;
    assert_eq!((first.status, again.status, again.is_replayed()), (201, 201, true));
    assert_eq!(shop.ledger.of("alice:8e03978e-40d5"), 1);
}

#[tokio::test]
async fn the_same_key_of_another_user_is_another_key() {
    let shop = Shop::new().await;
    let alice = shop.send("k", &Wish::default()).await;
    let of_bob = shop.order("k", &Wish::default());
    let of_bob = of_bob.build().expect("a request");
    let mut of_bob = of_bob;
    of_bob.headers_mut().insert("x-user", "bob".parse().expect("a name"));
    let bob = reqwest::Client::new().execute(of_bob).await.expect("an answer");
    assert_eq!((alice.status, bob.status().as_u16()), (201, 201));
    assert_eq!(bob.headers().get("idempotent-replayed"), None);
    assert_eq!((shop.ledger.of("alice:k"), shop.ledger.of("bob:k")), (1, 1));
}

#[tokio::test]
async fn headers_that_are_asked_for_are_stored_and_cookies_never() {
    let kept = layer(keys(&memory())).keep_headers([HeaderName::from_static("x-trace")]);
    let shop = Shop::with(kept.expect("a header of the program")).await;
    let _ = shop.send("k", &Wish::default()).await;
    assert_eq!(shop.send("k", &Wish::default()).await.header("x-trace"), Some("abc"));
    for name in ["set-cookie", "www-authenticate", "connection", "keep-alive", "date"] {
        let refused = layer(keys(&memory())).keep_headers([HeaderName::from_static(name)]);
        let error = refused.expect_err("never").to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[tokio::test]
async fn other_methods_and_requests_without_a_key_pass_where_that_is_chosen() {
    let shop = Shop::with(layer(keys(&memory())).key_optional()).await;
    for _ in 0..2 {
        let open = got(shop.request("GET", "/orders").header("idempotency-key", "k")).await;
        assert_eq!((open.status, open.is_replayed()), (200, false));
        let plain = got(shop.request("POST", "/orders").json(&Wish::default())).await;
        assert_eq!((plain.status, plain.is_replayed()), (201, false));
    }
    assert_eq!(shop.ledger.of("none"), 2);
}

#[tokio::test]
async fn bodies_that_mean_the_same_are_one_request_where_that_is_said() {
    let canonical = layer(keys(&memory())).fingerprint_by(|_, body| {
        // The JSON text is parsed and printed again. After that the order of the members is always
        // the same.
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        value.to_string().into_bytes()
    });
    let shop = Shop::with(canonical).await;
    let order = |json: &'static str| {
        let request = shop.request("POST", "/orders").header("idempotency-key", "k");
        got(request.header("content-type", "application/json").body(json))
    };
    assert_eq!(order(r#"{"note":"a","sleep_ms":1}"#).await.status, 201);
    assert!(order(r#"{ "sleep_ms":1, "note":"a" }"#).await.is_replayed());
    assert_eq!(order(r#"{"note":"b","sleep_ms":1}"#).await.problem(), "key-reused");
}

#[tokio::test]
async fn a_person_settles_a_parked_key_and_later_requests_are_answered() {
    let shop = Shop::with(layer(keys(&memory())).server_errors(Keep::Unknown)).await;
    let wish = Wish { status: Some(500), ..Wish::default() };
    assert_eq!(shop.send("k", &wish).await.status, 500);
    assert_eq!(shop.send("k", &wish).await.problem(), "outcome-unknown");
    let booked = StoredResponse::new(axum::http::StatusCode::CREATED, "booked by hand");
    let call = shop.layer.call(&Scope::of("alice"), "k").expect("a key");
    let resolved = call.resolve(&booked).await.expect("nodes answer");
    assert_eq!(resolved, palisade::idempotency::Resolved::Stored);
    let got = shop.send("k", &wish).await;
    assert_eq!((got.status, got.is_replayed(), &*got.text), (201, true, "booked by hand"));
    assert_eq!(shop.ledger.of("alice:k"), 1);
    assert!(shop.layer.call(&Scope::of(""), "k").is_err());
}
