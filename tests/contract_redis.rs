//! `RedisNode` passes the contract that every node kind passes.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::{LockNode, RedisNode};
use support::contract::{Shared, disturbing_cases, needs_window, quiet_cases, server_hooks};
use support::server::Server;

/// L: longer than a restart takes, even on a busy machine.
const WINDOW: Duration = Duration::from_secs(3);

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
    let server: Shared = Arc::new(Mutex::new(start()));
    let url = server.lock().unwrap().url();
    // Trusts nothing, as in production: the first quarantine is waited out.
    let node: Arc<dyn LockNode> = Arc::new(RedisNode::new(url).unwrap());
    disturbing_cases(node, &server_hooks(&server), |c| !needs_window(c)).await;
}

#[tokio::test]
async fn the_failover_window_holds_over_restarts() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server: Shared = Arc::new(Mutex::new(server));
    let url = server.lock().unwrap().url();
    let node = RedisNode::builder(url).failover_window(WINDOW).trust_fresh(true).build().unwrap();
    let hooks = server_hooks(&server).failover_window(WINDOW);
    let ran = disturbing_cases(Arc::new(node), &hooks, needs_window).await;
    assert_eq!(ran, 4);
}
