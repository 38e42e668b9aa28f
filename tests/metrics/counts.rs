//! Tests of the values of the metrics after known events, in virtual time.

use palisade::{Failed, OnUnavailable, Outcome, Redlock, TryAcquire};
use palisade_cron::{Cron, Job};
use tokio::time::sleep;

use crate::recorder::Kept;
use crate::world::{S, World};

const LOCK: (&str, &str) = ("kind", "lock");
const ALL: (&str, &str) = ("name", "");

/// Returns a recorder, the guard that keeps the recorder installed, nodes, and a handle that counts
/// with this recorder.
fn counted() -> (&'static Kept, metrics::LocalRecorderGuard<'static>, World, Redlock) {
    let kept = Kept::new();
    let recorder = kept.install();
    let world = World::new();
    let redlock = world.redlock();
    (kept, recorder, world, redlock)
}

#[tokio::test(start_paused = true)]
async fn locks_are_counted_by_outcome_and_while_they_are_held() {
    let (kept, _recorder, world, redlock) = counted();
    let acquires =
        |outcome| kept.number("palisade_lock_acquires_total", &[("outcome", outcome), ALL]);
    let held = || kept.number("palisade_locks_held", &[ALL]);
    // Each series exists before its first event, so a collector sees an increase at the first
    // event.
    assert_eq!((acquires("taken"), held()), (0.0, 0.0));

    let mutex = redlock.mutex("secret-name").build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    let others = redlock.mutex("other").build().unwrap().acquire().await.unwrap();
    assert_eq!(held(), 2.0);
    assert!(matches!(mutex.try_acquire().await.unwrap(), TryAcquire::Taken(_)));
    let patient = redlock.mutex("secret-name").acquire_timeout(S).build().unwrap();
    patient.acquire().await.unwrap_err();
    let _ = tokio::time::timeout(S / 2, mutex.acquire()).await.unwrap_err();
    drop(others);
    assert_eq!(held(), 1.0);
    let waits = {
        let waiting = mutex.acquire();
        let (next, released) = tokio::join!(waiting, async {
            sleep(2 * S).await;
            guard.release().await
        });
        released.unwrap();
        drop(next.unwrap());
        kept.sizes("palisade_lock_wait_seconds", &[ALL])
    };
    assert_eq!(waits.len(), 3, "of those that were acquired");
    assert!(waits[2] >= 2.0 && waits[2] < 3.0, "{waits:?}");
    world.cut(true);
    patient.acquire().await.unwrap_err();
    drop(redlock.close(S).await);
    patient.acquire().await.unwrap_err();
    let all = ["acquired", "taken", "no_quorum", "closed", "dropped"].map(acquires);
    assert_eq!(all, [3.0, 2.0, 1.0, 1.0, 1.0]);
    assert_eq!(held(), 0.0);
    assert!(kept.label_values().iter().all(|value| !value.contains("secret")));
}

#[tokio::test(start_paused = true)]
async fn guards_without_a_lock_are_counted_by_policy_and_while_they_exist() {
    let (kept, _recorder, world, redlock) = counted();
    let mutex = |policy| redlock.mutex("a").build().unwrap().on_unavailable(policy);
    let (local, proceed) = (mutex(OnUnavailable::Local), mutex(OnUnavailable::Proceed));
    let begun = || {
        let of = |policy| kept.number("palisade_lock_degraded_total", &[("policy", policy)]);
        (of("local"), of("proceed"))
    };
    let held = || kept.number("palisade_locks_degraded", &[]);
    assert_eq!((begun(), held()), ((0.0, 0.0), 0.0));
    drop(local.acquire().await.unwrap());
    assert_eq!((begun(), held()), ((0.0, 0.0), 0.0));
    world.cut(true);
    let first = local.acquire().await.unwrap();
    let others = [proceed.acquire().await.unwrap(), proceed.acquire().await.unwrap()];
    assert_eq!((begun(), held()), ((1.0, 2.0), 3.0));
    let labels = [("outcome", "degraded"), ALL];
    assert_eq!(kept.number("palisade_lock_acquires_total", &labels), 3.0);
    drop(others);
    assert_eq!((begun(), held()), ((1.0, 2.0), 1.0));
    first.release().await.unwrap();
    assert_eq!((begun(), held()), ((1.0, 2.0), 0.0));
}

