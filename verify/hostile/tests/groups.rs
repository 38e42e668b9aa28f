//! Tests of clients with a bad Sentinel: as one of three Sentinels, and as the only Sentinel.

use std::sync::Arc;
use std::time::Duration;

use palisade::Redlock;
use palisade::TryAcquire;
use palisade::node::{MinReplicas, SentinelNode};

use crate::fake::NAME;
use crate::judge::{JUDGE, PASSWORD};
use crate::kinds::Kind;
use crate::nodes::{NODE, SHARED, within};
use crate::sentinel::SentinelServer;
use crate::server::{DataServer, Phase, Server};

pub(crate) const PHASES: &[Phase] = &[
    Phase::Connect,
    Phase::Hello,
    Phase::Subscribe,
    Phase::MyId,
    Phase::Master,
    Phase::Address,
    Phase::Peers,
    Phase::Replicas,
    Phase::Pushes,
];

fn group(sentinels: &[&Server], deadline: Duration) -> SentinelNode {
    let all = sentinels.iter().map(|s| s.at.clone());
    let node = SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off);
    let node = node.sentinel_username("joe").sentinel_password(PASSWORD).trust_fresh(true);
    let node = node.sentinel_deadline(deadline).poll_every(Duration::from_millis(100));
    node.build().expect("addresses and ranges")
}

/// Runs one case: a Sentinel that misbehaves in one way, in one phase. Returns the number of times
/// that it misbehaved, and the errors found.
pub(crate) async fn case(phase: Phase, kind: Arc<Kind>) -> (usize, Vec<String>) {
    let what = format!("Sentinel, {phase:?}, {}", kind.name);
    let master = Server::start(DataServer::new(), None);
    let honest = |id| Server::start(SentinelServer::new(id, &master.at), None);
    let (a, b) = (honest('a'), honest('b'));
    let wrong = Some((phase, Arc::clone(&kind)));
    let bad = Server::start(SentinelServer::new('c', &master.at), wrong);
    let trio = one_of_three(&what, group(&[&bad, &a, &b], SHARED), &master.at);
    let (trio, lone) = tokio::join!(trio, alone(&what, group(&[&bad], NODE)));
    let mut wrong: Vec<String> = trio.err().into_iter().chain(lone.err()).collect();
    // The limits include the connections of both `Redlock` handles, their connections for hints
    // (wake-up messages), and new connections after a server has closed one.
    if a.connections() > 4 || master.connections() > 8 {
        let (a, m) = (a.connections(), master.connections());
        wrong.push(format!("{what}: {a} connections to an honest Sentinel, {m} to the master"));
    }
    (bad.struck(), wrong)
}

async fn one_of_three(what: &str, node: SentinelNode, master: &str) -> Result<(), String> {
    let node = Arc::new(node);
    let redlock = Redlock::builder().node_deadline(SHARED).node_arc(node.clone());
    let redlock = redlock.build().expect("a handle");
    let what = format!("one of three: {what}");
    for round in 0..3 {
        // The node may use a false reply only in a later round, after it has stored the reply. So
        // there are three rounds.
        let got =
            within(&what, 2 * SHARED, redlock.mutex("m").build().unwrap().try_acquire()).await?;
        let got = got.map_err(|e| format!("{what}: round {round}: {e}"))?;
        let TryAcquire::Acquired(guard) = got else { return Err(format!("{what}: taken")) };
        let released = within(&what, 2 * SHARED, guard.release()).await?;
        released.map_err(|e| format!("{what}: release: {e}"))?;
        let status = node.status();
        JUDGE.debug(&what, &status);
        if status.master.as_deref() != Some(master) || status.last_error.is_some() {
            return Err(format!("{what}: {status:?}"));
        }
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    JUDGE.debug(&what, &redlock.metrics());
    Ok(())
}

async fn alone(what: &str, node: SentinelNode) -> Result<(), String> {
    let node = Arc::new(node);
    let redlock = Redlock::builder().node_deadline(NODE).node_arc(node.clone());
    let redlock = redlock.build().expect("a handle");
    let what = format!("alone: {what}");
    match within(&what, 2 * NODE, redlock.mutex("m").build().unwrap().try_acquire()).await? {
        Ok(TryAcquire::Acquired(guard)) => drop(guard),
        Ok(TryAcquire::Taken(taken)) => return Err(format!("{what}: {taken:?}")),
        Err(e) => JUDGE.error(&what, &e),
    }
    JUDGE.debug(&what, &node.status());
    Ok(())
}
