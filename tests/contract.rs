//! The contract suite holds what it says: the reference node passes, and nodes with one rule wrong
//! are caught.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::durability::{BarrierPoint, Durability};
use palisade::error::NodeError;
use palisade::node::contract::{self, Hooks};
use palisade::node::fault::Fault;
use palisade::node::{BoxFuture, LockNode, MemoryNode, NodeEvent};
use palisade::op::{Batch, ClaimEnd, Op, Replies, Reply, StoredRecord};
use palisade::time::Moment;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// Every kind of case at once, then those that disturb the node; the names of the broken ones.
async fn broken(node: Arc<dyn LockNode>, hooks: Hooks) -> (usize, Vec<&'static str>) {
    let (alone, together): (Vec<_>, Vec<_>) =
        contract::cases().into_iter().partition(contract::Case::disturbs);
    let (mut ran, mut failed) = (0, Vec::new());
    let mut set = JoinSet::new();
    for case in together {
        let (node, hooks) = (node.clone(), hooks.clone());
        set.spawn(async move {
            (case.name(), tokio::spawn(async move { case.run(node, &hooks).await }).await)
        });
    }
    let mut count = |name, result: Result<bool, _>| match result {
        Ok(done) => ran += usize::from(done),
        Err(_) => failed.push(name),
    };
    while let Some(done) = set.join_next().await {
        let (name, result) = done.unwrap();
        count(name, result);
    }
    for case in alone {
        let (node, hooks) = (node.clone(), hooks.clone());
        count(case.name(), tokio::spawn(async move { case.run(node, &hooks).await }).await);
    }
    failed.sort_unstable();
    (ran, failed)
}

fn memory() -> MemoryNode {
    MemoryNode::new()
}

fn hooks(node: &MemoryNode) -> Hooks {
    let [a, b, c, d] = [(); 4].map(|()| node.clone());
    Hooks::default()
        .restart_empty(move || {
            a.restart_empty();
            std::future::ready(())
        })
        .restart_keeping(move || {
            b.restart_keeping();
            std::future::ready(())
        })
        .flush(move || {
            c.flush_all();
            std::future::ready(())
        })
        .put_foreign(move |key, ttl| {
            d.put_foreign(&key, ttl);
            std::future::ready(())
        })
}

#[tokio::test]
async fn memory_node_keeps_the_contract() {
    let node = memory();
    let (ran, failed) = broken(Arc::new(node.clone()), hooks(&node)).await;
    assert_eq!(failed, Vec::<&str>::new());
    assert_eq!(ran, contract::cases().len());
}

#[tokio::test]
async fn a_calm_fault_wrapper_keeps_the_contract() {
    let node = memory();
    let (ran, failed) = broken(Arc::new(Fault::new(node.clone())), hooks(&node)).await;
    assert_eq!(failed, Vec::<&str>::new());
    assert_eq!(ran, contract::cases().len());
}

#[tokio::test]
async fn without_hooks_cases_are_skipped_and_the_rest_runs_in_a_row() {
    let ran = contract::run(Arc::new(MemoryNode::new()), &Hooks::default()).await;
    assert!(ran >= 35 && ran < contract::cases().len(), "{ran} cases");
}

