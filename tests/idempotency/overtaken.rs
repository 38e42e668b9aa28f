//! Tests of a handler that fails after its claim was lost. Its call says so, and changes nothing of
//! the attempt that took over.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade::error::Advice;
use palisade::idempotency::Status;
use palisade::{Failed, Idempotency, Outcome, Redlock, RunError};
use palisade_testing::fault::FaultControl;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::support::idem::{World, secs};

/// A value of this type with an entry cannot be stored as JSON.
type Value = BTreeMap<(u8, u8), u8>;
type Answer = fn() -> Result<Value, Failed>;

const ANSWERS: [Answer; 5] = [
    || Err(Failed::no_effect("x")),
    || Err(Failed::permanent("x")),
    || Err(Failed::retry("x").after(Duration::from_secs(7))),
    || Err(Failed::unknown("x")),
    || Ok(Value::from([((1, 2), 3)])),
];

fn orders(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_least_once().build().unwrap()
}

/// Fails with `answer` after `pause`, while another call waits to take over.
async fn late(nodes: usize, answer: Answer, pause: Duration, heard: bool) -> (RunError, bool) {
    let w = World::new(nodes);
    let (late, soon) = (w.handle(0), w.handle(1));
    let faults = &late.faults;
    let (let_go, gone) = oneshot::channel::<()>();
    let first = orders(&late.redlock).key("k").run(async |_| {
        faults.iter().for_each(FaultControl::cut);
        sleep(pause).await;
        let _ = gone.await;
        if heard {
            faults.iter().for_each(FaultControl::heal);
        }
        answer()
    });
    let second = async {
        sleep(pause).await;
        let call = orders(&soon.redlock).key("k").in_flight_timeout(Duration::ZERO);
        let took = call.run(async |cx| {
            assert_eq!(cx.attempt(), 2);
            let _ = let_go.send(());
            sleep(secs(20)).await;
            Ok::<_, Failed>(Value::new())
        });
        matches!(took.await.unwrap(), Outcome::Executed { .. })
    };
    let (first, took) = tokio::join!(first, second);
    if took {
        let stands = orders(&soon.redlock).key("k").lookup::<Value>().await.unwrap();
        assert_eq!(stands, Status::Stored(Value::new()), "the other attempt's result stands");
    }
    (first.unwrap_err(), took)
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_claim_was_lost_says_so_and_changes_nothing() {
    for nodes in [1, 3, 5] {
        for answer in ANSWERS {
            for pause in [secs(11), secs(47), secs(400)] {
                for heard in [true, false] {
                    let (error, took) = late(nodes, answer, pause, heard).await;
                    assert!(took, "{pause:?}: {error}");
                    let RunError::Handler { overtaken, ref failed, .. } = error else {
                        panic!("{error:?}")
                    };
                    assert!(overtaken, "{pause:?}, heard {heard}: {error}");
                    let wait = failed.retry_after().unwrap_or(secs(1));
                    assert_eq!(error.advice(), Advice::RetryAfter(wait));
                    let text = error.to_string();
                    assert!(text.contains("another attempt may have taken over"), "{text}");
                    assert!(text.contains("call again with the same key"), "{text}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_the_claim_is_the_handlers_own() {
    for nodes in [1, 3, 5] {
        for answer in &ANSWERS[..4] {
            for (ends, heard) in [(secs(0), true), (secs(3), true), (secs(3), false)] {
                let w = World::new(nodes);
                let late = w.handle(0);
                let failed = orders(&late.redlock).key("k").run(async |_| {
                    if !heard {
                        late.faults.iter().for_each(FaultControl::cut);
                    }
                    sleep(ends).await;
                    answer()
                });
                let error = failed.await.unwrap_err();
                let own = matches!(error, RunError::Handler { overtaken: false, .. });
                assert!(own, "{nodes} {ends:?} {heard}: {error:?}");
            }
        }
    }
}

/// Nobody else wants the key: the answer of the nodes is the proof.
#[tokio::test(start_paused = true)]
async fn a_failure_after_the_lease_that_nobody_took_over_is_the_handlers_own() {
    for nodes in [1, 3] {
        let w = World::new(nodes);
        let late = w.handle(0);
        let failed = orders(&late.redlock).key("k").run(async |_| {
            late.faults.iter().for_each(FaultControl::cut);
            sleep(secs(25)).await;
            late.faults.iter().for_each(FaultControl::heal);
            Err::<u32, _>(Failed::permanent("no such customer"))
        });
        let error = failed.await.unwrap_err();
        assert!(matches!(error, RunError::Handler { overtaken: false, .. }), "{error:?}");
        assert_eq!(error.advice(), Advice::GiveUp);
    }
}
