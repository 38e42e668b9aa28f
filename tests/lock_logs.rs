//! What the log says of leases: each trouble once, by name, and its end. In virtual time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade::test_util::fault::{Fault, FaultControl};
use palisade::{MemoryNode, Redlock};
use palisade::{node::spi::Env, test_util::TokioEnv};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

const S: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines with all of these words.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&log);
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has_all).map(ToOwned::to_owned).collect()
    }

    #[track_caller]
    fn said(&self, times: usize, words: &[&str]) {
        let lines = self.lines(words);
        assert_eq!(lines.len(), times, "{words:?}: {lines:#?}");
    }
}

/// A handle over three nodes that can be cut off, and the log of this thread.
fn world() -> (Redlock, Vec<FaultControl>, Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
    let mut builder = Redlock::builder().env(Arc::clone(&env));
    let mut links = Vec::new();
    for _ in 0..3 {
        let node = MemoryNode::builder().env(Arc::clone(&env)).build();
        let fault = Fault::new(node).env(Arc::clone(&env));
        links.push(fault.control());
        builder = builder.node(fault);
    }
    (builder.build().unwrap(), links, log, tracing::subscriber::set_default(subscriber))
}

#[tokio::test(start_paused = true)]
async fn trouble_with_a_renewal_is_logged_once_and_its_end_once() {
    let (redlock, links, log, _guard) = world();
    let guard = redlock.mutex("noisy").build().unwrap().acquire().await.unwrap();
    let leadership = redlock.election("loud").build().unwrap().campaign("me").await.unwrap();
    sleep(60 * S).await;
    log.said(0, &["palisade::lease"]);

    links[0].cut();
    links[1].cut();
    sleep(9 * S).await;
    assert!(guard.is_valid() && leadership.is_valid());
    for name in ["lock \"noisy\"", "election \"loud\""] {
        log.said(1, &["WARN palisade::lease", name, "event=\"renewal_failed\"", "cannot connect"]);
    }
    links[0].heal();
    sleep(10 * S).await;
    for name in ["lock \"noisy\"", "election \"loud\""] {
        log.said(1, &["INFO palisade::lease", name, "event=\"renewed\""]);
    }
    log.said(4, &["palisade::lease"]);

    links[0].cut();
    tokio::join!(guard.lost(), leadership.lost());
    sleep(60 * S).await;
    for name in ["lock \"noisy\"", "election \"loud\""] {
        log.said(2, &["palisade::lease", name, "event=\"renewal_failed\""]);
        log.said(1, &["WARN palisade::lease", name, "event=\"lost\""]);
    }
    log.said(8, &["palisade::lease"]);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_without_a_quorum_is_logged_once() {
    let (redlock, links, log, _guard) = world();
    links.iter().take(2).for_each(FaultControl::cut);
    let election = redlock.election("loud").build().unwrap();
    let campaign = tokio::spawn(async move { election.campaign("me").await });
    sleep(600 * S).await;
    log.said(1, &["WARN", "campaign goes on without a quorum", "election \"loud\""]);
    links.iter().for_each(FaultControl::heal);
    assert!(campaign.await.unwrap().unwrap().resign().await.is_ok());
    log.said(1, &["campaign goes on without a quorum"]);
}
