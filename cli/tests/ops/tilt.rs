//! Sentinels in tilt: their clock jumped or they stood still. They accept requests, and act on
//! none for half a minute.

use std::time::Instant;

use palisade_ops::doctor::{Doctor, Verdict};
use palisade_ops::{HandedOver, Handover};

use super::handover::{fresh, on_group};
use super::support::group::cli;
use super::*;

/// Returns the process ids of Sentinels.
pub(super) fn pids(sentinels: &[String]) -> Vec<String> {
    let pid = |at: &String| {
        let facts = cli(at, &["INFO", "server"]);
        let line = facts.lines().find_map(|line| line.strip_prefix("process_id:"));
        line.expect("its process").trim().to_owned()
    };
    sentinels.iter().map(pid).collect()
}

pub(super) fn signal(pids: &[String], signal: &str) {
    let sent = Command::new("kill").arg(signal).args(pids).status().expect("kill runs");
    assert!(sent.success(), "{pids:?}");
}

/// Stops Sentinels for longer than the two seconds after which Sentinel no longer trusts time.
fn tilt(sentinels: &[String]) {
    let pids = pids(sentinels);
    signal(&pids, "-STOP");
    std::thread::sleep(Duration::from_millis(2_700));
    signal(&pids, "-CONT");
    for at in sentinels {
        let begun = Instant::now();
        while !cli(at, &["INFO", "sentinel"]).contains("sentinel_tilt:1") {
            assert!(begun.elapsed() < SOON, "{at} is in tilt");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_is_not_closed_for_sentinels_in_tilt() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let (sentinels, first) = (groups.sentinels(0), groups.servers(0)[0].clone());
    // One is in tilt: another one is asked.
    tilt(&sentinels[..1]);
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    let HandedOver::Done { at, closed } = &done else { panic!("{done}") };
    assert!(*closed < SOON, "{done}");
    assert_ne!(*at, first);
    // All are in tilt: nothing is closed, and the reason is named.
    tilt(&sentinels);
    let marker = || cli(at, &["GET", "palisade:generation"]);
    let (before, begun) = (marker(), Instant::now());
    assert!(before.contains(" 0000000000000 "), "no history began: {before}");
    let refused = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    assert!(begun.elapsed() < SOON, "{refused}");
    let HandedOver::Refused(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("in tilt"), "{why}");
    let closed = |word: &str| word.len() == 14 && word.starts_with('c');
    assert!(!marker().split(' ').any(closed), "{before} became {}", marker());
    assert!(fresh(&redlock, "refused").await.release().await.is_ok());
    let report = Doctor::new(group(&groups)).trial(false).examine().await.unwrap();
    let tilted = report.findings.iter().filter(|f| f.evidence.contains("sentinel_tilt:1"));
    let tilted: Vec<_> = tilted.collect();
    assert_eq!(tilted.len(), 3, "{report}");
    assert!(tilted.iter().all(|f| f.verdict == Verdict::Warning), "{report}");
}
