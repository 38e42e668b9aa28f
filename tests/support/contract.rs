//! Hooks by which the contract suite, the tests that every kind of node must pass, disturbs real
//! servers, for example restarts them. Also functions that run the cases of the suite.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::Settings;
use palisade::node::spi::LockNode;
use palisade_ops::{Deployment, HandedOver, Handover};
use palisade_testing::contract::{self, Case, Hooks};
use tokio::sync::Notify;

use super::group::Groups;
use super::server::Server;

pub type Shared = Arc<Mutex<Server>>;

/// Runs `f` on the server, in a blocking task.
async fn on(server: &Shared, f: impl FnOnce(&mut Server) + Send + 'static) {
    let server = Arc::clone(server);
    let run = move || f(&mut server.lock().unwrap());
    tokio::task::spawn_blocking(run).await.unwrap();
}

/// Returns the hooks by which the contract suite disturbs a standalone server.
pub fn server_hooks(server: &Shared) -> Hooks {
    let all = [server; 6].map(Arc::clone);
    let [empty, keeping, flush, foreign, closing, handing] = all.map(|s| move || Arc::clone(&s));
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
        .close(move || {
            let deployment = operated(&closing().lock().unwrap());
            async move { close(deployment).await }
        })
        .hand_over(move || {
            let s = handing();
            let deployment = operated(&s.lock().unwrap());
            async move { hand_over(deployment, on(&s, Server::restart)).await }
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

/// Returns a deployment with the operator's login to this server.
fn operated(server: &Server) -> Deployment {
    let mut settings = Settings::new([server.url()]);
    let login = server.credentials().map(|(user, password)| (user.into(), password.into()));
    (settings.username, settings.password) = login.unzip();
    Deployment::of(settings)
}

/// Closes a server for some three seconds, as a planned handover does: the server then answers
/// nothing. The handover is dropped before it opens the server, so the closed state ends by itself.
async fn close(deployment: Deployment) {
    let closed = Notify::new();
    let restart = async {
        closed.notify_one();
        std::future::pending().await
    };
    let short = Handover::new(deployment)
        .clock_error(Duration::from_millis(50))
        .closed_for(Duration::from_millis(2_700));
    tokio::select! {
        done = short.lone(restart, |_| ()) => panic!("not closed: {done:?}"),
        () = closed.notified() => {}
    }
}

/// Restarts a server by a planned handover, which loses no data.
async fn hand_over(deployment: Deployment, restart: impl Future<Output = ()>) {
    let restart = async {
        restart.await;
        Ok(())
    };
    let done = Handover::new(deployment).lone(restart, |_| ()).await.unwrap();
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
}

/// Returns the hooks by which the contract suite disturbs the first Sentinel group. The group's
/// first server is the master until a planned handover makes another server the master.
pub fn group_hooks(groups: &Arc<Groups>) -> Hooks {
    let [emptied, restarted, flushed, lost, closed, handed] = [(); 6].map(|()| groups.clone());
    let restart = |groups: &Groups, how| {
        // Without this setting, a server on a busy disk would write its append-only file late, and
        // the restart would lose writes that the test has just made.
        let settle = ["CONFIG", "SET", "appendfsync", "always"];
        assert_eq!(groups.cli(&groups.servers(0)[0], &settle), "OK");
        groups.break_(how, 0, &["--server", "a1"]);
        await_complete(groups);
        std::future::ready(())
    };
    Hooks::default()
        .restart_empty(move || restart(&emptied, "restart-empty"))
        .restart_keeping(move || restart(&restarted, "restart"))
        .flush(move || {
            flushed.break_("flushall", 0, &[]);
            std::future::ready(())
        })
        .close(move || {
            let deployment = closed.operated();
            let master = format!("redis://{}", closed.servers(0)[0]);
            async move { close(deployment.node(master)).await }
        })
        .hand_over(move || {
            let groups = Arc::clone(&handed);
            async move { to_another(&groups).await }
        })
        .put_foreign(move |key, ttl| {
            let master = lost.servers(0)[0].clone();
            lost.cli(&master, &["DEL", &key]);
            assert_eq!(lost.cli(&master, &["HSET", &key, "field", "1"]), "1");
            if let Some(ttl) = ttl {
                lost.cli(&master, &["PEXPIRE", &key, &ttl.as_millis().to_string()]);
            }
            std::future::ready(())
        })
}

/// Moves the master role of the first group to a replica by a planned handover. The Sentinels
/// choose the replica.
async fn to_another(groups: &Groups) {
    for _ in 0..40 {
        let group = groups.operated().node(groups.url(0));
        match Handover::new(group).group(|_| ()).await.unwrap() {
            HandedOver::Done { .. } => return,
            // The previous handover has not ended on all servers yet, so this one is refused.
            HandedOver::Refused(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            other => panic!("{other}"),
        }
    }
    panic!("the group is never ready to be handed over");
}

/// Waits until the first server is the master again and both replicas follow it.
fn await_complete(groups: &Groups) {
    let begun = Instant::now();
    let master = groups.servers(0)[0].clone();
    while !groups.cli(&master, &["INFO", "replication"]).contains("min_slaves_good_slaves:2") {
        assert!(begun.elapsed() < Duration::from_secs(120), "the group does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs all cases of the contract suite that do not disturb the node. At most four run at the same
/// time: a case on a busy machine must not wait for longer than E between two of its ops.
pub async fn quiet_cases(node: Arc<dyn LockNode>, hooks: &Hooks) {
    let mut running = tokio::task::JoinSet::new();
    let ended = |done: Result<(&'static str, bool), _>| {
        let (name, ran) = done.expect("the case holds");
        assert!(ran, "{name} lacks its hook");
    };
    for case in contract::cases().into_iter().filter(|c| !c.disturbs()) {
        if running.len() == 4 {
            running.join_next().await.into_iter().for_each(ended);
        }
        let (node, hooks) = (node.clone(), hooks.clone());
        running.spawn(async move { (case.name(), case.run(node, &hooks).await) });
    }
    while let Some(done) = running.join_next().await {
        ended(done);
    }
}

/// Runs all cases of the contract suite that disturb a node. Each of the given nodes, which are
/// alike, runs one case at a time. The nodes work concurrently, because most cases only wait.
pub async fn disturbing_cases(nodes: Vec<(Arc<dyn LockNode>, Hooks)>) {
    let all: Vec<Case> = contract::cases().into_iter().filter(Case::disturbs).collect();
    let (all, next) = (Arc::new(all), Arc::new(AtomicUsize::new(0)));
    let mut running = tokio::task::JoinSet::new();
    for (node, hooks) in nodes {
        let (all, next) = (Arc::clone(&all), Arc::clone(&next));
        running.spawn(async move {
            while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                assert!(case.run(node.clone(), &hooks).await, "{} lacks its hook", case.name());
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("the cases hold");
    }
}
