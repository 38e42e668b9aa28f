//! Values that another tenant of the server can write under the library's keys. Such a value can
//! fail the request (op) that reads it, but not the other ops of the batch.

use palisade::node::spi::{Ballot, ClaimEnd, Enlist, NodeSignal};

use super::*;

/// Texts that a tenant stores in place of a number. Most of them are malformed or out of range.
const STRANGE: [&str; 17] = [
    "x",
    "",
    "-1",
    "0",
    "1.5",
    "1e300",
    "1e3",
    "inf",
    "-inf",
    "nan",
    "0x10",
    " 7",
    "7 ",
    "--",
    "9007199254740992",
    "9223372036854775808",
    "99999999999999999999",
];
const BYTES: &[u8] = b"\xff\xfe\x00\r\n*1\r\n";
const RETENTION: Duration = Duration::from_secs(60);

/// Returns one op of each kind for the lock `name` and this owner.
fn about_lock(name: &str, owner: OwnerToken) -> Vec<Op> {
    let keys = || LockKeys::new(name);
    let token = FencingToken::new(SystemEnv.wall_micros());
    vec![
        acquire(name, owner),
        waiting(name, owner),
        Op::Raise { keys: keys(), owner, token, slot: None },
        extend(name, owner, token.get(), None),
        extend(name, owner, token.get(), Some(b"m")),
        Op::Inspect { keys: keys(), wait: false },
        Op::Inspect { keys: keys(), wait: true },
        Op::Release { mode: LockMode::Exclusive, keys: keys(), owner, meta: false },
        release(name, owner),
    ]
}

/// Returns one op of each kind for the record `name` and this owner.
fn about_record(name: &str, owner: OwnerToken) -> Vec<Op> {
    let key: Arc<str> = name.into();
    let token = FencingToken::new(SystemEnv.wall_micros());
    let (lease, retention, fingerprint) = (TTL, RETENTION, None);
    vec![
        Op::Claim(claim(name, owner)),
        Op::Claim(Claim { force: true, ..claim(name, owner) }),
        Op::RaiseClaim { key: key.clone(), owner, token },
        Op::ExtendClaim {
            ballot: Ballot { key: key.clone(), owner, token, retention, fingerprint },
            lease,
            reassert: None,
        },
        Op::Lookup {
            key: key.clone(),
            retention,
            fingerprint,
            born: None,
            accepted: Duration::ZERO,
        },
        Op::Unclaim { key: key.clone(), owner, end: ClaimEnd::Lapsed },
        Op::Complete {
            ballot: Ballot { key, owner, token, retention, fingerprint },
            value: Some(b"v"[..].into()),
        },
    ]
}

/// Sends a command. Its words may contain any bytes.
async fn put(con: &mut redis::aio::MultiplexedConnection, words: &[&[u8]]) {
    let mut cmd = redis::Cmd::new();
    for word in words {
        cmd.arg(*word);
    }
    let _: redis::Value = cmd.query_async(con).await.expect("the tenant may");
}

async fn tenant(server: &Server) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    let patient = Some(Duration::from_secs(120));
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(patient)
        .set_response_timeout(patient);
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

/// Sends the op between two other ops. Asserts that the other ops succeed.
async fn send_between_others(node: &RedisNode, op: Op, what: &str) -> Result<Reply, NodeError> {
    let (a, b) = (owner(), owner());
    let ops = vec![acquire("before", a), op.clone(), Op::Claim(claim("behind", b))];
    let got = batch(node, LONG, ops, Duration::from_secs(5)).await.items;
    let granted = matches!(got[0], Ok(Reply::Granted { .. }));
    let claimed = matches!(got[2], Ok(Reply::Claimed { attempt: 1, .. }));
    assert!(granted && claimed, "{what}: {op:?} spoiled its neighbours: {got:?}");
    let end = Op::Unclaim { key: "behind".into(), owner: b, end: ClaimEnd::Undone };
    let ops = vec![release("before", a), end];
    let done = batch(node, LONG, ops, Duration::from_secs(5)).await.items;
    assert_eq!(done, [Ok(Reply::Done), Ok(Reply::Done)], "{what}");
    got.into_iter().nth(1).unwrap()
}

fn assert_stayed(node_events: &mut tokio::sync::broadcast::Receiver<NodeSignal>) {
    while let Ok(event) = node_events.try_recv() {
        assert!(event != NodeEvent::Down.into(), "the connection was dropped");
    }
}

