//! Tests of handlers that run under idempotency keys, on in-memory nodes and under tokio's paused
//! clock.

use std::time::Duration;

use palisade::idempotency::{Effect, Resolved, Status};
use palisade::{Failed, Idempotency, Outcome, Probed, RunError};

use crate::support::idem::{Effects, World, boom, secs};

#[tokio::test(start_paused = true)]
async fn a_value_that_json_does_not_keep_is_an_error_of_the_run_that_made_it() {
    let of = World::new(3).orders();
    for (key, value) in [("nan", f64::NAN), ("inf", f64::INFINITY)] {
        let out = of.key(key).run(async |_| Ok::<_, String>(vec![Some(value)])).await;
        assert!(matches!(out, Err(RunError::Codec { .. })), "{out:?}");
        let again = of.key(key).run(async |_| Ok::<_, String>(vec![Some(1.5)])).await.unwrap();
        assert!(matches!(again, Outcome::Parked(_)), "it took effect: {again:?}");
        assert!(of.key(key).resolve(&value).await.is_err());
    }
    let nested = |key: &'static str, value: Option<Option<u8>>| {
        of.key(key).run(async move |_| Ok::<_, String>(value))
    };
    assert!(matches!(nested("some", Some(None)).await, Err(RunError::Codec { .. })));
    for (key, value) in [("none", None), ("both", Some(Some(7)))] {
        assert!(nested(key, value).await.unwrap().is_executed());
        assert_eq!(nested(key, Some(Some(9))).await.unwrap(), Outcome::Replayed(value));
    }
    for blank in ["", " ", "\u{feff}", "\u{2003}\u{200b}"] {
        let out = of.key(blank).run(async |_| Ok::<_, String>(1)).await;
        assert!(matches!(out, Err(RunError::Config { .. })), "{blank:?}: {out:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn executed_then_replayed() {
    for n in [1, 3, 5] {
        let w = World::new(n);
        let e = Effects::default();
        for round in 0..3 {
            let out = w.orders().key("k").run(|_| e.act(Duration::ZERO)).await.unwrap();
            match out {
                Outcome::Executed { value: 1, attempt: 1, .. } if round == 0 => {}
                Outcome::Replayed(1) if round > 0 => {}
                other => panic!("{n} nodes, round {round}: {other:?}"),
            }
        }
        assert_eq!((e.count(), w.redlock.held()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn of_32_duplicates_at_once_one_runs() {
    for (n, wait) in [(1, 0), (3, 0), (5, 0), (1, 30), (3, 30), (5, 30)] {
        let w = World::new(n);
        let e = Effects::default();
        let tasks: Vec<_> = (0..32)
            .map(|i| {
                // Four handles send the requests, so requests overtake each other on the way to the
                // nodes.
                let (orders, e) = (w.handle(i % 4).orders(), e.clone());
                tokio::spawn(async move {
                    let call =
                        orders.key("k").fingerprint(&("alice", 3)).in_flight_timeout(secs(wait));
                    call.run(|_| e.act(secs(1))).await.unwrap()
                })
            })
            .collect();
        let mut executed = 0;
        for t in tasks {
            match t.await.unwrap() {
                Outcome::Executed { value: 1, attempt: 1, .. } => executed += 1,
                Outcome::Replayed(1) => {}
                Outcome::InFlight { retry_after } if wait == 0 => assert!(retry_after <= secs(10)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((executed, e.count()), (1, 1), "{n} nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_a_mismatch() {
    let w = World::new(3);
    let e = Effects::default();
    let run = |request: &'static str| {
        let (orders, e) = (w.orders(), e.clone());
        async move { orders.key("k").fingerprint(request).run(|_| e.act(secs(1))).await.unwrap() }
    };
    // The request `buy 4` is made twice: while the first call runs, and after the first call has
    // ended.
    let (first, second) = tokio::join!(run("buy 3"), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        run("buy 4").await
    });
    assert!(first.is_executed());
    assert_eq!(second, Outcome::Mismatch);
    assert_eq!(run("buy 4").await.into_value(), None);
    assert_eq!(run("buy 3").await, Outcome::Replayed(1));
    assert_eq!(run("buy 3").await.into_value(), Some(1));
    // A call without a fingerprint gets the result.
    assert_eq!(w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap(), Outcome::Replayed(1));
    assert_eq!(e.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_effect_frees_the_key_at_once() {
    let w = World::new(3);
    let e = Effects::default();
    for _ in 0..3 {
        let call = w.orders().key("k").fingerprint("first try");
        let out = call.run(|_| async { Err::<u32, _>(Failed::no_effect("later")) }).await;
        assert_eq!(effect(&out), Effect::None);
        assert_eq!(w.orders().key("k").lookup::<u32>().await.unwrap(), Status::Absent);
    }
    // The failed calls also removed the fingerprint from the nodes, so a call with another
    // fingerprint can run.
    let out = w.orders().key("k").fingerprint("second try").run(|_| e.act(secs(1))).await;
    assert_eq!(out.unwrap(), executed(1, 1));
}

/// Simulates a crash between the effect and its record.
async fn crashed(w: &World, e: &Effects) -> Idempotency {
    let orders = w.orders();
    let run = orders.key("k").run(|_| e.act(secs(3_600)));
    assert!(tokio::time::timeout(secs(2), run).await.is_err());
    assert_eq!(e.count(), 1);
    tokio::time::sleep(secs(11)).await;
    orders
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_run_far_longer_than_its_lease() {
    let (w, e) = (World::new(3), Effects::default());
    let orders = w.orders();
    let (first, second) = tokio::join!(orders.key("k").run(|_| e.act(secs(60))), async {
        tokio::time::sleep(secs(50)).await;
        orders.key("k").run(|_| e.act(secs(1))).await
    });
    assert!(first.unwrap().is_executed());
    assert!(matches!(second.unwrap(), Outcome::InFlight { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_does_not_overwrite_and_learns_the_result() {
    let w = World::new(3);
    let e = Effects::default();
    let (cut_off, other) = (w.handle(0), w.handle(1));
    let late = cut_off.orders().key("k").run(|cx| {
        let (e, faults) = (e.clone(), cut_off.faults.clone());
        async move {
            let mine = e.act(Duration::ZERO).await;
            faults.iter().for_each(palisade_testing::fault::FaultControl::cut);
            // By its own clock, the process loses the claim before another process can get the key.
            cx.lost().await;
            assert!(!cx.is_valid());
            tokio::time::sleep(secs(5)).await;
            faults.iter().for_each(palisade_testing::fault::FaultControl::heal);
            mine
        }
    });
    let taken = async {
        tokio::time::sleep(secs(12)).await;
        other.orders().key("k").rerun(|_| e.act(Duration::ZERO)).await
    };
    let (late, taken) = tokio::join!(late, taken);
    assert_eq!(taken.unwrap(), executed(2, 2));
    assert_eq!(late.unwrap(), Outcome::Replayed(2));
    assert_eq!(w.orders().key("k").lookup().await.unwrap(), Status::Stored(2));
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_lapsed_key_does_not_cost_the_late_result() {
    let w = World::new(3);
    let e = Effects::default();
    let (cut_off, other) = (w.handle(0), w.handle(1));
    let late = cut_off.orders().key("k").run(|cx| {
        let (e, faults) = (e.clone(), cut_off.faults.clone());
        async move {
            faults.iter().for_each(palisade_testing::fault::FaultControl::cut);
            cx.lost().await;
            tokio::time::sleep(secs(5)).await;
            faults.iter().for_each(palisade_testing::fault::FaultControl::heal);
            e.act(Duration::ZERO).await
        }
    });
    let parked = async {
        tokio::time::sleep(secs(12)).await;
        other.orders().key("k").run(|_| e.act(Duration::ZERO)).await
    };
    let (late, parked) = tokio::join!(late, parked);
    assert!(matches!(parked.unwrap(), Outcome::Parked(_)));
    assert_eq!(late.unwrap(), executed(1, 1));
    assert_eq!(w.orders().key("k").lookup().await.unwrap(), Status::Stored(1));
}

#[tokio::test(start_paused = true)]
async fn a_record_on_one_node_is_repaired_and_never_run_again() {
    for n in [3, 5] {
        let w = World::new(n);
        let e = Effects::default();
        let writer = w.handle(0);
        let out = writer.orders().key("k").run(|_| {
            let (e, faults) = (e.clone(), writer.faults.clone());
            async move {
                // Only node 0 receives the result.
                faults[1..].iter().for_each(palisade_testing::fault::FaultControl::cut);
                e.act(Duration::ZERO).await
            }
        });
        match out.await {
            Err(RunError::NotRecorded(not)) => {
                assert_eq!(not.attempt, 1);
                assert!(not.to_string().contains("call again with the same key"), "{not}");
            }
            other => panic!("{other:?}"),
        }
        // The lease has not ended on the other nodes, so the claim's owner may still store the
        // result.
        let out = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
        assert!(matches!(out, Outcome::InFlight { .. }), "{out:?}");
        tokio::time::sleep(secs(11)).await;
        assert_eq!(w.orders().key("k").lookup::<u32>().await.unwrap(), Status::Unsettled);
        for _ in 0..2 {
            let out = w.orders().key("k").rerun(|_| e.act(secs(1))).await.unwrap();
            assert_eq!(out, Outcome::Replayed(1));
        }
        // A majority has the result now, so the first node may lose the result.
        w.nodes[0].restart_empty();
        let out = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
        assert_eq!((out, e.count()), (Outcome::Replayed(1), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn losing_one_node_loses_nothing() {
    for n in [3, 5] {
        let (w, e) = (World::new(n), Effects::default());
        assert!(w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap().is_executed());
        w.nodes[0].restart_empty();
        for wait in [0, 40] {
            tokio::time::sleep(secs(wait)).await;
            let out = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
            assert_eq!(out, Outcome::Replayed(1));
        }
        assert!(w.orders().key("new").run(|_| e.act(secs(1))).await.unwrap().is_executed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_may_be_down_and_a_majority_may_not() {
    for (n, down, works) in [(3, 1, true), (5, 2, true), (3, 2, false), (5, 3, false)] {
        let (w, e) = (World::new(n), Effects::default());
        let h = w.handle(0);
        h.faults[..down].iter().for_each(palisade_testing::fault::FaultControl::cut);
        let out = h.orders().key("k").run(|_| e.act(secs(30))).await;
        if works {
            assert!(out.unwrap().is_executed());
            let out = h.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
            assert_eq!(out, Outcome::Replayed(1));
        } else {
            assert!(matches!(out, Err(RunError::NoQuorum { .. })), "{out:?}");
            assert_eq!(e.count(), 0);
            // The first call released its grants on the nodes that it reached, so this call can run
            // at once.
            h.faults.iter().for_each(palisade_testing::fault::FaultControl::heal);
            let out = h.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
            assert_eq!(out, executed(1, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_minority_does_not_stop_anybody() {
    let (w, e) = (World::new(3), Effects::default());
    let h = w.handle(0);
    h.faults[2].freeze();
    let out = h.orders().key("k").run(|_| e.act(secs(30))).await.unwrap();
    assert!(out.is_executed());
    h.faults[2].thaw();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(w.orders().key("k").lookup().await.unwrap(), Status::Stored(1));
}

#[tokio::test(start_paused = true)]
async fn after_the_retention_the_key_is_new() {
    let (w, e) = (World::new(3), Effects::default());
    for round in 1..=3 {
        let out = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
        assert_eq!(out, executed(round, 1));
        tokio::time::sleep(secs(24 * 3_600 - 60)).await;
        let out = w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap();
        assert_eq!(out, Outcome::Replayed(round));
        tokio::time::sleep(secs(120)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_resolves_a_parked_key() {
    let (w, e) = (World::new(3), Effects::default());
    let orders = crashed(&w, &e).await;
    assert_eq!(orders.key("k").resolve(&9).await.unwrap(), Resolved::Stored);
    assert_eq!(orders.key("k").resolve(&8).await.unwrap(), Resolved::AlreadyStored(9));
    let out = orders.key("k").run(|_| e.act(secs(1))).await.unwrap();
    assert_eq!((out, e.count()), (Outcome::Replayed(9), 1));
    // `resolve` does not interrupt a running handler.
    let (run, resolved) = tokio::join!(orders.key("run").run(|_| e.act(secs(5))), async {
        tokio::time::sleep(secs(1)).await;
        orders.key("run").resolve(&7).await.unwrap()
    });
    assert!(run.unwrap().is_executed());
    assert!(matches!(resolved, Resolved::InFlight { .. }));
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_await_nothing_runs_twice_and_nothing_stays() {
    let (w, e) = (World::new(3), Effects::default());
    let mut seen = [0; 3];
    for k in 0..80 {
        let (key, before) = (format!("k{k}"), e.count());
        let orders = w.orders();
        let mut run = Box::pin(orders.key(&key).run(|_| e.act(Duration::from_millis(8))));
        for _ in 0..k {
            if futures_util::poll!(run.as_mut()).is_ready() {
                break;
            }
            // Let the tasks that send the requests to the nodes run, or let time pass.
            if k % 2 == 0 {
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(run);
        let ran = e.count() - before;
        tokio::time::sleep(secs(11)).await;
        let out = orders.key(&key).run(|_| e.act(Duration::ZERO)).await.unwrap();
        match (ran, &out) {
            (0, Outcome::Executed { attempt: 1, .. }) => seen[0] += 1,
            (1, Outcome::Parked(p)) if p.attempt == 1 => seen[1] += 1,
            (1, Outcome::Replayed(_)) => seen[2] += 1,
            other => panic!("dropped after {k} polls: {other:?}"),
        }
        assert_eq!(w.redlock.held(), 0);
    }
    assert!(seen.iter().all(|n| *n > 0), "all three ends are met: {seen:?}");
    tokio::time::sleep(secs(25 * 3_600)).await;
    for k in 0..80 {
        let status = w.orders().key(format!("k{k}")).lookup::<u32>().await.unwrap();
        assert_eq!(status, Status::Absent);
    }
}

#[tokio::test(start_paused = true)]
async fn the_context_names_its_steps_the_same_in_every_attempt() {
    let (w, e) = (World::new(3), Effects::default());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let out = w.orders().key("k").rerun(|cx| {
            seen.push((cx.child_key("charge"), cx.child_key("ship"), cx.fencing_token()));
            boom()
        });
        assert_eq!(effect(&out.await), Effect::Unknown);
    }
    assert_eq!((&seen[0].0, &seen[0].1), (&seen[1].0, &seen[1].1));
    assert_ne!(seen[0].0, seen[0].1);
    assert!(seen[0].2 < seen[1].2);
    let _ = e;
}

#[tokio::test(start_paused = true)]
async fn results_of_another_type_and_bad_settings_are_refused_with_a_reason() {
    let (w, e) = (World::new(3), Effects::default());
    assert!(w.orders().key("k").run(|_| e.act(secs(1))).await.unwrap().is_executed());
    let out = w.orders().key("k").run(|_| async { Ok::<_, &str>(String::new()) }).await;
    assert!(out.unwrap_err().to_string().contains("cannot be read as this type"));
    for key in ["", "a\nb"] {
        let out = w.orders().key(key).run(|_| e.act(secs(1))).await;
        assert!(
            matches!(&out, Err(RunError::Config { error, .. }) if error.field() == "key"),
            "{out:?}"
        );
    }
    let with = |f: &dyn Fn(palisade::idempotency::IdempotencyBuilder) -> _| {
        let b: palisade::idempotency::IdempotencyBuilder =
            f(w.redlock.idempotency("orders").at_most_once());
        b.build().unwrap_err().to_string()
    };
    let named = |name| w.redlock.idempotency(name).at_most_once().build().unwrap_err().to_string();
    assert!(named("").starts_with("`namespace`"));
    assert!(named("a:b").contains("no colon"));
    assert!(with(&|b| b.lease(secs(31))).starts_with("`lease` is 31s: at most max_ttl (30s)"));
    assert!(with(&|b| b.lease(Duration::from_millis(20))).starts_with("`lease`"));
    assert!(with(&|b| b.retention(secs(10))).contains("longer than the lease (10s)"));
    assert!(with(&|b| b.retention(secs(366 * 86_400 + 1))).contains("at most 366 days"));
}

#[tokio::test(start_paused = true)]
async fn no_handler_starts_under_a_lost_claim() {
    let (w, e) = (World::new(3), Effects::default());
    crashed(&w, &e).await;
    let h = w.handle(0);
    let faults = h.faults.clone();
    let probing = h.orders().key("k").probe(|cx| async move {
        faults.iter().for_each(palisade_testing::fault::FaultControl::cut);
        cx.lost().await;
        Probed::NotFound
    });
    let out = probing.run(|_| e.act(secs(1))).await.unwrap();
    assert!(matches!(out, Outcome::InFlight { .. }), "{out:?}");
    assert_eq!(e.count(), 1);
}

/// Returns the effect that the handler reported with its failure.
fn effect<T: std::fmt::Debug>(out: &Result<Outcome<T>, RunError>) -> Effect {
    match out {
        Err(RunError::Handler { failed, .. }) => failed.effect(),
        other => panic!("{other:?}"),
    }
}

/// Returns the outcome of a handler that ran in this call, at the default durability.
fn executed<T>(value: T, attempt: u32) -> Outcome<T> {
    Outcome::Executed { value, attempt, durability: palisade::Achieved::default(), kept: true }
}
