//! The memory node passes all cases of the suite, which finds each node that breaks one rule.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::FencingToken;
use palisade::node::MemoryNode;
use palisade::node::spi::{
    Batch, ClaimEnd, IfHeld, LockKeys, LockMode, LockNode, Op, OwnerToken, Remembered, Reply,
    Slots, StoredRecord,
};
use palisade_testing::contract::{self, Hooks};
use palisade_testing::fault::Fault;
use tokio::task::JoinSet;

use self::wrap::Wrap;

/// The case `$by` fails for a node that changes each op of the form `$op`.
macro_rules! asks {
    ($what:literal, $by:literal, $op:pat => $change:expr) => {
        caught(
            $what,
            |op| {
                if let $op = op {
                    $change
                }
            },
            truly,
            $by,
        )
        .await
    };
}

/// The case `$by` fails for a node that changes each answer of the form `$reply` to an op of the
/// form `$op`.
macro_rules! tells {
    ($what:literal, $by:literal, $op:pat, $reply:pat => $change:expr) => {
        caught(
            $what,
            as_is,
            |op, reply| {
                if let ($op, $reply) = (op, reply) {
                    $change
                }
            },
            $by,
        )
        .await
    };
}

mod deadlines;
mod handovers;
mod lives;
mod locks;
mod records;
#[path = "../../../tests/support/wrap.rs"]
mod wrap;

/// Those that do not disturb the node at the same time. Returns the number of cases that ran and
/// the names of the failed ones.
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

fn at_once(act: impl Fn()) -> impl Fn() -> Ready<()> {
    move || {
        act();
        ready(())
    }
}

fn hooks(node: &MemoryNode) -> Hooks {
    let [emptied, restarted, flushed, lost, closed, handed] = [(); 6].map(|()| node.clone());
    Hooks::default()
        .restart_empty(at_once(move || emptied.restart_empty()))
        .restart_keeping(at_once(move || restarted.restart_keeping()))
        .flush(at_once(move || flushed.flush_all()))
        .close(at_once(move || assert!(closed.close(Duration::from_secs(1)))))
        .hand_over(at_once(move || {
            assert!(handed.close(Duration::from_secs(30)));
            handed.hand_over();
        }))
        .put_foreign(move |key, ttl| {
            lost.put_foreign(&key, ttl);
            ready(())
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

#[test]
fn the_manual_counts_the_cases() {
    let manual = include_str!("../../../src/manual/how_this_is_tested.md");
    let cases = format!("| {} cases, ", contract::cases().len());
    assert!(manual.contains(&cases), "{cases}");
}

/// `ask` changes each op before the node executes it, and `tell` the node's answer.
fn mutant(inner: MemoryNode, ask: fn(&mut Op), tell: fn(&Op, &mut Reply)) -> Wrap {
    Wrap::new(inner, move |inner, mut batch, deadline| async move {
        let asked = batch.ops.clone();
        batch.ops.iter_mut().for_each(ask);
        let mut replies = inner.call(batch, deadline).await;
        for (op, item) in asked.iter().zip(&mut replies.items) {
            if let Ok(reply) = item {
                tell(op, reply);
            }
        }
        replies
    })
}

/// Returns the message of the panic.
async fn failure(node: impl LockNode, hooks: Hooks, by: &str) -> String {
    let (case, name) = (contract::cases().into_iter().find(|c| c.name() == by), node.name());
    let case = case.unwrap();
    let result = tokio::spawn(async move { case.run(Arc::new(node), &hooks).await }).await;
    let text = *result.expect_err(by).into_panic().downcast::<String>().unwrap();
    assert!(text.contains(by) && text.contains(&*name), "{text}");
    text
}

async fn caught(what: &str, ask: fn(&mut Op), tell: fn(&Op, &mut Reply), by: &str) {
    let inner = memory();
    let hooks = hooks(&inner);
    let text = failure(mutant(inner, ask, tell), hooks, by).await;
    assert!(text.contains(';'), "{what}: {text}");
}

/// The node ignores what a client remembers of its data.
#[tokio::test]
async fn a_node_that_calls_lost_data_new_is_caught() {
    for by in [
        "an_empty_node_is_fresh_until_a_client_remembers_its_data",
        "a_client_that_connects_again_reports_that_data_are_lost",
    ] {
        let inner = memory();
        let hooks = hooks(&inner);
        let deaf = Wrap::new(inner, |inner, batch, deadline| async move {
            inner.call(Batch { remembers: Remembered::default(), ..batch }, deadline).await
        });
        failure(deaf, hooks, by).await;
    }
    tells!("says of all data that they are new",
        "an_empty_node_is_fresh_until_a_client_remembers_its_data",
        _, Reply::Claimed { fresh, .. } => *fresh = true);
    tells!("says of no data that they are new",
        "an_empty_node_is_fresh_until_a_client_remembers_its_data",
        _, Reply::Claimed { fresh, .. } => *fresh = false);
}

/// The node confirms every barrier, or never answers one.
#[tokio::test(start_paused = true)]
async fn wrong_barriers_are_caught() {
    for (hangs, by) in [
        (false, "a_barrier_of_another_past_confirms_nothing"),
        (false, "a_barrier_without_enough_replicas_refuses"),
        (true, "a_barrier_over_all_replicas_is_answered"),
    ] {
        let call = |node: MemoryNode, batch, at| async move { node.call(batch, at).await };
        let eager = Wrap::new(memory(), call).barrier(move |_| async move {
            if hangs { std::future::pending().await } else { Ok(2_000_000) }
        });
        failure(eager, Hooks::default(), by).await;
    }
}

fn as_is(_: &mut Op) {}
fn truly(_: &Op, _: &mut Reply) {}
