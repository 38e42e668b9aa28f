//! Idempotency keys that are claimed in one batch, so that the caller may run the work, and
//! completed in one batch later.

use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::idempotency::{Claim, Claimed, Status};
use palisade::{Failed, Idempotency, Outcome, RedisNode, Redlock, RunError};
use palisade_testing::fault::FaultControl;
use tokio::time::sleep;

use crate::support::idem::{Effects, World, secs};
use crate::support::server::Server;

type Claims = Vec<Result<Claimed<u32>, RunError>>;

/// Returns a short text for the result of each claim.
fn short(claims: &Claims) -> Vec<String> {
    let word = |one: &Result<Claimed<u32>, RunError>| match one {
        Ok(Claimed::Ours(claim)) => format!("ours {}", claim.context().key()),
        Ok(Claimed::Answered(Outcome::InFlight { .. })) => "in flight".to_owned(),
        Ok(Claimed::Answered(Outcome::Parked(_))) => "parked".to_owned(),
        Ok(Claimed::Answered(outcome)) => format!("{outcome:?}"),
        Ok(Claimed::SameAs(place)) => format!("same as {place}"),
        Err(RunError::Config { .. }) => "config".to_owned(),
        Err(e) => e.to_string(),
    };
    claims.iter().map(word).collect()
}

fn ours(claims: Claims) -> Vec<Claim<u32>> {
    let claim = |one| if let Ok(Claimed::Ours(claim)) = one { Some(claim) } else { None };
    claims.into_iter().filter_map(claim).collect()
}

async fn claim(orders: &Idempotency, keys: &[&str]) -> Claims {
    orders.claim_many(keys.iter().map(|key| orders.key(*key))).await
}

/// Returns the outcome of another call with this key. Panics if the handler of this call runs.
async fn seen(orders: &Idempotency, key: &str) -> Outcome<u32> {
    let never = |_| async { panic!("it ran") as Result<u32, Failed> };
    orders.key(key).run(never).await.unwrap()
}

async fn status(orders: &Idempotency, key: &str) -> Status<u32> {
    orders.key(key).lookup().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_request_to_each_node_and_so_are_its_results() {
    let w = World::new(3);
    let handle = w.handle(0);
    let orders = handle.orders();
    let calls = || (0..100).map(|i| orders.key(format!("order-{i}")));
    // The first request to a node also reads the node's clock, so this request is not counted.
    seen_or_run(&orders, "first").await;
    let before = handle.faults[0].calls();
    let requests = || handle.faults.iter().map(|f| f.calls() - before).collect::<Vec<_>>();
    let claims = ours(orders.claim_many(calls()).await);
    assert_eq!((claims.len(), requests()), (100, vec![1; 3]));
    let done = claims.into_iter().zip(0..).map(|(claim, i)| (claim, Ok::<_, Failed>(i)));
    for outcome in orders.complete_many(done).await {
        assert!(outcome.unwrap().is_executed());
    }
    assert_eq!(requests(), [2; 3]);
    let replayed = orders.claim_many::<u32>(calls()).await;
    for (i, one) in (0..).zip(&replayed) {
        assert!(matches!(one, Ok(Claimed::Answered(Outcome::Replayed(v))) if *v == i), "{one:?}");
    }
    assert_eq!(requests(), [3; 3]);
    let counted = orders.metrics();
    assert_eq!((counted.executed, counted.replayed), (101, 100));
}

#[tokio::test]
async fn a_batch_is_one_round_trip_on_a_real_server_and_so_are_its_results() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let batches = || server.calls("evalsha");
    // A new connection calls the script to look at the data, so the first run is not counted.
    seen_or_run(&orders, "first").await;
    let before = batches();
    let claims = orders.claim_many((0..100).map(|i| orders.key(format!("order-{i}")))).await;
    let claims = ours(claims);
    assert_eq!((claims.len(), batches() - before), (100, 1));
    let tokens: Vec<_> = claims.iter().map(|claim| claim.context().fencing_token()).collect();
    assert!(tokens.iter().all(|token| token.get() > 0));
    let done = claims.into_iter().map(|claim| (claim, Ok::<_, Failed>(7)));
    for outcome in orders.complete_many(done).await {
        assert!(outcome.unwrap().is_executed());
    }
    assert_eq!(batches() - before, 2);
    assert_eq!(seen(&orders, "order-99").await, Outcome::Replayed(7));
}

