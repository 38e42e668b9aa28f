//! Tests of clients with a bad data server: as one of three nodes, and as the only node.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use palisade::TryAcquire;
use palisade::error::AcquireError;
use palisade::node::spi::LockNode;
use palisade::{Durability, MemoryNode, RedisNode, Redlock};
use tokio::time::{Instant, timeout};

use crate::judge::{JUDGE, PASSWORD};
use crate::kinds::Kind;
use crate::server::{DataServer, Phase, Server, TAKEN};

/// Deadline for a node's reply, for a client (`Redlock` handle) with one node.
pub(crate) const NODE: Duration = Duration::from_millis(300);
/// Deadline for a node's reply, for a client (`Redlock` handle) with several nodes. This deadline
/// is longer, so the honest nodes can reply in time even on a busy machine.
pub(crate) const SHARED: Duration = Duration::from_secs(1);
/// Additional time that a call may take after its deadline on a busy machine.
pub(crate) const GRACE: Duration = Duration::from_secs(4);

/// Maximum number of connections to a bad server in one case.
const CONNECTIONS_MAX: usize = 60;

pub(crate) const PHASES: &[Phase] = &[
    Phase::Connect,
    Phase::Hello,
    Phase::Client,
    Phase::InfoServer,
    Phase::InfoReplication,
    Phase::InfoMemory,
    Phase::Load,
    Phase::Greeting,
    Phase::Batch,
    Phase::BarrierWrite,
    Phase::Wait,
    Phase::Subscribe,
    Phase::Pushes,
    Phase::Idle,
];

/// Phases of a conversation in which the kinds of misbehaviour with large replies are tested.
pub(crate) const LARGE: &[Phase] = &[Phase::Load, Phase::Batch, Phase::Idle];

/// Runs one case: a data server that misbehaves in one way, in one phase. Returns the number of
/// times that it misbehaved, and the errors found.
pub(crate) async fn case(phase: Phase, kind: Arc<Kind>) -> (usize, Vec<String>) {
    let what = format!("{phase:?}, {}", kind.name);
    let bad = Server::start(DataServer::new(), Some((phase, Arc::clone(&kind))));
    let both = (one_of_three(&what, phase, &bad), alone(&what, phase, &kind, &bad));
    let (trio, lone) = tokio::join!(both.0, both.1);
    let mut wrong: Vec<String> = trio.err().into_iter().chain(lone.err()).collect();
    // The limit includes two `Redlock` handles. Each has connections for batches, wake-up messages
    // and barriers (waits for replicas), and connects again after pauses.
    if bad.connections() > CONNECTIONS_MAX {
        wrong.push(format!("{what}: {} connections", bad.connections()));
    }
    (bad.struck(), wrong)
}

/// Runs both parts of a case one after the other: with the bad server as one of three nodes, and as
/// the only node. The kinds with large replies need much memory. Returns the errors found.
pub(crate) async fn large(phase: Phase, kind: Kind) -> Vec<String> {
    let what = format!("{phase:?}, {}", kind.name);
    let kind = Arc::new(kind);
    let bad = Server::start(DataServer::new(), Some((phase, Arc::clone(&kind))));
    let trio = one_of_three(&what, phase, &bad).await;
    let lone = alone(&what, phase, &kind, &bad).await;
    trio.err().into_iter().chain(lone.err()).collect()
}

fn node(bad: &Server) -> RedisNode {
    let node = RedisNode::builder(format!("redis://{}", bad.at)).password(PASSWORD);
    node.trust_fresh(true).connect_timeout(NODE).build().expect("an address")
}

