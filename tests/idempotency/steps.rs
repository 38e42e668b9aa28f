//! Tests of the steps of a handler. A step that finished in an earlier attempt does not run again.
//! If another attempt has taken over, a step that the old attempt finishes late does not count.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use palisade::idempotency::{Context, StepError};
use palisade::{Failed, Idempotency, Lapsed, Outcome, Redlock, RunError};
use palisade_testing::fault::Step;
use tokio::time::{sleep, timeout};

use crate::support::idem::{World, secs};

/// Number of starts of each step's work.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Ledger {
    /// Returns the work of a step. The work counts its starts, and returns this count.
    fn act(self, name: &'static str) -> impl Future<Output = Result<u32, Failed>> {
        std::future::poll_fn(move |_| {
            let mut all = self.0.lock().unwrap();
            let n = all.entry(name).or_default();
            *n += 1;
            Poll::Ready(Ok(*n))
        })
    }

    fn counts(&self) -> Vec<(&'static str, u32)> {
        self.0.lock().unwrap().iter().map(|(name, n)| (*name, *n)).collect()
    }
}

fn reruns(redlock: &Redlock) -> Idempotency {
    let orders = redlock.idempotency("orders").lease(secs(10)).at_most_once();
    orders.on_lapsed(Lapsed::Rerun).build().unwrap()
}

/// Runs three steps in order. Waits for an hour before the step with the index `hangs`.
async fn three(cx: Context, ledger: Ledger, hangs: usize) -> Result<Vec<u32>, Failed> {
    let mut values = Vec::new();
    for (i, name) in ["reserve", "charge", "ship"].into_iter().enumerate() {
        if i == hangs {
            sleep(secs(3_600)).await;
        }
        values.push(cx.step(name, ledger.clone().act(name)).await?);
    }
    Ok(values)
}

fn steps_of(error: RunError) -> StepError {
    let RunError::Handler { failed, .. } = error else { panic!("{error:?}") };
    failed.downcast_ref::<StepError>().expect("of a step").clone()
}

