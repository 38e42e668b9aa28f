//! Tests that run the examples `inbox` and `orders` of this crate on real servers.

use palisade::{Outcome, RedisNode, Redlock, RunError};

use crate::Lab;
use crate::redis::Server;

#[path = "../examples/inbox.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod inbox;

#[path = "../examples/orders.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod orders;

#[tokio::test]
async fn an_order_that_died_after_its_commit_is_booked_once() {
    let (lab, server) = (Lab::new().await, Server::start(&[]));
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().expect("a node");
    let redlock = Redlock::builder().node(node).build().expect("settings");
    let orders = redlock.idempotency("orders").at_most_once().build().expect("settings");
    inbox::prepare(&lab.pool).await.expect("tables");
    let died = inbox::book(&orders, &lab.pool, "tea", true).await;
    assert!(matches!(died, Err(RunError::Handler { .. })), "{died:?}");
    for _ in 0..2 {
        // The namespace is at-most-once, so a person would have to decide whether the attempt that
        // died took effect. Here the call's probe, a query for the attempt's row in the inbox,
        // decides.
        let again = inbox::book(&orders, &lab.pool, "tea", false).await.expect("answered");
        assert_eq!(again, Outcome::Replayed(1));
    }
    let other = inbox::book(&orders, &lab.pool, "milk", false).await.expect("answered");
    assert!(other.is_executed() && other.value() == Some(&2), "{other:?}");
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM booked");
    assert_eq!(count.fetch_one(&lab.pool).await.expect("a number"), 2);
}

#[tokio::test]
async fn orders_of_a_stream_are_booked_once_in_the_database() {
    let (lab, server) = (Lab::new().await, Server::start(&[]));
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().expect("a node");
    let redlock = Redlock::builder().node(node).build().expect("settings");
    let of = redlock.idempotency("orders").at_most_once().build().expect("settings");
    orders::prepare(&lab.pool).await.expect("tables");
    orders::produce(&server.url(), &["tea", "milk"]).await.expect("a stream");
    let count = "SELECT count(*) FROM booked WHERE item = $1";
    let booked = async |item: &str| {
        let count = sqlx::query_scalar::<_, i64>(count).bind(item);
        count.fetch_one(&lab.pool).await.expect("a number")
    };
    let done = async {
        while server.cli(&["XPENDING", "orders", "billing"]).lines().next() != Some("0")
            || booked("milk").await == 0
        {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let ended = orders::consume(&server.url(), of, &lab.pool, done).await.expect("it was asked to");
    assert_eq!((booked("tea").await, booked("milk").await), (1, 1), "{ended:?}");
    assert_eq!(ended.parked, 0, "{ended:?}");
}
