//! `RedisNode` on real servers. The servers restart, freeze, lose data or refuse commands. Some
//! servers are not usable as a lock server, and the node must refuse them.

#![allow(clippy::needless_pass_by_value)]

mod access;
mod dns;
mod durable;
mod expected;
mod flood;
mod forged;
mod lineage;
mod losses;
mod markers;
mod order;
mod plans;
mod readers;
mod reconnect;
mod records;
mod rights;
mod same;
mod script;
mod semaphores;
mod step;
mod strangers;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::FencingToken;
use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{
    Batch, Began, Claim, Env as _, Facts, IfHeld, LockKeys, LockMode, LockNode, NodeSignal,
    NotAfter, Op, OwnerToken, Place, Remembered, Replies, Reply, SystemEnv, Terms,
};
use palisade::node::{NodeEvent, RedisNode};

use crate::support::ops::{self, if_held, in_mode, owner, release};
use crate::support::server::{Server, free_port};

const TTL: Duration = Duration::from_secs(20);
/// Settings of a client that cause a long quarantine (the time after a loss of data in which a
/// server grants nothing). No test waits for its end.
const LONG: Terms =
    Terms { max_ttl: Duration::from_secs(3600), clock_error: Duration::from_secs(60) };
/// Settings of a client that cause a short quarantine (time without grants), for tests that wait
/// for its end.
const SHORT: Terms =
    Terms { max_ttl: Duration::from_millis(700), clock_error: Duration::from_secs(60) };

const PLACE: Place = Place { waiter: 1, waited: Duration::ZERO, needs: Duration::ZERO };

fn acquire(name: &str, owner: OwnerToken) -> Op {
    ops::acquire(name, owner, TTL)
}

/// Returns the op of an acquire that joins the node's queue of waiters if the lock is held.
fn waiting(name: &str, owner: OwnerToken) -> Op {
    if_held(acquire(name, owner), IfHeld::Queue(PLACE))
}

fn extend(name: &str, owner: OwnerToken, token: u64, meta: Option<&[u8]>) -> Op {
    let meta = meta.map(Arc::from);
    let token = FencingToken::new(token);
    Op::Extend {
        mode: LockMode::Exclusive,
        keys: LockKeys::new(name),
        owner,
        ttl: TTL,
        token,
        meta,
        reassert: None,
    }
}

/// Changes an op on a lock to the op of a reader.
fn shared(op: Op) -> Op {
    in_mode(op, LockMode::Shared)
}

fn claim(key: &str, owner: OwnerToken) -> Claim {
    Claim {
        key: key.into(),
        owner,
        lease: TTL,
        retention: Duration::from_secs(3600),
        proposal: SystemEnv.wall_micros(),
        fingerprint: None,
        force: false,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    }
}

/// Where a field of a record's text begins, and how many bytes it has.
fn field(name: &str) -> (usize, usize) {
    match name {
        "own" => (2, 22),
        "fence" => (24, 16),
        "history" => (40, 29),
        "attempt" => (69, 9),
        "fingerprint" => (78, 33),
        "state" => (111, 1),
        "ballot" => (112, 16),
        "length" => (128, 8),
        "till" => (136, 13),
        "waiters" => (149, 1),
        _ => panic!("no field {name}"),
    }
}

const HEAD: usize = 150;

/// Returns the text of a record, as a server stores it, with one attempt of this owner and the
/// ballot 5. `till` is the end of its lease. A result has the ballot 5, too.
fn record(own: &str, till: u64, result: Option<&[u8]>) -> Vec<u8> {
    let (state, ballot, value) = match result {
        Some(value) => ('r', 5, value),
        None => ('-', 0, &b""[..]),
    };
    let (history, nobody) = ("-".repeat(29), "-".repeat(33));
    let len = value.len();
    let head = format!(
        "p1{own:.<22}{:016}{history}{:09}{nobody}{state}{ballot:016}{len:08}{till:013}-",
        5, 1
    );
    assert_eq!(head.len(), HEAD);
    [head.as_bytes(), value].concat()
}

async fn batch(node: &RedisNode, terms: Terms, ops: Vec<Op>, limit: Duration) -> Replies {
    node.call(
        Batch { terms, not_after: None, remembers: Remembered::default(), ops },
        SystemEnv.now() + limit,
    )
    .await
}

async fn one(node: &RedisNode, terms: Terms, op: Op) -> Result<Reply, NodeError> {
    let mut replies = batch(node, terms, vec![op], Duration::from_secs(5)).await;
    assert_eq!(replies.items.len(), 1);
    replies.items.remove(0)
}

async fn facts(node: &RedisNode, terms: Terms) -> Facts {
    let replies = batch(node, terms, Vec::new(), Duration::from_secs(5)).await;
    replies.facts.expect("the node answers")
}

fn fresh(server: &Server) -> RedisNode {
    RedisNode::builder(server.url()).trust_fresh(true).build().unwrap()
}

