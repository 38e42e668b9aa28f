//! The promotion in a planned handover of a group: the epoch under which the replica goes on, which
//! is what a majority of the Sentinels says, and a replica that would delete keys.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use palisade_ops::{HandedOver, Handover, init};

use super::handover::{fresh, on_group};
use super::support::fake::{View, sentinel};
use super::support::group::cli;
use super::support::wait::until;
use super::tilt::{pids, signal};
use super::*;

/// Epoch that only one Sentinel reports.
const TOO_HIGH: u64 = 1_000;

/// Returns the epoch in the marker of the server at `at`.
fn marked(at: &str) -> u64 {
    let marker = cli(at, &["GET", "palisade:generation"]);
    let epoch = marker.split(' ').nth(11).unwrap_or_else(|| panic!("no marker: {marker}"));
    epoch.parse().expect("digits")
}

/// Returns the configuration epoch that a Sentinel reports.
fn reported(sentinel: &str, name: &str) -> u64 {
    fact(sentinel, name, "config-epoch")
}

/// Returns a number that a Sentinel reports of its master.
fn fact(sentinel: &str, name: &str, field: &str) -> u64 {
    let facts = cli(sentinel, &["SENTINEL", "MASTER", name]);
    let number = facts.lines().skip_while(|line| *line != field).nth(1);
    number.unwrap_or_else(|| panic!("{field}: {facts}")).parse().expect("digits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_epoch_of_a_handover_is_that_of_a_majority_of_the_sentinels() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let (name, sentinels, old) =
        (groups.name(0), groups.sentinels(0), groups.servers(0)[0].clone());
    let view = View { master: old.clone(), epoch: TOO_HIGH - 1, ..View::default() };
    let view = Arc::new(Mutex::new(view));
    let liar = sentinel('f', &view);
    let url = format!("sentinel://{},{}/{name}", sentinels.join(","), liar.at);
    // It hears of the promotion before all others.
    let tell = |step: &str| {
        if let Some((new, _)) = step.split_once(" is promoted") {
            *view.lock().unwrap() =
                View { master: new.to_owned(), epoch: TOO_HIGH, ..View::default() };
        }
    };
    let done = Handover::new(Deployment::new().node(url)).group(tell).await.unwrap();
    let HandedOver::Done { at, .. } = &done else { panic!("{done}") };
    assert_ne!(*at, old);
    let mut honest: Vec<u64> = sentinels.iter().map(|s| reported(s, &name)).collect();
    honest.sort_unstable();
    assert_eq!(marked(at), honest[1], "{honest:?}");
    drop(fresh(&redlock, "after").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_no_majority_of_the_sentinels_names_does_not_go_on() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let mut sentinels = groups.sentinels(0);
    // The first one is asked for the failover and can name the new master.
    let silent = pids(&sentinels.split_off(1));
    let begun = Instant::now();
    let tell = |step: &str| {
        if step.contains("is promoted") {
            signal(&silent, "-STOP");
        }
    };
    let brief = Handover::new(group(&groups))
        .clock_error(Duration::from_millis(100))
        .closed_for(Duration::from_secs(12));
    let done = brief.group(tell).await.unwrap();
    let took = begun.elapsed();
    signal(&silent, "-CONT");
    let HandedOver::FellBack(why) = &done else { panic!("{done}") };
    assert!(why.contains("of 3 known Sentinels named"), "{why}");
    assert!(why.contains("`palisade doctor`") && why.contains("it is open again"), "{why}");
    assert!(took < Duration::from_secs(12) + SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_alone_names_no_epoch_for_the_marker_of_a_new_group() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let (name, sentinels, master) =
        (groups.name(0), groups.sentinels(0), groups.servers(0)[0].clone());
    assert_eq!(cli(&master, &["FLUSHALL"]), "OK");
    let view = View { master: master.clone(), epoch: TOO_HIGH, ..View::default() };
    let liar = sentinel('f', &Arc::new(Mutex::new(view)));
    let url = format!("sentinel://{},{}/{name}", sentinels.join(","), liar.at);
    let done = init(&Deployment::new().node(url), "").await.unwrap();
    assert!(done.is_done(), "{done:?}");
    assert_eq!(marked(&master), reported(&sentinels[0], &name));
}

/// Their epoch is 0 then, below the marker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_sentinels_began_anew_is_handed_over() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let (name, sentinels) = (groups.name(0), groups.sentinels(0));
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    let HandedOver::Done { at, .. } = &done else { panic!("{done}") };
    assert!(marked(at) > 0);
    let (host, port) = at.rsplit_once(':').expect("host:port");
    // First at all of them: one that still knows its epoch would tell the others.
    let steps: [&[&str]; 3] = [
        &["REMOVE", &name],
        &["MONITOR", &name, host, port, "2"],
        &["SET", &name, "down-after-milliseconds", "5000"],
    ];
    for words in steps {
        for sentinel in &sentinels {
            assert_eq!(cli(sentinel, &[&["SENTINEL"], words].concat()), "OK");
        }
    }
    let knows = |sentinel: &String| {
        let known = |field| fact(sentinel, &name, field);
        (known("num-slaves"), known("num-other-sentinels")) == (2, 2)
    };
    until("the Sentinels to know all", || sentinels.iter().all(knows)).await;
    assert!(sentinels.iter().all(|sentinel| reported(sentinel, &name) == 0));

    let begun = Instant::now();
    let done = loop {
        let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
        if !matches!(done, HandedOver::Refused(_)) {
            break done;
        }
        // At least until it has settled after the first one.
        assert!(begun.elapsed() < 8 * SOON, "{done}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let HandedOver::Done { at, .. } = &done else { panic!("{done}") };
    assert_eq!(marked(at), reported(&sentinels[0], &name));
    drop(fresh(&redlock, "after").await);
}

/// A replica evicts nothing. Over its limit, it does so as soon as it is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_may_evict_at_its_promotion_keeps_a_handover_from_beginning() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let servers = groups.servers(0);
    let set = |words: &[&str]| {
        for at in &servers[1..] {
            assert_eq!(cli(at, &[&["CONFIG", "SET"], words].concat()), "OK");
        }
    };
    set(&["maxmemory-policy", "volatile-lru"]);
    set(&["maxmemory", "1mb"]);
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    let HandedOver::Refused(why) = &done else { panic!("{done}") };
    assert!(why.contains("may delete locks and keys: maxmemory is 1048576 bytes"), "{why}");
    assert!(why.contains("`CONFIG SET maxmemory-policy noeviction`"), "{why}");
    drop(fresh(&redlock, "still open").await);
    set(&["maxmemory-policy", "noeviction"]);
    set(&["maxmemory", "0"]);
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
}