#[test]
fn case_names_are_unique() {
    let mut names: Vec<_> = contract::cases().iter().map(contract::Case::name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

/// A node that breaks one rule.
struct Mutant {
    inner: MemoryNode,
    /// Rewrites an op before it is executed.
    ask: fn(&mut Op),
    /// Rewrites an answer.
    tell: fn(&Op, &mut Reply),
}

impl LockNode for Mutant {
    fn call(&self, mut batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let asked = batch.ops.clone();
        batch.ops.iter_mut().for_each(self.ask);
        Box::pin(async move {
            let mut replies = self.inner.call(batch, deadline).await;
            for (op, item) in asked.iter().zip(&mut replies.items) {
                if let Ok(reply) = item {
                    (self.tell)(op, reply);
                }
            }
            replies
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.inner.events()
    }

    fn name(&self) -> Arc<str> {
        "mutant".into()
    }
}

async fn caught(what: &str, ask: fn(&mut Op), tell: fn(&Op, &mut Reply), by: &str) {
    let inner = memory();
    let hooks = hooks(&inner);
    let case = contract::cases().into_iter().find(|c| c.name() == by).unwrap();
    let node = Arc::new(Mutant { inner, ask, tell });
    let result = tokio::spawn(async move { case.run(node, &hooks).await }).await;
    let error = result.expect_err(what);
    let text = *error.into_panic().downcast::<String>().unwrap();
    assert!(text.contains("mutant") && text.contains(by) && text.contains(';'), "{what}: {text}");
}

/// A node that says yes to every barrier, or hangs over it.
struct Eager {
    inner: MemoryNode,
    hangs: bool,
}

impl LockNode for Eager {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.inner.call(batch, deadline)
    }

    fn barrier(
        &self,
        _after: BarrierPoint,
        _level: Durability,
        _deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(
            async move { if self.hangs { std::future::pending().await } else { Ok(2_000_000) } },
        )
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.inner.events()
    }

    fn name(&self) -> Arc<str> {
        "eager".into()
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_barriers_are_caught() {
    for (hangs, by) in [
        (false, "a_barrier_of_another_past_confirms_nothing"),
        (false, "a_barrier_without_enough_replicas_refuses"),
        (true, "a_barrier_over_all_replicas_is_answered"),
    ] {
        let case = contract::cases().into_iter().find(|c| c.name() == by).unwrap();
        let node = Arc::new(Eager { inner: memory(), hangs });
        let run = tokio::spawn(async move { case.run(node, &Hooks::default()).await }).await;
        let text = *run.expect_err(by).into_panic().downcast::<String>().unwrap();
        assert!(text.contains("eager") && text.contains(by), "{text}");
    }
}

fn as_is(_: &mut Op) {}
fn truly(_: &Op, _: &mut Reply) {}

#[tokio::test]
async fn wrong_answers_about_locks_are_caught() {
    caught(
        "says Done to a stranger's release",
        as_is,
        |op, reply| {
            if matches!(op, Op::Release { .. }) && *reply == Reply::NotOwner {
                *reply = Reply::Done;
            }
        },
        "release_by_another_changes_nothing",
    )
    .await;
    caught(
        "grants a held lock",
        as_is,
        |_, reply| {
            if matches!(reply, Reply::Held { .. }) {
                *reply = Reply::Granted { fence: 1 };
            }
        },
        "another_owner_is_held_off",
    )
    .await;
    caught(
        "rounds large tokens as a float would",
        as_is,
        |_, reply| {
            if let Reply::Granted { fence } = reply {
                *fence &= !1;
            }
        },
        "tokens_are_exact_up_to_the_largest",
    )
    .await;
    caught(
        "gives a fresh fence to a repeated acquire",
        as_is,
        |_, reply| {
            static NEXT: AtomicU64 = AtomicU64::new(1);
            if let Reply::Granted { fence } = reply {
                *fence += NEXT.fetch_add(1, Ordering::Relaxed);
            }
        },
        "same_owner_gets_the_same_answer",
    )
    .await;
}

#[tokio::test]
async fn wrong_deeds_on_locks_are_caught() {
    caught(
        "forgets who waits",
        |op| {
            if let Op::Acquire { wait, .. } | Op::Inspect { wait, .. } = op {
                *wait = false;
            }
        },
        truly,
        "release_wakes_who_inspected",
    )
    .await;
    caught(
        "ignores the ttl of an extension",
        |op| {
            if let Op::Extend { keys, .. } = op {
                *op = Op::Inspect { keys: keys.clone(), wait: false };
            }
        },
        |op, reply| {
            if matches!(op, Op::Extend { .. }) {
                *reply = Reply::Done;
            }
        },
        "extend_prolongs",
    )
    .await;
    caught(
        "forgets the holder's words",
        |op| {
            if let Op::Extend { meta, .. } = op {
                *meta = None;
            }
        },
        truly,
        "words_are_kept_and_replaced",
    )
    .await;
    caught(
        "grants in quarantine",
        as_is,
        |_, reply| {
            if matches!(reply, Reply::Quarantined { .. }) {
                *reply = Reply::Granted { fence: 1 };
            }
        },
        "a_restarted_node_grants_after_the_quarantine",
    )
    .await;
}

#[tokio::test]
async fn wrong_rules_about_quarantines_are_caught() {
    caught(
        "extends in quarantine what nobody named",
        as_is,
        |op, reply| {
            let extends = matches!(op, Op::Extend { .. } | Op::ExtendClaim { .. });
            if extends && matches!(reply, Reply::Quarantined { .. }) {
                *reply = Reply::Done;
            }
        },
        "a_forgotten_lock_is_put_back_only_for_this_quarantine",
    )
    .await;
    caught(
        "raises in quarantine",
        as_is,
        |op, reply| {
            if matches!(op, Op::Raise { .. }) && matches!(reply, Reply::Quarantined { .. }) {
                *reply = Reply::Done;
            }
        },
        "a_restart_with_data_is_quarantined_too",
    )
    .await;
}

#[tokio::test]
async fn wrong_rules_about_records_are_caught() {
    caught(
        "compares ballots by their number alone",
        |op| {
            if let Op::Complete { token, .. } = op {
                *token = palisade::FencingToken::new(token.get() + 1);
            }
        },
        truly,
        "an_equal_ballot_of_another_owner_is_refused",
    )
    .await;
    caught(
        "takes `force` for a licence to take over",
        as_is,
        |op, reply| {
            if let (Op::Claim(c), Reply::InFlight { .. }) = (op, &*reply)
                && c.force
            {
                let unsure = Duration::ZERO;
                *reply = Reply::Claimed { fence: 9, attempt: 2, record: None, unsure };
            }
        },
        "a_running_lease_keeps_others_off",
    )
    .await;
    caught(
        "does not compare fingerprints",
        |op| {
            if let Op::Claim(c) = op {
                c.fingerprint = None;
            }
        },
        truly,
        "another_fingerprint_is_a_mismatch",
    )
    .await;
    caught(
        "hides the record from a repair",
        as_is,
        |_, reply| {
            if let Reply::Claimed { record, .. } = reply {
                *record = None;
            }
        },
        "force_is_granted_on_top_of_a_result",
    )
    .await;
    caught(
        "cuts values at a zero byte",
        as_is,
        |_, reply| {
            if let Reply::Completed(StoredRecord { value, .. }) = reply {
                let cut = value.as_deref().map(|v| v.split(|b| *b == 0).next().unwrap().into());
                *value = cut;
            }
        },
        "values_keep_every_byte",
    )
    .await;
}

#[tokio::test]
async fn wrong_ends_of_claims_are_caught() {
    caught(
        "takes every end for an attempt that did nothing",
        |op| {
            if let Op::Unclaim { end, .. } = op {
                *end = ClaimEnd::Undone;
            }
        },
        truly,
        "a_claim_can_lapse_before_its_time",
    )
    .await;
    caught(
        "forgets the fingerprint of what may be repeated",
        |op| {
            if let Op::Unclaim { end: end @ ClaimEnd::Repeatable, .. } = op {
                *end = ClaimEnd::Undone;
            }
        },
        truly,
        "what_may_be_repeated_leaves_its_fingerprint",
    )
    .await;
    caught(
        "leaves the lease of an ended claim as it is",
        |op| {
            if let Op::Unclaim { key, end: ClaimEnd::Lapsed, .. } = op {
                let (key, retention) = (key.clone(), Duration::from_secs(1));
                *op = Op::Lookup { key, retention, fingerprint: None, born: None };
            }
        },
        |op, reply| {
            if matches!(op, Op::Unclaim { .. }) {
                *reply = Reply::Done;
            }
        },
        "a_claim_can_lapse_before_its_time",
    )
    .await;
}

#[tokio::test]
async fn wrong_rules_about_memory_are_caught() {
    caught(
        "says of a key that it forgot that it was never there",
        as_is,
        |_, reply| {
            if let Reply::Record { unsure, .. } = reply {
                *unsure = Duration::ZERO;
            }
        },
        "an_emptied_node_does_not_claim_to_remember",
    )
    .await;
    caught(
        "claims to remember after a loss",
        as_is,
        |_, reply| {
            if let Reply::Claimed { unsure, .. } = reply {
                *unsure = Duration::ZERO;
            }
        },
        "an_emptied_node_does_not_claim_to_remember",
    )
    .await;
}

/// A node may put off what shows a result, but not all of it, and not after it was executed.
#[tokio::test]
async fn wrong_ways_to_put_off_are_caught() {
    caught(
        "puts every result off",
        as_is,
        |_, reply| {
            if matches!(reply, Reply::Completed(_) | Reply::Record(Some(_))) {
                *reply = Reply::Deferred;
            }
        },
        "many_large_results_are_shown_or_put_off",
    )
    .await;
    caught(
        "puts off what shows no result",
        as_is,
        |op, reply| {
            if let (Op::Lookup { .. }, Reply::Record(None)) = (op, &*reply) {
                *reply = Reply::Deferred;
            }
        },
        "many_large_results_are_shown_or_put_off",
    )
    .await;
    caught(
        "puts off what it has executed",
        as_is,
        |_, reply| {
            let odd = |record: &StoredRecord| record.value.as_ref().is_some_and(|v| v[0] % 2 == 1);
            if matches!(reply, Reply::Claimed { record: Some(record), .. } if odd(record)) {
                *reply = Reply::Deferred;
            }
        },
        "what_is_put_off_was_not_executed",
    )
    .await;
}
