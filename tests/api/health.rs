//! Compares the health that a handle (a client: the `Redlock` value of a process) reports with the
//! later behaviour of its nodes.

use std::time::{Duration, SystemTime};

use palisade::idempotency::{Decision, Outcome};
use palisade::{Ability, MemoryNode, Redlock, TryAcquire};
use palisade_testing::fault::FaultControl;
use tokio::time::sleep;

use crate::support::memory::Timed;

const S: Duration = Duration::from_secs(1);

fn world(n: usize) -> (Redlock, Vec<MemoryNode>, Vec<FaultControl>) {
    let world = Timed::new(n);
    let (redlock, links) = world.linked();
    (redlock, world.nodes, links)
}

async fn grants(redlock: &Redlock) -> bool {
    let got = redlock.mutex("m").build().unwrap().try_acquire().await;
    matches!(got, Ok(TryAcquire::Acquired(_)))
}

async fn runs(redlock: &Redlock, key: &str, created: Option<SystemTime>) -> bool {
    let keys = redlock.idempotency("n").at_most_once().build().unwrap();
    let mut call = keys.key(key);
    if let Some(created) = created {
        call = call.created_at(created);
    }
    let done = call.run(|_| async { Ok::<_, String>(()) }).await;
    matches!(done, Ok(Outcome::Executed { .. }))
}

#[tokio::test(start_paused = true)]
async fn fresh_nodes_can_do_all() {
    let (redlock, ..) = world(3);
    let health = redlock.health().await;
    assert!(health.is_ready() && health.new_keys().is_now(), "{health}");
    assert!(grants(&redlock).await && runs(&redlock, "k", None).await);
    assert_eq!(health.nodes.len(), 3);
    assert!(health.to_string().starts_with("locks: yes; new keys: yes; memory-"), "{health}");
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_it_says_until_when_and_it_is_so() {
    let (redlock, nodes, _) = world(3);
    assert!(grants(&redlock).await);
    nodes.iter().take(2).for_each(MemoryNode::restart_empty);
    let health = redlock.health().await;
    let Ability::After(rest) = health.locks() else { panic!("{health}") };
    assert!((14 * S..=15 * S).contains(&rest), "{health}");
    assert!(!health.is_ready() && !grants(&redlock).await);
    sleep(rest + Duration::from_millis(1)).await;
    let health = redlock.health().await;
    assert!(health.is_ready() && grants(&redlock).await, "{health}");
    // A key without a creation time (birth) may have been used before the node lost its data. The
    // nodes cannot rule this out until one retention has passed.
    let Ability::After(rest) = health.new_keys() else { panic!("{health}") };
    assert!((23 * 3_600 * S..=25 * 3_600 * S).contains(&rest), "{rest:?}");
    assert!(!runs(&redlock, "old", None).await);
    sleep(rest + S).await;
    assert!(redlock.health().await.new_keys().is_now());
    assert!(runs(&redlock, "new", None).await);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_judged_by_its_own_retention() {
    let (redlock, nodes, _) = world(1);
    nodes[0].restart_empty();
    // The loss, the time span in which the node may have lost writes, ends when a client first
    // connects to the restarted node.
    assert!(!redlock.health().await.is_ready());
    sleep(3_600 * S).await;
    let short = redlock.idempotency("n").at_most_once().retention(60 * S).build().unwrap();
    assert!(short.health().await.new_keys().is_now());
    assert!(!redlock.health().await.new_keys().is_now());
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_fails_is_shown_and_a_majority_is_unknown() {
    let (redlock, _, links) = world(3);
    links[0].cut();
    let health = redlock.health().await;
    assert!(health.is_ready() && grants(&redlock).await, "{health}");
    assert_eq!(health.nodes.iter().filter(|n| n.locks == Ability::Unknown).count(), 1);
    assert!(health.to_string().contains("cannot connect"), "{health}");
    links[1].freeze();
    let begun = tokio::time::Instant::now();
    let health = redlock.health().await;
    assert_eq!((health.locks(), health.new_keys()), (Ability::Unknown, Ability::Unknown));
    assert!(begun.elapsed() < S, "it ends by the deadline of the nodes");
}

#[tokio::test(start_paused = true)]
async fn it_leaves_nothing_behind_and_meets_itself() {
    let (redlock, ..) = world(1);
    let (one, two) = tokio::join!(redlock.health(), redlock.health());
    assert!(one.is_ready() && two.is_ready(), "{one} {two}");
    sleep(S).await;
    let tried = redlock.mutex("palisade:health").build().unwrap().try_acquire().await;
    assert!(matches!(tried, Ok(TryAcquire::Acquired(_))), "{tried:?}");
    drop(tried);
    drop(redlock.close(S).await);
    assert!(!redlock.health().await.is_ready(), "a closed handle does nothing more");
}

#[tokio::test(start_paused = true)]
async fn a_decision_to_run_is_seen_in_the_health_of_its_namespace_alone() {
    let (redlock, nodes, _) = world(1);
    let keys = |name: &str| redlock.idempotency(name).at_most_once().build().unwrap();
    let [decided, parked, open] = ["decided", "parked", "open"].map(keys);
    assert!(runs(&redlock, "k", None).await);
    nodes.iter().for_each(MemoryNode::restart_empty);
    sleep(60 * S).await;
    let audit = palisade_ops::Audit::new("alice", "none took effect").unwrap();
    for (keys, decision) in [(&decided, Decision::Run), (&parked, Decision::Park)] {
        for incident in palisade_ops::incidents(keys).await.incidents {
            let stands = incident.decide(keys, decision, false, &audit).await.unwrap();
            assert!(!stands.is_empty());
        }
    }
    assert!(decided.health().await.new_keys().is_now());
    for keys in [&parked, &open] {
        let Ability::After(rest) = keys.health().await.new_keys() else { panic!("unknown") };
        assert!(rest > 3_600 * S, "{rest:?}");
    }
    // A later loss is not decided.
    nodes.iter().for_each(MemoryNode::restart_empty);
    sleep(60 * S).await;
    assert!(!decided.health().await.new_keys().is_now());
}
