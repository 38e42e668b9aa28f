//! Two of three Sentinels stand still, and the master goes on: nobody can say whether it is still
//! one (sentinel 10).

use std::time::Duration;

use palisade::error::{AcquireError, ExtendError, NoQuorum, NodeError, NodeFault, NodeOutcome};
use palisade::{LockGuard, Redlock, SentinelNode, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::support::group::{Groups, cli};

/// Longer than the test, also on a busy machine.
const TTL: Duration = Duration::from_secs(1_000);
/// The groups' L: max-lag 1 s, and two more.
const WINDOW: Duration = Duration::from_secs(3);
/// Time limit of a wait. Only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(400);
const PAUSE: Duration = Duration::from_millis(50);

fn handle(groups: &Groups, trusts: bool) -> Redlock {
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0)).trust_fresh(true);
    let node = node.trust_unconfirmed_master(trusts).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).max_ttl(TTL);
    redlock.node_deadline(Duration::from_secs(5)).build().unwrap()
}

async fn tried(redlock: &Redlock, name: &str) -> Result<Option<LockGuard>, AcquireError> {
    let mutex = redlock.mutex(name).auto_renew(false).build().unwrap();
    Ok(match mutex.try_acquire().await? {
        TryAcquire::Acquired(guard) => Some(guard),
        TryAcquire::Taken(_) => None,
    })
}

/// Tries until the lock is granted.
async fn granted(redlock: &Redlock, name: &str) -> LockGuard {
    let begun = Instant::now();
    loop {
        match tried(redlock, name).await {
            Ok(Some(guard)) => return guard,
            other => assert!(begun.elapsed() < PATIENCE, "{name}: {other:?}"),
        }
        sleep(PAUSE).await;
    }
}

fn cause(no: NoQuorum) -> NodeError {
    match no.nodes.into_iter().next() {
        Some((_, NodeOutcome::Failed(error))) => error,
        other => panic!("{other:?}"),
    }
}

fn assert_unasked(what: &str, error: &NodeError) {
    assert_eq!((error.fault(), error.is_ambiguous()), (NodeFault::NoSentinel, false), "{what}");
    let text = error.to_string();
    for words in ["SENTINEL CKQUORUM", "trust_unconfirmed_master(true)"] {
        assert!(text.contains(words), "{what}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_no_majority_has_named_for_longer_than_l_takes_releases_only() {
    let groups = Groups::up(1);
    let master = &groups.servers(0)[0];
    let (careful, trusting) = (handle(&groups, false), handle(&groups, true));
    let released = granted(&careful, "released").await;
    let held = granted(&careful, "held").await;
    let trusted = granted(&trusting, "trusted").await;
    for sentinel in ["sa2", "sa3"] {
        groups.break_("freeze", 0, &["--server", sentinel]);
    }
    sleep(WINDOW + Duration::from_secs(1)).await;

    for round in 0..3 {
        let name = format!("new-{round}");
        let error = match tried(&careful, &name).await {
            Err(AcquireError::NoQuorum(no)) => cause(no),
            other => panic!("{name}: {other:?}"),
        };
        assert_unasked(&name, &error);
        assert_eq!(cli(master, &["EXISTS", &name]), "0", "{name}");
        let error = match held.extend().await {
            Err(ExtendError::Unknown(no)) => cause(no),
            other => panic!("an extension: {other:?}"),
        };
        assert_unasked("an extension", &error);
        assert!(held.is_valid(), "by what was granted before");

        let until = trusted.valid_until();
        assert!(trusted.extend().await.expect("an extension by who trusts the master") > until);
        let more = tried(&trusting, &format!("more-{round}")).await;
        assert!(matches!(more, Ok(Some(_))), "{more:?}");
    }
    released.release().await.expect("a release");
    assert_eq!(cli(master, &["EXISTS", "released", "held"]), "1", "released, and held");

    groups.break_("resume", 0, &[]);
    granted(&careful, "after").await.release().await.expect("a release");
    held.extend().await.expect("an extension");
}
