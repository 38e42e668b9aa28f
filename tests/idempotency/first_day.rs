//! The first day of a deployment: the README's example on a new server.

use std::time::{Duration, SystemTime};

use palisade::idempotency::Status;
use palisade::{Advice, Failed, Idempotency, Outcome, Probed, RedisNode, Redlock, RunError};
use palisade_ops::Deployment;

use crate::support::server::Server;

fn payments(server: &Server, marked_as_new: bool) -> Idempotency {
    let node = RedisNode::builder(server.url()).trust_fresh(marked_as_new).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(1)).build().unwrap();
    redlock.idempotency("payments").at_most_once().build().unwrap()
}

async fn deliver(
    payments: &Idempotency,
    key: &str,
    ordered: Option<SystemTime>,
) -> Result<Outcome<String>, RunError> {
    let call = payments.key(key);
    let call = ordered.map_or(call.clone(), |at| call.created_at(at));
    call.run(|cx| async move { Ok::<_, String>(cx.child_key("charge")) }).await
}

fn executed<T>(outcome: &Outcome<T>) -> bool {
    matches!(outcome, Outcome::Executed { attempt: 1, .. })
}

#[tokio::test]
async fn on_a_server_marked_as_new_everything_runs() {
    let server = Server::start(&[]);
    let payments = payments(&server, true);
    for ordered in [Some(SystemTime::now()), None] {
        let key = format!("{ordered:?}");
        assert!(executed(&deliver(&payments, &key, ordered).await.unwrap()));
        let again = deliver(&payments, &key, ordered).await.unwrap();
        assert!(matches!(again, Outcome::Replayed(_)), "{again:?}");
    }
}

#[tokio::test]
async fn on_another_one_line_says_what_to_wait_for_and_then_requests_with_a_birth_run() {
    let server = Server::start(&[]);
    let payments = payments(&server, false);
    let early = SystemTime::now();
    let error = deliver(&payments, "a", Some(early)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("handler of \"payments:a\" not run: "), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let Advice::RetryAfter(wait) = error.advice() else { panic!("{text}") };
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
    tokio::time::sleep(wait + Duration::from_millis(50)).await;
    // This key is made after the wait that the error advised, so the key is certainly new. The call
    // is executed once and then replayed.
    let ordered = Some(SystemTime::now());
    assert!(executed(&deliver(&payments, "b", ordered).await.unwrap()));
    let again = deliver(&payments, "b", ordered).await.unwrap();
    assert!(matches!(again, Outcome::Replayed(_)), "{again:?}");
    // Keys that were made before the wait, or whose creation time (birth) is unknown, are refused.
    // They may have run before, because no operator has declared that the server is new.
    let older = [("c", Some(early)), ("d", None)];
    for (key, ordered) in older {
        let error = deliver(&payments, key, ordered).await.unwrap_err();
        assert!(matches!(error, RunError::NotInitialised { .. }), "{error:?}");
        assert_eq!(error.advice(), Advice::RetryAfter(Duration::from_secs(5)));
        let text = error.to_string();
        for part in [&format!("\"payments:{key}\""), &server.addr(), "palisade init", "incidents"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(payments.metrics().parked_forgotten, 0);
    }
    let look = payments.key("d").lookup::<String>().await.unwrap();
    assert!(matches!(look, Status::Forgotten { .. }), "{look:?}");
    // An operator initialises the server, and then the keys that were refused before (`older`) run.
    // Results stored before remain.
    let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    for (key, ordered) in older {
        assert!(executed(&deliver(&payments, key, ordered).await.unwrap()), "nothing was left");
    }
    for (key, ordered) in older.into_iter().chain([("b", ordered)]) {
        let again = deliver(&payments, key, ordered).await.unwrap();
        assert!(matches!(again, Outcome::Replayed(_)), "{again:?}");
    }
}

#[tokio::test]
async fn an_uninitialised_server_asks_the_policy_and_the_probe_first() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(1)).build().unwrap();
    let strict = redlock.idempotency("strict").at_most_once().build().unwrap();
    let repeats = redlock.idempotency("repeats").at_least_once().build().unwrap();
    let probed = async |found: Probed<String>| {
        let call = strict.key("k").probe(|_| std::future::ready(found));
        call.run(|_| async { Ok::<_, String>("ran".to_owned()) }).await
    };
    let lapse = Duration::from_millis(50);
    let unknown = loop {
        match probed(Probed::Unknown).await {
            Err(RunError::NoQuorum { .. }) => tokio::time::sleep(lapse).await,
            other => break other,
        }
    };
    assert!(matches!(unknown, Err(RunError::NotInitialised { .. })), "{unknown:?}");
    assert!(executed(&deliver(&repeats, "k", None).await.unwrap()));
    assert!(executed(&probed(Probed::NotFound).await.unwrap()), "no attempt is left");
}

#[tokio::test]
async fn a_claim_that_its_handler_ended_is_decided_by_the_next_call() {
    let server = Server::start(&[]);
    let payments = payments(&server, true);
    let failed = |failed: palisade::Failed| {
        payments.key("k").run(|_| std::future::ready(Err::<String, _>(failed)))
    };
    for again in [Failed::no_effect("closed"), Failed::retry("busy")] {
        assert!(matches!(failed(again).await, Err(RunError::Handler { attempt: 1, .. })));
    }
    let unknown = failed(Failed::unknown("lost")).await;
    assert!(matches!(unknown, Err(RunError::Handler { attempt: 1, .. })), "{unknown:?}");
    let parked = deliver(&payments, "k", None).await.unwrap();
    assert!(matches!(&parked, Outcome::Parked(p) if p.attempt == 1), "{parked:?}");
}
