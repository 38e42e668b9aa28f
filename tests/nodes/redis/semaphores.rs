//! Permits of a semaphore on a real server: the form of their data, values that other programs
//! write under their key, and the rights that a user needs for them.

use palisade::node::spi::{SlotGrant, Slots};

use super::*;

/// Changes an op on a lock to an op on the slots of a semaphore.
fn on_slots(op: Op, slots: Slots) -> Op {
    in_mode(op, LockMode::Slot(slots))
}

const TWO: Slots = Slots::any(2);

fn slot(reply: Result<Reply, NodeError>) -> u16 {
    match reply {
        Ok(Reply::Permit { slot, .. }) => slot,
        other => panic!("no permit: {other:?}"),
    }
}

async fn permits(node: &RedisNode, key: &str) -> Vec<SlotGrant> {
    match one(node, LONG, Op::Inspect { keys: LockKeys::new(key), wait: false }).await {
        Ok(Reply::Permits(all)) => all,
        other => panic!("no permits: {other:?}"),
    }
}

#[tokio::test]
async fn a_semaphore_is_one_string_that_outlives_its_permits() {
    let server = Server::start(&[]);
    let (node, a, b) = (fresh(&server), owner(), owner());
    assert_eq!(slot(one(&node, LONG, on_slots(acquire("p", a), TWO)).await), 0);
    assert_eq!(slot(one(&node, LONG, on_slots(acquire("p", b), TWO)).await), 1);
    let text = server.cli(&["get", "p"]);
    assert_eq!(text.len(), 2 * 51, "{text}");
    assert!(text.starts_with(a.as_str()) && text[51..].starts_with(b.as_str()), "{text}");
    assert!(text[22..51].bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    assert_eq!(one(&node, LONG, on_slots(release("p", a), TWO)).await, Ok(Reply::Done));
    let text = server.cli(&["get", "p"]);
    assert!(text.starts_with(&format!("{}{}", ".".repeat(22), "0".repeat(13))), "{text}");
    let left: u128 = server.cli(&["pttl", "p"]).parse().unwrap();
    assert!(left > LONG.max_ttl.as_millis(), "{left}");
    let set = server.cli(&["set", "p", "theirs", "nx", "px", "20000"]);
    assert_eq!(set, "", "another program cannot lock it");
}

#[tokio::test]
async fn what_another_program_wrote_is_foreign_and_stays() {
    let server = Server::start(&[]);
    let (node, a) = (fresh(&server), owner());
    let good = format!("{}{:013}{:016}", a.as_str(), 9_999_999_999_999_u64, 7);
    let long = good.repeat(257);
    let texts = [
        ("short", &good[..50]),
        ("odd", &format!("{good}x")[..]),
        ("long", &long),
        ("letters", &good.replace('9', "x")),
        ("gaps", &good.replace(a.as_str(), "twenty two characters ")),
        ("lock", a.as_str()),
    ];
    for (key, text) in texts {
        server.cli(&["set", key, text]);
    }
    server.cli(&["zadd", "zset", "1", a.as_str()]);
    server.cli(&["hset", "hash", "UNLOCK", "1"]);
    for key in texts.map(|(key, _)| key).into_iter().chain(["zset", "hash"]) {
        let before = server.cli(&["dump", key]);
        for slots in [TWO, TWO.exactly(1)] {
            let held = one(&node, LONG, on_slots(acquire(key, a), slots)).await;
            assert_eq!(held, Ok(Reply::Held { remaining: None, foreign: true }), "{key}");
        }
        let raise = Op::Raise {
            keys: LockKeys::new(key),
            owner: a,
            token: FencingToken::new(9),
            slot: Some(0),
        };
        let ops = [
            on_slots(extend(key, a, 9, None), TWO.exactly(0)),
            on_slots(release(key, a), TWO),
            raise,
        ];
        for op in ops {
            assert_eq!(one(&node, LONG, op).await, Ok(Reply::NotOwner), "{key}");
        }
        assert_eq!(server.cli(&["dump", key]), before, "{key}");
        let shown = one(&node, LONG, Op::Inspect { keys: LockKeys::new(key), wait: false }).await;
        assert!(!matches!(shown, Ok(Reply::Permits(_))), "{key}: {shown:?}");
    }
}

/// The semaphore's key contains slots with values that no honest server writes.
#[tokio::test]
async fn a_forged_slot_is_taken_or_free_and_its_fence_is_bounded() {
    let server = Server::start(&[]);
    let (node, a, b) = (fresh(&server), owner(), owner());
    let first = format!("{}{:013}{:016}", a.as_str(), 9_999_999_999_999_u64, 7);
    let free = format!("{}{:013}{:016}", ".".repeat(22), 0, 9_999_999_999_999_999_u64);
    server.cli(&["set", "p", &format!("{first}{free}")]);
    let given = one(&node, LONG, on_slots(acquire("p", b), TWO)).await;
    let Ok(Reply::Permit { fence, slot: 1 }) = given else { panic!("{given:?}") };
    let most = SystemEnv.wall_micros() + 7 * LONG.clock_error.as_micros() as u64;
    assert!(fence < most, "{fence}");
    server.cli(&["set", "p", &format!("{first}{}", "-".repeat(51))]);
    for op in [on_slots(acquire("p", b), TWO), on_slots(acquire("p", b), TWO.exactly(1))] {
        match one(&node, LONG, op).await {
            Ok(Reply::Permit { slot: 1, .. } | Reply::Held { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(permits(&node, "p").await[0].owner, a);
}

/// A user that has only the rights for a mutex can use a semaphore, too.
#[tokio::test]
async fn the_rights_of_a_mutex_are_enough() {
    let server = Server::start(&[]);
    let rights = "+hello +select +info +time +wait +script|load +evalsha +get +getrange +mget \
                  +exists +set +del +pexpire +pttl +publish +subscribe";
    let mut text = ["acl", "setuser", "joe", "on", ">pw", "~*", "&palisade:changed*"].to_vec();
    text.push("-@all");
    text.extend(rights.split_whitespace());
    assert_eq!(server.cli(&text), "OK");
    let node = RedisNode::builder(server.url()).username("joe").password("pw");
    let node = node.trust_fresh(true).build().unwrap();
    let (a, b) = (owner(), owner());
    let Ok(Reply::Permit { fence, slot: 0 }) =
        one(&node, LONG, on_slots(acquire("p", a), TWO)).await
    else {
        panic!("no permit")
    };
    let extended = on_slots(extend("p", a, fence, None), TWO.exactly(1));
    assert_eq!(one(&node, LONG, extended).await, Ok(Reply::Done));
    assert_eq!(slot(one(&node, LONG, on_slots(acquire("p", b), TWO)).await), 0);
    let waits = on_slots(waiting("p", owner()), TWO);
    assert!(matches!(one(&node, LONG, waits).await, Ok(Reply::Held { foreign: false, .. })));
    assert_eq!(permits(&node, "p").await.len(), 2);
    assert_eq!(one(&node, LONG, on_slots(release("p", a), TWO)).await, Ok(Reply::Done));
}
