//! The inbox's example on real servers, and the lines that it costs.

use palisade::{Outcome, RedisNode, Redlock, RunError};

use crate::Lab;
use crate::redis::Server;

#[path = "../examples/inbox.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod inbox;

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
        // At most once, and no person has to look: the row is the answer.
        let again = inbox::book(&orders, &lab.pool, "tea", false).await.expect("answered");
        assert_eq!(again, Outcome::Replayed(1));
    }
    let other = inbox::book(&orders, &lab.pool, "milk", false).await.expect("answered");
    assert!(other.is_executed() && other.value() == Some(&2), "{other:?}");
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM booked");
    assert_eq!(count.fetch_one(&lab.pool).await.expect("a number"), 2);
}