async fn seen_or_run(orders: &Idempotency, key: &str) {
    let ran = orders.key(key).run(|_| async { Ok::<_, Failed>(1) }).await;
    assert!(ran.unwrap().is_executed());
}

#[tokio::test(start_paused = true)]
async fn each_call_of_a_batch_has_its_own_answer_and_duplicates_are_linked_to_the_first() {
    let w = World::new(3);
    let orders = w.orders();
    seen_or_run(&orders, "done").await;
    seen_or_run(&w.redlock.idempotency("bills").at_most_once().build().unwrap(), "done").await;
    let elsewhere = claim(&w.handle(0).orders(), &["busy"]).await;
    let boom = orders.key("lapsed").run(|_| async { Err::<u32, _>("boom") }).await;
    assert!(boom.is_err());
    let bills = w.redlock.idempotency("bills").at_most_once().build().unwrap();
    let x = |key| orders.key(key).fingerprint("x");
    let y = |key| orders.key(key).fingerprint("y");
    let calls = vec![
        x("a"),
        orders.key("done"),
        orders.key("busy"),
        x("a"),
        y("a"),
        orders.key("lapsed"),
        bills.key("new"),
        orders.key("not\na key"),
        orders.key("new"),
        y("a"),
        orders.key("done"),
    ];
    let claims = orders.claim_many(calls).await;
    let want = [
        "ours a",
        "Replayed(1)",
        "in flight",
        "same as 0",
        "Mismatch",
        "parked",
        "ours new",
        "config",
        "ours new",
        "same as 4",
        "same as 1",
    ];
    assert_eq!(short(&claims), want);
    assert_eq!(short(&elsewhere), ["ours busy"]);
    let mut results = vec![Ok(10), Err(Failed::no_effect("closed")), Ok(30)].into_iter();
    let done = ours(claims).into_iter().map(|claim| (claim, results.next().unwrap()));
    let done = orders.complete_many(done.collect::<Vec<_>>()).await;
    assert!(matches!(done[0], Ok(Outcome::Executed { value: 10, attempt: 1, .. })), "{done:?}");
    assert!(matches!(done[1], Err(RunError::Handler { .. })), "{done:?}");
    assert!(matches!(done[2], Ok(Outcome::Executed { value: 30, .. })), "{done:?}");
    assert_eq!(status(&orders, "new").await, Status::Stored(30));
    assert_eq!(status(&bills, "new").await, Status::Absent);
}

