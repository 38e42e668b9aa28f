//! The longest lease and the largest clock error that all clients of a node share, and how a person
//! lowers them.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use palisade::{RedisNode, Redlock};
use palisade_ops::{Lower, NodeLowered, init, shared_settings};
use serde_json::Value;

use super::*;

const SHORT: Duration = Duration::from_secs(1);

/// Returns a handle with this `max_ttl`. Its clock error is a tenth of that.
fn with(server: &Server, max_ttl: Duration) -> Redlock {
    let node = RedisNode::new(server.url()).unwrap();
    let builder = Redlock::builder().node(node).ttl(SHORT).max_ttl(max_ttl);
    builder.clock_error(max_ttl / 10).build().unwrap()
}

/// Has a program with this `max_ttl` lock once and end.
async fn used_by(server: &Server, max_ttl: Duration) {
    let redlock = with(server, max_ttl);
    let mutex = redlock.mutex("job").acquire_timeout(SOON).build().unwrap();
    assert!(mutex.acquire().await.unwrap().release().await.is_ok());
    let _ = redlock.close(SHORT).await;
}

/// Returns the length of a quarantine in ms and the clock error in µs that the server's marker has.
fn kept(server: &Server) -> (u64, u64) {
    let marker = server.cli(&["GET", "palisade:generation"]);
    let word = |at: usize| marker.split_whitespace().nth(at).unwrap().parse().unwrap();
    (word(13), word(12))
}

