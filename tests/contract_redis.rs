//! `RedisNode` passes the contract that every node kind passes.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::contract::{self, Case, Hooks};
use palisade::node::{LockNode, RedisNode};
use support::server::Server;

type Shared = Arc<Mutex<Server>>;

/// L: longer than a restart takes, even on a busy machine.
const WINDOW: Duration = Duration::from_secs(3);

/// Runs `f` on the server without holding up the runtime.
async fn on(server: &Shared, f: impl FnOnce(&mut Server) + Send + 'static) {
    let server = Arc::clone(server);
    let run = move || f(&mut server.lock().unwrap());
    tokio::task::spawn_blocking(run).await.unwrap();
}

fn hooks(server: &Shared) -> Hooks {
    let all = [server; 4].map(Arc::clone);
    let [empty, keeping, flush, foreign] = all.map(|s| move || Arc::clone(&s));
    Hooks::default()
        .restart_empty(move || {
            let s = empty();
            async move { on(&s, Server::restart_empty).await }
        })
        .restart_keeping(move || {
            let s = keeping();
            async move { on(&s, Server::restart).await }
        })
        .flush(move || {
            let s = flush();
            async move { on(&s, |s| assert_eq!(s.cli(&["flushall"]), "OK")).await }
        })
        .put_foreign(move |key, ttl| {
            let s = foreign();
            let put = move |s: &mut Server| {
                assert_eq!(s.cli(&["hset", &key, "uuid:1", "1"]), "1");
                if let Some(ttl) = ttl {
                    s.cli(&["pexpire", &key, &ttl.as_millis().to_string()]);
                }
            };
            async move { on(&s, put).await }
        })
}

#[tokio::test]
async fn the_rules_hold_on_a_server_that_stays() {
    let server: Shared = Arc::new(Mutex::new(Server::start(&[])));
    let url = server.lock().unwrap().url();
    let node: Arc<dyn LockNode> =
        Arc::new(RedisNode::builder(url).trust_fresh(true).build().unwrap());
    let hooks = hooks(&server);
    let quiet = contract::cases().into_iter().filter(|c| !c.disturbs());
    let runs: Vec<_> = quiet
        .map(|case| {
            let (node, hooks) = (Arc::clone(&node), hooks.clone());
            tokio::spawn(async move { case.run(node, &hooks).await })
        })
        .collect();
    for run in runs {
        assert!(run.await.expect("the case holds"), "no case lacks its hook");
    }
}

#[tokio::test]
async fn the_crash_guard_holds_over_restarts_and_losses() {
    let start = || Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server: Shared = Arc::new(Mutex::new(start()));
    let url = server.lock().unwrap().url();
    // Trusts nothing, as in production: the first quarantine is waited out.
    let node: Arc<dyn LockNode> = Arc::new(RedisNode::new(url).unwrap());
    let hooks = hooks(&server);
    let is_window = |case: &Case| case.name().contains("failover_window");
    for case in contract::cases().into_iter().filter(|c| c.disturbs() && !is_window(c)) {
        assert!(case.run(Arc::clone(&node), &hooks).await, "{} lacks its hook", case.name());
    }
}

#[tokio::test]
async fn the_failover_window_holds_over_restarts() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server: Shared = Arc::new(Mutex::new(server));
    let url = server.lock().unwrap().url();
    let node = RedisNode::builder(url).failover_window(WINDOW).trust_fresh(true).build().unwrap();
    let node: Arc<dyn LockNode> = Arc::new(node);
    let hooks = hooks(&server).failover_window(WINDOW);
    let cases = contract::cases().into_iter().filter(|c| c.name().contains("failover_window"));
    let mut ran = 0;
    for case in cases {
        ran += usize::from(case.run(Arc::clone(&node), &hooks).await);
    }
    assert_eq!(ran, 4);
}