#[tokio::test]
async fn a_forged_field_of_a_record_spoils_its_own_op_only() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let (mut events, mut con) = (node.events(), tenant(&server).await);
    let me = owner();
    let till = SystemEnv.wall_micros() / 1_000 + 60_000;
    let bytes = STRANGE.iter().map(|s| s.as_bytes()).chain([BYTES]);
    let fields = ["own", "fence", "history", "attempt", "state", "ballot", "length", "till"];
    for value in bytes {
        for name in fields.into_iter().chain(["waiters"]) {
            // In the first case the record has a running lease. In the second case the record has a
            // result.
            for done in [false, true] {
                for op in about_record("r", me) {
                    let mut text = record(me.as_str(), till, done.then_some(&b"v"[..]));
                    let (at, len) = field(name);
                    let n = value.len().min(len);
                    text[at..at + n].copy_from_slice(&value[..n]);
                    put(&mut con, &[b"SET", b"r", &text]).await;
                    let what = format!("{name}={}", value.escape_ascii());
                    let _ = send_between_others(&node, op, &what).await;
                }
            }
        }
        // The record ends anywhere.
        for op in about_record("r", me) {
            let mut text = record(me.as_str(), till, Some(b"v"));
            text.truncate(9 * value.len());
            put(&mut con, &[b"SET", b"r", &text]).await;
            let _ = send_between_others(&node, op, "a cut record").await;
        }
    }
    assert_stayed(&mut events);
}

#[tokio::test]
async fn several_locks_without_their_fences_spoil_their_own_op_only() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let mut both = acquire("a", owner());
    if let Op::Acquire { keys, .. } = &mut both {
        *keys = LockKeys::many(vec![LockKeys::new("a"), LockKeys::new("b")]);
    }
    let first = one(&node, LONG, both.clone()).await;
    assert!(matches!(first, Ok(Reply::Granted { .. })), "{first:?}");
    server.cli(&["del", "{a}:fence"]);
    // Only the key `{b}:fence` still has the token. It is enough to recognise the owner, so the
    // second acquire gets the same reply as the first one.
    assert_eq!(send_between_others(&node, both.clone(), "one fence").await, first);
    server.cli(&["del", "{a}:fence", "{b}:fence"]);
    let refused = send_between_others(&node, both, "no fence").await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn a_value_of_any_type_under_any_key_of_an_op_spoils_that_op_only() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let (mut events, mut con) = (node.events(), tenant(&server).await);
    let me = owner();
    let mine = me.as_str().as_bytes();
    let mut values: Vec<Vec<&[u8]>> = vec![
        vec![b"RPUSH", b"a"],
        vec![b"HSET", b"a", b"b"],
        vec![b"SADD", b"a"],
        vec![b"ZADD", b"1", b"a"],
        vec![b"XADD", b"*", b"a", b"b"],
        vec![b"SET", BYTES],
        vec![b"SET", mine],
    ];
    values.extend(STRANGE.iter().map(|s| vec![&b"SET"[..], s.as_bytes()]));
    for value in &values {
        for key in ["k", "{k}:fence", "{k}:meta", "{k}:queue", "r"] {
            for held in [false, true] {
                let ops = if key == "r" { about_record("r", me) } else { about_lock("k", me) };
                for op in ops {
                    put(&mut con, &[b"DEL", b"k", b"{k}:fence", b"{k}:meta", b"{k}:queue", b"r"])
                        .await;
                    if held {
                        put(&mut con, &[b"SET", b"k", mine, b"PX", b"60000"]).await;
                        put(&mut con, &[b"SET", b"{k}:fence", b"7", b"PX", b"60000"]).await;
                        put(&mut con, &[b"DEL", key.as_bytes()]).await;
                    }
                    let words = [&[value[0], key.as_bytes()], &value[1..]].concat();
                    put(&mut con, &words).await;
                    let what = format!("{key}: {value:?}, held: {held}");
                    let got = send_between_others(&node, op.clone(), &what).await;
                    if key == "k" && matches!(op, Op::Acquire { .. }) && value[1] != mine {
                        let foreign = matches!(got, Ok(Reply::Held { foreign: true, .. }));
                        assert!(foreign, "{what}: {got:?}");
                    }
                }
            }
        }
    }
    assert_stayed(&mut events);
}

