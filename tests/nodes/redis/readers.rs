//! Readers of read-write locks on a real server: the form of their data, and other programs that
//! use the same key.

use palisade::node::spi::Readers;

use super::*;

/// Returns the members of the sorted set at `key`.
fn members(server: &Server, key: &str) -> Vec<String> {
    let text = server.cli(&["zrange", key, "0", "-1"]);
    text.lines().filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect()
}

fn pttl(server: &Server, key: &str) -> u128 {
    server.cli(&["pttl", key]).parse().unwrap()
}

#[tokio::test]
async fn one_reader_keeps_out_the_clients_of_other_libraries() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    fence(one(&node, LONG, shared(acquire("k", a))).await);
    assert_eq!(server.cli(&["set", "k", "theirs", "nx", "px", "20000"]), "");
    // The other program's release is a script that compares the value.
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) \
                  else return 0 end";
    assert!(server.cli(&["eval", script, "1", "k", "theirs"]).contains("WRONGTYPE"));
    assert_eq!(members(&server, "k"), [a.as_str()]);
    assert_eq!(one(&node, LONG, shared(release("k", a))).await, Ok(Reply::Done));
    assert_eq!(server.cli(&["exists", "k"]), "0");
    assert_eq!(server.cli(&["set", "k", "theirs", "nx", "px", "20000"]), "OK");
    let held = one(&node, LONG, shared(acquire("k", a))).await;
    assert!(matches!(held, Ok(Reply::Held { foreign: true, .. })), "{held:?}");
}

#[tokio::test]
async fn another_programs_value_is_foreign_to_readers_and_stays() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    server.cli(&["zadd", "short", "1", "member"]);
    server.cli(&["zadd", "odd", "1", "22 characters with gaps"]);
    server.cli(&["zadd", "odd", "1", "twenty two characters."]);
    // A sorted set without an expiry is another program's value, even if a member looks like the
    // owner token of a reader.
    server.cli(&["zadd", "like", "1", "user_2026_11_25_000001", "9", "other"]);
    server.cli(&["hset", "hash", "UNLOCK", "1"]);
    server.cli(&["sadd", "set", a.as_str()]);
    server.cli(&["set", "text", "theirs"]);
    for key in ["short", "odd", "like", "hash", "set", "text"] {
        let before = server.cli(&["dump", key]);
        for op in [acquire(key, a), shared(acquire(key, a))] {
            let held = one(&node, LONG, op).await;
            let foreign = Reply::Held { remaining: None, foreign: true };
            assert_eq!(held, Ok(foreign), "{key}");
        }
        let token = 1;
        for op in [shared(extend(key, a, token, None)), shared(release(key, a))] {
            assert_eq!(one(&node, LONG, op).await, Ok(Reply::NotOwner), "{key}");
        }
        let shown = one(&node, LONG, Op::Inspect { keys: LockKeys::new(key), wait: false }).await;
        assert!(matches!(shown, Ok(Reply::Holder(Some(h))) if h.owner.is_none()), "{key}");
        assert_eq!(server.cli(&["dump", key]), before, "{key}");
    }
}

/// The sorted set under the lock's key looks like a lock with readers: the name has a fence (a
/// stored fencing token), and the set has an expiry and scores in the future. But its member is not
/// an owner token.
#[tokio::test]
async fn a_sorted_set_of_another_program_is_foreign_where_readers_were_before() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    for (key, member) in [("short", "member"), ("odd", "twenty two characters.")] {
        fence(one(&node, LONG, shared(acquire(key, a))).await);
        assert_eq!(one(&node, LONG, shared(release(key, a))).await, Ok(Reply::Done));
        server.cli(&["zadd", key, "9999999999999", member]);
        server.cli(&["pexpire", key, "60000"]);
        let held = one(&node, LONG, shared(acquire(key, a))).await;
        let is_foreign = matches!(held, Ok(Reply::Held { remaining: Some(_), foreign: true }));
        assert!(is_foreign, "{key}: {held:?}");
        assert_eq!(members(&server, key), [member]);
    }
}