#[tokio::test(start_paused = true)]
async fn a_rerun_goes_on_where_the_crash_was() {
    for n in [1, 3, 5] {
        for crash in 0..=2 {
            let w = World::new(n);
            let ledger = Ledger::default();
            let run = |hangs| {
                let ledger = ledger.clone();
                reruns(&w.redlock).key("k").run(move |cx| three(cx, ledger, hangs))
            };
            assert!(timeout(secs(1), run(crash)).await.is_err(), "it hangs");
            sleep(secs(10)).await;
            let out = run(9).await.unwrap();
            let Outcome::Executed { value, attempt: 2, .. } = out else { panic!("{out:?}") };
            assert_eq!(value, [1, 1, 1], "{n} nodes, crash before step {crash}");
            assert_eq!(ledger.counts(), [("charge", 1), ("reserve", 1), ("ship", 1)]);
            assert_eq!(run(9).await.unwrap(), Outcome::Replayed(vec![1, 1, 1]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_one_node_has_is_made_certain_before_it_is_answered() {
    let w = World::new(3);
    let ledger = Ledger::default();
    let first = w.handle(0);
    let (l, network) = (ledger.clone(), first.faults.clone());
    let died = reruns(&first.redlock).key("k").run(|cx| async move {
        // From here on only the first node receives the requests of this attempt.
        network[1].cut();
        network[2].cut();
        cx.step("charge", l.act("charge")).await
    });
    let e = steps_of(died.await.unwrap_err());
    assert!(matches!(e, StepError::NotRecorded { overtaken: false, .. }), "{e}");
    assert!(!e.to_string().contains("another attempt"), "{e}");
    drop(first);
    sleep(secs(20)).await;
    // The second attempt reads the step's value from the first node, replays the step, and is then
    // dropped.
    let second = w.handle(0);
    second.faults[2].cut();
    let l = ledger.clone();
    let died = reruns(&second.redlock).key("k").run(|cx| async move {
        assert_eq!(cx.step("charge", l.act("charge")).await.ok(), Some(1));
        sleep(secs(3_600)).await;
        Ok::<_, Failed>(0)
    });
    assert!(timeout(secs(2), died).await.is_err());
    drop(second);
    sleep(secs(20)).await;
    // The third attempt reaches only the second and the third node.
    let third = w.handle(0);
    third.faults[0].cut();
    let l = ledger.clone();
    let done = reruns(&third.redlock).key("k");
    let out = done.run(|cx| async move { cx.step("charge", l.act("charge")).await }).await;
    assert!(matches!(out.unwrap(), Outcome::Executed { value: 1, .. }));
    assert_eq!(ledger.counts(), [("charge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_late_step_of_an_attempt_that_was_overtaken_is_refused() {
    let w = World::new(3);
    let ledger = Ledger::default();
    let slow = w.handle(0);
    let (l, network) = (ledger.clone(), slow.faults.clone());
    let call = reruns(&slow.redlock).key("k");
    let zombie = tokio::spawn(call.run(move |cx| async move {
        cx.step("reserve", l.clone().act("reserve")).await?;
        let late = async {
            // The work of the step hangs. Meanwhile the lease of this attempt ends, and another
            // attempt finishes the same step.
            network.iter().for_each(palisade_testing::fault::FaultControl::cut);
            sleep(secs(30)).await;
            network.iter().for_each(palisade_testing::fault::FaultControl::heal);
            l.act("charge by a zombie").await
        };
        cx.step("charge", late).await
    }));
    sleep(secs(12)).await;
    let l = ledger.clone();
    let died = reruns(&w.redlock).key("k").run(|cx| three(cx, l, 2));
    assert!(timeout(secs(8), died).await.is_err());
    sleep(secs(15)).await;
    let e = steps_of(zombie.await.unwrap().unwrap_err());
    assert!(matches!(e, StepError::NotRecorded { overtaken: true, .. }), "{e}");
    assert!(e.to_string().contains(", another attempt took over"), "{e}");
    let l = ledger.clone();
    let out = reruns(&w.redlock).key("k").run(|cx| three(cx, l, 9)).await.unwrap();
    assert!(matches!(out, Outcome::Executed { ref value, .. } if *value == [1, 1, 1]), "{out:?}");
    let counts = ledger.counts();
    assert_eq!(counts, [("charge", 1), ("charge by a zombie", 1), ("reserve", 1), ("ship", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_handler_is_told_what_is_recorded() {
    let w = World::new(3);
    let orders = w.redlock.idempotency("orders").at_most_once().build().unwrap();
    let ledger = Ledger::default();
    let l = ledger.clone();
    // The handler fails with `Failed::retry`, so the next call runs the handler again under each
    // policy.
    let first = orders.key("k").run(|cx| async move {
        cx.step("reserve", l.clone().act("reserve")).await?;
        cx.step("charge", l.act("charge")).await?;
        Err::<u32, _>(Failed::retry("closed"))
    });
    assert!(first.await.is_err());
    let l = ledger.clone();
    let swapped = orders.key("k").run(|cx| async move {
        let e = cx.step("charge", l.clone().act("charge")).await.unwrap_err();
        let e = e.downcast_ref::<StepError>().unwrap().clone();
        let want = StepError::Changed { found: "charge".into(), recorded: "reserve".into() };
        assert_eq!(e, want);
        Err::<u32, _>(Failed::retry(e))
    });
    assert!(swapped.await.is_err());
    let l = ledger.clone();
    let shorter =
        orders.key("k").run(|cx| async move { cx.step("reserve", l.act("reserve")).await });
    let e = steps_of(shorter.await.unwrap_err());
    assert_eq!(e, StepError::Missing { recorded: "charge".into() });
    // The last call failed with an unknown effect. So this call is parked until an operator decides
    // to run the key again (`rerun`).
    let l = ledger.clone();
    let out = orders.key("k").run(|cx| three(cx, l, 9)).await.unwrap();
    assert!(matches!(out, Outcome::Parked(_)), "{out:?}");
    let l = ledger.clone();
    let out = orders.key("k").rerun(|cx| three(cx, l, 9)).await.unwrap();
    assert!(out.is_executed(), "{out:?}");
    assert_eq!(ledger.counts(), [("charge", 1), ("reserve", 1), ("ship", 1)]);
}

#[tokio::test(start_paused = true)]
async fn no_effect_behind_a_finished_step_keeps_the_step() {
    let w = World::new(3);
    let orders = w.redlock.idempotency("orders").at_most_once().build().unwrap();
    let ledger = Ledger::default();
    for round in 0..3 {
        let l = ledger.clone();
        let out = orders.key("k").run(|cx| async move {
            let receipt = cx.step("charge", l.act("charge")).await?;
            if round < 2 { Err(Failed::no_effect("nothing to ship yet")) } else { Ok(receipt) }
        });
        assert_eq!(out.await.is_ok(), round == 2);
        // A call that is dropped before its handler runs does not remove the recorded step either.
        drop(orders.key("k").run(|_| async { Ok::<_, Failed>(9) }));
    }
    assert_eq!(ledger.counts(), [("charge", 1)]);
}

#[tokio::test(start_paused = true)]
async fn steps_that_overlap_repeat_or_are_too_large_are_errors() {
    let w = World::new(1);
    let orders = w.redlock.idempotency("orders").at_least_once().build().unwrap();
    let e = |failed: Failed| failed.downcast_ref::<StepError>().expect("of a step").clone();
    let ok = || async { Ok::<_, Failed>(u128::MAX) };
    let out = orders.key("k").run(|cx| async move {
        // A failed step is not recorded, so the handler may try this step again.
        let fails = cx.step("a", async { Err::<u128, _>(Failed::retry("not yet")) }).await;
        assert!(fails.is_err());
        assert_eq!(cx.step("a", ok()).await.ok(), Some(u128::MAX));
        let twice = e(cx.step("a", ok()).await.unwrap_err());
        assert_eq!(twice, StepError::Twice { name: "a".into() });
        let large = cx.step("large", async { Ok::<_, Failed>("x".repeat(70_000)) }).await;
        assert!(matches!(e(large.unwrap_err()), StepError::TooLarge { .. }));
        let after = e(cx.step("b", ok()).await.unwrap_err());
        assert_eq!(after, StepError::Overlaps { name: "b".into() });
        Err::<u32, _>(Failed::retry("again"))
    });
    assert!(out.await.is_err());
    let out = orders.key("k").run(|cx| async move {
        assert_eq!(cx.step("a", ok()).await.ok(), Some(u128::MAX));
        let dropped = cx.step("b", async {
            sleep(secs(5)).await;
            Ok::<_, Failed>(1)
        });
        assert!(timeout(Duration::from_secs(1), dropped).await.is_err());
        let after = e(cx.step("c", ok()).await.unwrap_err());
        assert_eq!(after, StepError::Overlaps { name: "c".into() });
        Ok::<_, Failed>(1)
    });
    assert!(out.await.unwrap().is_executed());
}

#[tokio::test(start_paused = true)]
async fn lost_and_repeated_requests_change_nothing() {
    let w = World::new(3);
    let handle = w.handle(0);
    let ledger = Ledger::default();
    let l = ledger.clone();
    let network = handle.faults.clone();
    let died = reruns(&handle.redlock).key("k").run(|cx| async move {
        for (i, fault) in network.iter().enumerate() {
            let late = Duration::from_millis(300 + 100 * i as u64);
            fault.script([Step::duplicate(late), Step::lose_reply(), Step::fine(), Step::fine()]);
        }
        three(cx, l, 2).await?;
        Ok::<_, Failed>(0)
    });
    assert!(timeout(secs(5), died).await.is_err());
    sleep(secs(20)).await;
    let l = ledger.clone();
    let out = reruns(&w.redlock).key("k").run(|cx| three(cx, l, 9)).await.unwrap();
    assert!(matches!(out, Outcome::Executed { ref value, .. } if *value == [1, 1, 1]), "{out:?}");
    assert_eq!(ledger.counts(), [("charge", 1), ("reserve", 1), ("ship", 1)]);
}
