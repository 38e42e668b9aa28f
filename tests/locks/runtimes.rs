//! Operations on runtimes that no thread drives, on runtimes without timers, and without a runtime.
//! Each operation ends by its own deadline with a typed error. None panics.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use palisade::election::{Observation, ProclaimError};
use palisade::error::{AcquireError, ExtendError, NoQuorum, NodeFault, NodeOutcome, ReleaseError};
use palisade::node::spi::LockNode as _;
use palisade::{Advice, Failover, Idempotency, MemoryNode, Redlock, RunError};
use tokio::runtime::{Builder, Runtime};

use crate::support::wrap::Wrap;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn handle() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("a handle")
}

fn namespace(redlock: &Redlock) -> Idempotency {
    let calls = redlock.idempotency("calls").at_most_once();
    calls.build().expect("a namespace")
}

/// Polls the future on this thread, without any runtime, until it is ready.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it hangs");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The tasks that send the handle's requests to the nodes run on the first runtime, which no thread
/// drives any more. The calls come from a second runtime.
#[test]
fn a_queue_whose_runtime_is_not_driven_costs_its_deadline_and_no_more() {
    let redlock = handle();
    let (first, second) = (runtime(), runtime());
    let guard = first
        .block_on(async { redlock.mutex("n").build().unwrap().acquire().await.expect("free") });
    let calls = namespace(&redlock);
    second.block_on(async {
        let begun = Instant::now();
        // The limit is twice the node deadline, and additional time for a busy machine.
        let in_time = |what: &str| {
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(10), "{what} took {took:?}");
        };
        let got = redlock.mutex("other").build().unwrap().try_acquire().await;
        assert!(matches!(got, Err(AcquireError::NoQuorum(_))), "{got:?}");
        in_time("a try");
        assert!(matches!(guard.extend().await, Err(ExtendError::Unknown(_))));
        let done = calls.key("k").run(async |_| Ok::<_, String>(1)).await;
        assert!(matches!(done, Err(RunError::NoQuorum { .. })), "{done:?}");
        let found = calls.key("k").lookup::<i32>().await;
        assert!(matches!(found, Err(RunError::NoQuorum { .. })), "{found:?}");
        let leader = redlock.election("e").build().unwrap().leader().await;
        assert!(leader.is_err(), "{leader:?}");
        assert!(matches!(guard.release().await, Err(ReleaseError::Unconfirmed(_))));
        in_time("five verbs");
    });
    let begun = Instant::now();
    let waits = redlock.mutex("other").acquire_timeout(Duration::from_secs(2)).build().unwrap();
    let got = second.block_on(waits.acquire());
    assert!(matches!(got, Err(AcquireError::NoQuorum(_))), "{got:?}");
    assert!(begun.elapsed() < Duration::from_secs(15), "as long as it was to wait, and one try");
    drop(first);
}

/// Asserts that the only node failed with `Closed` and this text.
#[track_caller]
fn closed(why: &NoQuorum, text: &str) {
    let [(_, NodeOutcome::Failed(e))] = &why.nodes[..] else { panic!("{why}") };
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Closed, false), "{e}");
    assert_eq!(why.advice(), Advice::Rebuild);
    for text in [text, "await it on one with time and IO enabled"] {
        assert!(e.to_string().contains(text), "{text} in {e}");
    }
}

