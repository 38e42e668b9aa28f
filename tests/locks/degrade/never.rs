//! Cases in which a call of a degrading lock must not continue without the lock: a node reports a
//! possible holder, or another attempt would not help.

use palisade::error::{NodeFault, NodeOutcome};
use palisade::{AcquireError, Advice, DegradableGuard, OnUnavailable};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{MS, S, World, degraded, held, local, mutex, proceed, spawn};

/// Returns the result of an acquire while two of three nodes are down. `prepare` decides the reply
/// of the third node.
async fn third_node(prepare: impl AsyncFnOnce(&World)) -> Result<DegradableGuard, AcquireError> {
    let world = World::new(3);
    let redlock = world.process();
    drop(held(&local(&redlock, "other")).await);
    prepare(&world).await;
    world.cut([0, 1]);
    proceed(&redlock, "m").acquire().await
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_and_refuses_keeps_a_call_from_going_on() {
    let free = third_node(async |_| ()).await.unwrap();
    let outcomes = &free.degraded().unwrap().nodes;
    assert_eq!(outcomes[2].1, NodeOutcome::Granted);

    let in_quarantine = third_node(async |world| world.memories[2].restart_keeping()).await;
    let closed = third_node(async |world| assert!(world.memories[2].close(60 * S))).await;
    let other = third_node(async |world| {
        let guard = world.process().mutex("m").build().unwrap().acquire().await.unwrap();
        std::mem::forget(guard);
    })
    .await;
    let mut all = vec![in_quarantine, closed, other];
    for fault in [
        NodeFault::HandingOver,
        NodeFault::NotDurable,
        NodeFault::ClockJump,
        NodeFault::TokenAhead,
        NodeFault::Busy,
        NodeFault::Contended,
        NodeFault::NoReplicas,
        NodeFault::NotMaster,
        NodeFault::Loading,
        NodeFault::MinReplicasMissing,
        NodeFault::Auth,
        NodeFault::PastDeadline,
        NodeFault::Server,
        NodeFault::NoPermission,
    ] {
        all.push(third_node(async |world| world.set_error(2, fault)).await);
    }
    for (i, refused) in all.into_iter().enumerate() {
        let Err(AcquireError::NoQuorum(why)) = refused else { panic!("{i}: {refused:?}") };
        assert!(why.waited.is_some_and(|waited| waited >= 2 * S), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_were_not_asked_are_not_known() {
    let world = World::new(3);
    let redlock = world.process();
    let (busy, refuses) = (NodeFault::Busy, NodeFault::NoReplicas);
    for (faults, said) in [
        (&[busy, busy][..], "not known"),
        (&[refuses, refuses], "no;"),
        (&[busy, refuses, refuses], "no;"),
    ] {
        faults.iter().enumerate().for_each(|(node, fault)| world.set_error(node, *fault));
        let health = redlock.health().await;
        assert!(health.to_string().starts_with(&format!("locks: {said}")), "{health}");
    }
}

/// The only node serves about 5,000 requests a second, which is less than the process sends.
/// Most attempts of the calls end unsent.
#[tokio::test(start_paused = true)]
async fn a_process_that_has_too_much_to_send_does_not_go_on() {
    let world = World::new(1);
    let (busy, other) = (world.process(), world.process());
    let mut holders = Vec::new();
    for n in 0..20 {
        let mutex = other.mutex(format!("m-{n}")).build().unwrap();
        holders.push(mutex.acquire().await.unwrap());
    }
    *world.nodes[0].takes.lock().unwrap() = 100 * MS;
    let mut flood = JoinSet::new();
    for n in 0..8_000 {
        let mutex = busy.mutex(format!("name-{n}")).build().unwrap();
        flood.spawn(async move {
            // Calls that begin at one moment end at one moment, and leave gaps in between.
            sleep(n * S / 8_000).await;
            loop {
                drop(mutex.inspect().await);
            }
        });
    }
    sleep(S).await;
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let policy = [OnUnavailable::Local, OnUnavailable::Proceed][n % 2];
        let mutex = busy.mutex(format!("m-{n}")).acquire_timeout(S / 2).build().unwrap();
        let mutex = mutex.on_unavailable(policy);
        calls.spawn(async move { mutex.acquire().await });
    }
    let mut refusals = Vec::new();
    for refused in calls.join_all().await {
        let Err(why) = refused else { panic!("{refused:?}") };
        refusals.push(why.to_string());
    }
    let is_unsent = |why: &String| why.contains("not sent: the queue was busy");
    assert!(refusals.iter().any(is_unsent), "{refusals:#?}");
    assert!(holders.iter().all(palisade::LockGuard::is_valid));
}

/// Two nodes fail at once, so no majority can reply. The third node replies later and reports a
/// holder.
#[tokio::test(start_paused = true)]
async fn a_holder_is_respected_that_a_node_reports_later_than_the_others_fail() {
    let refused = third_node(async |world| {
        let guard = world.process().mutex("m").build().unwrap().acquire().await.unwrap();
        std::mem::forget(guard);
        *world.nodes[2].takes.lock().unwrap() = 100 * MS;
    })
    .await;
    let Err(AcquireError::NoQuorum(why)) = refused else { panic!("{refused:?}") };
    assert!(matches!(why.nodes[2].1, NodeOutcome::Held(Some(_))), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_setting_that_a_person_has_to_change_is_an_error_at_once() {
    for (fault, advice) in
        [(NodeFault::Auth, Advice::Misconfigured), (NodeFault::Closed, Advice::Rebuild)]
    {
        let world = World::new(3);
        (0..3).for_each(|node| world.set_error(node, fault));
        let redlock = world.process();
        let begun = Instant::now();
        for policy in [OnUnavailable::Local, OnUnavailable::Proceed] {
            let e = mutex(&redlock, "m", policy).acquire().await.unwrap_err();
            assert!(matches!(&e, AcquireError::NoQuorum(_)) && e.advice() == advice, "{e}");
        }
        assert!(begun.elapsed() < S / 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_node_in_quarantine_is_waited_for_also_during_an_outage() {
    let world = World::new(1);
    let redlock = world.process();
    let m = redlock.mutex("m").build().unwrap().on_unavailable(OnUnavailable::Local);
    world.cut([0]);
    drop(degraded(&m).await);
    world.memories[0].restart_keeping();
    world.heal();
    sleep(S).await;
    // This call asks the nodes again (the probe). Until it ends, no other call continues without
    // the lock.
    let begun = Instant::now();
    let first = held(&m).await;
    assert!(begun.elapsed() > 10 * S, "{:?}", begun.elapsed());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_taken_lock_is_waited_for_as_ever() {
    let world = World::new(3);
    let (redlock, other) = (world.process(), world.process());
    let blocker = other.mutex("m").build().unwrap().acquire().await.unwrap();
    for policy in [OnUnavailable::Local, OnUnavailable::Proceed] {
        let begun = Instant::now();
        let e = mutex(&redlock, "m", policy).acquire().await.unwrap_err();
        assert!(matches!(e, AcquireError::TimedOut { .. }), "{e}");
        assert_eq!(begun.elapsed(), 3 * S);
    }
    let waits = spawn(&local(&redlock, "m"));
    sleep(S).await;
    blocker.release().await.unwrap();
    assert!(!waits.await.unwrap().unwrap().is_degraded());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_seen_is_respected_until_its_lease_is_over() {
    let world = World::new(1);
    let (redlock, other) = (world.process(), world.process());
    let brief = other.mutex("m").ttl(5 * S).auto_renew(false).build().unwrap();
    let _blocker = brief.acquire().await.unwrap();
    let patient = redlock.mutex("m").acquire_timeout(20 * S).build().unwrap();
    let waits = spawn(&patient.on_unavailable(OnUnavailable::Local));
    let begun = Instant::now();
    sleep(S).await;
    world.cut([0]);
    assert!(waits.await.unwrap().unwrap().is_degraded());
    assert!((5 * S..6 * S).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_an_earlier_call_saw_is_respected_until_its_lease_is_over() {
    let world = World::new(1);
    let (redlock, other) = (world.process(), world.process());
    let brief = other.mutex("m").ttl(10 * S).auto_renew(false).build().unwrap();
    let blocker = brief.acquire().await.unwrap();
    let begun = Instant::now();
    let e = local(&redlock, "m").acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::TimedOut { .. }), "{e}");
    world.cut([0]);
    drop(degraded(&proceed(&redlock, "another lock")).await);
    let e = proceed(&redlock, "m").acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::NoQuorum(_)) && blocker.is_valid(), "{e}");
    let patient = redlock.mutex("m").acquire_timeout(20 * S).build().unwrap();
    drop(degraded(&patient.on_unavailable(OnUnavailable::Local)).await);
    assert!((10 * S..11 * S).contains(&begun.elapsed()), "{:?}", begun.elapsed());

    // A majority that grants it says that nobody else has it.
    world.heal();
    sleep(2 * S).await;
    drop(held(&local(&redlock, "m")).await);
    world.cut([0]);
    drop(degraded(&local(&redlock, "m")).await);
}