#[tokio::test]
async fn the_key_ends_with_its_last_reader() {
    let server = Server::start(&[]);
    let (node, a, c) = (fresh(&server), owner(), owner());
    let with = |owner, span| shared(ops::acquire("k", owner, Duration::from_millis(span)));
    let t = fence(one(&node, LONG, with(a, 15_000)).await);
    let early = pttl(&server, "k");
    assert!((10_000..=15_001).contains(&early), "{early}");
    // A grant with a shorter ttl does not shorten the ttl of the key. A longer grant extends it.
    fence(one(&node, LONG, with(c, 5_000)).await);
    assert!(pttl(&server, "k") > 6_000);
    assert_eq!(one(&node, LONG, shared(extend("k", c, t, None))).await, Ok(Reply::Done));
    assert!(pttl(&server, "k") > 16_000);
    // After the release, the key has the ttl of the longest remaining reader.
    assert_eq!(one(&node, LONG, shared(release("k", c))).await, Ok(Reply::Done));
    let left = pttl(&server, "k");
    assert!(left <= 15_001 && left > 5_000, "{left}");
    assert_eq!(members(&server, "k"), [a.as_str()]);
    // An extension of a reader does not change the value of `{k}:fence`, but renews the key's ttl.
    server.cli(&["pexpire", "{k}:fence", "1000"]);
    assert_eq!(one(&node, LONG, shared(extend("k", a, t, None))).await, Ok(Reply::Done));
    assert!(pttl(&server, "{k}:fence") > 10_000);
    assert_eq!(server.cli(&["get", "{k}:fence"]), t.to_string());
}

#[tokio::test]
async fn a_fence_that_was_spoiled_spoils_a_reader_as_it_spoils_an_owner() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    server.cli(&["set", "{k}:fence", "theirs"]);
    let got = one(&node, LONG, shared(acquire("k", a))).await;
    assert_eq!(fault(got), (NodeFault::ForeignKey, false));
    let got = one(&node, LONG, shared(extend("k", a, 5, None))).await;
    assert_eq!(fault(got), (NodeFault::ForeignKey, false));
    assert_eq!(server.cli(&["exists", "k"]), "0");
    // The fence, the lock's last fencing token, is far in the future. The server lowers it to the
    // largest value that honest clocks can reach.
    server.cli(&["set", "{k}:fence", "9000000000000000"]);
    let lowered = fence(one(&node, LONG, shared(acquire("k", a))).await);
    let lead = 6 * LONG.clock_error + Duration::from_secs(2);
    let now = SystemEnv.wall_micros();
    assert!(lowered < now + lead.as_micros() as u64, "{lowered} at {now}");
}

#[tokio::test]
async fn a_downgrade_and_a_raise_find_their_owner_in_either_form() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    let t = fence(one(&node, LONG, acquire("k", a)).await);
    let raise = |token| Op::Raise { keys: LockKeys::new("k"), owner: a, token, slot: None };
    assert_eq!(one(&node, LONG, raise(FencingToken::new(t + 1))).await, Ok(Reply::Done));
    assert_eq!(one(&node, LONG, shared(extend("k", a, t + 1, None))).await, Ok(Reply::Done));
    assert_eq!(server.cli(&["type", "k"]), "zset");
    assert_eq!(one(&node, LONG, raise(FencingToken::new(t + 2))).await, Ok(Reply::Done));
    assert_eq!(server.cli(&["get", "{k}:fence"]), (t + 2).to_string());
    let Ok(Reply::Readers(Readers { fence, count: 1, listed })) =
        one(&node, LONG, Op::Inspect { keys: LockKeys::new("k"), wait: false }).await
    else {
        panic!("one reader")
    };
    assert_eq!((fence, listed[0].owner), (t + 2, a));
    assert!(listed[0].remaining <= TTL + Duration::from_millis(1));
}

/// All ops of a batch are executed at the same server time. So the writer and the first reader of
/// this batch began to wait at the same time, and the writer is not ahead of this reader.
#[tokio::test]
async fn a_writer_is_ahead_only_of_readers_that_began_to_wait_later() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    fence(one(&node, LONG, shared(acquire("k", owner()))).await);
    let waits = |waiter, waited| {
        if_held(acquire("k", owner()), IfHeld::Queue(Place { waiter, waited, ..PLACE }))
    };
    let waited = Duration::from_secs(20);
    let same = shared(waits(2, waited));
    let later = shared(waits(3, Duration::from_micros(19_999_999)));
    let ops = vec![waits(1, waited), same, later];
    let got = batch(&node, LONG, ops, Duration::from_secs(5)).await.items;
    assert!(matches!(got[0], Ok(Reply::Held { .. })), "a reader has the lock: {got:?}");
    assert!(matches!(got[1], Ok(Reply::Granted { .. })), "the writer is not ahead: {got:?}");
    assert!(matches!(got[2], Ok(Reply::Held { .. })), "the writer is ahead: {got:?}");
}

