//! Very many requests at once: the time grows with their number and not faster.

use std::time::{Duration, Instant};

use palisade::{RedisNode, Redlock};
use tokio::task::JoinSet;

mod support;

use support::server::Server;

/// How long so many acquires at once take, each of a name of its own.
async fn at_once(server: &Server, round: &str, n: usize) -> Duration {
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    drop(redlock.mutex("warm").acquire().await.unwrap());
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for i in 0..n {
        let mutex = redlock.mutex(format!("{round} {i}")).wait(Duration::from_secs(300));
        all.spawn(async move { mutex.acquire().await.map(drop) });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap().expect("it is free");
    }
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_as_many_at_once_take_about_twice_as_long() {
    let server = Server::start(&["--save", ""]);
    // The best of two: others work on this machine, too.
    let few = at_once(&server, "few", 20_000).await.min(at_once(&server, "few2", 20_000).await);
    let many = at_once(&server, "many", 40_000).await.min(at_once(&server, "many2", 40_000).await);
    assert!(many < few * 4, "{many:?} instead of {few:?}");
}
