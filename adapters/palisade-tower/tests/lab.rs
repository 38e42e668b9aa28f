//! The server of the tests, on its own port, and a client. The server's handler counts its effects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{patch, post};
use axum::{Extension, Router};
use palisade::{Idempotency, MemoryNode, Redlock};
use palisade_tower::{Claim, IdempotencyLayer, Keep, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Number of effects of each key. The handler counts the effects.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, u32>>>);

impl Ledger {
    fn book(&self, key: &str) -> u32 {
        let mut book = self.0.lock().expect("no panic here");
        let times = book.entry(key.to_owned()).or_default();
        *times += 1;
        *times
    }

    pub(crate) fn of(&self, key: &str) -> u32 {
        self.0.lock().expect("no panic here").get(key).copied().unwrap_or(0)
    }

    pub(crate) fn all(&self) -> u32 {
        self.0.lock().expect("no panic here").values().sum()
    }
}

/// Instructions to the handler. The body of a request contains them.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Wish {
    pub(crate) sleep_ms: u64,
    /// Status of the response; 201 by default.
    pub(crate) status: Option<u16>,
    /// Length of the response's body in bytes.
    pub(crate) bytes: usize,
    /// Text that the handler ignores. It makes the bodies of two requests different.
    pub(crate) note: String,
    pub(crate) panic: bool,
    pub(crate) keep: Option<String>,
}

async fn act(
    State(ledger): State<Ledger>,
    claim: Option<Claim>,
    Json(wish): Json<Wish>,
) -> Response {
    let key = claim.map_or("none".to_owned(), |claim| claim.key().to_owned());
    let times = ledger.book(&key);
    tokio::time::sleep(Duration::from_millis(wish.sleep_ms)).await;
    assert!(!wish.panic, "as was wished for");
    let status = StatusCode::from_u16(wish.status.unwrap_or(201)).expect("a status");
    let headers = [
        (header::LOCATION, "/orders/7".to_owned()),
        (header::SET_COOKIE, "session=secret".to_owned()),
        (header::HeaderName::from_static("x-trace"), "abc".to_owned()),
    ];
    let filler = "x".repeat(wish.bytes);
    let answer = (status, headers, Json(json!({ "times": times, "filler": filler })));
    match wish.keep.as_deref() {
        None => answer.into_response(),
        Some("no-effect") => (Extension(Keep::NoEffect), answer).into_response(),
        Some("repeatable") => (Extension(Keep::Repeatable), answer).into_response(),
        Some("response") => (Extension(Keep::Response), answer).into_response(),
        Some(other) => panic!("nothing is known of {other}"),
    }
}

/// A server of one test. The server ends with the runtime of the test.
pub(crate) struct Shop {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) ledger: Ledger,
    pub(crate) layer: IdempotencyLayer,
    client: reqwest::Client,
}

pub(crate) fn keys(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().expect("settings")
}

pub(crate) fn memory() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("settings")
}

pub(crate) fn layer(keys: Idempotency) -> IdempotencyLayer {
    IdempotencyLayer::new(keys, |request| {
        request.headers.get("x-user").and_then(|user| user.to_str().ok()).map(Scope::of)
    })
}

impl Shop {
    pub(crate) async fn new() -> Self {
        Self::with(layer(keys(&memory()))).await
    }

    pub(crate) async fn with(layer: IdempotencyLayer) -> Self {
        Self::with_ledger(layer, Ledger::default()).await
    }

    pub(crate) async fn with_ledger(layer: IdempotencyLayer, ledger: Ledger) -> Self {
        let app = Router::new()
            .route("/orders", post(act).patch(act).get(|| async { "open" }))
            .route("/other", post(act))
            .route("/patch", patch(act))
            .layer(layer.clone())
            .with_state(ledger.clone());
        let address = serve(app).await;
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        Self { address, ledger, layer, client: client.build().expect("a client") }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url).header("x-user", "alice")
    }

    pub(crate) fn order(&self, key: &str, wish: &Wish) -> reqwest::RequestBuilder {
        self.request("POST", "/orders").header("idempotency-key", key).json(wish)
    }

    pub(crate) async fn send(&self, key: &str, wish: &Wish) -> Got {
        got(self.order(key, wish)).await
    }
}

pub(crate) async fn serve(app: Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A response whose whole body has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.header("idempotent-stored") != Some("false")
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().expect("whole seconds"))
    }

    /// Returns the code of an error response of the layer, and checks the other members of its JSON
    /// object.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let json: Value = serde_json::from_str(&self.text).expect("an object");
        assert_eq!(json["status"], self.status, "{self:?}");
        assert!(json["detail"].as_str().is_some_and(|text| text.ends_with('.')), "{self:?}");
        json["code"].as_str().unwrap_or_else(|| panic!("a code: {self:?}")).to_owned()
    }
}

pub(crate) async fn got(request: reqwest::RequestBuilder) -> Got {
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Got { status, headers, text: response.text().await.expect("a whole body") }
}

/// Waits at most ten seconds until `is` returns true.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("after ten seconds not yet: {what}");
}
