//! Conditional writes of records (idempotency 24): how many round trips an op takes, and what other
//! clients' requests and a slow link do to it.

use palisade::node::spi::Ballot;
use palisade::{Failed, Redlock};

use super::*;
use crate::support::proxy::Proxy;

const RETENTION: Duration = Duration::from_secs(3600);
const MANY: u64 = 24;

fn with_error(clock_error: Duration) -> Terms {
    Terms { max_ttl: Duration::from_secs(20), clock_error }
}

fn forced(key: &str) -> Op {
    Op::Claim(Claim { force: true, ..claim(key, owner()) })
}

async fn claimed(node: &RedisNode, key: &str) -> Ballot {
    let owner = owner();
    match one(node, LONG, Op::Claim(claim(key, owner))).await {
        Ok(Reply::Claimed { fence, .. }) => {
            let (key, token) = (key.into(), FencingToken::new(fence));
            Ballot { key, owner, token, retention: RETENTION, fingerprint: None }
        }
        other => panic!("{key}: {other:?}"),
    }
}

fn completion(ballot: &Ballot, value: &[u8]) -> Op {
    Op::Complete { ballot: ballot.clone(), value: Some(value.into()) }
}

/// Clients that have seen the marker and no record.
async fn clients(server: &Server, many: u64) -> Vec<RedisNode> {
    let nodes: Vec<_> = (0..many).map(|_| fresh(server)).collect();
    for node in &nodes {
        facts(node, LONG).await;
    }
    nodes
}

async fn trips(server: &Server, node: &RedisNode, op: Op) -> (u64, Result<Reply, NodeError>) {
    let before = server.calls("evalsha");
    let reply = one(node, LONG, op).await;
    (server.calls("evalsha") - before, reply)
}

#[tokio::test]
async fn each_op_on_a_record_takes_the_trips_that_the_design_says() {
    let server = Server::start(&[]);
    let [holder, other, third, fourth] = &clients(&server, 4).await[..] else { panic!("four") };
    let before = server.calls("evalsha");
    let ballot = claimed(holder, "k").await;
    assert_eq!(server.calls("evalsha") - before, 1, "a new key");
    let ops = [
        ("extension", Op::ExtendClaim { ballot: ballot.clone(), lease: TTL, reassert: None }),
        ("steps", Op::Steps { ballot: ballot.clone(), list: b"[1]"[..].into() }),
    ];
    for (what, op) in ops {
        assert_eq!(trips(&server, holder, op).await, (1, Ok(Reply::Done)), "{what}");
    }
    let waits = || Op::Claim(Claim { wait: true, ..claim("k", owner()) });
    for (what, node, op, due) in [
        ("runs", other, Op::Claim(claim("k", owner())), 1),
        ("is not awaited yet", third, waits(), 2),
        ("is awaited already", fourth, waits(), 1),
    ] {
        let (took, reply) = trips(&server, node, op).await;
        assert!(matches!(reply, Ok(Reply::InFlight { .. })), "{what}: {reply:?}");
        assert_eq!(took, due, "{what}");
    }
    let done = trips(&server, holder, completion(&ballot, b"v")).await;
    assert_eq!(done, (1, Ok(Reply::Done)), "completion");
    let (took, reply) = trips(&server, third, Op::Claim(claim("k", owner()))).await;
    assert!(matches!(reply, Ok(Reply::Completed(_))), "{reply:?}");
    assert_eq!(took, 1, "a replay");
    let (took, reply) = trips(&server, third, forced("k")).await;
    assert!(matches!(reply, Ok(Reply::Claimed { .. })), "{reply:?}");
    assert_eq!(took, 2, "a claim by force");
    let lapses = Claim { lease: Duration::from_millis(1), ..claim("l", owner()) };
    assert!(one(holder, LONG, Op::Claim(lapses)).await.is_ok());
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (took, reply) = trips(&server, third, Op::Claim(claim("l", owner()))).await;
    assert!(matches!(reply, Ok(Reply::Claimed { attempt: 2, .. })), "{reply:?}");
    assert_eq!(took, 2, "a lapsed key");
}