#[tokio::test]
async fn a_list_of_candidates_that_is_none_spoils_its_own_op_only() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let me = owner();
    let later = SystemEnv.wall_micros() / 1_000 + 60_000;
    let good = format!("{} {later} 5 hello", owner().as_str());
    for list in [
        "hello".to_owned(),
        // The key `e` contains a list of candidates. It must consist of whole entries, so a single
        // byte is no valid list.
        "x".to_owned(),
        "xy z".to_owned(),
        "another program's".to_owned(),
        format!("{good} {good}"),
        // These entries are cut off: the first lacks its last byte, and the second ends after 30
        // bytes.
        good[..good.len() - 1].to_owned(),
        good[..30].to_owned(),
        format!("{} {later} -5 hello", me.as_str()),
        format!("{} {later}.5 5 hello", me.as_str()),
    ] {
        server.cli(&["set", "e", &list]);
        let ttl = Duration::from_secs(60);
        let entry = Some(b"x"[..].into());
        let enlist = Enlist { key: "e".into(), owner: me, ttl, entry, news: false };
        let got = send_between_others(&node, Op::Enlist(enlist), &list).await;
        assert_eq!(fault(got).0, NodeFault::ForeignKey, "{list}");
        assert_eq!(server.cli(&["get", "e"]), list, "it was written over");
    }
}

#[tokio::test]
async fn a_huge_value_is_not_carried_around() {
    let server = Server::start(&["--save", ""]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let (mut events, mut con) = (node.events(), tenant(&server).await);
    let me = owner();
    // This is the longest string that Redis permits.
    server.cli(&["setrange", "k", "536870911", "x"]);
    put(&mut con, &[b"SET", b"l", me.as_str().as_bytes()]).await;
    put(&mut con, &[b"SET", b"{l}:fence", b"7"]).await;
    for op in about_lock("k", me).into_iter().take(7) {
        let got = send_between_others(&node, op.clone(), "huge lock").await;
        match op {
            Op::Acquire { .. } => assert!(matches!(got, Ok(Reply::Held { foreign: true, .. }))),
            Op::Inspect { .. } => {
                let Ok(Reply::Holder(Some(holder))) = got else { panic!("{got:?}") };
                assert_eq!(holder.owner, None);
            }
            _ => assert_eq!(got, Ok(Reply::NotOwner)),
        }
    }
    server.cli(&["rename", "k", "{l}:meta"]);
    server.cli(&["pexpire", "{l}:meta", "60000"]);
    let look = Op::Inspect { keys: LockKeys::new("l"), wait: false };
    let got = send_between_others(&node, look, "huge metadata").await;
    let Ok(Reply::Holder(Some(holder))) = got else { panic!("{got:?}") };
    assert_eq!((holder.owner, holder.meta), (Some(me), None));
    server.cli(&["del", "{l}:meta"]);
    // No client can store a result as large as this one, which has 12 MiB.
    put(&mut con, &[b"SET", b"r", &record("", 0, Some(&vec![b'x'; 12 << 20]))]).await;
    for op in about_record("r", me).into_iter().take(5) {
        let got = send_between_others(&node, op, "huge result").await;
        assert!(!matches!(got, Ok(Reply::Completed(_))), "{got:?}");
    }
    assert_stayed(&mut events);
}

/// One reply contains at most a mebibyte of metadata, however much the requests ask for.
#[tokio::test]
async fn metadata_of_many_holders_comes_in_several_answers() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let mut con = tenant(&server).await;
    let words = vec![b'w'; 60 << 10];
    let names: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    for name in &names {
        let (keys, me) = (LockKeys::new(name), owner());
        put(&mut con, &[b"SET", name.as_bytes(), me.as_str().as_bytes(), b"PX", b"60000"]).await;
        put(&mut con, &[b"SET", keys.meta().as_bytes(), &words, b"PX", b"60000"]).await;
    }
    let look = |name: &String| Op::Inspect { keys: LockKeys::new(name), wait: false };
    let got = batch(&node, LONG, names.iter().map(look).collect(), TTL).await.items;
    let shown = got.iter().filter(|r| matches!(r, Ok(Reply::Holder(Some(h))) if h.meta.is_some()));
    assert_eq!(shown.count(), 17);
    assert!(got[17..].iter().all(|r| *r == Ok(Reply::Deferred)), "{:?}", got[17]);
}
