//! Values of other programs under the keys of a lock and its side keys (fence and queue). Such a
//! value can fail the op that reads it, but no other op.

use palisade::node::spi::{Enlist, NodeSignal};

use super::*;

#[tokio::test]
async fn a_fence_that_is_none_is_no_answer_of_another_kind() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let a = owner();
    for value in ["-9", "-9.7", "-3", "1e300", "inf", "nan", "0.5"] {
        fence(one(&node, LONG, acquire("k", a)).await);
        server.cli(&["set", "{k}:fence", value]);
        let other = format!("other {value}");
        let got = batch(&node, LONG, vec![acquire("k", a), acquire(&other, a)], TTL).await.items;
        assert!(got[0].is_err(), "{value}: {got:?}");
        fence(got[1].clone());
        assert_eq!(one(&node, LONG, release("k", a)).await, Ok(Reply::Done));
        // With this value as the lock's fence, an acquire of the free lock is either refused or
        // granted with a larger fencing token. The other acquire of the batch is not affected.
        let fresh = format!("{value} again");
        let got = batch(&node, LONG, vec![acquire("k", a), acquire(&fresh, a)], TTL).await.items;
        fence(got[1].clone());
        server.cli(&["del", "k", "{k}:fence"]);
    }
}

#[tokio::test]
async fn a_fence_that_is_none_opens_no_lock_that_is_to_be_taken() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let a = owner();
    fence(one(&node, LONG, acquire("k", a)).await);
    server.cli(&["set", "{k}:fence", "another program's"]);
    let take = if_held(acquire("k", owner()), IfHeld::TakeFrom(a));
    assert!(one(&node, LONG, take).await.is_err());
    assert_eq!(server.cli(&["get", "k"]), a.as_str(), "the holder has its lock");
}

/// The fence is the last fencing token of a lock. A single node lowers a stored fence that is too
/// far in the future, even if the acquire is repeated. So the fence does not block the lock until
/// that time.
#[tokio::test]
async fn a_fence_of_tomorrow_keeps_no_caller_out_until_tomorrow() {
    let server = Server::start(&[]);
    let builder = palisade::Redlock::builder().node(fresh(&server)).ttl(Duration::from_secs(2));
    let redlock = builder.clock_error(Duration::from_millis(100)).build().unwrap();
    let tomorrow = SystemEnv.wall_micros() + 86_400_000_000;
    server.cli(&["set", "{k}:fence", &tomorrow.to_string()]);
    let guard = redlock.mutex("k").acquire_timeout(Duration::from_secs(20)).await.unwrap();
    let token = guard.fencing_token().get();
    assert!(token < SystemEnv.wall_micros() + 2_000_000, "{token}");
    assert!(guard.release().await.is_ok());
}

/// Returns a handle whose first request may wait for a slow connection.
fn patient(server: &Server) -> palisade::Redlock {
    let builder = palisade::Redlock::builder().node(fresh(server)).ttl(Duration::from_secs(60));
    builder.node_deadline(Duration::from_secs(5)).build().unwrap()
}

/// Another program's hash at the key of a record, with fields of any names, is neither adopted nor
/// given an expiry. The same holds for values of the right type at the other keys.
#[tokio::test]
async fn a_strangers_value_of_the_right_type_is_neither_adopted_nor_given_an_expiry() {
    let server = Server::start(&[]);
    let redlock = patient(&server);
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let run = async |key: &str| orders.key(key).run(async |_| Ok::<_, String>(7)).await;
    assert!(run("ours").await.unwrap().is_executed());
    let key = "idem:orders:theirs";
    for fields in [
        &["order", "77", "total", "12"][..],
        &["own", "bob"],
        &["fence", "7"],
        &["own", "bob", "fence", "7", "val", "x"],
        &["fence", "7", "till", "0", "att", "1"],
        &["rf", "s7", "val", "[]"],
        &["w", "1"],
        &["fp", "x", "g", "y", "val", "z"],
    ] {
        server.cli(&[&["hset", key], fields].concat());
        let before = server.cli(&["hgetall", key]);
        for ttl in ["-1", "90000"] {
            if ttl != "-1" {
                server.cli(&["pexpire", key, ttl]);
            }
            let refused = run("theirs").await.expect_err("it is another program's");
            let text = refused.to_string();
            assert!(text.contains(key) && text.contains("delete the key"), "{text}");
            assert_eq!(refused.advice(), palisade::error::Advice::Misconfigured, "{text}");
            assert!(orders.key("theirs").lookup::<u32>().await.is_err());
            assert!(orders.key("theirs").resolve(&8).await.is_err());
            assert_eq!(server.cli(&["hgetall", key]), before, "{fields:?}");
            let rest: i64 = server.cli(&["pttl", key]).parse().unwrap();
            assert!(rest <= ttl.parse().unwrap(), "{fields:?}: {rest}");
        }
        server.cli(&["del", key]);
    }
    // So is a text, and a record of another version.
    let good = server.cli(&["get", "idem:orders:ours"]);
    let newer = good.replacen("p1", "p2", 1);
    for text in ["", "p1", "x", &good[..149], &newer, &"9".repeat(5_000)] {
        server.cli(&["set", key, text]);
        let refused = run("theirs").await.expect_err("it is another program's").to_string();
        assert!(refused.contains(key) && refused.contains("upgrade this one"), "{refused}");
        assert!(orders.key("theirs").lookup::<u32>().await.is_err());
        assert!(orders.key("theirs").resolve(&8).await.is_err());
        assert_eq!(
            (server.cli(&["get", key]), server.cli(&["pttl", key])),
            (text.into(), "-1".into())
        );
        server.cli(&["del", key]);
    }
    assert!(run("theirs").await.unwrap().is_executed(), "it was deleted, as the text says");
    // An owner token whose expiry somebody removed.
    let mutex = redlock.mutex("m").acquire_timeout(Duration::from_millis(300)).build().unwrap();
    let _guard = mutex.acquire().await.unwrap();
    server.cli(&["persist", "m"]);
    let taken = mutex.acquire().await.unwrap_err().to_string();
    assert!(taken.contains("its key never expires"), "{taken}");
    // An empty text is no list of candidates.
    let key = "{e}:candidates";
    server.cli(&["set", key, ""]);
    let (owner, entry) = (owner(), Some(b"x"[..].into()));
    let op = Op::Enlist(Enlist { key: key.into(), owner, ttl: TTL, entry, news: false });
    let refused = one(&fresh(&server), LONG, op).await.unwrap_err();
    assert!(refused.to_string().contains(key), "{refused}");
    assert_eq!(server.cli(&["pttl", key]), "-1");
}

