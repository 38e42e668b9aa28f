//! Log lines about leases, in virtual time. Each problem of a lease is logged once, and so is the
//! end of the problem. Both lines contain the name of the lease.

use std::time::Duration;

use palisade::Redlock;
use palisade_testing::fault::FaultControl;
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::support::logs::Log;
use crate::support::memory::Timed;

const S: Duration = Duration::from_secs(1);

/// Asserts that exactly `times` log lines contain all of these parts.
#[track_caller]
fn assert_logged(log: &Log, times: usize, parts: &[&str]) {
    let lines = log.lines(parts);
    assert_eq!(lines.len(), times, "{parts:?}: {lines:#?}");
}

/// Returns a handle over three nodes, the fault controls of these nodes, and the log of this
/// thread.
fn world() -> (Redlock, Vec<FaultControl>, Log) {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let (redlock, links) = Timed::new(3).linked();
    (redlock, links, log)
}

#[tokio::test(start_paused = true)]
async fn trouble_with_a_renewal_is_logged_once_and_its_end_once() {
    let (redlock, links, log) = world();
    let guard = redlock.mutex("noisy").build().unwrap().acquire().await.unwrap();
    let leadership = redlock.election("loud").build().unwrap().campaign("me").await.unwrap();
    sleep(60 * S).await;
    assert_logged(&log, 0, &["palisade::lease"]);

    links[0].cut();
    links[1].cut();
    sleep(9 * S).await;
    assert!(guard.is_valid() && leadership.is_valid());
    for name in ["lock \"noisy\"", "election \"loud\""] {
        assert_logged(
            &log,
            1,
            &["WARN palisade::lease", name, "event=\"renewal_failed\"", "cannot connect"],
        );
    }
    links[0].heal();
    sleep(10 * S).await;
    for name in ["lock \"noisy\"", "election \"loud\""] {
        assert_logged(&log, 1, &["INFO palisade::lease", name, "event=\"renewed\""]);
    }
    assert_logged(&log, 4, &["palisade::lease"]);

    links[0].cut();
    tokio::join!(guard.lost(), leadership.lost());
    sleep(60 * S).await;
    for name in ["lock \"noisy\"", "election \"loud\""] {
        assert_logged(&log, 2, &["palisade::lease", name, "event=\"renewal_failed\""]);
        assert_logged(&log, 1, &["WARN palisade::lease", name, "event=\"lost\""]);
    }
    assert_logged(&log, 8, &["palisade::lease"]);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_without_a_quorum_is_logged_once() {
    let (redlock, links, log) = world();
    links.iter().take(2).for_each(FaultControl::cut);
    let election = redlock.election("loud").build().unwrap();
    let campaign = tokio::spawn(async move { election.campaign("me").await });
    sleep(59 * S).await;
    assert_logged(&log, 0, &["campaign goes on without a quorum"]);
    sleep(541 * S).await;
    assert_logged(&log, 1, &["WARN", "campaign goes on without a quorum", "election \"loud\""]);
    links.iter().for_each(FaultControl::heal);
    assert!(campaign.await.unwrap().unwrap().resign().await.is_ok());
    assert_logged(&log, 1, &["campaign goes on without a quorum"]);
}
