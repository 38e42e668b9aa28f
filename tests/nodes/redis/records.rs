//! Idempotency records (claim, steps and result of a key) on a real server.

use palisade::node::spi::Ballot;

use super::*;

/// Asserts that the record `r` expires after `retention`. The claim of the record had a lease of at
/// most `TTL`, which is added to the expiry.
fn is_kept_for(server: &Server, retention: Duration) {
    let left = Duration::from_millis(server.cli(&["pttl", "r"]).parse().unwrap());
    let least = retention + 2 * LONG.clock_error;
    // The requests and replies took some time.
    let slow = Duration::from_millis(200);
    assert!(left + slow >= least, "{left:?} of {least:?}");
    assert!(left <= least + TTL + Duration::from_millis(1), "{left:?} of {least:?}");
}

/// A completion within the lease does not change the expiry, because the claim already added the
/// lease to the expiry.
#[tokio::test]
async fn a_record_that_is_completed_late_in_its_lease_is_kept_for_its_retention() {
    const DAY: Duration = Duration::from_secs(86_400);
    let server = Server::start(&[]);
    let node = fresh(&server);
    let me = owner();
    let of = Claim { retention: DAY, ..claim("r", me) };
    // The reply to the first claim contains the server's data history (its sequence of writes). So
    // the second claim takes the short path through the Lua script, on which the history is only
    // compared.
    one(&node, LONG, Op::Claim(Claim { key: "first".into(), ..of.clone() })).await.unwrap();
    let Ok(Reply::Claimed { fence, attempt: 1, .. }) = one(&node, LONG, Op::Claim(of)).await else {
        panic!("not claimed")
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let complete = Op::Complete {
        ballot: Ballot {
            key: "r".into(),
            owner: me,
            token: FencingToken::new(fence),
            retention: DAY,
            fingerprint: None,
        },
        value: Some((&b"out"[..]).into()),
    };
    assert_eq!(one(&node, LONG, complete).await, Ok(Reply::Done));
    is_kept_for(&server, DAY);
}

/// The claim of `a` keeps the record for a short retention only. Then `b` stores finished steps of
/// its handler and a result with a later ballot (the tokens that order claims). The lease of `a`
/// stays in the record. The record must be kept for the retention of `b`.
#[tokio::test]
async fn a_record_that_another_claims_steps_reached_is_kept_for_their_retention() {
    const DAY: Duration = Duration::from_secs(86_400);
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b, key) = (owner(), owner(), Arc::<str>::from("r"));
    let claimed = one(&node, LONG, Op::Claim(claim("r", a))).await;
    let Ok(Reply::Claimed { fence, .. }) = claimed else { panic!("{claimed:?}") };
    let token = FencingToken::new(fence + 1);
    let steps = Op::Steps {
        ballot: Ballot {
            key: Arc::clone(&key),
            owner: b,
            token,
            retention: DAY,
            fingerprint: None,
        },
        list: (&b"[]"[..]).into(),
    };
    assert_eq!(one(&node, LONG, steps).await, Ok(Reply::Done));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let value = Some((&b"out"[..]).into());
    let complete = Op::Complete {
        ballot: Ballot { key, owner: b, token, retention: DAY, fingerprint: None },
        value,
    };
    assert_eq!(one(&node, LONG, complete).await, Ok(Reply::Done));
    is_kept_for(&server, DAY);
}

/// Claims `r` on the short path of the script, for which the client has to know the data history.
async fn claimed(node: &RedisNode, of: Claim) -> Ballot {
    let (owner, retention) = (of.owner, of.retention);
    one(node, LONG, Op::Claim(Claim { key: "first".into(), ..of.clone() })).await.unwrap();
    let Ok(Reply::Claimed { fence, .. }) = one(node, LONG, Op::Claim(of)).await else {
        panic!("not claimed")
    };
    let token = FencingToken::new(fence);
    Ballot { key: "r".into(), owner, token, retention, fingerprint: None }
}

#[tokio::test]
async fn of_one_claim_the_longest_list_of_steps_stays_in_any_order() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let ballot = claimed(&node, claim("r", owner())).await;
    let mut longest = "";
    for list in ["[1]", "[1,2,3]", "[1,2]", "[]", "[1,2,3,4]", "[1,2,3]", "[1]"] {
        let list_of = list.as_bytes().into();
        let steps = Op::Steps { ballot: ballot.clone(), list: list_of };
        assert_eq!(one(&node, LONG, steps).await, Ok(Reply::Done), "{list}");
        longest = if list.len() > longest.len() { list } else { longest };
        assert_eq!(server.cli(&["getrange", "r", "150", "-1"]), longest, "after {list}");
    }
}

