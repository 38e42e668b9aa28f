//! A lock is handed over to another process: its holder makes a ticket, by which the other process
//! takes the lock (`resume`). The lock is never free in between, and a ticket is redeemed at most
//! once. Lost requests and dead processes do not change this.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use palisade::error::{Advice, HandOverError, ResumeError};
use palisade::{Durability, HandOver, LockGuard, MemoryNode, Redlock, TryAcquire};
use palisade_testing::fault::{Fault, Step};
use tokio::time::{Instant, sleep, timeout};

use crate::trio::{SHORT, Trio, job};

const TTL: Duration = Duration::from_secs(9);

/// A process that hands the lock over (`first`), one that redeems the ticket (`second`), and
/// others.
type World = Trio;

impl World {
    async fn acquired(&self) -> LockGuard {
        job(&self.first).acquire().await.unwrap()
    }

    async fn is_taken(&self) -> bool {
        let tried = job(&self.others).try_acquire().await.unwrap();
        matches!(tried, TryAcquire::Taken(_))
    }
}

/// Returns the hand-over ticket as another process receives it: serialised to JSON and
/// deserialised.
fn sent(ticket: &HandOver) -> HandOver {
    serde_json::from_str(&serde_json::to_string(ticket).unwrap()).unwrap()
}

fn is_gone(resumed: &Result<LockGuard, ResumeError>) -> bool {
    matches!(resumed, Err(ResumeError::Gone(_)))
}

