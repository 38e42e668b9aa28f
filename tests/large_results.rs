//! Large results take time only from the calls that store or read them. A process that moves many
//! large results loses no lock and no connection.
//!
//! This test is a separate binary, because it needs the whole machine.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use palisade::node::{NodeEvent, RedisNode};
use palisade::{Idempotency, Outcome, Redlock, RunError};
use tokio::task::JoinSet;

use support::server::Server;

/// Time limit for the whole test. It is long, because the test does not measure speed.
const PATIENCE: Duration = Duration::from_secs(60);
/// A slow machine is busy with one round of large results for seconds.
const TTL: Duration = Duration::from_secs(12);
/// Length of the largest result that the default settings permit, without the quotation marks of
/// its JSON form.
const LARGEST: usize = (1 << 20) - 2;

fn large(letter: char) -> String {
    letter.to_string().repeat(LARGEST)
}

/// Repeats the call until the library returns the stored result (a replay). Returns the number of
/// calls that were refused before.
async fn replayed(orders: &Idempotency, key: &str) -> usize {
    let begun = Instant::now();
    let mut refused = 0;
    loop {
        let done = orders.key(key).run(async |_| Err::<String, _>("there is a result")).await;
        match done {
            Ok(Outcome::Replayed(value)) => {
                assert_eq!(value.len(), LARGEST);
                return refused;
            }
            Err(RunError::NoQuorum { .. }) => refused += 1,
            other => panic!("{:?}", other.map(|_| "another outcome")),
        }
        assert!(begun.elapsed() < PATIENCE, "never answered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_keeps_its_locks_while_it_moves_large_results() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let stored = orders.key("large").run(async |_| Ok::<_, String>(large('x'))).await;
    assert!(matches!(stored, Ok(Outcome::Executed { kept: true, .. })), "it is stored");
    let mut guards = Vec::new();
    for i in 0..50 {
        guards.push(redlock.mutex(format!("held-{i}")).build().unwrap().acquire().await.unwrap());
    }
    let mut events = redlock.events();
    let mut all = JoinSet::new();
    for _ in 0..300 {
        let orders = orders.clone();
        all.spawn(async move { replayed(&orders, "large").await });
    }
    for i in 0..30 {
        let orders = orders.clone();
        all.spawn(async move {
            let key = format!("new-{i}");
            let call = orders.key(&key).in_flight_timeout(PATIENCE);
            match call.run(async |_| Ok::<_, String>(large('y'))).await {
                Ok(Outcome::Executed { .. }) => 0,
                Err(RunError::NoQuorum { .. } | RunError::NotRecorded(_)) => 1,
                other => panic!("{:?}", other.map(|_| "another outcome")),
            }
        });
    }
    let (begun, mut refused) = (Instant::now(), 0);
    while let Some(done) = all.join_next().await {
        refused += done.expect("answered, or refused");
    }
    println!("all answered after {:?}; refused before that: {refused}", begun.elapsed());
    // Wait until each lock should have been renewed once more. After this wait, a lock without a
    // renewal is lost.
    tokio::time::sleep(TTL).await;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    assert_eq!(lost, 0, "of {}", guards.len());
    while let Some(event) = events.try_next().map(|named| named.event) {
        assert!(!matches!(event, NodeEvent::Down), "the connection was given up");
    }
    for guard in guards {
        assert!(guard.release().await.is_ok());
    }
}