#[test]
fn without_a_runtime_each_verb_says_what_is_missing() {
    let outside = "polled outside of a tokio runtime";
    let redlock = handle();
    let calls = namespace(&redlock);
    for mutex in [
        redlock.mutex("n").build().unwrap(),
        redlock.mutex("m").acquire_timeout(Duration::from_secs(600)).build().unwrap(),
    ] {
        match block_on(mutex.acquire()) {
            Err(AcquireError::NoQuorum(why)) => closed(&why, outside),
            other => panic!("{other:?}"),
        }
    }
    match block_on(calls.key("k").run(async |_| Ok::<_, String>(1))) {
        Err(RunError::NoQuorum { error: why, .. }) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(calls.key("k").lookup::<i32>()) {
        Err(RunError::NoQuorum { error: why, .. }) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(calls.key("k").rerun(async |_| Ok::<_, String>(1))) {
        Err(RunError::NoQuorum { error: why, .. }) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(calls.key("k").resolve(&1)) {
        Err(RunError::NoQuorum { error: why, .. }) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(redlock.mutex("n").build().unwrap().try_acquire()) {
        Err(AcquireError::NoQuorum(why)) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    let election = redlock.election("e").build().unwrap();
    assert!(block_on(election.leader()).is_err());
    assert!(block_on(election.campaign("me")).is_err());
    assert!(block_on(election.try_campaign("me")).is_err());
    let patient = redlock.election("e").acquire_timeout(Duration::from_secs(600)).build().unwrap();
    assert!(block_on(patient.campaign("me")).is_err());
    assert!(
        block_on(election.observe().next())
            .is_none_or(|seen| { matches!(seen, Observation::Disconnected(_)) })
    );
    // Here the task that sends requests to the node runs on the runtime below, so requests are
    // sent. But a call without a runtime cannot wait for the reply, so it returns an error. A
    // release needs no reply, and is still sent.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let acquired = runtime.block_on(async { redlock.mutex("n").build().unwrap().acquire().await });
    let guard = acquired.expect("nothing was left there");
    match block_on(guard.extend()) {
        Err(ExtendError::Unknown(why)) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(guard.release()) {
        Err(ReleaseError::Unconfirmed(why)) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    let again = runtime.block_on(async { redlock.mutex("n").build().unwrap().acquire().await });
    drop(again.expect("it was released"));
}

const TTL: Duration = Duration::from_secs(2);

fn driven() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A handle on one node. Its requests are not answered while `stuck` is true.
fn renewing(stuck: &Arc<AtomicBool>) -> Redlock {
    let stuck = Arc::clone(stuck);
    let node = Wrap::new(MemoryNode::new(), move |inner, batch, deadline| {
        let stuck = Arc::clone(&stuck);
        async move {
            while stuck.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            inner.call(batch, deadline).await
        }
    });
    Redlock::builder().node(node).ttl(TTL).build().expect("a handle")
}

/// Start-up code takes a lock on a runtime of its own, and that runtime renews all leases of the
/// handle. It ends between two renewals, or during one.
#[test]
fn what_is_held_outlives_the_runtime_that_renewed_it_first() {
    for during in [false, true] {
        let stuck = Arc::<AtomicBool>::default();
        let redlock = renewing(&stuck);
        let (first, gone, second) = (driven(), driven(), driven());
        let mutex = |name: &str| redlock.mutex(name).build().unwrap();
        let _start = first.block_on(mutex("start").acquire()).expect("free");
        let _more = gone.block_on(mutex("more").acquire()).expect("free");
        let permits = redlock.semaphore("n", 2).build().unwrap();
        let permit = second.block_on(permits.acquire()).expect("free");
        let guard = second.block_on(mutex("held").acquire()).expect("free");
        let election = redlock.election("e").build().unwrap();
        let leadership = second.block_on(election.campaign("me")).expect("nobody leads");
        drop(gone);
        stuck.store(during, Ordering::SeqCst);
        thread::sleep(TTL / 4 + Duration::from_millis(100));
        drop(first);
        stuck.store(false, Ordering::SeqCst);
        thread::sleep(TTL * 2);
        let held = [permit.is_valid(), guard.is_valid(), leadership.is_valid()];
        assert_eq!(held, [true; 3], "during a renewal: {during}");
        second.block_on(async {
            guard.release().await.expect("it was held");
            permit.release().await.expect("it was held");
        });
    }
}

#[test]
fn whoever_asks_whether_a_lock_is_held_keeps_it_renewed() {
    let redlock = renewing(&Arc::default());
    let (first, second) = (driven(), driven());
    let guard = first.block_on(redlock.mutex("n").build().unwrap().acquire()).expect("free");
    drop(first);
    second.block_on(async {
        assert!(guard.is_valid());
        tokio::time::sleep(TTL * 2).await;
        assert!(guard.is_valid(), "it is renewed here");
        guard.release().await.expect("it was held");
    });
}

#[test]
fn without_a_runtime_waiting_for_a_loss_ends() {
    let redlock = handle();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let short =
        redlock.mutex("n").ttl(Duration::from_millis(400)).auto_renew(false).build().unwrap();
    let guard = runtime.block_on(short.acquire()).expect("free");
    block_on(guard.lost());
    assert!(!guard.is_valid());
}

#[test]
fn what_is_held_is_given_back_without_a_runtime_or_says_why_not() {
    let outside = "polled outside of a tokio runtime";
    let redlock = handle();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let short = redlock.election("e").ttl(Duration::from_millis(800)).build().unwrap();
    let leadership = runtime.block_on(short.campaign("me")).expect("nobody leads");
    match block_on(leadership.proclaim("you")) {
        Err(ProclaimError::Unknown(why)) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    match block_on(leadership.resign()) {
        Err(ReleaseError::Unconfirmed(why)) => closed(&why, outside),
        other => panic!("{other:?}"),
    }
    let guard = runtime
        .block_on(redlock.mutex("n").auto_renew(false).build().unwrap().acquire())
        .expect("free");
    let left = block_on(redlock.close(Duration::from_secs(600)));
    assert_eq!(left.held.len(), 1, "{left}");
    drop(guard);
    // The handle is closed, so the call returns at once.
    assert!(matches!(
        block_on(redlock.mutex("n").build().unwrap().acquire()),
        Err(AcquireError::Closed(_))
    ));
}

#[test]
fn without_a_runtime_waiting_for_a_failover_ends() {
    let redlock = handle();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let short =
        redlock.mutex("n").ttl(Duration::from_millis(400)).auto_renew(false).build().unwrap();
    let guard = runtime.block_on(short.acquire()).expect("free");
    assert_eq!(block_on(guard.failover()), Failover::Lost);
}

#[test]
fn a_runtime_without_timers_is_refused() {
    let redlock = handle();
    let bare = Builder::new_current_thread().build().expect("a runtime");
    match bare.block_on(namespace(&redlock).key("k").lookup::<i32>()) {
        Err(RunError::NoQuorum { error: why, .. }) => {
            closed(&why, "on a tokio runtime without timers");
        }
        other => panic!("{other:?}"),
    }
    match bare.block_on(redlock.mutex("n").build().unwrap().acquire()) {
        Err(AcquireError::NoQuorum(why)) => closed(&why, "on a tokio runtime without timers"),
        other => panic!("{other:?}"),
    }
    match bare.block_on(redlock.mutex("n").build().unwrap().inspect()) {
        Ok(seen) => assert!(!seen.is_free(), "{seen:?}"),
        Err(e) => panic!("{e}"),
    }
    let left = bare.block_on(redlock.close(Duration::from_secs(600)));
    assert!(left.held.is_empty(), "{left}");
}