#[tokio::test]
async fn a_lock_goes_on_in_another_process_under_a_larger_token() {
    World::each(TTL, async |world| {
        let guard = world.acquired().await;
        let (token, lost) = (guard.fencing_token(), guard.lost_signal());
        let ticket = guard.hand_over().await.unwrap();
        assert_eq!((ticket.name(), ticket.fencing_token()), ("job", token));
        assert!(ticket.rest() > TTL / 2 && ticket.rest() <= TTL);
        timeout(TTL / 4, lost.lost()).await.expect("the old guard is over");
        assert_eq!(world.first.held(), 0, "it is still renewed");
        assert!(world.is_taken().await, "it was free in between");
        let guard = world.second.resume(&sent(&ticket)).await.unwrap();
        assert!(guard.is_valid() && guard.fencing_token() > token);
        assert!(world.is_taken().await);
        // The lease of the resumed guard is renewed, so the lock is still held after one and a half
        // ttls.
        sleep(TTL + TTL / 2).await;
        assert!(guard.is_valid() && world.is_taken().await);
        guard.release().await.unwrap();
        let next = job(&world.others).acquire().await.unwrap();
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_ticket_is_redeemed_once() {
    World::each(TTL, async |world| {
        let ticket = world.acquired().await.hand_over().await.unwrap();
        let guard = world.second.resume(&ticket).await.unwrap();
        let again = world.others.resume(&ticket).await;
        assert!(is_gone(&again), "{again:?}");
        assert!(guard.extend().await.is_ok(), "the second delivery took something");
        guard.release().await.unwrap();
        let late = world.others.resume(&ticket).await;
        assert!(is_gone(&late), "{late:?}");
        // The refused calls have given back what they took on the nodes, so the lock is free.
        let next = job(&world.others).acquire().await.unwrap();
        assert!(is_gone(&world.second.resume(&ticket).await));
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_the_same_time_at_most_one_wins() {
    World::each(TTL, async |world| {
        let mut wins = 0;
        for _ in 0..20 {
            let ticket = world.acquired().await.hand_over().await.unwrap();
            let (a, b) = tokio::join!(world.second.resume(&ticket), world.others.resume(&ticket));
            // If a slow node has not stored the old holder's lock yet, each of the two callers may
            // get the lock on one of the other nodes. Then neither caller has a majority, and
            // neither wins.
            assert!(is_gone(&a) || is_gone(&b), "{a:?} and {b:?}");
            if let Ok(guard) = a.or(b) {
                assert!(guard.extend().await.is_ok());
                guard.release().await.unwrap();
                wins += 1;
            }
        }
        assert!(wins >= 10, "only {wins} of 20 tickets were redeemed");
    })
    .await;
}

#[tokio::test]
async fn a_ticket_that_comes_late_is_refused() {
    World::each(TTL, async |world| {
        let mutex = world.first.mutex("job").ttl(SHORT).auto_renew(false).build().unwrap();
        let ticket = mutex.acquire().await.unwrap().hand_over().await.unwrap();
        sleep(2 * SHORT).await;
        let late = world.second.resume(&ticket).await;
        assert!(is_gone(&late), "{late:?}");
        // Another owner acquires the lock after the ticket has expired. The refused `resume` must
        // leave nothing on the nodes that harms this owner.
        let mutex = mutex.acquire().await.unwrap();
        assert!(is_gone(&world.second.resume(&ticket).await));
        assert!(mutex.extend().await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_does_not_use_the_ticket_up() {
    World::each(TTL, async |world| {
        let ticket = world.acquired().await.hand_over().await.unwrap();
        world.script(&[Step::lose_reply()]);
        let guard = world.second.resume(&ticket).await.expect("its own attempt is no obstacle");
        assert!(guard.is_valid() && guard.extend().await.is_ok());
        assert!(is_gone(&world.others.resume(&ticket).await));
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_back_what_it_took() {
    for polls in 1..12 {
        World::each(TTL, async |world| {
            let ticket = world.acquired().await.hand_over().await.unwrap();
            let mut resume = Box::pin(world.second.resume(&ticket));
            for _ in 0..polls {
                let turn = tokio::time::sleep(Duration::from_micros(200));
                tokio::select! {
                    biased;
                    done = &mut resume => return drop(done),
                    () = turn => {}
                }
            }
            drop(resume);
            // The ticket must be either still good on a majority of the nodes, or used up. If it is
            // used up, the lock must become free.
            match world.others.resume(&ticket).await {
                Ok(guard) => assert!(guard.extend().await.is_ok()),
                Err(ResumeError::Gone(_)) => {
                    let next = world.others.mutex("job").acquire_timeout(2 * TTL).build().unwrap();
                    assert!(next.acquire().await.unwrap().is_valid());
                }
                Err(other) => panic!("{other}"),
            }
        })
        .await;
    }
}

/// The first attempt of `resume` takes the lock, but its reply is lost. `resume` repeats the
/// attempt, and is dropped while the repeated request waits to be sent. The lock must not remain
/// taken.
#[tokio::test]
async fn a_call_that_is_dropped_during_a_repetition_gives_back_what_it_took() {
    let run = async |n: usize, polls: usize| {
        let world = World::memory(TTL, n);
        job(&world.second).acquire().await.unwrap().release().await.unwrap();
        let ticket = world.acquired().await.hand_over().await.unwrap();
        world.script(&[Step::lose_reply()]);
        let mut resume = Box::pin(world.second.resume(&ticket));
        let mut left = polls;
        let done = poll_fn(|cx| match resume.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                left -= 1;
                Poll::Pending
            }
        });
        drop(done.await);
        drop(resume);
        sleep(2 * SHORT).await;
        let is_good = world.others.resume(&ticket).await.is_ok();
        assert!(is_good || !world.is_taken().await, "{n} nodes, {polls} polls: it is left taken");
    };
    join_all([1, 3].into_iter().flat_map(|n| (0..24).map(move |polls| run(n, polls)))).await;
}

/// A hand-over extends the ttl of the lock once more. A renewal may be in progress at this time. No
/// other renewal may follow the extension.
#[tokio::test]
async fn no_renewal_follows_the_extension_of_a_hand_over() {
    join_all((0..12).map(|_| async {
        let world = World::memory(TTL, 1);
        let control = world.network[0].control();
        let guard = job(&world.second).acquire().await.unwrap();
        world.script(&[Step::delay(SHORT / 2), Step::delay(SHORT * 5 / 3)]);
        let before = control.calls();
        while control.calls() == before {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(SHORT * 7 / 15).await;
        // No renewal may follow the hand-over's extension. On a slow machine, two cases are not
        // checked: another renewal began before the hand-over, or the lock was lost.
        let is_late = control.calls() > before + 1;
        let renewed = guard.hand_over().await.is_ok() && control.calls() > before + 2;
        assert!(is_late || !renewed, "it was renewed after the last extension");
    }))
    .await;
}

/// One node does not have the old holder's lock, and the request to another node is lost. `resume`
/// can still win a majority, because the lost request is repeated.
#[tokio::test]
async fn a_refusal_and_a_lost_request_do_not_use_the_ticket_up() {
    let nodes: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let world = World::of(TTL, |i| Fault::new(nodes[i].clone()), 3, Vec::new());
    job(&world.second).acquire().await.unwrap().release().await.unwrap();
    assert!(nodes[2].close(SHORT));
    let ticket = world.acquired().await.hand_over().await.unwrap();
    sleep(2 * SHORT).await;
    world.network[1].control().script([Step::lose_request()]);
    let guard = world.second.resume(&ticket).await.expect("two of three nodes have the old holder");
    assert!(guard.extend().await.is_ok());
}

#[tokio::test]
async fn a_ttl_with_a_part_below_a_microsecond_is_not_cut() {
    World::each(TTL, async |world| {
        let mutex = world.first.mutex("job").ttl(TTL + Duration::from_nanos(20));
        let mutex = mutex.build().unwrap();
        for _ in 0..20 {
            let ticket = mutex.acquire().await.unwrap().hand_over().await.unwrap();
            let guard = world.second.resume(&sent(&ticket)).await;
            guard.expect("its lease is as long as the owner's").release().await.unwrap();
        }
    })
    .await;
    // The ttl is rounded up to whole microseconds. The rounded ttl must not exceed the longest
    // permitted lease.
    let node = MemoryNode::new();
    let ttl = TTL + Duration::from_nanos(20);
    let builder = Redlock::builder().node(node).ttl(ttl).max_ttl(ttl);
    let redlock = builder.build().unwrap();
    let ticket = job(&redlock).acquire().await.unwrap().hand_over().await.unwrap();
    assert!(redlock.resume(&sent(&ticket)).await.is_ok());
}

#[tokio::test]
async fn a_forged_ticket_closes_the_lock_for_a_ttl_at_most() {
    let world = World::memory(TTL, 1);
    let ticket = world.acquired().await.hand_over().await.unwrap();
    let text = serde_json::to_string(&ticket).unwrap();
    let forged = text.replace("\"closed\":0", &format!("\"closed\":{}", u64::MAX));
    assert_ne!(text, forged);
    let guard = world.second.resume(&serde_json::from_str(&forged).unwrap()).await.unwrap();
    sleep(TTL + SHORT).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(!world.is_taken().await, "the release freed nothing");
}

#[tokio::test]
async fn a_hand_over_that_is_dropped_releases_the_lock() {
    World::each(TTL, async |world| {
        let guard = world.acquired().await;
        let mut hand_over = Box::pin(guard.hand_over());
        let polled = futures_util::poll!(hand_over.as_mut());
        if polled.is_pending() {
            drop(hand_over);
            let began = Instant::now();
            let next = job(&world.others).acquire().await.unwrap();
            assert!(began.elapsed() < TTL / 2, "it was not released");
            next.release().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_was_down_does_not_matter() {
    let nodes: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let world = World::of(TTL, |i| Fault::new(nodes[i].clone()), 3, Vec::new());
    let guard = world.acquired().await;
    // One node does not reply while the lock is handed over. So this node has the shorter lease
    // from before.
    assert!(nodes[2].close(SHORT));
    let ticket = guard.hand_over().await.unwrap();
    sleep(2 * SHORT).await;
    let guard = world.second.resume(&ticket).await.unwrap();
    assert!(guard.extend().await.is_ok());
    let ticket = guard.hand_over().await.unwrap();
    // Two nodes lose all data. So no majority has the old holder's lock. The two nodes grant
    // nothing, because they are in quarantine (the time after a loss of data).
    nodes[0].restart_empty();
    nodes[1].restart_empty();
    let refused = world.first.resume(&ticket).await;
    let Err(ResumeError::NoQuorum(why)) = &refused else { panic!("{refused:?}") };
    assert!(why.waited.is_some() && why.quarantine().is_some(), "{why}");
    let refused = refused.unwrap_err();
    assert_eq!(refused.advice(), Advice::GiveUp, "the ticket is over before the quarantine");
    let text = refused.to_string();
    assert!(!text.contains("acquire_timeout"), "{text}");
    assert!(text.starts_with("not resumed, acquire the lock anew: lock \"job\": no quorum"));
}

#[tokio::test]
async fn too_few_nodes_hand_nothing_over() {
    let nodes: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let world = World::of(TTL, |i| Fault::new(nodes[i].clone()), 3, Vec::new());
    let guard = world.acquired().await;
    for node in &nodes[1..] {
        assert!(node.close(SHORT));
    }
    let failed = guard.hand_over().await;
    let Err(HandOverError::Unconfirmed(why)) = &failed else { panic!("{failed:?}") };
    assert_eq!(why.needed, 2);
    assert_eq!(failed.as_ref().unwrap_err().advice(), Advice::GiveUp, "the guard is gone");
    // A hand-over that fails releases the lock. The two closed nodes, which do not reply for the
    // time `SHORT`, receive the release as soon as they reply again.
    let began = Instant::now();
    sleep(2 * SHORT).await;
    let next = job(&world.others).acquire().await.unwrap();
    assert!(began.elapsed() < TTL && next.is_valid());
}

#[tokio::test]
async fn a_lock_that_is_lost_or_shared_is_not_handed_over() {
    let world = World::memory(TTL, 3);
    let mutex = world.first.mutex("job").ttl(SHORT).auto_renew(false).build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    sleep(2 * SHORT).await;
    let lost = guard.hand_over().await.unwrap_err();
    assert!(matches!(lost, HandOverError::Lost(_)) && lost.advice() == Advice::GiveUp);
    let doc = world.first.rw_lock("job").build().unwrap();
    let pool = world.first.semaphore("job", 2).build().unwrap();
    let both = world.first.multi(["a", "b"]).build().unwrap();
    let reader = LockGuard::from(doc.read().await.unwrap());
    let permit = LockGuard::from(pool.acquire().await.unwrap());
    for guard in [reader, permit, both.acquire().await.unwrap().into()] {
        let refused = guard.hand_over().await.unwrap_err();
        assert!(matches!(refused, HandOverError::NotExclusive(_)), "{refused}");
    }
    let writer = doc.write().await.unwrap();
    let ticket = writer.hand_over().await.unwrap();
    assert!(world.second.resume(&ticket).await.unwrap().is_valid());
}

#[tokio::test]
async fn a_ticket_fits_the_prefix_and_the_longest_lease_of_its_handle() {
    let node = MemoryNode::new();
    let handle = |prefix: &str, max_ttl| {
        let builder = Redlock::builder().node(node.clone()).prefix(prefix).max_ttl(max_ttl);
        builder.ttl(TTL).build().unwrap()
    };
    let from = handle("a:", 4 * TTL);
    let mutex = from.mutex("job").ttl(2 * TTL).build().unwrap();
    let ticket = mutex.acquire().await.unwrap().hand_over().await.unwrap();
    let wrong = handle("b:", 4 * TTL).resume(&ticket).await.unwrap_err();
    let text = "not resumed: lock \"job\": `prefix` is \"b:\": the ticket was made by a handle";
    assert!(wrong.to_string().starts_with(text), "{wrong}");
    assert_eq!(wrong.advice(), Advice::Misconfigured);
    let wrong = handle("a:", TTL).resume(&ticket).await.unwrap_err();
    assert!(wrong.to_string().contains("`ttl` is 18s: at most max_ttl (9s)"), "{wrong}");
    // The refused calls sent no request to the node, so the ticket is still good.
    assert!(handle("a:", 4 * TTL).resume(&ticket).await.unwrap().is_valid());
}

#[tokio::test]
async fn the_settings_of_the_lock_travel_with_it() {
    let world = World::memory(TTL, 1);
    let mutex = world.first.mutex("job").ttl(SHORT).auto_renew(false);
    let mutex = mutex.durability(Durability::AllReplicas).build().unwrap();
    let ticket = mutex.acquire().await.unwrap().hand_over().await.unwrap();
    let guard = world.second.resume(&sent(&ticket)).await.unwrap();
    assert_eq!(guard.durability().level, Durability::AllReplicas);
    timeout(2 * SHORT, guard.lost()).await.expect("nothing renews it");
    let mutex = world.first.mutex("job").max_hold(2 * SHORT).build().unwrap();
    let ticket = mutex.acquire().await.unwrap().hand_over().await.unwrap();
    sleep(SHORT).await;
    let guard = world.second.resume(&sent(&ticket)).await.unwrap();
    timeout(TTL + 3 * SHORT, guard.lost()).await.expect("it is renewed without end");
}

#[tokio::test]
async fn a_closed_handle_redeems_nothing() {
    let world = World::memory(TTL, 3);
    let ticket = world.acquired().await.hand_over().await.unwrap();
    assert!(world.second.close(SHORT).await.is_clean());
    let closed = world.second.resume(&ticket).await.unwrap_err();
    assert!(matches!(closed, ResumeError::Closed(_)), "{closed}");
    assert!(world.others.resume(&ticket).await.unwrap().is_valid());
}

/// An operator takes the lock over from its holder. The lock stays closed to other callers until
/// the old holder's lease has ended. This also holds if the operator hands the lock over and the
/// next holder releases it at once.
#[tokio::test]
async fn a_takeover_that_is_handed_over_stays_closed() {
    World::each(TTL, async |world| {
        let mutex = world.first.mutex("job").auto_renew(false).build().unwrap();
        let hangs = mutex.acquire().await.unwrap();
        let operator = job(&world.others);
        let seen = operator.inspect().await.unwrap().holder().unwrap();
        let taken = operator.take_over(&seen, "it hangs").await.unwrap();
        let ticket = taken.guard.hand_over().await.unwrap();
        let guard = world.second.resume(&sent(&ticket)).await.unwrap();
        guard.release().await.unwrap();
        let next = job(&world.first).acquire().await.unwrap();
        assert!(!hangs.is_valid(), "two hold the lock");
        next.release().await.unwrap();
    })
    .await;
}

/// The same if the ticket is redeemed in vain: what the call took is not released.
#[tokio::test]
async fn a_takeover_whose_ticket_is_redeemed_in_vain_stays_closed() {
    World::each(TTL, async |world| {
        let mutex = world.first.mutex("job").auto_renew(false).build().unwrap();
        let hangs = mutex.acquire().await.unwrap();
        let operator = job(&world.others);
        let seen = operator.inspect().await.unwrap().holder().unwrap();
        let taken = operator.take_over(&seen, "it hangs").await.unwrap();
        let ticket = taken.guard.hand_over().await.unwrap();
        world.script(&[Step::delay_reply(TTL)]);
        let resumed = timeout(SHORT, world.second.resume(&sent(&ticket))).await;
        assert!(resumed.is_err(), "it is dropped while its answers are under way: {resumed:?}");
        let next = job(&world.first).acquire().await.unwrap();
        assert!(!hangs.is_valid(), "two hold the lock");
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn those_who_wait_come_after_the_ticket() {
    World::each(TTL, async |world| {
        let guard = world.acquired().await;
        let waits = job(&world.others);
        let waits = tokio::spawn(async move { waits.acquire().await.unwrap().is_valid() });
        sleep(SHORT).await;
        let ticket = guard.hand_over().await.unwrap();
        let guard = world.second.resume(&ticket).await.unwrap();
        sleep(SHORT).await;
        assert!(!waits.is_finished(), "it was free in between");
        guard.release().await.unwrap();
        assert!(timeout(TTL, waits).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_ticket_is_a_secret_and_checked_when_it_is_read() {
    let world = World::memory(TTL, 1);
    let ticket = world.acquired().await.hand_over().await.unwrap();
    let text = serde_json::to_string(&ticket).unwrap();
    let owner = text.split_once("\"owner\":\"").unwrap().1[..22].to_owned();
    let shown = format!("{ticket:?}");
    assert!(!shown.contains(&owner[..6]) && shown.contains("job"), "{shown}");
    let read = |text: &str| serde_json::from_str::<HandOver>(text);
    assert_eq!(read(&text).unwrap(), ticket);
    let wrong = |text: String, why: &str| {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    wrong(text.replace("\"version\":1", "\"version\":2"), "another version of palisade");
    for forged in ["-".repeat(22), "------0123456789abcdef".to_owned(), "short".to_owned()] {
        wrong(text.replace(&owner, &forged), "no owner token");
    }
    let damaged = read(&text.replace("\"name\":\"job\"", "\"name\":\"\"")).unwrap();
    let refused = world.second.resume(&damaged).await;
    assert!(matches!(refused, Err(ResumeError::Config(_))), "{refused:?}");
}
