//! The birth of a key is the time at which its request was made. These tests show how the birth
//! decides the outcome on nodes that lost data. They step virtual time by milliseconds.

use std::time::Duration;

use palisade::idempotency::{Call, ParkedReason, Status};
use palisade::{Idempotency, MemoryNode, Outcome, RunError};
use tokio::time::sleep;

use crate::support::idem::{BEGIN, Effects, World, at, secs};

const MS: Duration = Duration::from_millis(1);
/// Clock error E (largest error of any clock) of the tests' handles (clients), in milliseconds.
const E: u64 = 2_000;
const KEEP: Duration = Duration::from_secs(100);

fn orders(w: &World, skew: i64) -> Idempotency {
    let redlock = w.builder(skew).build().unwrap();
    let builder = redlock.idempotency("orders").at_most_once();
    builder.retention(KEEP).build().unwrap()
}

/// Sends a request, so that the restarted nodes detect that they may have lost data. Waits until
/// their quarantine, in which they grant nothing, has ended. Returns the time when their new data
/// history began.
async fn settle(w: &World) -> u64 {
    let since = w.now();
    let look = orders(w, 0).key("settle").lookup::<u32>().await;
    look.unwrap();
    sleep(secs(40)).await;
    since
}

/// Returns true if the call of a new key runs its handler.
///
/// Otherwise one of two things must happen. The call is parked, because the key is forgotten: the
/// nodes cannot tell if it was used before. Or the call is refused, because the server is not
/// initialised. A lookup must agree with the call.
async fn runs(call: Call) -> bool {
    let look = call.clone().lookup::<u32>().await.unwrap();
    let outcome = match call.run(|_| async { Ok::<_, String>(1) }).await {
        Err(RunError::NotInitialised { .. }) => {
            assert!(matches!(look, Status::Forgotten { .. }), "{look:?}");
            return false;
        }
        other => other.unwrap(),
    };
    match outcome {
        Outcome::Executed { attempt: 1, .. } => {
            assert_eq!(look, Status::Absent);
            true
        }
        Outcome::Parked(parked) => {
            assert_eq!((parked.attempt, parked.reason), (0, ParkedReason::Forgotten));
            assert_eq!(look, Status::Forgotten { remaining: parked.forgotten_for });
            false
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_node_that_restarted_runs_what_was_made_after_it_and_a_margin() {
    for life in [MemoryNode::restart_keeping, MemoryNode::restart_empty] {
        let w = World::with_nodes(&[0], Duration::ZERO);
        assert!(runs(orders(&w, 0).key("before")).await, "nothing is forgotten yet");
        life(&w.nodes[0]);
        let since = settle(&w).await;
        let orders = orders(&w, 0);
        for (made, known) in [
            (since - 1, false),
            (since, false),
            (since + 2 * E, false),
            (since + 2 * E + 1, true),
            (since + 30_000, true),
        ] {
            let call = orders.key(format!("made-{made}")).created_at(at(made));
            assert_eq!(
                runs(call).await,
                known,
                "{} ms after",
                made.cast_signed() - since.cast_signed()
            );
        }
        assert!(!runs(orders.key("without")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_millisecond_do_not_count() {
    let w = World::with_nodes(&[0], Duration::ZERO);
    w.nodes[0].restart_empty();
    sleep(Duration::from_micros(999)).await;
    let since = settle(&w).await;
    let orders = orders(&w, 0);
    let last = at(since + 2 * E) + Duration::from_micros(999);
    assert!(!runs(orders.key("last").created_at(last)).await);
    assert!(runs(orders.key("first").created_at(last + Duration::from_micros(1))).await);
}

#[tokio::test(start_paused = true)]
async fn after_a_promotion_the_margin_covers_how_long_the_old_master_went_on() {
    let window = secs(7);
    let w = World::with_nodes(&[0], window);
    let copy = w.nodes[0].snapshot();
    assert!(runs(orders(&w, 0).key("k")).await);
    w.nodes[0].restore(copy);
    let since = settle(&w).await;
    let orders = orders(&w, 0);
    for (made, known) in [(2 * E + 1, false), (7_000 + 2 * E, false), (7_000 + 2 * E + 1, true)] {
        let call = orders.key(format!("made-{made}")).created_at(at(since + made));
        assert_eq!(runs(call).await, known, "{made} ms after");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_birth_memory_is_whole_after_the_retention() {
    let w = World::with_nodes(&[0], secs(7));
    w.nodes[0].restart_keeping();
    let since = settle(&w).await;
    let whole = since + 7_000 + 2 * E + KEEP.as_millis() as u64;
    sleep(Duration::from_millis(whole - w.now())).await;
    let orders = orders(&w, 0);
    // `whole` is the last time at which the key is still forgotten (the nodes cannot tell if it was
    // used before the loss). The outcome reports one more millisecond.
    let parked = orders.key("a").run(|_| async { Ok::<_, String>(1) }).await.unwrap();
    assert!(matches!(&parked, Outcome::Parked(p) if p.forgotten_for == MS), "{parked:?}");
    sleep(MS).await;
    assert!(runs(orders.key("a")).await);
    // From now on, each request that is younger than the retention of records was made after the
    // loss of data. So no key is forgotten.
    assert!(runs(orders.key("b").created_at(at(w.now()) - KEEP)).await);
}

#[tokio::test(start_paused = true)]
async fn the_namespace_may_be_younger_than_the_loss() {
    let w = World::with_nodes(&[0], Duration::ZERO);
    w.nodes[0].restart_empty();
    let since = settle(&w).await;
    let since_of = |used: u64| {
        let builder = w.redlock.idempotency("orders").at_most_once();
        builder.retention(KEEP).in_use_since(at(used)).build().unwrap()
    };
    let (old, young) = (since_of(since + 2 * E), since_of(since + 2 * E + 1));
    assert!(!runs(old.key("a")).await);
    assert!(runs(young.key("a")).await);
    // The later one of two times counts: the time since which the namespace is in use, or the birth
    // (time of creation) of the key.
    assert!(runs(old.key("b").created_at(at(since + 2 * E + 1))).await);
    assert!(runs(young.key("c").created_at(at(since - 10_000))).await);
    assert!(!runs(old.key("d").created_at(at(since))).await);
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_lost_data_asks_for_no_birth() {
    let w = World::with_nodes(&[0, 0, 0], Duration::ZERO);
    w.nodes[0].restart_empty();
    settle(&w).await;
    assert!(runs(orders(&w, 0).key("a")).await);
    w.nodes[1].restart_empty();
    let since = settle(&w).await;
    assert!(!runs(orders(&w, 0).key("b")).await);
    assert!(runs(orders(&w, 0).key("c").created_at(at(since + 2 * E + 1))).await);
    // Node 1 lost the result of `a`, but the other two nodes still have it.
    let again = orders(&w, 0).key("a").run(|_| async { Ok::<_, String>(2) }).await.unwrap();
    assert_eq!(again, Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn what_an_old_master_ran_is_not_run_again_whatever_the_clocks() {
    // A replica is promoted. For up to L more (the failover window), its old master accepts claims,
    // and the new master never receives them. The clocks of the new master and of the client that
    // made the request are off by up to E, in both directions.
    const L: u64 = 5_000;
    for maker in [-2_000_i64, 0, 2_000] {
        for node in [-2_000_i64, 0, 2_000] {
            for after in [0, 1_000, L] {
                let w = World::with_nodes(&[0, node], Duration::from_millis(L));
                let e = Effects::default();
                sleep(secs(50)).await;
                let [old, new] = [0, 1].map(|i| {
                    let redlock = w.over(&w.nodes[i..=i], 0).build().unwrap();
                    let builder = redlock.idempotency("orders");
                    builder.retention(KEEP).at_most_once().build().unwrap()
                });
                w.nodes[1].restore(w.nodes[0].snapshot());
                new.key("settle").lookup::<u32>().await.unwrap();
                sleep(Duration::from_millis(after)).await;
                let made = at(w.now().saturating_add_signed(maker));
                let run = |orders: &Idempotency| {
                    orders.key("k").created_at(made).run(|_| e.act(Duration::ZERO))
                };
                assert!(run(&old).await.unwrap().is_executed());
                sleep(secs(60)).await;
                let again = run(&new).await.unwrap();
                assert!(matches!(again, Outcome::Parked(_)), "{maker} {node} {after}: {again:?}");
                assert_eq!(e.count(), 1);
                // A key that is made now cannot have run before.
                assert!(runs(new.key("new").created_at(at(w.now()))).await);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn between_replay_and_too_old_there_is_no_gap() {
    // The clocks of the node and of the client that made the request are off by at most E, the
    // largest permitted clock error.
    for node in [-2_000, 0, 2_000] {
        for maker in [-2_000, 0, 2_000] {
            let w = World::with_nodes(&[node], Duration::ZERO);
            let e = Effects::default();
            let orders = orders(&w, 0);
            let made = at(w.now().saturating_add_signed(maker));
            let call = || orders.key("k").created_at(made);
            assert!(call().run(|_| e.act(Duration::ZERO)).await.unwrap().is_executed());
            sleep(secs(90)).await;
            let mut last = None;
            // A record is kept for the retention and, in addition, for the lease of its claim.
            for _ in 0..320 {
                let said = call().run(|_| e.act(Duration::ZERO)).await.unwrap();
                match (&said, &last) {
                    (Outcome::Replayed(1), None | Some(Outcome::Replayed(1)))
                    | (Outcome::TooOld, Some(_)) => {}
                    other => panic!("{node} {maker}: {other:?}"),
                }
                last = Some(said);
                sleep(Duration::from_millis(99)).await;
            }
            assert_eq!((last, e.count()), (Some(Outcome::TooOld), 1));
            assert!(orders.metrics().too_old > 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_old_is_judged_by_the_node_to_the_millisecond() {
    let w = World::with_nodes(&[0], Duration::ZERO);
    let orders = orders(&w, 0);
    sleep(2 * KEEP).await;
    let oldest = at(w.now()) - KEEP;
    let run =
        |key: &str, made| orders.key(key).created_at(made).run(|_| async { Ok::<_, String>(1) });
    assert_eq!(run("a", oldest - MS).await.unwrap(), Outcome::TooOld);
    // The refused call left neither a claim nor a fingerprint, so the same key can run.
    assert!(run("a", oldest).await.unwrap().is_executed());
    // A stored result is replayed at any age of the request.
    assert_eq!(run("a", oldest - MS).await.unwrap(), Outcome::Replayed(1));
    // An operator can also decide about old requests.
    let resolved = orders.key("b").created_at(oldest - MS).resolve(&2).await.unwrap();
    assert_eq!(resolved, palisade::idempotency::Resolved::Stored);
}

#[tokio::test(start_paused = true)]
async fn a_birth_in_the_future_is_refused_with_both_times() {
    let w = World::with_nodes(&[0], Duration::ZERO);
    let orders = orders(&w, 0);
    let ahead = |ms| orders.key("k").created_at(at(BEGIN + ms));
    let run = ahead(2 * E + 1).run(|_| async { panic!("ran") as Result<u32, String> });
    let refused = [run.await.unwrap_err(), ahead(2 * E + 1).lookup::<u32>().await.unwrap_err()];
    for error in refused {
        assert!(matches!(&error, RunError::Config { error, .. } if error.field() == "created_at"));
        let text = error.to_string();
        let want = "handler of \"orders:k\" not run: `created_at` is 2023-11-14T22:13:24.001Z: at \
                    most twice clock_error (4s) ahead of this machine's clock, which shows \
                    2023-11-14T22:13:20.000Z; ";
        assert!(text.starts_with(want), "{text}");
    }
    assert!(w.nodes[0].is_empty(), "something was sent");
    assert!(runs(ahead(2 * E)).await);
    let later = w.redlock.idempotency("n").at_most_once();
    let error = later.in_use_since(at(BEGIN + 2 * E + 1)).build().unwrap_err();
    assert_eq!(error.field(), "in_use_since");
}

#[tokio::test(start_paused = true)]
async fn keys_that_say_when_they_were_made() {
    let w = World::with_nodes(&[0], Duration::ZERO);
    let orders = orders(&w, 0);
    let made_at = |ms: u64| format!("{:08x}-{:04x}-7abc-8def-0123456789ab", ms >> 16, ms & 0xffff);
    let old = made_at(w.now() - 101_000);
    let too_old = orders.key(&old).created_in_uuid_v7().run(|_| async { Ok::<_, String>(1) });
    assert_eq!(too_old.await.unwrap(), Outcome::TooOld);
    assert!(runs(orders.key(made_at(w.now())).created_in_uuid_v7()).await);
    let ulid = "01HF7YAT00TSV4RRFFQ69G5FAV";
    assert_eq!(palisade::idempotency::created_in_ulid(ulid), Some(at(BEGIN)));
    assert!(runs(orders.key(ulid).created_in_ulid()).await);
    for call in [orders.key("order-7").created_in_uuid_v7(), orders.key(&old).created_in_ulid()] {
        let error = call.run(|_| async { panic!("ran") as Result<u32, String> }).await.unwrap_err();
        assert!(matches!(&error, RunError::Config { error, .. } if error.field() == "key"));
        assert!(error.to_string().contains("or call `created_at` instead"), "{error}");
    }
}
