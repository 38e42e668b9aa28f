//! Tests of the idempotency layer around a service that is not an axum handler: errors, broken
//! bodies, and requests to which the layer does not apply.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use palisade::idempotency::Status;
use palisade_tower::{Claim, Scope, StoredResponse};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::lab::{keys, layer, memory};

fn post(key: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", key);
    request.body(Full::from("body")).expect("a request")
}

#[tokio::test]
async fn an_error_of_the_service_is_its_callers_and_the_handler_is_not_run_again() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let service = layer(keys(&memory())).layer(service_fn(move |_: Request<Full<Bytes>>| {
        counted.fetch_add(1, SeqCst);
        async { Err::<Response<Full<Bytes>>, _>("the line is dead") }
    }));
    let error = service.clone().oneshot(post("k")).await.expect_err("the service's own");
    assert_eq!(error, "the line is dead");
    let again = service.oneshot(post("k")).await.expect("a problem");
    assert_eq!((again.status(), runs.load(SeqCst)), (StatusCode::CONFLICT, 1));
}

#[tokio::test]
async fn a_response_that_breaks_off_is_answered_500_and_the_handler_is_not_run_again() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let service = layer(keys(&memory())).layer(service_fn(move |_: Request<Full<Bytes>>| {
        counted.fetch_add(1, SeqCst);
        let frames = [Ok(Frame::data(Bytes::from("half"))), Err(std::io::Error::other("gone"))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        async { Ok::<_, Infallible>(Response::new(body)) }
    }));
    let broken = service.clone().oneshot(post("k")).await.expect("an answer");
    assert_eq!(broken.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let again = service.oneshot(post("k")).await.expect("a problem");
    assert_eq!((again.status(), runs.load(SeqCst)), (StatusCode::CONFLICT, 1));
}

#[tokio::test]
async fn the_handler_gets_the_whole_request_and_its_claim() {
    let redlock = memory();
    let layer = layer(keys(&redlock));
    let service = layer.layer(service_fn(async |request: Request<Full<Bytes>>| {
        let claim = request.extensions().get::<Claim>().expect("a claim").clone();
        assert!(claim.is_valid() && claim.attempt() == 1 && claim.fencing_token().get() > 0);
        assert_eq!((claim.namespace(), claim.key()), ("orders", "alice:k"));
        assert_eq!(request.uri().path(), "/orders");
        assert_eq!(request.headers()["x-user"], "alice");
        let body = request.into_body().collect().await.expect("it is whole").to_bytes();
        let answer = format!("{} {}", String::from_utf8_lossy(&body), claim.child_key("charge"));
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
    }));
    let first = service.clone().oneshot(post("k")).await.expect("an answer");
    let first = first.into_body().collect().await.expect("whole").to_bytes();
    assert!(first.starts_with(b"body ") && first.len() == 5 + 32, "{first:?}");
    let again = service.oneshot(post("k")).await.expect("an answer");
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.into_body().collect().await.expect("whole").to_bytes(), first);
    // A lookup of the key returns the stored response.
    let call = layer.call(&Scope::of("alice"), "k").expect("a key");
    let stored = StoredResponse::new(StatusCode::OK, first);
    assert_eq!(call.lookup().await.expect("nodes answer"), Status::Stored(stored));
}

#[tokio::test]
async fn what_is_not_looked_at_is_passed_on_unread() {
    let service = layer(keys(&memory())).layer(service_fn(async |request: Request<Body>| {
        assert!(request.extensions().get::<Claim>().is_none());
        Ok::<_, Infallible>(Response::new(request.into_body()))
    }));
    let endless = futures_util::stream::repeat(Ok::<_, Infallible>(Bytes::from("more")));
    let get = Request::get("/").header("idempotency-key", "k").body(Body::from_stream(endless));
    let answer = service.oneshot(get.expect("a request")).await.expect("an answer");
    let mut body = answer.into_body();
    for _ in 0..3 {
        let frame = body.frame().await.expect("more").expect("no error");
        assert_eq!(frame.into_data().expect("data"), "more");
    }
}
