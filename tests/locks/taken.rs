//! A lock that an operator takes over while others wait for it.

use std::time::Duration;

use palisade::Redlock;
use palisade::node::{MemoryNode, RedisNode};

use crate::support::server::Server;

const TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_lock_that_is_taken_over_goes_to_nobody_in_between() {
    let nodes: Vec<_> = (0..5).map(|_| MemoryNode::new()).collect();
    let handle = || nodes.iter().fold(Redlock::builder(), |all, node| all.node(node.clone()));
    taken_while_another_waits([handle(), handle(), handle()].map(|all| all.build().unwrap())).await;

    let servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let node = |server: &Server| RedisNode::new(server.url()).unwrap();
    // Servers without data are in quarantine for so long at first.
    let short = || Redlock::builder().ttl(TTL).max_ttl(TTL);
    let handle = || servers.iter().fold(short(), |all, server| all.node(node(server)));
    taken_while_another_waits([handle(), handle(), handle()].map(|all| all.build().unwrap())).await;
}

async fn taken_while_another_waits([hangs, waits, operator]: [Redlock; 3]) {
    for round in 0..5 {
        let name = format!("deploy {round}");
        let mutex = |of: &Redlock| {
            let patient = of.mutex(&name).acquire_timeout(Duration::from_secs(60));
            patient.ttl(TTL).build().unwrap()
        };
        let held = mutex(&hangs).acquire().await.unwrap();
        let next = mutex(&waits);
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mutex = mutex(&operator);
        let holder = mutex.inspect().await.unwrap().holder().unwrap();
        let won = mutex.take_over(&holder, "it hangs").await.unwrap();
        assert!(won.from.is_some_and(|from| from.fence == held.fencing_token()));
        assert!(!next.is_finished(), "who waited had it, beside the one that hangs");
        let token = won.guard.fencing_token();
        assert!(token > held.fencing_token());
        won.guard.release().await.unwrap();
        let next = next.await.unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    }
}
