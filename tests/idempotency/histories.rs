//! Random histories of calls with one key, under faults. Each history must have at most one result.
//! Also a test with a node on which another program has stored a value under the key of a record.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::{Lapsed, Outcome, RunError};

use crate::support::idem::{Effects, World, secs};

/// Results returned to the callers of one key, and number of handler starts after the first result.
#[derive(Default)]
struct HistoryOutcome {
    results: BTreeSet<u32>,
    late_starts: u32,
}

/// Runs one history. Processes with bad networks call one key at random times, and some of these
/// processes die. One node restarts without its data.
async fn history(seed: u64, policy: Lapsed) -> (HistoryOutcome, u32) {
    let w = World::new(if seed.is_multiple_of(3) { 5 } else { 3 });
    let e = Effects::default();
    let outcome = Arc::new(Mutex::new(HistoryOutcome::default()));
    let mut callers = Vec::new();
    for i in 0..6_u64 {
        let h = w.handle(0);
        for (j, f) in h.faults.iter().enumerate() {
            f.dice(seed * 1_000 + i * 10 + j as u64, crate::support::idem::bad());
        }
        let (orders, e, outcome) = (h.orders(), e.clone(), outcome.clone());
        callers.push(tokio::spawn(async move {
            let mut dice = seed * 7 + i * 131 + 1;
            let mut roll = |n: u64| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (dice >> 33) % n
            };
            for _ in 0..12 {
                tokio::time::sleep(Duration::from_millis(roll(9_000))).await;
                let (patience, work) = (Duration::from_millis(roll(4_000)), roll(3_000));
                let run = orders.key("k").on_lapsed(policy).run(|_| {
                    let mut outcome = outcome.lock().unwrap();
                    outcome.late_starts += u32::from(!outcome.results.is_empty());
                    e.act(Duration::from_millis(work))
                });
                let run = async {
                    // Record the result in the same poll, before another caller runs.
                    if let Ok(Some(value)) = run.await.map(Outcome::into_value) {
                        outcome.lock().unwrap().results.insert(value);
                    }
                };
                let _ = tokio::time::timeout(patience, run).await;
            }
        }));
    }
    tokio::time::sleep(secs(15 + seed % 20)).await;
    w.nodes[0].restart_empty();
    for c in callers {
        c.await.unwrap();
    }
    let outcome = std::mem::take(&mut *outcome.lock().unwrap());
    (outcome, e.count())
}

#[tokio::test(start_paused = true)]
async fn histories_of_faults_have_one_result_and_no_late_start() {
    let mut with_result = 0;
    for seed in 0..60 {
        for policy in [Lapsed::Park, Lapsed::Rerun] {
            let (outcome, effects) = history(seed, policy).await;
            let what = format!("seed {seed}, {policy:?}: {:?}, {effects} effects", outcome.results);
            assert!(outcome.results.len() <= 1, "two results: {what}");
            assert_eq!(outcome.late_starts, 0, "started after a result was seen: {what}");
            assert!(policy == Lapsed::Rerun || effects <= 1, "run twice in silence: {what}");
            with_result += u32::from(!outcome.results.is_empty());
        }
    }
    assert!(with_result > 30, "the faults leave something to test: {with_result}");
}

#[tokio::test(start_paused = true)]
async fn a_strangers_key_on_a_node_is_that_nodes_fault() {
    for (strangers, works) in [(1, true), (2, false)] {
        let (w, e) = (World::with_strangers(3, strangers), Effects::default());
        let out = w.orders().key("k").run(|_| e.act(secs(1))).await;
        if works {
            assert!(out.unwrap().is_executed());
        } else {
            let Err(RunError::NoQuorum { error: why, .. }) = out else { panic!("{out:?}") };
            assert!(why.to_string().contains("WRONGTYPE"), "{why}");
            assert_eq!(e.count(), 0);
        }
    }
}