/// The proposal of a client whose clock is the server's is in range as long as it is under way.
#[tokio::test]
async fn a_small_clock_error_denies_no_claim() {
    for micros in [0, 100, 1_000, 5_000, 20_000] {
        let server = Server::start(&[]);
        let (node, terms) = (fresh(&server), with_error(Duration::from_micros(micros)));
        facts(&node, terms).await;
        for i in 0..50 {
            let got = one(&node, terms, Op::Claim(claim(&format!("k{i}"), owner()))).await;
            assert!(matches!(got, Ok(Reply::Claimed { .. })), "E {micros} us: {got:?}");
        }
    }
}

#[tokio::test]
async fn a_handle_with_a_small_clock_error_runs_its_handlers() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(60));
    let redlock = redlock.clock_error(Duration::from_micros(500));
    let redlock = redlock.node_deadline(Duration::from_secs(5)).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    for i in 0..20 {
        let got = orders.key(format!("o{i}")).run(|_| async { Ok::<_, Failed>(1_u32) }).await;
        assert!(got.as_ref().is_ok_and(palisade::Outcome::is_executed), "o{i}: {got:?}");
    }
}

/// Each kind of grant: by the window, by a plan, from its holder, and beside other readers.
async fn is_granted(node: &RedisNode, terms: Terms, proposal: u64, name: &str) {
    let place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };
    let (first, name) = (owner(), |what: &str| LockKeys::new(&format!("{name}:{what}")));
    let (alone, read, many) = (name("k"), name("r"), LockKeys::many(vec![name("1"), name("2")]));
    let (exclusive, shared, fair) =
        (LockMode::Exclusive, LockMode::Shared, IfHeld::Fair { place, ticket: None });
    for (keys, mode, owner, if_held) in [
        (&alone, exclusive, first, None),
        (&alone, exclusive, owner(), Some(IfHeld::TakeFrom(first))),
        (&many, exclusive, owner(), None),
        (&read, shared, owner(), None),
        (&read, shared, owner(), None),
        (&name("w"), exclusive, owner(), Some(IfHeld::Queue(place))),
        (&name("f"), exclusive, owner(), Some(fair)),
    ] {
        let op = Op::Acquire { mode, keys: keys.clone(), owner, ttl: TTL, proposal, if_held };
        let got = one(node, terms, op.clone()).await;
        assert!(matches!(got, Ok(Reply::Granted { .. })), "{op:?}, {terms:?}: {got:?}");
    }
}

#[tokio::test]
async fn a_small_clock_error_denies_no_lock() {
    for micros in [0, 100, 5_000] {
        let server = Server::start(&[]);
        let (node, terms) = (fresh(&server), with_error(Duration::from_micros(micros)));
        facts(&node, terms).await;
        for i in 0..10 {
            is_granted(&node, terms, SystemEnv.wall_micros(), &format!("k{i}")).await;
        }
    }
}

/// The answers take 40 ms. A client whose clock is E behind is within what is assumed.
async fn slow_link() -> (Server, Proxy, RedisNode, Terms) {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.addr());
    let node = RedisNode::builder(format!("redis://{}", proxy.addr())).trust_fresh(true);
    let (node, terms) = (node.build().unwrap(), with_error(Duration::from_millis(50)));
    facts(&node, terms).await;
    proxy.edit(|_| std::thread::sleep(Duration::from_millis(40)));
    (server, proxy, node, terms)
}

#[tokio::test]
async fn a_slow_link_denies_no_lock_of_a_client_whose_clock_is_behind() {
    let (_server, _proxy, node, terms) = slow_link().await;
    for i in 0..3 {
        is_granted(&node, terms, SystemEnv.wall_micros() - 50_000, &format!("k{i}")).await;
    }
}

#[tokio::test]
async fn a_slow_link_denies_no_claim_of_a_client_whose_clock_is_behind() {
    let (_server, _proxy, node, terms) = slow_link().await;
    for i in 0..10 {
        let of = claim(&format!("k{i}"), owner());
        let of = Claim { proposal: of.proposal - 50_000, ..of };
        let got = one(&node, terms, Op::Claim(of)).await;
        assert!(matches!(got, Ok(Reply::Claimed { .. })), "{got:?}");
    }
}

