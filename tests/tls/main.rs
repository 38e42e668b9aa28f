//! TLS on real servers, with certificates of a CA that each test creates: settings that work, and
//! the errors of wrong settings.

mod certs;
mod group;
mod refused;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use palisade::error::NodeError;
use palisade::node::spi::{Env as _, LockNode, Reply, SystemEnv};
use palisade::node::{RedisNode, RedisNodeBuilder};
use palisade::{Outcome, Redlock};

use certs::Authority;
use support::ops;
use support::server::Server;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
/// Time limit for an event that must happen. It is long, because the tests do not measure speed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Installs the crypto provider as the README shows.
fn provider() {
    // The result is an error if another test of this process has installed the provider first. This
    // is no problem, so it is ignored.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn tls_url(server: &Server) -> String {
    format!("rediss://{}", server.addr())
}

fn builder(url: String) -> RedisNodeBuilder {
    provider();
    RedisNode::builder(url).trust_fresh(true).connect_timeout(PATIENCE)
}

async fn acquire(node: &dyn LockNode) -> Result<Reply, NodeError> {
    let op = ops::acquire("k", ops::owner(), Duration::from_secs(1));
    let batch = ops::batch(Duration::from_secs(20), vec![op]);
    let call = node.call(batch, SystemEnv.now() + PATIENCE);
    // The node must reply by its own deadline. The timeout fires only if the node hangs.
    let answer = tokio::time::timeout(PATIENCE * 2, call).await;
    answer.expect("the node answers by its deadline").items.remove(0)
}

async fn refusal(node: &dyn LockNode) -> NodeError {
    let e = acquire(node).await.expect_err("a fault");
    assert!(!e.is_ambiguous(), "nothing can have run: {e}");
    println!("{e}");
    e
}

fn redlock(node: impl LockNode) -> Redlock {
    let ttl = Duration::from_secs(20);
    Redlock::builder().node(node).ttl(ttl).node_deadline(PATIENCE).build().unwrap()
}

/// Runs a lock and an idempotent call on this node, as a user's program does.
async fn works(node: impl LockNode) {
    let redlock = redlock(node);
    let guard = redlock.mutex("invoice:42").build().unwrap().acquire().await.unwrap();
    assert!(guard.is_valid());
    assert!(guard.release().await.is_ok());
    let payments = redlock.idempotency("payments").at_most_once().build().unwrap();
    for delivery in 1..=2 {
        let run = payments.key("order-7").run(|_| async { Ok::<_, String>(delivery) });
        match run.await.unwrap() {
            Outcome::Executed { value: 1, .. } if delivery == 1 => {}
            Outcome::Replayed(1) if delivery == 2 => {}
            other => panic!("delivery {delivery}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn lock_and_idempotent_run_over_tls_with_a_ca_of_ones_own() {
    let ca = Authority::new("ours");
    let server = ca.serve("redis-server", &NAMES, &[]);
    works(builder(tls_url(&server)).tls(Some(ca.root()), None).build().unwrap()).await;
    // The server has no port without TLS, so all connections of this test are encrypted.
    assert_eq!(server.cli(&["config", "get", "port"]), "port\n0");
    // A URL with a host name and a password works, too.
    server.cli(&["config", "set", "requirepass", "s3cret"]);
    let url = format!("rediss://:s3cret@localhost:{}/1", server.port());
    let node = builder(url).tls(Some(ca.root()), None).build().unwrap();
    works(node).await;
}

#[tokio::test]
async fn a_client_certificate_opens_a_server_that_asks_for_one() {
    let ca = Authority::new("ours");
    let server = ca.serve("redis-server", &NAMES, &["--tls-auth-clients", "yes"]);
    let client = ca.sign(&["the-client"]);
    works(builder(tls_url(&server)).tls(Some(ca.root()), Some(client)).build().unwrap()).await;
}