async fn marked() -> Server {
    let server = Server::start(&[]);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_clients_share_is_shown_and_lowered() {
    let server = marked().await;
    used_by(&server, 3 * SHORT).await;
    let url = server.url();
    let out = palisade(&["settings", "--json", "--node", &url]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    let shown = &all["nodes"][0]["settings"];
    assert_eq!((&shown["quarantine_ms"], &shown["window_ms"]), (&3_000.into(), &0.into()));
    assert_eq!(shown["clock_error_us"], 300_000);
    let marker = server.cli(&["GET", "palisade:generation"]);
    for id in ["deployment", "vote"] {
        assert!(marker.contains(shown[id].as_str().unwrap()), "{marker}: {all}");
    }

    // Another program with shorter leases goes on meanwhile.
    let other = with(&server, SHORT);
    let lower = ["settings", "--lower", "--max-ttl", "1s", "--clock-error", "100ms"];
    let lower = [&lower[..], &["--node", &url]].concat();
    let out = palisade(&lower);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("then add --yes"), "{}", words(&out));
    assert_eq!(kept(&server), (3_000, 300_000), "nothing was changed");
    let out = palisade(&["settings", "--lower", "--yes", "--node", &url]);
    assert_eq!(out.status.code(), Some(64), "{}", words(&out));

    let begun = Instant::now();
    let out = palisade(&[&lower[..], &["--yes"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(3_600) && waited < 2 * SOON, "{waited:?}");
    assert!(words(&out).contains("waiting for another 3."), "{}", words(&out));
    assert!(words(&out).contains("lowered: quarantine 1 s, clock_error 100ms"), "{}", words(&out));
    assert_eq!(kept(&server), (1_000, 100_000));
    let mutex = other.mutex("job").build().unwrap();
    assert!(mutex.try_acquire().await.unwrap().acquired().is_some(), "granted as before");
    assert_eq!(kept(&server), (1_000, 100_000));
    let again = Lower::new(lone(&server)).max_ttl(SHORT).run(|_| ()).await.unwrap();
    assert!(matches!(again.nodes[0].1, NodeLowered::Already(_)), "{again}");
}

/// The clients of an address that may lead to another server one day have a failover window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_server_is_lowered_to_what_its_clients_ask_for() {
    let server = marked().await;
    used_by(&server, 4 * SHORT).await;
    let url = format!("{}?failover_window=2s", server.url());
    let nodes = Deployment::new().node(&*url);
    let lower = Lower::new(nodes.clone()).max_ttl(SHORT).clock_error(SHORT / 10);
    let done = lower.run(|_| ()).await.unwrap();
    assert!(matches!(done.nodes[0].1, NodeLowered::Done(_)), "{done}");
    assert_eq!(kept(&server), (3_000, 100_000));
    let shown = shared_settings(&nodes).await.unwrap();
    let settings = shown[0].settings.as_ref().unwrap().as_ref().expect("its marker");
    assert_eq!(settings.window, 2 * SHORT);

    let node = RedisNode::builder(server.url()).failover_window(2 * SHORT).build().unwrap();
    let client = Redlock::builder().node(node).ttl(SHORT).max_ttl(SHORT);
    let client = client.clock_error(SHORT / 10).build().unwrap();
    let mutex = client.mutex("job").acquire_timeout(SOON).build().unwrap();
    assert!(mutex.acquire().await.unwrap().release().await.is_ok());
    assert_eq!(kept(&server), (3_000, 100_000), "it asks for nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_for_more_meanwhile_is_named() {
    let server = marked().await;
    used_by(&server, 2 * SHORT).await;
    let lower = Lower::new(lone(&server)).max_ttl(SHORT);
    let (done, ()) = tokio::join!(lower.run(|_| ()), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        used_by(&server, 4 * SHORT).await;
    });
    let done = done.unwrap();
    assert_eq!(done.exit_code(), 2, "{done}");
    let NodeLowered::Refused(why) = &done.nodes[0].1 else { panic!("{done}") };
    assert!(why.contains("max_ttl came back (with the failover window, 4s)"), "{why}");
    assert!(why.contains("clock_error came back (400ms)"), "{why}");
    assert_eq!(kept(&server), (4_000, 400_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_not_ended_raises_it_again_and_is_named() {
    let server = marked().await;
    let redlock = with(&server, 2 * SHORT);
    let lower = Lower::new(lone(&server)).max_ttl(SHORT);
    let mutex = redlock.mutex("job").build().unwrap();
    let goes_on = async {
        for _ in 0..300 {
            let _ = mutex.try_acquire().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let lowering = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        lower.run(|_| ()).await.unwrap()
    };
    let done = tokio::select! {
        biased;
        done = lowering => done,
        () = goes_on => panic!("it takes too long"),
    };
    let NodeLowered::CameBack(why) = &done.nodes[0].1 else { panic!("{done}") };
    assert!(why.contains("max_ttl came back (with the failover window, 2s)"), "{why}");
    assert_eq!(kept(&server).0, 2_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_silent_when_the_wait_is_over_is_asked_again() {
    let server = marked().await;
    used_by(&server, 2 * SHORT).await;
    let is_frozen = AtomicBool::new(false);
    let tell = |step: &str| {
        if step.starts_with("waiting") && !is_frozen.swap(true, SeqCst) {
            server.freeze();
        }
    };
    let resumed = async {
        while !is_frozen.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(6 * SHORT).await;
        server.resume();
    };
    let lower = Lower::new(lone(&server)).max_ttl(SHORT);
    let (done, ()) = tokio::join!(lower.run(tell), resumed);
    let done = done.unwrap();
    assert!(matches!(done.nodes[0].1, NodeLowered::Done(_)), "{done}");
    assert_eq!(kept(&server).0, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lowered_beside_a_node_that_is_away() {
    let server = marked().await;
    used_by(&server, 2 * SHORT).await;
    let nobody = format!("redis://127.0.0.1:{}", support::server::free_port());
    let both = lone(&server).node(nobody);
    let done = Lower::new(both.clone()).max_ttl(SHORT).run(|_| ()).await.unwrap();
    assert_eq!((done.exit_code(), &done.nodes[0].1), (69, &NodeLowered::Left), "{done}");
    assert_eq!(kept(&server).0, 2_000);
    let shown = shared_settings(&both).await.unwrap();
    assert!(shown[0].settings.is_ok() && shown[1].settings.is_err(), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_shown_with_its_failover_window() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let shown = shared_settings(&group(&groups)).await.unwrap();
    let settings = shown[0].settings.as_ref().unwrap().as_ref().expect("its marker");
    assert_eq!(settings.window, Duration::from_secs(4));
    assert!(settings.deployment.is_some() && settings.vote.is_some(), "{settings:?}");
}