#[tokio::test]
async fn a_record_is_kept_for_its_retention_after_an_extended_lease() {
    let (server, hour) = (Server::start(&[]), Duration::from_secs(3_600));
    let node = fresh(&server);
    let of = Claim { retention: 5 * hour, ..claim("r", owner()) };
    let ballot = claimed(&node, of).await;
    for lease in [TTL, 7 * hour, 3 * hour] {
        let extend = Op::ExtendClaim { ballot: ballot.clone(), lease, reassert: None };
        assert_eq!(one(&node, LONG, extend).await, Ok(Reply::Done));
        let left = Duration::from_millis(server.cli(&["pttl", "r"]).parse().unwrap());
        assert!(left > 5 * hour + lease, "{lease:?}: {left:?}");
    }
}

#[tokio::test]
async fn a_record_with_a_number_that_is_not_ours_is_neither_replayed_nor_claimed() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (me, key) = (owner(), Arc::<str>::from("r"));
    let claimed = one(&node, LONG, Op::Claim(claim("r", me))).await;
    let Ok(Reply::Claimed { fence, .. }) = claimed else { panic!("{claimed:?}") };
    let (token, retention) = (FencingToken::new(fence), Duration::from_secs(3600));
    let value = Some((&b"out"[..]).into());
    let complete = Op::Complete {
        ballot: Ballot { key, owner: me, token, retention, fingerprint: None },
        value,
    };
    assert_eq!(one(&node, LONG, complete).await, Ok(Reply::Done));
    let numbers = [
        ("fence", vec!["0000000000000000", "9007199254740992", "x", "-", " "]),
        ("ballot", vec!["0000000000000000", "9007199254740992", "-1", "+"]),
        ("till", vec!["-", "1e3", "+1", " "]),
        ("attempt", vec!["1.5", "-"]),
        ("history", vec!["x", "A", "-"]),
        ("length", vec!["99999999", "-1"]),
        ("state", vec!["x", "-", "n"]),
        ("waiters", vec!["x", "0"]),
    ];
    for (name, wrong) in numbers {
        let (at, len) = (field(name).0.to_string(), field(name).1);
        let end = (field(name).0 + len - 1).to_string();
        let right = server.cli(&["getrange", "r", &at, &end]);
        for number in wrong {
            server.cli(&["setrange", "r", &at, number]);
            let refused = one(&node, LONG, Op::Claim(claim("r", owner()))).await;
            let error = refused.expect_err(&format!("{name} {number:?}"));
            assert!(error.to_string().contains("WRONGTYPE"), "{name} {number:?}: {error}");
            server.cli(&["setrange", "r", &at, &right]);
        }
        let replayed = one(&node, LONG, Op::Claim(claim("r", owner()))).await;
        assert!(matches!(replayed, Ok(Reply::Completed(_))), "{name}: {replayed:?}");
    }
}

#[tokio::test]
async fn an_old_copy_of_a_record_does_not_pass_for_knowledge() {
    let mut server = Server::start(&[]);
    facts(&fresh(&server), SHORT).await;
    let node = RedisNode::new(server.url()).unwrap();
    let (a, b) = (owner(), owner());
    let brief = |owner| {
        let lease = Duration::from_millis(50);
        Op::Claim(Claim { lease, ..claim("r", owner) })
    };
    let got = one(&node, SHORT, brief(a)).await;
    let Ok(Reply::Claimed { fence, unsure: Duration::ZERO, .. }) = got else { panic!("{got:?}") };
    server.cli(&["save"]);
    let done = Op::Complete {
        ballot: Ballot {
            key: "r".into(),
            owner: a,
            token: FencingToken::new(fence),
            retention: Duration::from_secs(3600),
            fingerprint: None,
        },
        value: Some(b"result"[..].into()),
    };
    assert_eq!(one(&node, SHORT, done.clone()).await, Ok(Reply::Done));
    server.restart();
    let got = loop {
        match until_up_in(&node, SHORT, brief(b)).await {
            Ok(Reply::Quarantined { remaining, .. }) => tokio::time::sleep(remaining).await,
            other => break other,
        }
    };
    let Ok(Reply::Claimed { fence: above, unsure, record: None, .. }) = got else {
        panic!("{got:?}")
    };
    assert!(!unsure.is_zero());
    assert!(above > fence);
    // A claim that was granted before the server lost its data cannot be completed.
    assert_eq!(one(&node, SHORT, done).await, Ok(Reply::NotOwner));
}

