//! `RedisNode` passes the contract suite of all node kinds.

use std::sync::{Arc, Mutex};

use palisade::node::{RedisNode, spi::LockNode};
use palisade_testing::contract::Hooks;

use crate::support::contract::{Shared, disturbing_cases, quiet_cases, server_hooks};
use crate::support::server::Server;

#[tokio::test]
async fn the_rules_hold_on_a_server_that_stays() {
    let server: Shared = Arc::new(Mutex::new(Server::start(&[])));
    let url = server.lock().unwrap().url();
    let node: Arc<dyn LockNode> =
        Arc::new(RedisNode::builder(url).trust_fresh(true).build().unwrap());
    quiet_cases(node, &server_hooks(&server)).await;
}

#[tokio::test]
async fn the_crash_guard_holds_over_restarts_and_losses() {
    let start = || Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let alike = || -> (Arc<dyn LockNode>, Hooks) {
        let server: Shared = Arc::new(Mutex::new(start()));
        let url = server.lock().unwrap().url();
        // As in production, the nodes do not trust fresh servers. So the first quarantine must end
        // before a grant.
        (Arc::new(RedisNode::new(url).unwrap()), server_hooks(&server))
    };
    disturbing_cases(vec![alike(), alike()]).await;
}