#[tokio::test(start_paused = true)]
async fn the_margin_of_renewals_falls_before_a_lease_is_lost() {
    let (kept, _recorder, world, redlock) = counted();
    let guard = redlock.mutex("a").build().unwrap().acquire().await.unwrap();
    let margins = || kept.sizes("palisade_lease_renewal_margin_ratio", &[LOCK, ALL]);
    let renewals =
        |outcome| kept.number("palisade_lease_renewals_total", &[("outcome", outcome), LOCK, ALL]);
    sleep(9 * S).await;
    // A renewal is due after a quarter of the ttl, or up to a quarter of this time earlier.
    let renewed = margins().len();
    assert!((4..=6).contains(&renewed), "{renewed}");
    assert_eq!(renewals("renewed"), renewed as f64);
    assert!(margins().iter().all(|m| (0.70..0.82).contains(m)), "{:?}", margins());
    assert_eq!(renewals("no_quorum"), 0.0);
    world.cut(true);
    guard.lost().await;
    assert!(renewals("no_quorum") > 1.0);
    let margins = margins();
    assert!(*margins.last().unwrap() < 0.2, "{margins:?}");
    assert!(margins[renewed..].is_sorted_by(|a, b| a >= b), "{margins:?}");
    assert_eq!(kept.number("palisade_leases_lost_total", &[LOCK, ALL]), 1.0);
    assert_eq!(kept.number("palisade_locks_held", &[ALL]), 0.0);
    let at_loss = kept.sizes("palisade_lease_lost_margin_seconds", &[LOCK, ALL]);
    assert_eq!(at_loss, [0.0], "at its deadline, not before");
    let faults = [("node", "node-0"), ("fault", "unreachable")];
    assert!(kept.number("palisade_node_faults_total", &faults) > 1.0);
    drop(guard);
    assert_eq!(kept.number("palisade_leases_lost_total", &[LOCK, ALL]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn names_of_locks_are_labels_where_that_is_asked_for() {
    let kept = Kept::new();
    let _recorder = kept.install();
    let world = World::new();
    let redlock = world.builder().metrics_by_lock_name().build().unwrap();
    let mutex = |n: usize| redlock.mutex(format!("lock-{n}")).build().unwrap();
    let guards: Vec<_> = futures_util::future::join_all(
        (0..300).map(|n| async move { mutex(n).acquire().await.unwrap() }),
    )
    .await;
    let held = |name| kept.number("palisade_locks_held", &[("name", name)]);
    assert_eq!(held("lock-7"), 1.0);
    assert_eq!(held("(other)"), 44.0, "names beyond the 256th share one");
    drop(guards);
    assert_eq!((held("lock-7"), held("(other)")), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn an_election_counts_who_leads_and_the_time_without_a_leader() {
    let (kept, _recorder, world, redlock) = counted();
    let election = redlock.election("e").build().unwrap();
    let leading = || kept.number("palisade_election_leading", &[("name", "e")]);
    let leaderless = || kept.number("palisade_election_leaderless_seconds", &[("name", "e")]);
    let mut observer = election.observe();
    let watch = tokio::spawn(async move { while observer.next().await.is_some() {} });
    let first = election.campaign("a").await.unwrap();
    assert_eq!(leading(), 1.0);
    let follower = world.redlock().election("e").build().unwrap();
    assert!(follower.try_campaign("b").await.unwrap().won().is_none());
    assert_eq!(leading(), 1.0, "one of two");
    sleep(5 * S).await;
    assert_eq!(leaderless(), 0.0);
    first.resign().await.unwrap();
    assert_eq!(leading(), 0.0);
    sleep(60 * S).await;
    assert!((50.0..61.0).contains(&leaderless()), "{}", leaderless());
    let second = election.campaign("a").await.unwrap();
    sleep(5 * S).await;
    assert_eq!(leaderless(), 0.0);
    let seen = kept.sizes("palisade_election_vacancy_seconds", &[("name", "e")]);
    assert!((59.0..66.0).contains(seen.last().unwrap()), "{seen:?}");
    assert_eq!(kept.number("palisade_election_terms_total", &[("name", "e")]), 2.0);
    world.cut(true);
    second.lost().await;
    assert_eq!(leading(), 0.0);
    let labels = [("kind", "election"), ("name", "e")];
    assert_eq!(kept.number("palisade_leases_lost_total", &labels), 1.0);
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn calls_under_keys_are_counted_once_for_both_readers() {
    let (kept, _recorder, world, redlock) = counted();
    let keys = redlock.idempotency("pay").at_most_once().build().unwrap();
    let calls = |outcome| {
        let labels = [("outcome", outcome), ("name", "pay")];
        kept.number("palisade_idempotency_calls_total", &labels)
    };
    let run = |key: &str| keys.key(key).run(|_| async { Ok::<_, Failed>(1) });
    assert!(matches!(run("a").await, Ok(Outcome::Executed { .. })));
    assert!(matches!(run("a").await, Ok(Outcome::Replayed(1))));
    let unknown = keys.key("b").run(|_| async { Err::<u8, _>("no answer") }).await;
    unknown.unwrap_err();
    assert!(matches!(run("b").await, Ok(Outcome::Parked(_))));
    let running = || kept.number("palisade_claims_held", &[]);
    let slow = keys.key("c").run(|_| async {
        assert_eq!(running(), 1.0);
        Ok::<_, Failed>(())
    });
    assert!(slow.await.unwrap().value().is_some());
    assert_eq!(running(), 0.0);
    world.cut(true);
    run("d").await.unwrap_err();
    let outcomes = ["executed", "replayed", "failed_unknown", "parked_lapsed", "no_quorum"];
    assert_eq!(outcomes.map(calls), [2.0, 1.0, 1.0, 1.0, 1.0]);
    let own = keys.metrics();
    let own = [own.executed, own.replayed, own.failed_unknown, own.parked_lapsed, own.no_quorum];
    assert_eq!(own.map(|n| n as f64), outcomes.map(calls), "one truth");
    let granted = [("outcome", "granted")];
    assert_eq!(kept.number("palisade_idempotency_claims_total", &granted), 4.0);
    for node in redlock.metrics() {
        let labels = [("node", &*node.name)];
        assert_eq!(kept.number("palisade_node_ops_total", &labels), node.ops as f64);
        assert_eq!(kept.number("palisade_node_grants_total", &labels), node.grants as f64);
        let took = kept.sizes("palisade_node_request_seconds", &labels);
        assert_eq!(took.len() as u64, node.batches);
    }
}

#[tokio::test(start_paused = true)]
async fn ticks_are_counted_by_what_became_of_them() {
    let (kept, _recorder, _world, redlock) = counted();
    let cron = Cron::new(&redlock);
    let job = Job::new("job", "* * * * * *").late(S);
    let run = cron.run(job, |tick| async move {
        if tick.unix_seconds() % 2 == 0 { Ok(()) } else { Err("odd") }
    });
    let history = cron.clone();
    let _ = tokio::time::timeout(10 * S + S / 2, run).await.unwrap_err();
    let ticks = |outcome| {
        kept.number("palisade_cron_ticks_total", &[("outcome", outcome), ("name", "job")])
    };
    let over = history.history(&Job::new("job", "* * * * * *").late(S), 30).await.unwrap();
    let of = |end: &str| {
        let text = |report: &palisade_cron::TickReport| format!("{:?}", report.state);
        over.iter().filter(|report| text(report).contains(end)).count() as f64
    };
    assert!(ticks("done") >= 4.0 && ticks("failed") >= 4.0);
    assert_eq!((ticks("done"), ticks("failed")), (of("end: Done"), of("end: Failed")));
    let late = kept.sizes("palisade_cron_tick_lateness_seconds", &[("name", "job")]);
    assert_eq!(late.len() as f64, ticks("done") + ticks("failed"));
    assert!(late.iter().all(|s| (0.0..1.0).contains(s)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn ticks_that_no_process_can_run_are_missed() {
    let (kept, _recorder, world, redlock) = counted();
    let cron = Cron::new(&redlock);
    let job = Job::new("job", "* * * * * *").late(S);
    let run = cron.run(job, |_| async { Ok::<_, Failed>(()) });
    let cut = async {
        sleep(3 * S).await;
        world.cut(true);
        sleep(20 * S).await;
        world.cut(false);
        sleep(10 * S).await;
    };
    tokio::select! {
        biased;
        ended = run => ended.unwrap(),
        () = cut => {}
    }
    let missed = kept.number("palisade_cron_ticks_missed_total", &[("name", "job")]);
    let done = [("outcome", "done"), ("name", "job")];
    let done = kept.number("palisade_cron_ticks_total", &done);
    // Each of the 33 seconds has one tick: missed or done. The first and the last tick may be
    // absent.
    assert!(missed >= 15.0, "{missed}");
    assert!((30.0..=34.0).contains(&(missed + done)), "{missed} and {done}");
}

#[tokio::test(start_paused = true)]
async fn ticks_of_before_a_restart_are_not_missed() {
    let kept = Kept::new();
    let _recorder = kept.install();
    let world = World::new();
    for _ in 0..2 {
        let redlock = world.redlock();
        let cron = Cron::new(&redlock);
        let job = Job::new("job", "* * * * * *").late(S);
        let run = cron.run(job, |_| async { Ok::<_, Failed>(()) });
        tokio::select! {
            biased;
            ended = run => ended.unwrap(),
            () = sleep(20 * S) => {}
        }
    }
    let missed = kept.number("palisade_cron_ticks_missed_total", &[("name", "job")]);
    let done = [("outcome", "done"), ("name", "job")];
    let done = kept.number("palisade_cron_ticks_total", &done);
    assert!(missed == 0.0 && done >= 38.0, "{missed} missed, {done} done");
}

#[tokio::test(start_paused = true)]
async fn a_handle_says_who_votes_and_what_was_lost() {
    let (kept, _recorder, world, redlock) = counted();
    let of =
        |name: &str, node: &str| kept.number(&format!("palisade_node_{name}"), &[("node", node)]);
    let ready = || kept.number("palisade_ready", &[]);
    assert!(ready().is_nan() && of("voting", "node-0").is_nan(), "no node was asked yet");
    let unknown =
        |name| kept.number("palisade_idempotency_keys_unknown_until_seconds", &[("name", name)]);
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let run = async |key| orders.key(key).run(|_| async { Ok::<_, Failed>(()) }).await;
    assert!(run("first").await.unwrap().is_executed());
    sleep(S).await;
    assert_eq!((ready(), of("voting", "node-0")), (1.0, 1.0));
    assert_eq!((of("losses_total", "node-0"), of("loss_seconds", "node-0")), (0.0, 0.0));

    world.links[0].forget();
    sleep(3 * S).await;
    assert_eq!((ready(), of("voting", "node-0"), of("voting", "node-1")), (1.0, 0.0, 1.0));
    assert_eq!((of("losses_total", "node-0"), of("loss_seconds", "node-0")), (1.0, f64::INFINITY));
    let ends = of("quarantine_ends_seconds", "node-0");
    world.links[1].forget();
    sleep(3 * S).await;
    assert_eq!(ready(), 0.0, "two of three are in quarantine");
    assert!(of("quarantine_ends_seconds", "node-1") > ends && ends > 0.0);
    sleep(9 * S).await;
    assert_eq!((ready(), of("voting", "node-0")), (1.0, 1.0));
    assert_eq!(redlock.metrics()[0].losses, 1);

    assert_eq!(unknown("orders"), 0.0);
    assert!(matches!(run("second").await.unwrap(), Outcome::Parked(_)));
    let until = unknown("orders") - ends;
    assert!((86_390.0..86_430.0).contains(&until), "a day from the loss: {until}");
    // The key of the job's schedule is forgotten too: the nodes cannot tell if it was used before
    // they lost data. The key does not count as unknown, because the scheduler stores it again.
    let cron = Cron::new(&redlock);
    let job = Job::new("j", "* * * * * *");
    let _ = tokio::time::timeout(5 * S, cron.run(job, |_| async { Ok::<_, Failed>(()) })).await;
    assert_eq!(unknown("cron"), 0.0);

    world.cut(true);
    sleep(6 * S).await;
    assert_eq!((ready(), of("voting", "node-2")), (0.0, 0.0));
}
