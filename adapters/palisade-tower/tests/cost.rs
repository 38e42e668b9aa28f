//! Measures the time that the idempotency layer adds to a request without a key.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response};
use palisade::{MemoryNode, Redlock};
use palisade_testing::fault::Fault;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::lab::{keys, layer};

const REQUESTS: u32 = 500;

async fn takes<S, B>(mut service: S) -> (Duration, Duration)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut rounds = Vec::new();
    for _ in 0..61 {
        let begun = Instant::now();
        for _ in 0..REQUESTS {
            let request = Request::post("/orders").body(Body::from("{}")).expect("a request");
            let ready = service.ready().await.expect("it is always ready");
            let _ = ready.call(request).await.expect("it cannot fail");
        }
        rounds.push(begun.elapsed() / REQUESTS);
    }
    rounds.sort_unstable();
    (rounds[0], rounds[rounds.len() / 2])
}

/// The test prints the measured times and does not check them. `make bench-idempotency` shows the
/// times.
#[tokio::test]
async fn a_request_without_a_key_asks_no_node() {
    let node = Fault::new(MemoryNode::new());
    let control = node.control();
    let redlock = Redlock::builder().node(node).build().expect("settings");
    let layer = layer(keys(&redlock)).key_optional();
    let before = control.calls();
    let handler = service_fn(async |request: Request<Body>| {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let (plain, plain_median) = takes(handler).await;
    let (layered, layered_median) = takes(layer.layer(handler)).await;
    assert_eq!(control.calls(), before, "nothing is asked for requests without a key");
    let more = |with: Duration, without: Duration| with.saturating_sub(without);
    println!(
        "the tower layer, for a request without a key     {:?} more, median {:?} (target 20 µs)",
        more(layered, plain),
        more(layered_median, plain_median)
    );
    let keyed = Request::post("/orders").header("idempotency-key", "k").header("x-user", "alice");
    let keyed = keyed.body(Body::from("{}")).expect("a request");
    let _ = layer.layer(handler).oneshot(keyed).await.expect("it cannot fail");
    assert!(control.calls() > before, "with a key they are asked");
}
