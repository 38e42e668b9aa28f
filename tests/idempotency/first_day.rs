//! The first day of a deployment: the README's example on a server that nobody used before.

use std::time::{Duration, SystemTime};

use palisade::idempotency::{ParkedReason, Status};
use palisade::{Advice, Failed, Idempotency, Outcome, RedisNode, Redlock, RunError};

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
    // Made since: known to be new, executed and replayed.
    let ordered = Some(SystemTime::now());
    assert!(executed(&deliver(&payments, "b", ordered).await.unwrap()));
    let again = deliver(&payments, "b", ordered).await.unwrap();
    assert!(matches!(again, Outcome::Replayed(_)), "{again:?}");
    // Made before, or nobody says when: nobody knows.
    for (key, ordered) in [("c", Some(early)), ("d", None)] {
        let parked = deliver(&payments, key, ordered).await.unwrap();
        let Outcome::Parked(parked) = parked else { panic!("{parked:?}") };
        assert_eq!(parked.reason, ParkedReason::Forgotten);
        assert!(parked.to_string().contains("new keys without `created_at`"), "{parked}");
    }
    let look = payments.key("d").lookup::<String>().await.unwrap();
    assert!(matches!(look, Status::Forgotten { .. }), "{look:?}");
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