#[tokio::test(start_paused = true)]
async fn claims_are_renewed_until_they_are_completed_or_dropped() {
    let w = World::new(3);
    let orders = w.orders();
    let mut claims = ours(claim(&orders, &["kept", "dropped"]).await);
    // The wait is longer than two leases of ten seconds, so the claims must have been renewed.
    sleep(secs(25)).await;
    assert!(claims.iter().all(|claim| claim.context().is_valid()));
    let dropped = claims.pop().unwrap();
    let lost = dropped.context().lost_signal();
    drop(dropped);
    lost.lost().await;
    // The dropped claim may have had an effect. So no other caller may run before the lease of the
    // claim has ended.
    let in_flight = |outcome: &Outcome<u32>| matches!(outcome, Outcome::InFlight { .. });
    let others = w.handle(0).orders();
    assert!(in_flight(&seen(&others, "dropped").await));
    assert!(in_flight(&seen(&others, "kept").await));
    sleep(secs(11)).await;
    assert_eq!(status(&orders, "dropped").await, Status::Lapsed { attempt: 1 });
    let done = orders.complete_many(claims.into_iter().map(|claim| (claim, Ok::<_, Failed>(5))));
    assert!(done.await[0].as_ref().unwrap().is_executed());
    assert_eq!(seen(&others, "kept").await, Outcome::Replayed(5));
    assert_eq!(w.redlock.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_dropped_while_it_waits_gives_everything_back() {
    let w = World::new(3);
    let orders = w.orders();
    let others = w.handle(0).orders();
    let busy = ours(claim(&others, &["busy"]).await);
    let calls = || [orders.key("free"), orders.key("busy").in_flight_timeout(secs(60))];
    let waits = orders.claim_many::<u32>(calls());
    // The wait is longer than a lease, so the granted claims are renewed meanwhile.
    assert!(tokio::time::timeout(secs(25), waits).await.is_err());
    sleep(secs(1)).await;
    assert_eq!(status(&orders, "free").await, Status::Absent);
    // Repeat both calls, and let them end this time.
    let (claims, ()) = tokio::join!(orders.claim_many::<u32>(calls()), async {
        sleep(secs(25)).await;
        let done = busy.into_iter().map(|claim| (claim, Ok::<_, Failed>(9)));
        assert!(others.complete_many(done).await[0].is_ok());
    });
    assert_eq!(short(&claims), ["ours free", "Replayed(9)"]);
    assert_eq!(ours(claims)[0].context().attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_name_at_other_nodes_is_another_key() {
    let (here, there) = (World::new(3).orders(), World::new(3).orders());
    let claims = here.claim_many::<u32>([here.key("k"), there.key("k")]).await;
    assert_eq!(short(&claims), ["ours k", "ours k"]);
    let done = ours(claims).into_iter().zip([1, 2]).map(|(claim, n)| (claim, Ok::<_, Failed>(n)));
    here.complete_many(done).await;
    assert_eq!(
        (status(&here, "k").await, status(&there, "k").await),
        (Status::Stored(1), Status::Stored(2))
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_does_not_wait_for_its_own_claim() {
    let w = World::new(3);
    let orders = w.orders();
    let call = || orders.key("k").in_flight_timeout(secs(60));
    let claims = orders.claim_many::<u32>([call(), call().fingerprint("x")]);
    let claims = tokio::time::timeout(secs(30), claims).await.expect("it need not wait");
    assert_eq!(short(&claims), ["ours k", "in flight"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_lost_meanwhile_is_no_claim() {
    let w = World::new(3);
    let handle = w.handle(0);
    let (orders, others) = (handle.orders(), w.orders());
    let busy = ours(claim(&others, &["busy"]).await);
    // The waiting call uses another handle, whose links are never cut.
    let calls = [orders.key("free"), others.key("busy").in_flight_timeout(secs(60))];
    let (claims, ()) = tokio::join!(orders.claim_many::<u32>(calls), async {
        sleep(secs(1)).await;
        handle.faults.iter().for_each(FaultControl::cut);
        sleep(secs(20)).await;
        handle.faults.iter().for_each(FaultControl::heal);
        let done = busy.into_iter().map(|claim| (claim, Ok::<_, Failed>(9)));
        assert!(others.complete_many(done).await[0].is_ok());
    });
    assert_eq!(short(&claims), ["in flight", "Replayed(9)"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_another_attempts_does_not_change_it() {
    let w = World::new(3);
    let handle = w.handle(0);
    let claims = ours(claim(&handle.orders(), &["k"]).await);
    handle.faults.iter().for_each(FaultControl::cut);
    sleep(secs(11)).await;
    assert!(!claims[0].context().is_valid());
    let e = Effects::default();
    let again = w.orders().key("k").rerun(|_| e.act(Duration::ZERO)).await.unwrap();
    assert!(matches!(again, Outcome::Executed { value: 1, attempt: 2, .. }), "{again:?}");
    handle.faults.iter().for_each(FaultControl::heal);
    let orders = handle.orders();
    let done = claims.into_iter().map(|claim| (claim, Ok::<_, Failed>(2)));
    let done = orders.complete_many(done).await;
    assert!(matches!(done[0], Ok(Outcome::Replayed(1))), "{done:?}");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_away_are_an_error_of_each_call_and_nothing_is_sent_before_the_first_poll() {
    let w = World::new(3);
    let handle = w.handle(0);
    let orders = handle.orders();
    drop(orders.claim_many::<u32>([orders.key("k")]));
    assert!(handle.faults.iter().all(|fault| fault.calls() == 0));
    handle.faults.iter().for_each(FaultControl::cut);
    let claims = claim(&orders, &["a", "b", "a"]).await;
    for one in [&claims[0], &claims[1]] {
        assert!(matches!(one, Err(RunError::NoQuorum { .. })), "{one:?}");
    }
    assert!(matches!(claims[2], Ok(Claimed::SameAs(0))));
    assert_eq!(orders.metrics().no_quorum, 2);
    assert!(claim(&orders, &[]).now_or_never().is_some_and(|none| none.is_empty()));
}
