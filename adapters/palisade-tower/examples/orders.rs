//! An HTTP endpoint that books each order only once, even if a client sends the order several
//! times.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run -p palisade-tower --features axum --example orders
//! curl -i 127.0.0.1:3000/orders -H 'Authorization: Bearer alices-secret' \
//!      -H 'Idempotency-Key: "8e03978e"' -H 'Content-Type: application/json' -d '{"item":"tea"}'
//! ```
//!
//! If the same `curl` command runs again, the response is the same order with the header
//! `idempotent-replayed: true`. To accept idempotency keys, an endpoint needs only the lines
//! between the comments that say so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use palisade::{ConfigError, Redlock};
use serde::{Deserialize, Serialize};

// Begin of the lines that a user of the library writes.
use palisade_tower::{Claim, IdempotencyLayer, Scope};
// End of the lines that a user of the library writes.

#[derive(Debug, Deserialize)]
struct Order {
    item: String,
}

#[derive(Debug, Serialize)]
struct Booked {
    order: usize,
    item: String,
    /// Idempotency key for the bank. The key is the same in every attempt at this order.
    charge: String,
}

/// The items of the booked orders, in the order of booking.
pub(crate) type Ledger = Arc<Mutex<Vec<String>>>;

async fn place(
    State(ledger): State<Ledger>,
    claim: Claim,
    Json(order): Json<Order>,
) -> (StatusCode, Json<Booked>) {
    let mut ledger = ledger.lock().expect("no panic while booking");
    ledger.push(order.item.clone());
    let charge = claim.child_key("charge");
    (StatusCode::CREATED, Json(Booked { order: ledger.len(), item: order.item, charge }))
}

/// The user who sent a request, found by the request's credentials.
#[derive(Clone)]
struct User(&'static str);

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let secret = request.headers().get(header::AUTHORIZATION).and_then(|h| h.to_str().ok());
    let user = match secret {
        Some("Bearer alices-secret") => User("alice"),
        Some("Bearer bobs-secret") => User("bob"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

pub(crate) fn app(
    redlock: &Redlock,
    ledger: Ledger,
) -> Result<(Router, IdempotencyLayer), ConfigError> {
    // Begin of the lines that a user of the library writes.
    let keys = redlock.idempotency("orders").at_most_once().build()?;
    let whose = |parts: &Parts| parts.extensions.get::<User>().map(|u| Scope::of(u.0));
    let once = IdempotencyLayer::new(keys, whose);
    let orders = post(place).layer(once.clone());
    // End of the lines that a user of the library writes.
    let app = Router::new().route("/orders", orders).layer(from_fn(authenticate));
    Ok((app.with_state(ledger), once))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let node = args.next().unwrap_or("redis://127.0.0.1".into());
    let address = args.next().unwrap_or("127.0.0.1:3000".into());
    let redlock = Redlock::from_urls(node)?;
    let (app, once) = app(&redlock, Ledger::default())?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // Begin of the lines that a user of the library writes.
    let running = once.finish(Duration::from_secs(10)).await;
    // End of the lines that a user of the library writes.
    println!("{running} handlers still run; {}", redlock.close(Duration::from_secs(5)).await);
    Ok(())
}
