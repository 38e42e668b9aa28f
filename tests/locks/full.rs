//! A server whose memory is full: what is held is kept and given back, new locks are refused.

use std::time::Duration;

use palisade::error::{AcquireError, NodeFault, NodeOutcome};
use palisade::node::RedisNode;
use palisade::{Outcome, Redlock, TryAcquire};
use tokio::time::sleep;

use crate::support::server::Server;

const TTL: Duration = Duration::from_secs(4);

fn handle(server: &Server) -> Redlock {
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).max_ttl(Duration::from_secs(60));
    redlock.build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_on_a_server_without_memory_is_kept_and_given_back() {
    let server = Server::start(&[]);
    let (redlock, other) = (handle(&server), handle(&server));
    let mutex = redlock.mutex("mutex").build().unwrap().acquire().await.unwrap();
    let fair = redlock.mutex("fair").fair(true).build().unwrap().acquire().await.unwrap();
    let many = redlock.multi(["one", "two"]).build().unwrap().acquire().await.unwrap();
    let rw_lock = redlock.rw_lock("doc").build().unwrap();
    let writer = redlock.rw_lock("page").build().unwrap().write().await.unwrap();
    let (reader, beside) = (rw_lock.read().await.unwrap(), rw_lock.read().await.unwrap());
    let pool = redlock.semaphore("pool", 3).build().unwrap();
    let (permit, second) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    let leader = redlock.election("boss").build().unwrap().campaign("me").await.unwrap();
    let calls = redlock.idempotency("calls").at_most_once().lease(TTL).build().unwrap();
    let call = tokio::spawn(async move {
        let work = calls.key("k").run(async |_| {
            sleep(TTL * 3).await;
            Ok::<_, String>("x".repeat(1_000))
        });
        work.await
    });
    // Waiters, so that the releases below have somebody to wake.
    let wait = |name: &str| {
        let mutex = other.mutex(name).acquire_timeout(TTL * 20).build().unwrap();
        tokio::spawn(async move { mutex.acquire().await.map(drop) })
    };
    let waiters = [wait("mutex"), wait("page")];
    sleep(TTL / 4).await;

    server.cli(&["config", "set", "maxmemory", "1"]);
    let counted = || server.cli(&["getrange", "palisade:note", "24", "35"]).parse::<u64>().unwrap();
    let before = counted();
    sleep(TTL * 2).await;
    assert!(counted() > before, "renewals are counted (quarantine 18)");
    let held = [mutex.is_valid(), fair.is_valid(), many.is_valid(), writer.is_valid()];
    assert_eq!(held, [true; 4]);
    assert!(reader.is_valid() && beside.is_valid() && leader.is_valid());
    assert!(permit.is_valid() && second.is_valid());
    let refused = loop {
        match redlock.mutex("new").build().unwrap().try_acquire().await {
            // It came in one batch behind a renewal, whose write needs no memory.
            Ok(TryAcquire::Acquired(guard)) => guard.release().await.unwrap(),
            refused => break refused,
        }
    };
    let Err(AcquireError::NoQuorum(why)) = refused else { panic!("{refused:?}") };
    let NodeOutcome::Failed(e) = &why.nodes[0].1 else { panic!("{why}") };
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Server, false), "{e}");
    assert!(e.to_string().contains("raise maxmemory"), "{e}");

    permit.release().await.unwrap();
    second.release().await.unwrap();
    reader.release().await.unwrap();
    beside.release().await.unwrap();
    mutex.release().await.unwrap();
    fair.release().await.unwrap();
    many.release().await.unwrap();
    leader.resign().await.unwrap();
    drop(writer.downgrade().await);
    let done = call.await.unwrap();
    assert!(matches!(done, Ok(Outcome::Executed { kept: true, .. })), "{done:?}");
    assert!(redlock.close(TTL).await.is_clean());

    server.cli(&["config", "set", "maxmemory", "0"]);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    for name in ["mutex", "fair", "one", "two", "doc", "page", "new"] {
        let tried = other.mutex(name).build().unwrap().try_acquire().await;
        assert!(matches!(tried, Ok(TryAcquire::Acquired(_))), "{name}: {tried:?}");
    }
    let pool = other.semaphore("pool", 3).build().unwrap();
    let all = pool.try_acquire_many(3).await.unwrap();
    assert!(all.acquired().is_some(), "all permits are free");
}