/// Renewals of fifty claims leave as one batch after a reconnect; one of the fifty is completed
/// behind it. The other 49 renewals have nothing to do with that.
#[tokio::test]
async fn a_completion_costs_no_other_owners_renewal() {
    let server = Server::start(&[]);
    let first = fresh(&server);
    let mut ballots = Vec::new();
    for i in 0..50 {
        ballots.push(claimed(&first, &format!("k{i}")).await);
    }
    // A new connection: nothing is believed.
    let node = fresh(&server);
    facts(&node, LONG).await;
    let extend = |b: &Ballot| Op::ExtendClaim { ballot: b.clone(), lease: TTL, reassert: None };
    let renewals = ballots.iter().map(extend).collect();
    let complete = completion(&ballots[0], b"v");
    let (renewed, completed) =
        tokio::join!(batch(&node, LONG, renewals, TTL), batch(&node, LONG, vec![complete], TTL));
    assert_eq!(completed.items, [Ok(Reply::Done)]);
    for (i, item) in renewed.items.iter().enumerate() {
        match item {
            Ok(Reply::Done) => {}
            // The completion came between the two plans for the batch.
            Ok(Reply::Completed(_)) if i == 0 => {}
            Err(e) if i == 0 => {
                assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Contended, false));
            }
            other => panic!("k{i}: {other:?}"),
        }
    }
}

/// Repairs and decisions of operators claim by force. Whoever is overtaken plans anew, so each
/// claim is planned at most once for each of the others, and for its first look.
#[tokio::test]
async fn claims_by_force_of_many_clients_at_once_are_all_granted() {
    let server = Server::start(&[]);
    let first = fresh(&server);
    let ballot = claimed(&first, "k").await;
    assert_eq!(one(&first, LONG, completion(&ballot, b"v")).await, Ok(Reply::Done));
    let nodes = clients(&server, MANY).await;
    let before = server.calls("evalsha");
    let all = nodes.iter().map(|node| one(node, LONG, forced("k")));
    let got = futures_util::future::join_all(all).await;
    let fences = got.iter().map(|got| match got {
        Ok(Reply::Claimed { fence, .. }) => *fence,
        other => panic!("{other:?}"),
    });
    let fences: std::collections::BTreeSet<u64> = fences.collect();
    assert_eq!(fences.len() as u64, MANY, "{fences:?}");
    let took = server.calls("evalsha") - before;
    assert!((2 * MANY..=MANY * (MANY + 1)).contains(&took), "{took} trips");
}

#[tokio::test]
async fn a_lapsed_key_is_claimed_by_one_of_many() {
    let server = Server::start(&[]);
    let first = fresh(&server);
    let lapses = Claim { lease: Duration::from_millis(50), ..claim("k", owner()) };
    assert!(one(&first, LONG, Op::Claim(lapses)).await.is_ok());
    let nodes = clients(&server, MANY).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = server.calls("evalsha");
    let all = nodes.iter().map(|node| one(node, LONG, Op::Claim(claim("k", owner()))));
    let got = futures_util::future::join_all(all).await;
    let won = got.iter().filter(|got| matches!(got, Ok(Reply::Claimed { .. }))).count();
    let lost = got.iter().filter(|got| matches!(got, Ok(Reply::InFlight { .. }))).count();
    assert_eq!((won, won + lost), (1, got.len()), "{got:?}");
    let took = server.calls("evalsha") - before;
    assert!((MANY + 1..=2 * MANY).contains(&took), "{took} trips");
}

/// After a failover many large results are repaired at once. An answer has room for one of them;
/// the others are claimed by another plan, or put off.
#[tokio::test]
async fn many_large_results_are_claimed_by_force_in_one_batch() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let large = vec![b'x'; 1_000_000];
    for i in 0..MANY {
        let ballot = claimed(&node, &format!("k{i}")).await;
        assert_eq!(one(&node, LONG, completion(&ballot, &large)).await, Ok(Reply::Done));
    }
    let node = fresh(&server);
    facts(&node, LONG).await;
    let mut left: Vec<_> = (0..MANY).map(|i| format!("k{i}")).collect();
    for round in 0.. {
        assert!(round < MANY, "{left:?}");
        let ops = left.iter().map(|key| forced(key)).collect();
        let got = batch(&node, LONG, ops, TTL).await.items;
        let before = left.len();
        let mut items = got.into_iter();
        left.retain(|key| match items.next().expect("an answer to each") {
            Ok(Reply::Claimed { record, .. }) => {
                let value = record.and_then(|record| record.value);
                assert!(value.as_deref() == Some(&*large), "{key}");
                false
            }
            Ok(Reply::Deferred) => true,
            other => panic!("{key}: {other:?}"),
        });
        assert!(left.len() < before, "{before} were put off again");
        if left.is_empty() {
            break;
        }
    }
}