/// Another program wrote a value to the key of a lock's queue of waiters. The requests of readers
/// succeed as if there were no queue.
#[tokio::test]
async fn a_forged_queue_costs_readers_nothing() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    let place =
        |kind: &str, needs: &str, fresh: &str| format!("{:016}{kind}{:016x}{needs}{fresh}", 1, 7);
    let far = "9999999999999";
    let values = [
        "0".to_owned() + &"?".repeat(48),
        "1".to_owned() + &place("s", ".5", far),
        "0".to_owned() + &place("x", "1e", "infinity     "),
        "0".to_owned() + &place("s", "50", "-            ") + &place("x", "nn", "0x00000000000"),
    ];
    for value in values {
        // A caller waits for another lock, so the script expects queues of waiters and reads them.
        let wait = Op::Inspect { keys: LockKeys::new("other"), wait: true };
        one(&node, LONG, wait).await.unwrap();
        server.cli(&["set", "{k}:queue", &value, "px", "20000"]);
        fence(one(&node, LONG, shared(acquire("k", a))).await);
        assert_eq!(one(&node, LONG, shared(release("k", a))).await, Ok(Reply::Done), "{value}");
        server.cli(&["set", "{k}:queue", &value, "px", "20000"]);
        let t = fence(one(&node, LONG, acquire("k", a)).await);
        assert_eq!(one(&node, LONG, shared(extend("k", a, t, None))).await, Ok(Reply::Done));
        assert_eq!(one(&node, LONG, shared(release("k", a))).await, Ok(Reply::Done), "{value}");
    }
}

/// The user has the rights that locks need. Of the additional rights of readers one is missing each
/// time. What is refused for it has changed nothing, so that a writer that becomes a reader does
/// not lose its lock.
#[tokio::test]
async fn without_the_rights_of_readers_nothing_is_changed() {
    let server = Server::start(&[]);
    let locks = "+hello +select +info +time +wait +script|load +evalsha +get +getrange +mget \
                 +exists +set +del +pexpire +pttl +setrange +strlen +hset +hmget +publish \
                 +subscribe";
    let rights =
        ["+zadd", "+zrem", "+zrange", "+zcard", "+zscore", "+zremrangebyscore", "+pexpireat"];
    let mut refusals = Vec::new();
    for lacks in rights {
        let mut user = vec!["acl", "setuser", "joe", "on", ">pw", "~*", "&palisade:changed*"];
        user.extend(["-@all", "resetkeys", "~*"]);
        user.extend(locks.split_whitespace());
        user.extend(rights.iter().filter(|right| **right != lacks));
        assert_eq!(server.cli(&user), "OK");
        let node = RedisNode::builder(server.url()).username("joe").password("pw");
        let node = node.trust_fresh(true).build().unwrap();
        let (a, b) = (owner(), owner());
        let token = fence(one(&node, LONG, acquire("k", a)).await);
        let ops = [shared(acquire("free", b)), shared(extend("k", a, token, None))];
        for (i, op) in ops.into_iter().enumerate() {
            let fence = server.cli(&["get", "{k}:fence"]);
            match one(&node, LONG, op).await {
                Ok(reply) => assert!(matches!(reply, Reply::Granted { .. } | Reply::Done)),
                Err(e) => {
                    assert_eq!(e.fault(), NodeFault::NoPermission, "{lacks}: {e}");
                    assert!(e.to_string().contains(lacks), "{e}");
                    assert_eq!(server.cli(&["get", "k"]), a.as_str(), "{lacks}");
                    assert_eq!(server.cli(&["get", "{k}:fence"]), fence, "{lacks}");
                    assert_eq!(server.cli(&["exists", "free", "{free}:fence"]), "0", "{lacks}");
                    refusals.push((lacks, i));
                }
            }
        }
        server.cli(&["del", "k", "free", "{free}:fence"]);
    }
    for refused in
        [("+zadd", 0), ("+zadd", 1), ("+zrange", 0), ("+pexpireat", 0), ("+pexpireat", 1)]
    {
        assert!(refusals.contains(&refused), "{refusals:?}");
    }
}
