//! Wrong hooks for a planned handover, and nodes that break a rule about one: the suite has to find
//! each.

use palisade::node::spi::{Env as _, SystemEnv};
use palisade::node::spi::{Remembered, Terms};

use super::*;

/// The case `by` fails for a memory node with these wrong hooks.
async fn caught_by(hooks: impl FnOnce(&MemoryNode) -> Hooks, by: &str) {
    let node = memory();
    let hooks = hooks(&node);
    failure(node, hooks, by).await;
}

#[tokio::test]
async fn wrong_handovers_are_caught() {
    let open = |_: &MemoryNode| Hooks::default().close(at_once(|| ()));
    caught_by(open, "a_closed_node_answers_nothing_and_opens_by_itself").await;
    let restarted = |node: &MemoryNode| {
        let node = node.clone();
        Hooks::default().hand_over(at_once(move || node.restart_keeping()))
    };
    caught_by(restarted, "a_node_that_takes_over_goes_on").await;
    let emptied = |node: &MemoryNode| {
        let node = node.clone();
        Hooks::default().hand_over(at_once(move || {
            assert!(node.close(Duration::from_secs(30)));
            node.hand_over();
            node.flush_all();
        }))
    };
    caught_by(emptied, "a_node_that_takes_over_knows_every_key").await;
    tells!("gives a name that may still be held away",
        "a_lock_that_may_still_be_held_is_kept_for_a_while",
        Op::Acquire { .. }, reply @ Reply::Held { .. } => *reply = Reply::Granted { fence: 1 });
    tells!("takes over a claim that may still run",
    "a_claim_that_may_still_run_is_kept_for_a_while",
    Op::Claim(_), reply @ Reply::InFlight { .. } => {
        *reply = Reply::Claimed {
            fence: 9,
            attempt: 9,
            record: None,
            steps: None,
            unsure: Duration::ZERO,
            losses: Vec::new(),
            fresh: false,
        };
    });
}

#[tokio::test]
async fn nodes_that_keep_for_too_short_are_caught() {
    tells!("keeps a name for half of the time", "a_lock_that_may_still_be_held_is_kept_for_a_while",
        Op::Acquire { .. }, Reply::Held { remaining: Some(rest), .. } => *rest /= 2);
    tells!("keeps a claim for half of the time", "a_claim_that_may_still_run_is_kept_for_a_while",
        Op::Claim(_), Reply::InFlight { remaining } => *remaining /= 2);
}

#[tokio::test]
async fn a_node_that_settles_is_not_closed_again() {
    let node = memory();
    let batch = Batch {
        terms: Terms { max_ttl: Duration::from_secs(1), clock_error: Duration::from_millis(50) },
        not_after: None,
        remembers: Remembered::default(),
        ops: Vec::new(),
    };
    let touch = async || {
        let deadline = SystemEnv.now() + Duration::from_secs(5);
        node.call(batch.clone(), deadline).await.facts.is_some()
    };
    assert!(touch().await);
    assert!(node.close(Duration::from_secs(30)));
    node.hand_over();
    assert!(!node.close(Duration::from_millis(1)), "it would forget that it settles");
    assert!(touch().await, "and it is open");
    tokio::time::sleep(Duration::from_millis(1_010)).await;
    assert!(node.close(Duration::from_secs(30)));
}
