//! Tests with layers that drop a handler in the middle of its work and answer in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::http::StatusCode;
use axum::routing::post;
use palisade::Idempotency;
use palisade_tower::IdempotencyLayer;
use tower::ServiceBuilder;
use tower_http::timeout::TimeoutLayer;

use crate::lab::{Got, got, layer, memory, serve, until};

const LIMIT: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(900);

/// A handler that charges a card and then waits for longer than `LIMIT`.
#[derive(Clone, Default)]
struct Till {
    charges: Arc<AtomicU32>,
    receipts: Arc<AtomicU32>,
}

impl Till {
    fn routes(&self) -> Router {
        let till = self.clone();
        let charge = move || async move {
            till.charges.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(SLOW).await;
            till.receipts.fetch_add(1, Ordering::Relaxed);
            StatusCode::CREATED
        };
        Router::new().route("/charges", post(charge))
    }

    fn charged(&self) -> u32 {
        self.charges.load(Ordering::Relaxed)
    }
}

async fn send(address: std::net::SocketAddr) -> Got {
    let request = reqwest::Client::new().post(format!("http://{address}/charges"));
    got(request.header("x-user", "alice").header("idempotency-key", "k")).await
}

fn at_most_once() -> Idempotency {
    memory().idempotency("charges").at_most_once().build().expect("settings")
}

fn at_least_once() -> Idempotency {
    memory().idempotency("charges").at_least_once().build().expect("settings")
}

fn by_tower_http(routes: Router, status: u16) -> Router {
    let status = StatusCode::from_u16(status).expect("a status");
    routes.layer(TimeoutLayer::with_status_code(status, LIMIT))
}

fn by_tower(routes: Router, status: u16) -> Router {
    let status = StatusCode::from_u16(status).expect("a status");
    let say = HandleErrorLayer::new(move |_: tower::BoxError| async move { status });
    routes.layer(ServiceBuilder::new().layer(say).timeout(LIMIT))
}

/// Sends a request whose handler is dropped by a timeout inside of the layer, and sends it again.
async fn twice_around(layer: IdempotencyLayer, till: Router) -> (Got, Got) {
    let address = serve(till.layer(layer)).await;
    (send(address).await, send(address).await)
}

#[tokio::test]
async fn a_timeout_inside_of_the_layer_charges_once_under_at_most_once() {
    for status in [408, 499, 500, 502, 503, 504, 522] {
        for timeout in [by_tower_http, by_tower] {
            let till = Till::default();
            let routes = timeout(till.routes(), status);
            let (first, second) = twice_around(layer(at_most_once()), routes).await;
            assert_eq!(first.status, status, "{first:?}");
            assert_eq!(till.charged(), 1, "{status}: {second:?}");
            assert_eq!(till.receipts.load(Ordering::Relaxed), 0, "it was dropped");
            if [408, 499].contains(&status) {
                assert!(!first.is_stored(), "{first:?}");
                assert_eq!((second.status, &*second.problem()), (409, "outcome-unknown"));
            } else {
                assert!(second.is_replayed(), "{second:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_timeout_inside_of_the_layer_charges_again_under_at_least_once() {
    for status in [408, 499, 500, 502, 503, 504, 522] {
        let till = Till::default();
        let routes = by_tower_http(till.routes(), status);
        let (first, second) = twice_around(layer(at_least_once()), routes).await;
        assert_eq!((first.status, second.status), (status, status), "{second:?}");
        assert_eq!(till.charged(), 2, "{status}");
    }
}

#[tokio::test]
async fn a_timeout_outside_of_the_layer_drops_no_handler() {
    for timeout in [by_tower_http, by_tower] {
        let till = Till::default();
        let address = serve(timeout(till.routes().layer(layer(at_most_once())), 408)).await;
        assert_eq!(send(address).await.status, 408);
        until("the handler ends", || till.receipts.load(Ordering::Relaxed) == 1).await;
        let again = send(address).await;
        assert_eq!((again.status, again.is_replayed()), (201, true), "{again:?}");
        assert_eq!(till.charged(), 1);
    }
}
