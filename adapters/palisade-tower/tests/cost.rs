//! What the layer costs a request that has no key.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::lab::{keys, layer, memory};

const REQUESTS: u32 = 500;

/// The quickest of many rounds: what others do on the machine only adds.
async fn quickest<S, B>(mut service: S) -> Duration
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut best = Duration::MAX;
    for _ in 0..60 {
        let begun = Instant::now();
        for _ in 0..REQUESTS {
            let request = Request::post("/orders").body(Body::from("{}")).expect("a request");
            let ready = service.ready().await.expect("it is always ready");
            let _ = ready.call(request).await.expect("it cannot fail");
        }
        best = best.min(begun.elapsed() / REQUESTS);
    }
    best
}

#[tokio::test]
async fn a_request_without_a_key_costs_less_than_20_microseconds_more() {
    let handler = service_fn(async |request: Request<Body>| {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let plain = quickest(handler).await;
    let layered = quickest(layer(keys(&memory())).key_optional().layer(handler)).await;
    let more = layered.saturating_sub(plain);
    println!("without the layer {plain:?}, with it {layered:?}");
    assert!(more < Duration::from_micros(20), "{more:?}");
}