/// Checks that a bad server does not change the results: the other two nodes decide.
async fn one_of_three(what: &str, phase: Phase, bad: &Server) -> Result<(), String> {
    let bad = Arc::new(node(bad));
    let redlock = Redlock::builder().node_deadline(SHARED).node_arc(bad.clone());
    let redlock = redlock.node(MemoryNode::new()).node(MemoryNode::new());
    let redlock = redlock.build().expect("three nodes");
    let mut events = redlock.events();
    let what = format!("one of three: {what}");
    for name in ["held", "again"] {
        let guard =
            within(&what, SHARED, redlock.mutex(name).build().unwrap().try_acquire()).await?;
        let guard = guard.map_err(|e| format!("{what}: {e}"))?;
        let TryAcquire::Acquired(guard) = guard else { return Err(format!("{what}: taken")) };
        if phase == Phase::Idle {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        let released = within(&what, 2 * SHARED, guard.release()).await?;
        released.map_err(|e| format!("{what}: release: {e}"))?;
    }
    let calls = redlock.idempotency("n").at_most_once().build().unwrap();
    let once = calls.key("k").run(|_| async { Ok::<_, Infallible>(7) });
    let ran = within(&what, 4 * SHARED, once).await?;
    let ran = ran.map_err(|e| format!("{what}: idempotency: {e}"))?;
    if ran.into_value() != Some(7) {
        return Err(format!("{what}: the handler was not run"));
    }
    let election = redlock.election("e").build().unwrap();
    let led = within(&what, 4 * SHARED, election.try_campaign("me")).await?;
    let led = led.map_err(|e| format!("{what}: election: {e}"))?.won();
    let seen = within(&what, 4 * SHARED, election.leader()).await?;
    let seen = seen.map_err(|e| format!("{what}: leader: {e}"))?;
    if led.is_none() || seen.is_none() {
        return Err(format!("{what}: nobody leads"));
    }
    JUDGE.debug(&what, &redlock.metrics());
    while let Some(event) = events.try_next() {
        JUDGE.debug(&what, &event);
    }
    JUDGE.debug(&what, &bad);
    Ok(())
}

/// Checks the calls of a client whose only server is bad. Each call must end in time, with an error
/// that names the fault.
async fn alone(what: &str, phase: Phase, kind: &Kind, bad: &Server) -> Result<(), String> {
    let bad = node(bad);
    let name = bad.name();
    let redlock = Redlock::builder().node_deadline(NODE).node(bad).build().expect("a node");
    let what = format!("alone: {what}");
    let mutex = redlock.mutex("held").durability(Durability::Replicas(1)).build().unwrap();
    let got = within(&what, 2 * NODE, mutex.try_acquire()).await?;
    let decides = matches!(phase, Phase::Batch | Phase::Greeting | Phase::Connect | Phase::Hello);
    match got {
        Ok(TryAcquire::Acquired(guard)) => {
            let is_fatal = decides && !kind.honest && phase == Phase::Batch;
            if is_fatal {
                return Err(format!("{what}: granted"));
            }
            if let Err(e) = within(&what, 2 * NODE, guard.release()).await? {
                JUDGE.error(&what, &e);
            }
        }
        Ok(TryAcquire::Taken(taken)) => return Err(format!("{what}: {taken:?}")),
        Err(e) => {
            if !matches!(e, AcquireError::NoQuorum(_)) || !e.to_string().contains(&*name) {
                return Err(format!("{what}: {e}"));
            }
            // The reply exceeds the client's size limit, so the client closes the connection. The
            // error must name this limit.
            let is_too_long = phase == Phase::Batch && kind.name == "a text without end";
            let said = e.to_string();
            if is_too_long && said.contains("connection lost") && !said.contains("answer of more") {
                return Err(format!("{what}: does not name the limit: {said}"));
            }
            JUDGE.error(&what, &e);
        }
    }
    if matches!(phase, Phase::Subscribe | Phase::Pushes) {
        // This `acquire` waits for a held lock, so it subscribes to the wake-up messages of the
        // server.
        let wait = Duration::from_millis(250);
        match within(
            &what,
            wait + NODE,
            redlock.mutex(TAKEN).acquire_timeout(wait).build().unwrap().acquire(),
        )
        .await?
        {
            Err(AcquireError::TimedOut { .. }) => {}
            other => return Err(format!("{what}: waited for a held lock: {other:?}")),
        }
    }
    let calls = redlock.idempotency("n").at_most_once().build().unwrap();
    let once = calls.key("k").run(|_| async { Ok::<_, Infallible>(7) });
    if let Err(e) = within(&what, 4 * NODE, once).await? {
        JUDGE.error(&what, &e);
    }
    if let Err(e) = within(&what, 2 * NODE, redlock.election("e").build().unwrap().leader()).await?
    {
        JUDGE.error(&what, &e);
    }
    JUDGE.debug(&what, &redlock.metrics());
    Ok(())
}

/// Returns the result of a call. Returns an error if the call takes longer than its deadline and
/// [`GRACE`].
pub(crate) async fn within<T>(
    what: &str,
    deadline: Duration,
    call: impl Future<Output = T>,
) -> Result<T, String> {
    let begun = Instant::now();
    let late = |_| format!("{what}: no end after {:?}", begun.elapsed());
    timeout(deadline + GRACE, call).await.map_err(late)
}
