//! The number of round trips between the Sentinels' word on a new master and the renewed lease, and
//! what one Sentinel's word leads to before the others agree.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::{MinReplicas, SentinelNode};
use palisade::{Failover, Redlock};
use tokio::time::{Instant, timeout};

use crate::delay::delayed;
use crate::support::fake::{Fake, NAME, View, ok, sentinel};
use crate::support::server::Server;
use crate::support::wait::until;

/// Longer than all else that a failover takes on this machine. Four of them and the next empty
/// batch, which a handle sends every two seconds, do not meet.
const TRIP: Duration = Duration::from_millis(200);
const MINUTE: Duration = Duration::from_secs(60);

fn far(at: &str) -> String {
    delayed(at, TRIP / 2).trim_start_matches("redis://").to_owned()
}

fn server(of: Option<&Server>) -> Server {
    let mut args =
        vec!["--min-replicas-to-write", "1", "--repl-diskless-sync-delay", "0", "--replicaof"];
    let port = of.map(|of| of.port().to_string());
    match &port {
        Some(port) => args.extend(["127.0.0.1", port]),
        None => args.extend(["no", "one"]),
    }
    Server::start(&args)
}

pub(crate) fn switch(sentinel: &Fake, from: &str, to: &str) {
    let [from, to] = [from, to].map(|at| at.replace(':', " "));
    sentinel.tell("+switch-master", &format!("{NAME} {from} {to}"));
}

/// From the moment at which the last Sentinel sends its event, without the half trip of the event,
/// and how many batches the new master got.
async fn trips(loses_script: bool) -> (u128, u64) {
    let old = server(None);
    let new = server(Some(&old));
    let (last, _stays) = (server(Some(&new)), server(Some(&old)));
    let online = |s: &Server| s.cli(&["info", "replication"]).matches("state=online").count();
    until("all replicas are online", || (online(&old), online(&new)) == (2, 1)).await;
    let [from, to, other] = [&old, &new, &last].map(|server| far(&server.addr()));
    let replicas = vec![to.clone(), other];
    let view = Arc::new(Mutex::new(View { master: from.clone(), replicas, ..View::default() }));
    let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
    let node = SentinelNode::builder(NAME, sentinels.each_ref().map(|s| far(&s.at)));
    let node = node.trust_fresh(true).sentinel_deadline(MINUTE / 6).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(MINUTE).max_ttl(MINUTE);
    let redlock = redlock.node_deadline(Duration::from_secs(10)).build().unwrap();
    let mutex = redlock.mutex("k").acquire_timeout(MINUTE).build().unwrap();
    let guard = mutex.acquire().await.unwrap_or_else(|e| panic!("{e}"));
    until("the replica has the script", || new.calls("script|load") > 0).await;
    until("the replica has the lock", || new.cli(&["exists", "k"]) == "1").await;
    assert_eq!(new.cli(&["replicaof", "no", "one"]), "OK");
    // A server that becomes a master disconnects its replicas.
    until("its replica is back", || online(&new) == 1).await;
    let batches = old.calls("evalsha");
    until("a batch has come", || old.calls("evalsha") > batches).await;
    if loses_script {
        assert_eq!(new.cli(&["script", "flush"]), "OK");
    }
    let before = new.calls("evalsha");
    {
        let mut view = view.lock().unwrap();
        (view.master, view.epoch) = (to.clone(), 1);
        view.replicas[0].clone_from(&from);
    }
    let begun = Instant::now();
    for sentinel in &sentinels {
        switch(sentinel, &from, &to);
    }
    let verdict = timeout(MINUTE, guard.failover()).await.expect("a verdict");
    let took = begun.elapsed();
    assert_eq!(verdict, Failover::Kept);
    let trips = took.saturating_sub(TRIP / 2).as_millis() / TRIP.as_millis();
    (trips, new.calls("evalsha") - before)
}

/// Of some failovers: a round of questions that the Sentinels' word finds under way costs one more.
async fn fewest(loses_script: bool, expected: (u128, u64)) {
    let mut all = Vec::new();
    while all.len() < 6 && all.last() != Some(&expected) {
        all.push(trips(loses_script).await);
    }
    let least = all.iter().min();
    assert_eq!(least, Some(&expected), "round trips and batches: {all:?}");
}

/// The question to the Sentinels, the login with the look at the data, the marker, the renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_four_round_trips_after_the_word_of_the_sentinels() {
    fewest(false, (4, 3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_server_that_lost_the_script_costs_one_round_trip_more() {
    fewest(true, (5, 4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_alone_has_sockets_opened_to_known_replicas_only() {
    let master = Server::start(&[]);
    let (replica, foreign) = (Fake::start(|_| ok()), Fake::start(|_| ok()));
    let replicas = vec![replica.at.clone()];
    let view = Arc::new(Mutex::new(View { master: master.addr(), replicas, ..View::default() }));
    let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
    let node = SentinelNode::builder(NAME, sentinels.each_ref().map(|s| s.at.clone()));
    // With another policy the replicas are asked for their settings, too.
    let node = node.min_replicas_check(MinReplicas::Off).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    let mutex = redlock.mutex("k").acquire_timeout(MINUTE).build().unwrap();
    let guard = mutex.acquire().await.unwrap_or_else(|e| panic!("{e}"));
    let begun = Instant::now();
    while replica.connections() == 0 || begun.elapsed() < Duration::from_secs(1) {
        for to in [&foreign.at, &replica.at] {
            switch(&sentinels[0], &master.addr(), to);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(begun.elapsed() < MINUTE, "no connection was opened");
    }
    let most = 1 + begun.elapsed().as_secs() / 2;
    assert!(replica.connections() as u64 <= most, "{} of {most}", replica.connections());
    assert_eq!((replica.received(""), foreign.connections()), (0, 0));
    assert!(guard.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_to_a_replica_that_only_one_sentinel_names_is_not_used() {
    let old = server(None);
    let new = server(Some(&old));
    let (_last, _stays) = (server(Some(&new)), server(Some(&old)));
    let other = Fake::start(|_| ok());
    let (from, to) = (old.addr(), new.addr());
    let replicas = vec![to.clone(), other.at.clone()];
    let view = Arc::new(Mutex::new(View { master: from.clone(), replicas, ..View::default() }));
    let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
    let node = SentinelNode::builder(NAME, sentinels.each_ref().map(|s| s.at.clone()));
    let node = node.min_replicas_check(MinReplicas::Off).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(MINUTE).max_ttl(MINUTE).build().unwrap();
    let mutex = redlock.mutex("k").acquire_timeout(MINUTE).build().unwrap();
    let guard = mutex.acquire().await.unwrap_or_else(|e| panic!("{e}"));
    until("the replica has the lock", || new.cli(&["exists", "k"]) == "1").await;
    assert_eq!(new.cli(&["replicaof", "no", "one"]), "OK");
    until("its socket is opened", || {
        switch(&sentinels[0], &from, &to);
        switch(&sentinels[0], &from, &other.at);
        other.connections() > 0
    })
    .await;
    {
        let mut view = view.lock().unwrap();
        (view.master, view.epoch) = (to.clone(), 1);
        view.replicas[0].clone_from(&from);
    }
    for sentinel in &sentinels[1..] {
        switch(sentinel, &from, &to);
    }
    let verdict = timeout(MINUTE, guard.failover()).await.expect("a verdict");
    assert_eq!((verdict, other.received("")), (Failover::Kept, 0));
}
