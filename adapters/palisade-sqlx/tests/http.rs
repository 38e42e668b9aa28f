//! An axum endpoint that books orders in PostgreSQL. A real HTTP client calls the endpoint while
//! servers fail. The test writes a table with the responses to each client and the number of rows.
//! The README of palisade-tower contains a copy of this table, and the copy must match the result
//! of the test.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use palisade::{Idempotency, Probed, RedisNode, Redlock};
use palisade_sqlx::inbox;
use palisade_tower::{Claim, IdempotencyLayer, Keep, Scope, StoredResponse};
use serde_json::{Value, json};
use sqlx::PgConnection;
use sqlx::postgres::PgPool;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

use crate::Lab;
use crate::redis::Server;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Number of clients that send one order at the same time.
const CLIENTS: usize = 20;
/// Timeout that only a hang exceeds.
const HANG: Duration = Duration::from_mins(1);

/// A gate. While the gate is shut, every handler waits at the gate before its effect.
struct Gate {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    async fn pass(&self) {
        self.arrived.send_modify(|n| *n += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    fn shut(&self) {
        self.open.send_replace(false);
        self.arrived.send_replace(0);
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    async fn arrived(&self) {
        let _ = self.arrived.subscribe().wait_for(|n| *n > 0).await;
    }
}

#[derive(Clone)]
struct Orders {
    pool: PgPool,
    gate: Arc<Gate>,
}

async fn insert(tx: &mut PgConnection, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query_scalar("INSERT INTO effects (key) VALUES ($1) RETURNING id");
    Ok(insert.bind(key).fetch_one(tx).await?)
}

async fn book(orders: &Orders, claim: &Claim) -> Result<i64, BoxError> {
    orders.gate.pass().await;
    let mut tx = orders.pool.begin().await?;
    let key = claim.key().to_owned();
    let id = inbox::once(&mut tx, claim, |tx| insert(tx, key).boxed()).await?;
    tx.commit().await?;
    Ok(id)
}

async fn place(
    State(orders): State<Orders>,
    claim: Claim,
    Json(_): Json<Value>,
) -> Result<(StatusCode, Json<Value>), (Extension<Keep>, StatusCode)> {
    match book(&orders, &claim).await {
        Ok(id) => Ok((StatusCode::CREATED, Json(json!({ "order": id })))),
        Err(_) => Err((Extension(Keep::Repeatable), StatusCode::INTERNAL_SERVER_ERROR)),
    }
}

fn answer(found: &Probed<i64>) -> Probed<StoredResponse> {
    match found {
        Probed::Found(id) => {
            let body = json!({ "order": id }).to_string();
            Probed::Found(StoredResponse::new(StatusCode::CREATED, body))
        }
        Probed::NotFound => Probed::NotFound,
        Probed::Unknown => Probed::Unknown,
    }
}

/// The HTTP endpoint, the servers that it uses, and the table that the test writes.
struct Shop {
    lab: Lab,
    redis: Server,
    gate: Arc<Gate>,
    url: String,
    client: reqwest::Client,
    table: Vec<String>,
}

/// Sends a request. Returns the status and the body of the response. The status is followed by
/// `replayed`, or by the code of an error response of the layer.
async fn got(request: reqwest::RequestBuilder) -> (String, Value) {
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body: Value = response.json().await.expect("JSON");
    let said = match body["code"].as_str() {
        Some(code) => format!("{status} `{code}`"),
        None if replayed => format!("{status} replayed"),
        None => status.to_string(),
    };
    (said, body)
}

async fn send(request: reqwest::RequestBuilder) -> String {
    got(request).await.0
}

fn keys(redis: &Server) -> Idempotency {
    let node = RedisNode::builder(redis.url()).trust_fresh(true).build().expect("a node");
    let redlock = Redlock::builder().node(node);
    let redlock = redlock.node_deadline(Duration::from_secs(1)).ttl(Duration::from_secs(5));
    let redlock = redlock.build().expect("settings");
    redlock.idempotency("orders").at_most_once().build().expect("settings")
}

impl Shop {
    async fn open() -> Self {
        let redis = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let lab = Lab::new().await;
        let (open, arrived) = (watch::Sender::new(true), watch::Sender::new(0));
        let gate = Arc::new(Gate { open, arrived });
        let orders = Orders { pool: lab.pool.clone(), gate: Arc::clone(&gate) };
        let plain = IdempotencyLayer::new(keys(&redis), |_| Some(Scope::all_callers()));
        let row = inbox::prober::<i64>(lab.pool.clone());
        let probed = plain.clone().probe(move |cx| row(cx).map(|found| answer(&found)));
        let waits = probed.clone().in_flight_timeout(HANG);
        let app = Router::new()
            .route("/orders", post(place).layer(probed))
            .route("/waits", post(place).layer(waits))
            .route("/unprobed", post(place).layer(plain))
            .with_state(orders);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let client = reqwest::Client::new();
        Self { lab, redis, gate, url, client, table: Vec::new() }
    }

    fn order(&self, path: &str, key: &str, item: &str) -> reqwest::RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.url));
        request.header("idempotency-key", key).json(&json!({ "item": item }))
    }

    async fn again(&self, path: &str, key: &str) -> String {
        send(self.order(path, key, "tea")).await
    }