#[tokio::test]
async fn a_strangers_lock_for_ever_spoils_no_hint_and_no_batch() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let a = owner();
    fence(one(&node, LONG, acquire("k", a)).await);
    one(&node, LONG, waiting("k", owner())).await.unwrap();
    for (at, ms) in ["9000000000000", "9000000000000000000"].iter().enumerate() {
        server.cli(&["set", "far", "a stranger's", "px", ms]);
        let free = format!("free {at}");
        let got =
            batch(&node, LONG, vec![acquire(&free, a), waiting("far", owner())], TTL).await.items;
        fence(got[0].clone());
        assert!(matches!(got[1], Ok(Reply::Held { foreign: true, .. })), "{got:?}");
    }
    facts(&node, LONG).await;
    let mut events = node.events();
    // Wait until the node has subscribed to hints (wake-up messages). Before that, a release would
    // pass over this node's waiter, and the later subscription would wake all waiters, so the test
    // would prove nothing.
    let listens = async {
        while server.cli(&["pubsub", "channels", "palisade:changed:*"]).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), listens).await.expect("it listens for hints");
    let plain =
        Op::Release { mode: LockMode::Exclusive, keys: LockKeys::new("k"), owner: a, meta: false };
    assert_eq!(one(&node, LONG, plain).await, Ok(Reply::Done));
    let hint = tokio::time::timeout(Duration::from_secs(5), async {
        while !matches!(events.recv().await, Ok(NodeSignal::Turn { key, .. }) if &*key == "k") {}
    });
    hint.await.expect("nobody woke who waits");
}

#[tokio::test]
async fn to_look_needs_no_write_where_none_is_possible() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    fence(one(&node, LONG, acquire("k", owner())).await);
    server.cli(&["set", "{k}:queue", "a stranger's"]);
    server.cli(&["config", "set", "min-replicas-to-write", "1"]);
    let look = Op::Inspect { keys: LockKeys::new("k"), wait: true };
    let got = one(&node, LONG, look).await;
    assert!(matches!(got, Ok(Reply::Holder(Some(_)))), "{got:?}");
}

#[tokio::test]
async fn a_long_batch_of_releases_is_executed() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let a = owner();
    let plain = |name: &str| Op::Release {
        mode: LockMode::Exclusive,
        keys: LockKeys::new(name),
        owner: a,
        meta: false,
    };
    let mut ops = vec![acquire("k", a)];
    ops.extend((0..9_000).map(|i| plain(&format!("l{i}"))));
    ops.push(plain("k"));
    let got = batch(&node, LONG, ops, TTL).await.items;
    fence(got[0].clone());
    assert_eq!(got[1..9_001].iter().filter(|r| **r == Ok(Reply::Absent)).count(), 9_000);
    assert_eq!(got[9_001], Ok(Reply::Done));
}

#[tokio::test]
async fn another_programs_value_under_a_lock_is_reported_as_what_it_is() {
    let server = Server::start(&[]);
    let redlock = patient(&server);
    server.cli(&["rpush", "jobs", "a"]);
    let mutex = redlock.mutex("jobs").acquire_timeout(Duration::from_secs(3)).build().unwrap();
    let e = mutex.acquire().await.expect_err("a list is there");
    let palisade::error::AcquireError::TimedOut { taken, .. } = &e else { panic!("{e}") };
    assert!(taken.foreign && taken.retry_after.is_none(), "{taken:?}");
    assert_eq!(e.advice(), palisade::error::Advice::Misconfigured);
    let said = e.to_string();
    assert!(said.contains("another program's value") && !said.contains("stuck"), "{said}");
    // The other program's value does not affect other locks.
    assert!(redlock.mutex("other").build().unwrap().acquire().await.is_ok());
}
