//! Reentrant locks. An owner can acquire its own lock again at once. Other owners cannot.

use std::time::Duration;

use palisade::{AcquireError, Owner, Redlock, ReentrantMutex, ReleaseError};
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::is_free;
use crate::support::memory::{Timed, linked};

const S: Duration = Duration::from_secs(1);

fn mutex(redlock: &Redlock, name: &str) -> ReentrantMutex {
    redlock.mutex(name).acquire_timeout(2 * S).build().unwrap().reentrant()
}

#[tokio::test(start_paused = true)]
async fn the_owner_enters_again_without_the_nodes_and_all_others_wait() {
    let (redlock, link) = linked();
    let (owner, other) = (Owner::new(), Owner::new());
    let m = mutex(&redlock, "m");
    let outer = m.acquire(&owner).await.unwrap();
    // A second mutex with the same name and handle is the same lock, and a clone of an `Owner` is
    // the same owner. So the owner acquires its own lock again without a request: the link to the
    // node is cut.
    link.cut();
    let begun = Instant::now();
    let inner = mutex(&redlock, "m").acquire(&owner.clone()).await.unwrap();
    let third = m.try_acquire(&owner).await.unwrap().acquired().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    link.heal();
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    assert_eq!((outer.depth(), third.depth()), (3, 3));
    assert!(!is_free(&redlock, "m").await);
    assert!(m.try_acquire(&other).await.unwrap().acquired().is_none());
    let e = m.acquire(&other).await.unwrap_err();
    assert!(matches!(e, AcquireError::TimedOut { .. }), "{e}");
    // A mutex with another name is another lock.
    let elsewhere = mutex(&redlock, "n").acquire(&owner).await.unwrap();
    assert!(elsewhere.fencing_token() > outer.fencing_token() && elsewhere.depth() == 1);
    // The guards may be dropped in any order. The last guard releases the lock.
    drop(outer);
    assert_eq!(third.release().await, Ok(1));
    assert!(!is_free(&redlock, "m").await);
    assert_eq!(inner.release().await, Ok(0));
    assert!(is_free(&redlock, "m").await);
    let again = m.acquire(&owner).await.unwrap();
    assert!(again.fencing_token() > elsewhere.fencing_token() && again.depth() == 1);
    drop(again);
    sleep(S).await;
    assert!(is_free(&redlock, "m").await, "a drop releases, too");
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_owner_make_one_attempt_and_share_its_lock() {
    let (redlock, _) = linked();
    let (owner, m) = (Owner::new(), mutex(&redlock, "m"));
    let held = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    let ask = || {
        let (m, owner) = (m.clone(), owner.clone());
        tokio::spawn(async move { m.acquire(&owner).await })
    };
    let mut calls: Vec<_> = (0..5).map(|_| ask()).collect();
    sleep(S / 10).await;
    assert!(m.try_acquire(&owner).await.unwrap().acquired().is_none(), "a call is under way");
    // The call that sends requests to the nodes is dropped, so the next waiting call sends them.
    calls.remove(0).abort();
    sleep(S / 10).await;
    held.release().await.unwrap();
    let mut guards = Vec::new();
    for call in calls {
        guards.push(call.await.unwrap().unwrap());
    }
    assert_eq!(guards[0].depth(), 4);
    assert!(guards.iter().all(|g| g.fencing_token() == guards[0].fencing_token()));
    drop(guards);
    sleep(S / 10).await;
    assert!(is_free(&redlock, "m").await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_owners_other_call_ends_at_its_own_deadline() {
    let (redlock, _) = linked();
    let (owner, m) = (Owner::new(), mutex(&redlock, "m"));
    let _held = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    let begun = Instant::now();
    let patient = redlock.mutex("m").acquire_timeout(60 * S).build().unwrap().reentrant();
    let (asks, by) = (owner.clone(), patient.clone());
    let long = tokio::spawn(async move { by.acquire(&asks).await });
    sleep(S).await;
    let e = m.acquire(&owner).await.unwrap_err();
    assert!(matches!(e, AcquireError::TimedOut { waited, .. } if waited == 2 * S), "{e}");
    assert_eq!(begun.elapsed(), 3 * S);
    // The owner's other call, which sent the requests, times out. After that, this call sends the
    // requests for the rest of its own timeout.
    let (asks, late) = (owner.clone(), redlock.mutex("m").acquire_timeout(4 * S).build().unwrap());
    let waits = tokio::spawn(async move { late.reentrant().acquire(&asks).await });
    sleep(S).await;
    long.abort();
    let e = waits.await.unwrap().unwrap_err();
    assert!(matches!(e, AcquireError::TimedOut { .. }), "{e}");
    assert!((7 * S..8 * S).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_not_acquired_again_under_an_outer_guard() {
    let (redlock, link) = linked();
    let (owner, m) = (Owner::new(), mutex(&redlock, "m"));
    let (outer, inner) = (m.acquire(&owner).await.unwrap(), m.acquire(&owner).await.unwrap());
    link.cut();
    outer.lost().await;
    link.heal();
    sleep(S).await;
    assert!(!inner.is_valid(), "they are lost together");
    for e in [m.acquire(&owner).await.unwrap_err(), m.try_acquire(&owner).await.unwrap_err()] {
        assert!(matches!(e, AcquireError::Lost(_)), "{e}");
        let text =
            "lock \"m\": lost while this owner held it; end its work, and then acquire again";
        assert_eq!(e.to_string(), text);
    }
    assert!(matches!(inner.release().await, Err(ReleaseError::Lost(_))));
    assert!(matches!(outer.release().await, Err(ReleaseError::Lost(_))));
    let anew = m.acquire(&owner).await.unwrap();
    assert!(anew.is_valid());
}

#[tokio::test(start_paused = true)]
async fn running_work_of_a_closed_handle_enters_again_and_new_work_does_not() {
    let (redlock, _) = linked();
    let (owner, m) = (Owner::new(), mutex(&redlock, "m"));
    let outer = m.acquire(&owner).await.unwrap();
    let closing = redlock.clone();
    let closed = tokio::spawn(async move { closing.close(10 * S).await });
    sleep(S).await;
    let inner = m.acquire(&owner).await.unwrap();
    let e = m.acquire(&Owner::new()).await.unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "{e}");
    drop(outer);
    inner.release().await.unwrap();
    assert!(closed.await.unwrap().is_clean());
}

#[tokio::test]
async fn a_scope_names_the_owner_of_its_own_future_only() {
    assert_eq!(Owner::current(), None);
    let (outer, inner) = (Owner::new(), Owner::new());
    outer
        .scope(async {
            assert_eq!(Owner::current().as_ref(), Some(&outer));
            inner.scope(async { assert_eq!(Owner::current().as_ref(), Some(&inner)) }).await;
            assert_eq!(Owner::current().as_ref(), Some(&outer));
            let spawned = tokio::spawn(async { Owner::current() });
            assert_eq!(spawned.await.unwrap(), None);
        })
        .await;
    assert_ne!(outer, inner);
}

/// One owner that uses two handles counts as two holders. So it cannot acquire the same name by the
/// second handle.
#[tokio::test(start_paused = true)]
async fn an_owner_holds_a_name_of_each_handle_by_itself() {
    let world = Timed::new(1);
    let (a, b, owner) = (world.redlock(), world.redlock(), Owner::new());
    let held = mutex(&a, "m").acquire(&owner).await.unwrap();
    let refused = mutex(&b, "m").try_acquire(&owner).await.unwrap();
    assert!(refused.acquired().is_none());
    held.release().await.unwrap();
    drop(mutex(&b, "m").acquire(&owner).await.unwrap());
}

/// An owner acquires and releases 199 other names. It must still recognise the lock that it holds,
/// and acquire it again at once.
#[tokio::test(start_paused = true)]
async fn an_owner_of_many_names_enters_the_one_that_it_holds() {
    let (redlock, _) = linked();
    let owner = Owner::new();
    let first = mutex(&redlock, "0").acquire(&owner).await.unwrap();
    for n in 1..200 {
        drop(mutex(&redlock, &n.to_string()).acquire(&owner).await.unwrap());
    }
    let soon = timeout(S / 10, mutex(&redlock, "0").acquire(&owner)).await;
    assert_eq!(soon.expect("at once").unwrap().depth(), 2);
    drop(first);
}