    async fn decided(&self, path: &str, key: &str) -> String {
        let asked = async {
            loop {
                let got = self.again(path, key).await;
                if !got.contains("unavailable") && !got.contains("in-progress") {
                    return got;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(HANG, asked).await.expect("a decision")
    }

    async fn note(&mut self, what: &str, key: &str, answers: &[String]) {
        let rows = self.lab.effects(key).await;
        let answers = answers.join(", then ");
        let row = format!("| {what} | {answers} | {rows} |");
        println!("{row}");
        self.table.push(row);
    }

    /// Sends one order from many clients at the same time. Returns each different response with its
    /// count. The most frequent response is last.
    async fn all_at_once(&self, path: &str, key: &str, until: usize) -> String {
        self.gate.shut();
        let answered = AtomicUsize::new(0);
        let clients = join_all((0..CLIENTS).map(|_| async {
            let got = self.again(path, key).await;
            answered.fetch_add(1, SeqCst);
            got
        }));
        let opens = async {
            self.gate.arrived().await;
            while answered.load(SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.gate.open();
        };
        let (got, ()) = tokio::time::timeout(HANG, async { tokio::join!(clients, opens) })
            .await
            .expect("all are answered");
        let mut counts = BTreeMap::new();
        for answer in got {
            *counts.entry(answer).or_insert(0) += 1;
        }
        let counts = counts.into_iter().map(|(answer, n)| format!("{n} × {answer}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    async fn duplicates(&mut self) {
        let got = self.all_at_once("/orders", "k1", CLIENTS - 1).await;
        let then = self.again("/orders", "k1").await;
        let what = format!("{CLIENTS} clients send one order at once");
        self.note(&what, "k1", &[got, then]).await;
        let got = self.all_at_once("/waits", "k2", 0).await;
        let what = format!("{CLIENTS} clients at once, on a route with `in_flight_timeout`");
        self.note(&what, "k2", &[got]).await;
    }

    async fn mismatch(&mut self) {
        self.gate.shut();
        let (first, other) = tokio::join!(self.again("/orders", "k3"), async {
            self.gate.arrived().await;
            let other = send(self.order("/orders", "k3", "milk")).await;
            self.gate.open();
            other
        });
        let later = send(self.order("/orders", "k3", "milk")).await;
        assert_eq!(first, "201");
        let what = "another body under the key, while the first request runs and afterwards";
        self.note(what, "k3", &[other, later]).await;
    }

    async fn hang_ups(&mut self) {
        self.gate.shut();
        let client = self.again("/orders", "k4");
        tokio::select! {
            biased;
            got = client => panic!("answered: {got}"),
            // The handler waits at the closed gate, before its effect. The test now drops the HTTP
            // client and its connection.
            () = self.gate.arrived() => {}
        }
        let running = self.again("/orders", "k4").await;
        self.gate.open();
        let then = self.decided("/orders", "k4").await;
        let what = "a client hangs up while its handler runs, and asks again twice";
        self.note(what, "k4", &[running, then]).await;
        let address = self.url.trim_start_matches("http://");
        let mut half = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let text = "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: k5\r\n\
                    content-type: application/json\r\ncontent-length: 500\r\n\r\n{\"item\":";
        half.write_all(text.as_bytes()).await.expect("it reads");
        drop(half);
        let whole = self.again("/orders", "k5").await;
        self.note("a client hangs up in the middle of its body, and asks again", "k5", &[whole])
            .await;
    }

    /// Kills Redis while a handler runs. Then the handler books the order, and Redis is started
    /// again.
    async fn killed(&mut self, path: &str, key: &str) -> Vec<String> {
        self.gate.shut();
        let (url, client) = (format!("{}{path}", self.url), self.client.clone());
        let request = client.post(url).header("idempotency-key", key);
        let first = tokio::spawn(send(request.json(&json!({ "item": "tea" }))));
        tokio::time::timeout(HANG, self.gate.arrived()).await.expect("its handler runs");
        self.redis.kill();
        self.gate.open();
        let first = first.await.expect("an answer");
        let down = self.again(path, key).await;
        self.redis.again();
        vec![first, down, self.decided(path, key).await]
    }

    async fn kills(&mut self) {
        // This route is tested first, because its keys have no probe. After a restart the Redis
        // server grants no new key for some time.
        let all = self.killed("/unprobed", "k6").await;
        let what = "Redis is killed while a handler runs, on a route without a probe; asked again \
                    while it is down, and when it is back";
        self.note(what, "k6", &all).await;
        let all = self.killed("/orders", "k7").await;
        self.note("the same, on a route whose probe is the inbox", "k7", &all).await;
        self.redis.kill();
        let down = self.again("/orders", "k8").await;
        self.redis.again();
        let then = self.decided("/orders", "k8").await;
        self.note("Redis is killed before a request", "k8", &[down, then]).await;
        let (before, booked) = got(self.order("/orders", "k9", "tea")).await;
        self.redis.restart_empty();
        let then = self.decided("/orders", "k9").await;
        let (_, again) = got(self.order("/orders", "k9", "tea")).await;
        assert_eq!(again, booked, "the same order");
        let what = "Redis comes back without its data, and is trusted as a new server";
        self.note(what, "k9", &[before, then]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_are_answered_while_things_go_wrong_is_what_the_readme_says() {
    let mut shop = Shop::open().await;
    shop.duplicates().await;
    shop.mismatch().await;
    shop.hang_ups().await;
    shop.kills().await;
    let table = shop.table.join("\n");
    assert!(shop.table.iter().all(|row| row.ends_with("| 1 |")), "one row for each:\n{table}");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../palisade-tower/README.md");
    let readme = std::fs::read_to_string(readme).expect("a README");
    assert!(readme.contains(&table), "the README of palisade-tower says otherwise:\n{table}");
}