/// A fence key (last fencing token of a lock) contains a text that Lua may read as a number, but
/// that no reply can contain as a token.
#[tokio::test]
async fn a_strange_number_under_a_fence_key_spoils_its_own_op_only() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    facts(&node, LONG).await;
    let strange = ["inf", "-inf", "nan", "-3", "1e300", "99999999999999999999", "text"];
    for (strange, held) in strange.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        assert_eq!(server.cli(&["SET", "{odd}:fence", strange]), "OK");
        server.cli(&["DEL", "odd", "even"]);
        if held {
            server.cli(&["SET", "odd", "somebody's"]);
        }
        let look = Op::Inspect { keys: LockKeys::new("odd"), wait: false };
        let ops = vec![acquire("odd", owner()), look, acquire("even", owner())];
        let got = batch(&node, LONG, ops, Duration::from_secs(5)).await;
        assert!(matches!(got.items[2], Ok(Reply::Granted { .. })), "{strange}: {got:?}");
    }
}

#[tokio::test]
async fn a_result_on_one_server_twice_is_on_no_majority() {
    let (twice, other) = (Server::start(&[]), Server::start(&[]));
    let node = |server: &Server, name: &str| {
        RedisNode::builder(server.url()).name(name).trust_fresh(true).build().unwrap()
    };
    let builder = palisade::Redlock::builder()
        .node(node(&twice, "a"))
        .node(node(&twice, "b"))
        .node(node(&other, "c"))
        .node_deadline(Duration::from_millis(500));
    let redlock = builder.build().unwrap();
    let guard = redlock.mutex("warm").build().unwrap().acquire().await.unwrap();
    // The addresses `a` and `b` lead to the same server. The server accepts only one of the two
    // nodes, at random. So the outcome of the release may be unknown.
    drop(guard.release().await);
    let idempotency = redlock.idempotency("orders").at_most_once();
    let orders = idempotency.lease(Duration::from_secs(2)).build().unwrap();
    let done = orders.key("k").run(async |_| {
        other.freeze();
        Ok::<_, String>(7)
    });
    let done = done.await;
    let not = matches!(&done, Err(palisade::RunError::NotRecorded(_)));
    assert!(not, "one server of two has it, and it passed for two of three: {done:?}");
    // One server must not count as two nodes. So a lookup does not take the value on this server as
    // the answer of a majority.
    let seen = orders.key("k").lookup::<u32>().await;
    assert!(!matches!(seen, Ok(palisade::idempotency::Status::Stored(_))), "{seen:?}");
}

/// One reply contains at most a mebibyte of results, or a single larger result. This holds however
/// many results the requests ask for.
#[tokio::test]
async fn an_answer_is_not_as_large_as_all_results_that_are_asked_for() {
    const KB: usize = 1_024;
    let server = Server::start(&[]);
    let node = fresh(&server);
    let keep = |name: &str, length: usize| {
        let text = record("", 0, Some(&vec![b'x'; length]));
        assert_eq!(server.cli(&["set", name, &String::from_utf8(text).unwrap()]), "OK");
    };
    let lookup = |name: &&str| Op::Lookup {
        key: (*name).into(),
        retention: Duration::from_secs(60),
        fingerprint: None,
        born: None,
        accepted: Duration::ZERO,
    };
    let lookups = |names: &[&str]| -> Vec<Op> { names.iter().map(lookup).collect() };
    let shown = async |names: &[&str]| {
        let got = batch(&node, LONG, lookups(names), Duration::from_secs(5)).await;
        let length = |reply: Result<Reply, NodeError>| match reply {
            Ok(Reply::Record { state: Some(state), .. }) => {
                Some(state.record.expect("a result").value.expect("it is kept").len())
            }
            Ok(Reply::Deferred) => None,
            other => panic!("{other:?}"),
        };
        got.items.into_iter().map(length).collect::<Vec<_>>()
    };
    for (name, length) in [("a", 100 * KB), ("b", 100 * KB), ("c", 100 * KB), ("d", 100 * KB)] {
        keep(name, length);
    }
    assert_eq!(shown(&["a", "b", "c", "d"]).await, [Some(100 * KB); 4], "small ones together");
    // Ten of the twelve results fit into the reply. The node omits the first result that does not
    // fit, and all results after it.
    let many = shown(&["a"; 12]).await;
    assert_eq!(many, [vec![Some(100 * KB); 10], vec![None; 2]].concat());
}
