//! Tests of the doctor (`palisade doctor`) with bad servers and Sentinels. The doctor must end in
//! time, report the other servers, and show no secret.

use std::sync::Arc;
use std::time::Duration;

use palisade::Settings;
use palisade_ops::Deployment;
use palisade_ops::doctor::{Doctor, Report};

use crate::fake::NAME;
use crate::judge::{JUDGE, PASSWORD, Shown};
use crate::kinds::Kind;
use crate::nodes::within;
use crate::sentinel::SentinelServer;
use crate::server::{DataServer, Phase, Server};

pub(crate) const PHASES: &[Phase] = &[
    Phase::Connect,
    Phase::Hello,
    Phase::Time,
    Phase::Role,
    Phase::Info,
    Phase::Marker,
    Phase::Config,
    Phase::Acl,
];

pub(crate) const SENTINEL_PHASES: &[Phase] = &[
    Phase::Connect,
    Phase::Hello,
    Phase::MyId,
    Phase::Master,
    Phase::Peers,
    Phase::Replicas,
    Phase::Quorum,
];

const LIMIT: Duration = Duration::from_millis(300);

/// Runs the doctor on two single servers. One of them misbehaves in the phase `phase` of the
/// conversation, the other replies correctly.
pub(crate) async fn node(phase: Phase, kind: Arc<Kind>) -> (usize, Vec<String>) {
    let what = format!("doctor, {phase:?}, {}", kind.name);
    let bad = Server::start(DataServer::new(), Some((phase, kind)));
    let honest = Server::start(DataServer::new(), None);
    let url = |server: &Server| format!("redis://{}", server.at);
    let mut settings = Settings::new([url(&bad), url(&honest)]);
    settings.password = Some(PASSWORD.into());
    let all = Deployment::of(settings).timeout(LIMIT);
    let wrong = examine(&what, all, &honest).await.err();
    (bad.struck(), wrong.into_iter().collect())
}

/// Runs the doctor (`palisade doctor`) on a master with three Sentinels. One Sentinel misbehaves in
/// the phase `phase`, the others reply correctly.
pub(crate) async fn sentinel(phase: Phase, kind: Arc<Kind>) -> (usize, Vec<String>) {
    let what = format!("doctor, Sentinel, {phase:?}, {}", kind.name);
    let master = Server::start(DataServer::new(), None);
    let honest = |id| Server::start(SentinelServer::new(id, &master.at), None);
    let (a, b) = (honest('a'), honest('b'));
    let bad = Server::start(SentinelServer::new('c', &master.at), Some((phase, kind)));
    let mut settings = Settings::new([format!("sentinel://{},{},{}/{NAME}", bad.at, a.at, b.at)]);
    settings.password = Some(PASSWORD.into());
    settings.sentinel_password = Some(PASSWORD.into());
    let all = Deployment::of(settings).timeout(LIMIT);
    let wrong = examine(&what, all, &master).await.err();
    (bad.struck(), wrong.into_iter().collect())
}

async fn examine(what: &str, all: Deployment, honest: &Server) -> Result<(), String> {
    // The doctor sends requests to the configured Sentinels, to the Sentinels that these report,
    // and to the servers. Then the doctor acquires the trial lock. All this may take five times the
    // limit.
    let report = within(what, 5 * LIMIT, Doctor::new(all).examine()).await?;
    let report: Report = report.map_err(|e| format!("{what}: {e}"))?;
    JUDGE.text(what, Shown::Doctor, &report.to_string());
    JUDGE.text(what, Shown::Doctor, &report.to_json());
    let seen = report.findings.iter().any(|f| f.subject.contains(&honest.at));
    if !report.reached || !seen {
        return Err(format!("{what}: {} was not examined: {report}", honest.at));
    }
    Ok(())
}
