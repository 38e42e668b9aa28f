//! The example: a stock of 1,000 and 5,000 orders, on a real Redis server and a real PostgreSQL.

use palisade::{RedisNode, Redlock};

use crate::server::Postgres;

#[path = "../examples/no_oversell.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod no_oversell;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]
pub(crate) mod redis;

async fn sells_what_there_is(way: no_oversell::Way) {
    let (redis, postgres) = (redis::Server::start(&[]), Postgres::start());
    let handle = || {
        let node = RedisNode::builder(redis.url()).trust_fresh(true).build().expect("a node");
        // The machine of the tests is shared: a server may take longer to answer.
        let patient =
            Redlock::builder().node(node).node_deadline(std::time::Duration::from_secs(2));
        patient.build().expect("settings")
    };
    let numbers = (1_000, 5_000);
    let report = no_oversell::run([handle(), handle()], &postgres.url(), way, numbers).await;
    let report = report.expect("servers answer");
    println!("{way:?}: {report:?}");
    assert!(report.is_right(numbers.0, numbers.1), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_fenced_lock() {
    sells_what_there_is(no_oversell::Way::Lock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_condition_in_sql() {
    sells_what_there_is(no_oversell::Way::Sql).await;
}