/// Makes a first client use the server, so that the server is no longer new. Returns a second
/// client, which would not trust a server without data.
async fn used(server: &Server) -> RedisNode {
    let facts = facts(&fresh(server), LONG).await;
    assert_eq!(facts.quarantine, Duration::ZERO);
    RedisNode::new(server.url()).unwrap()
}

fn fence(reply: Result<Reply, NodeError>) -> u64 {
    match reply {
        Ok(Reply::Granted { fence }) => fence,
        other => panic!("not granted: {other:?}"),
    }
}

fn fault(reply: Result<Reply, NodeError>) -> (NodeFault, bool) {
    let e = reply.expect_err("a fault");
    (e.fault(), e.is_ambiguous())
}

fn assert_quarantined(reply: Result<Reply, NodeError>) {
    assert!(matches!(reply, Ok(Reply::Quarantined { .. })), "{reply:?}");
}

#[tokio::test]
async fn a_release_sends_a_hint_to_a_waiter() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let (a, b) = (owner(), owner());
    let mut events = node.events();
    one(&node, LONG, acquire("k", a)).await.unwrap();
    assert_eq!(events.recv().await, Ok(NodeEvent::Up.into()));
    one(&node, LONG, waiting("k", b)).await.unwrap();
    one(&node, LONG, release("k", a)).await.unwrap();
    let reported = tokio::time::timeout(Duration::from_secs(5), events.recv()).await;
    assert_eq!(reported.expect("a hint"), Ok(NodeSignal::Changed("k".into())));
}

#[tokio::test]
async fn foreign_values_are_held_not_broken() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    server.cli(&["hset", "redisson", "uuid:1", "1"]);
    server.cli(&["set", "other", "some-other-client"]);
    server.cli(&["lpush", "{side}:fence", "x"]);
    for name in ["redisson", "other"] {
        let a = owner();
        let held = one(&node, LONG, acquire(name, a)).await;
        assert_eq!(held, Ok(Reply::Held { remaining: None, foreign: true }));
        assert_eq!(one(&node, LONG, release(name, a)).await, Ok(Reply::NotOwner));
        assert_eq!(one(&node, LONG, extend(name, a, 1, None)).await, Ok(Reply::NotOwner));
    }
    // A value of another program under a side key of a lock (here its fence) or under a record's
    // key fails the op on this key. The other ops of the batch are executed.
    let a = owner();
    let ops = vec![acquire("side", a), Op::Claim(claim("redisson", a)), acquire("fine", a)];
    let ops = [vec![Op::Claim(claim("other", a))], ops].concat();
    let got = batch(&node, LONG, ops, TTL).await.items;
    assert_eq!(fault(got[0].clone()), (NodeFault::ForeignKey, false));
    assert_eq!(fault(got[1].clone()), (NodeFault::ForeignKey, false));
    assert!(fence(got[3].clone()) > 0);
    assert_eq!(server.cli(&["exists", "side"]), "0");
}

#[tokio::test]
async fn after_the_quarantine_tokens_are_above_all_that_was_forgotten() {
    let mut server = Server::start(&[]);
    facts(&fresh(&server), SHORT).await;
    let node = RedisNode::new(server.url()).unwrap();
    // The clock of this client is ahead by the whole clock error E.
    let mut ahead = acquire("k", owner());
    if let Op::Acquire { proposal, .. } = &mut ahead {
        *proposal += 60_000_000;
    }
    let before = fence(one(&node, SHORT, ahead).await);
    server.restart_empty();
    let after = loop {
        match one(&node, SHORT, acquire("k", owner())).await {
            Ok(Reply::Granted { fence }) => break fence,
            Ok(Reply::Quarantined { remaining, .. }) => {
                assert!(remaining <= SHORT.max_ttl + Duration::from_millis(1));
                tokio::time::sleep(remaining).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            other => panic!("{other:?}"),
        }
    };
    assert!(after > before, "{after} {before}");
}

#[tokio::test]
async fn the_longer_quarantine_wins() {
    let server = Server::start(&[]);
    used(&server).await;
    let node = RedisNode::new(server.url()).unwrap();
    assert_eq!(facts(&node, SHORT).await.quarantine_len, LONG.max_ttl);
    let window = Duration::from_secs(9);
    let node = RedisNode::builder(server.url()).failover_window(window).build().unwrap();
    assert_eq!(facts(&node, LONG).await.quarantine_len, LONG.max_ttl + window);
    server.cli(&["set", "palisade:generation", "nonsense"]);
    assert_quarantined(one(&node, SHORT, acquire("k", owner())).await);
}

#[tokio::test]
async fn a_new_server_is_not_trusted_unasked() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    assert_quarantined(one(&node, LONG, acquire("k", owner())).await);
}

