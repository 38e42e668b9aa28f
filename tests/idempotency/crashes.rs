//! The crash kit of `palisade_testing` lets a process crash at each point of an idempotent call. It
//! is applied to calls that keep the library's guarantees, and to calls that break them.

use palisade::idempotency::{Call, Context};
use palisade::{Failed, Outcome, Probed, RunError};
use palisade_testing::crash::{CrashKind, CrashReport, Crashes, Delivery, Process};

const KINDS: [CrashKind; 4] =
    [CrashKind::Kill, CrashKind::Stall, CrashKind::LoseData, CrashKind::SkewClock];

fn call(process: &Process, once: bool) -> Call {
    let orders = process.redlock().idempotency("orders");
    let orders = if once { orders.at_most_once() } else { orders.at_least_once() };
    orders.build().unwrap().key("order-7")
}

fn delivery(outcome: &Result<Outcome<u32>, RunError>) -> Delivery {
    match outcome {
        Ok(Outcome::Executed { .. } | Outcome::Replayed(_)) => Delivery::Done,
        Ok(Outcome::Parked(_)) => Delivery::Parked,
        _ => Delivery::Again,
    }
}

/// Returns the names of the crash points in a report's trials. Each trial has one crash.
fn points(report: &CrashReport) -> Vec<&str> {
    report.trials.iter().filter_map(|t| t.point.as_deref()).collect()
}

#[tokio::test(start_paused = true)]
async fn at_most_once_is_at_most_once_at_every_point() {
    for nodes in [1, 3] {
        for kind in KINDS {
            let report = Crashes::new(nodes, kind).run(|process| async move {
                let effect = async |_: Context| {
                    process.effect().await;
                    Ok::<_, Failed>(1)
                };
                delivery(&call(&process, true).run(effect).await)
            });
            let report = report.await.unwrap();
            report.assert_at_most_once();
            for point in ["before the effect", "behind the effect", "before Claim at node-0"] {
                assert!(points(&report).contains(&point), "{nodes} {kind:?}: {report:?}");
            }
            if kind == CrashKind::Kill {
                let parked = |t: &&_| {
                    matches!(
                        t,
                        palisade_testing::crash::Trial { ended: Some(Delivery::Parked), .. }
                    )
                };
                assert!(report.trials.iter().any(|t| parked(&t)), "{report:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_makes_it_exactly_once() {
    for kind in KINDS {
        let report = Crashes::new(3, kind).run(|process| async move {
            let probe = async |_: Context| match process.effects() {
                0 => Probed::NotFound,
                n => Probed::Found(n),
            };
            let effect = async |_: Context| {
                process.effect().await;
                Ok::<_, Failed>(process.effects())
            };
            delivery(&call(&process, true).probe(probe).run(effect).await)
        });
        report.await.unwrap().assert_exactly_once();
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_step_is_not_repeated_at_any_point_behind_it() {
    let report = Crashes::new(3, CrashKind::Kill).run(|process| async move {
        let steps = async |cx: Context| {
            let charge = async {
                process.effect().await;
                Ok::<_, Failed>(1)
            };
            let receipt = cx.step("charge", charge).await?;
            cx.step("ship", async { Ok::<_, Failed>(receipt + 1) }).await
        };
        delivery(&call(&process, false).run(steps).await)
    });
    let report = report.await.unwrap();
    assert!(points(&report).iter().any(|p| p.starts_with("behind Steps")), "{report:?}");
    // A crash inside a step may repeat the effect of the step. A crash after the step was recorded
    // must not.
    let mut recorded = 0;
    for trial in &report.trials {
        let point = trial.point.as_deref().unwrap_or_default();
        assert_eq!(trial.ended, Some(Delivery::Done), "{trial}");
        if point.contains("Complete") {
            assert_eq!(trial.effects, 1, "{trial}");
            recorded += 1;
        }
    }
    assert!(recorded > 0, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn code_that_repeats_its_effect_is_caught() {
    let report = Crashes::new(3, CrashKind::Kill).run(|process| async move {
        let effect = async |_: Context| {
            process.effect().await;
            Ok::<_, Failed>(1)
        };
        delivery(&call(&process, false).run(effect).await)
    });
    let report = report.await.unwrap();
    let twice: Vec<_> = report.trials.iter().filter(|t| t.effects == 2).collect();
    assert!(twice.iter().any(|t| t.point.as_deref() == Some("behind the effect")), "{report:?}");
    let caught = std::panic::catch_unwind(|| report.assert_at_most_once()).unwrap_err();
    let message = caught.downcast_ref::<String>().expect("a sentence");
    assert!(
        message.contains("Kill behind the effect: 2 effects, Done after 2 deliveries"),
        "{message}"
    );
}