#[tokio::test]
async fn a_frozen_server_is_a_time_out_that_may_have_run() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    let mut events = node.events();
    one(&node, LONG, acquire("k", owner())).await.unwrap();
    assert_eq!(events.recv().await, Ok(NodeEvent::Up.into()));
    let a = owner();
    server.freeze();
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let got = batch(&node, LONG, vec![acquire("frozen", a)], limit).await.items.remove(0);
    let took = start.elapsed();
    assert_eq!(fault(got), (NodeFault::Timeout, true));
    assert!(took < Duration::from_secs(20), "the deadline does not bind: {took:?}");
    assert_eq!(events.recv().await, Ok(NodeEvent::Down.into()));
    // The server is still frozen. The node cannot connect, and sends no request.
    let got = batch(&node, LONG, vec![acquire("frozen", a)], limit).await.items.remove(0);
    assert_eq!(fault(got), (NodeFault::Unreachable, false));
    server.resume();
    let got = until_up(&node, acquire("frozen", a)).await;
    // The server may have executed the first request meanwhile. It recognises the second request by
    // the owner token, and grants again.
    fence(got);
    assert_eq!(events.recv().await, Ok(NodeEvent::Up.into()));
    let clients = server.cli(&["client", "list"]);
    assert!(clients.matches("lib-name=palisade").count() <= 1, "{clients}");
}

#[tokio::test]
async fn a_call_given_up_midway_leaves_no_connection_in_doubt() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    one(&node, LONG, acquire("k", owner())).await.unwrap();
    let mut events = node.events();
    server.freeze();
    let call = one(&node, LONG, acquire("l", owner()));
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    assert_eq!(events.try_recv(), Ok(NodeEvent::Down.into()));
    server.resume();
    fence(until_up(&node, acquire("m", owner())).await);
}

/// Sends the op, and repeats it as long as the connection fails temporarily.
async fn until_up(node: &RedisNode, op: Op) -> Result<Reply, NodeError> {
    until_up_in(node, LONG, op).await
}

async fn until_up_in(node: &RedisNode, terms: Terms, op: Op) -> Result<Reply, NodeError> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match one(node, terms, op.clone()).await {
            Err(e)
                if Instant::now() < end
                    && matches!(e.fault(), NodeFault::Unreachable | NodeFault::Disconnected) =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable_at_once_and_not_executed() {
    let node = RedisNode::new(format!("redis://127.0.0.1:{}", free_port())).unwrap();
    for _ in 0..3 {
        let got = one(&node, LONG, acquire("k", owner())).await;
        assert_eq!(fault(got), (NodeFault::Unreachable, false));
    }
}

#[tokio::test]
async fn a_unix_socket_and_a_database() {
    let server = Server::start(&[]);
    let url = format!("unix://{}?db=3", server.socket().display());
    let node = RedisNode::builder(url).trust_fresh(true).build().unwrap();
    assert_eq!(*node.name(), *server.socket().display().to_string());
    let a = owner();
    fence(one(&node, LONG, acquire("k", a)).await);
    assert_eq!(server.cli(&["-n", "3", "get", "k"]), a.as_str());
}

#[tokio::test]
async fn a_replica_is_no_master_before_and_after_it_became_one() {
    let server = Server::start(&[]);
    let other = Server::start(&[]);
    let node = fresh(&server);
    let a = owner();
    one(&node, LONG, acquire("k", a)).await.unwrap();
    server.cli(&["replicaof", "127.0.0.1", &other.port().to_string()]);
    // The server refuses reads, too, because a replica's data may be outdated.
    let got = one(&node, LONG, Op::Inspect { keys: LockKeys::new("k"), wait: false }).await;
    assert_eq!(fault(got).0, NodeFault::NotMaster);
    let got = one(&fresh(&server), LONG, acquire("k", a)).await;
    assert_eq!(fault(got), (NodeFault::NotMaster, false));
    // After its promotion the server has a new data history, so it begins with a quarantine.
    server.cli(&["replicaof", "no", "one"]);
    assert_quarantined(until_master(&node, acquire("l", a)).await);
}

async fn until_master(node: &RedisNode, op: Op) -> Result<Reply, NodeError> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match one(node, LONG, op.clone()).await {
            Err(e) if e.fault() == NodeFault::NotMaster && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
}

#[tokio::test]
async fn too_few_replicas_is_typed_and_nothing_was_granted() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    one(&node, LONG, acquire("k", owner())).await.unwrap();
    server.cli(&["config", "set", "min-replicas-to-write", "1"]);
    let got = batch(&node, LONG, vec![acquire("l", owner()), acquire("m", owner())], TTL).await;
    for item in got.items {
        assert_eq!(fault(item), (NodeFault::NoReplicas, false));
    }
    assert_eq!(server.cli(&["exists", "l", "m"]), "0");
    server.cli(&["config", "set", "min-replicas-to-write", "0"]);
    fence(one(&node, LONG, acquire("l", owner())).await);
}

#[tokio::test]
async fn what_is_no_lock_server_says_so() {
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    let got = one(&fresh(&sentinel), LONG, acquire("k", owner())).await;
    let e = got.unwrap_err();
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Unsupported, false));
    assert!(e.to_string().contains("SentinelNode"), "{e}");
    let cluster = Server::start(&["--cluster-enabled", "yes"]);
    let got = one(&fresh(&cluster), LONG, acquire("k", owner())).await;
    assert_eq!(fault(got), (NodeFault::Unsupported, false));
}
