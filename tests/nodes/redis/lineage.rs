//! Whose data a server has, for clients that stay connected: keys that it evicted, older data that
//! are put back, a backup, an address that leads elsewhere (quarantine 14 to 21 in docs/design).

use palisade::Redlock;
use palisade::internal::lineage::{Marker, Note};
use palisade_ops::Deployment;
use tokio::time::timeout;

use super::markers::replid;
use super::*;
use crate::support::marker::{marker, note};
use crate::support::proxy::Proxy;
use crate::support::wait::until;

/// Only what hangs exceeds it, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A client that remembers what it was answered, as a handle does.
struct Client {
    node: RedisNode,
    remembers: Remembered,
}

impl Client {
    fn at(address: &str) -> Self {
        let node = RedisNode::builder(format!("redis://{address}")).trust_fresh(true);
        Self { node: node.build().unwrap(), remembers: Remembered::default() }
    }

    async fn acquire(&mut self, name: &str) -> (Result<Reply, NodeError>, Option<Facts>) {
        let (ops, remembers) = (vec![acquire(name, owner())], self.remembers);
        let batch = Batch { terms: LONG, not_after: None, remembers, ops };
        let mut replies = self.node.call(batch, SystemEnv.now() + PATIENCE).await;
        if let Some(facts) = &replies.facts {
            self.remembers.learn(facts);
        }
        (replies.items.remove(0), replies.facts)
    }

    /// Repeats the acquire as long as there is no connection.
    async fn acquire_once_up(&mut self, name: &str) -> Result<Reply, NodeError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.acquire(name).await.0 {
                Err(e)
                    if Instant::now() < end
                        && matches!(
                            e.fault(),
                            NodeFault::Unreachable | NodeFault::Disconnected
                        ) =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => return other,
            }
        }
    }
}

fn evicted(server: &Server) -> u64 {
    let stats = server.cli(&["info", "stats"]);
    let keys = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    keys.and_then(|keys| keys.trim().parse().ok()).expect("a number")
}

/// Has the server delete each key that expires, and then sets it back.
pub(super) async fn evict(server: &Server) {
    let before = evicted(server);
    server.cli(&["set", "cache", "x", "px", "600000"]);
    server.cli(&["config", "set", "maxmemory-policy", "volatile-ttl"]);
    server.cli(&["config", "set", "maxmemory", "1"]);
    until("a key is evicted", || {
        server.cli(&["set", "more", "x"]);
        evicted(server) > before
    })
    .await;
    server.cli(&["config", "set", "maxmemory", "0"]);
    server.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    // Clients look once in each second of the server's clock.
    let looked = note(server).micros / 1_000_000;
    let second = || server.cli(&["time"]).lines().next().and_then(|s| s.parse::<u64>().ok());
    until("the next second", || second() > Some(looked)).await;
}

fn allowing(server: &Server) -> RedisNode {
    let node = RedisNode::builder(server.url()).trust_fresh(true).allow_eviction(true);
    node.build().unwrap()
}

/// The second one writes a marker, as the server gave its data another name.
#[tokio::test]
async fn a_late_batch_leaves_the_note_alone() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let node = fresh(&server);
    let first = facts(&node, LONG).await;
    fence(one(&node, LONG, acquire("k", owner())).await);
    for is_renamed in [false, true] {
        if is_renamed {
            server.cli(&["--rdb", "-"]);
        }
        let before = note(&server);
        let not_after = NotAfter { server: first.identity.clone(), micros: first.node_micros };
        let remembers = Remembered::default();
        let ops = vec![acquire("l", owner())];
        let batch = Batch { terms: LONG, not_after: Some(not_after), remembers, ops };
        let mut replies = node.call(batch, SystemEnv.now() + PATIENCE).await;
        let refused = replies.items.remove(0).unwrap_err();
        assert_eq!(refused.fault(), NodeFault::PastDeadline, "{refused}");
        assert_eq!(note(&server), before, "{is_renamed}");
        assert_eq!(marker(&server).replid.to_string(), replid(&server), "{is_renamed}");
    }
}

#[tokio::test]
async fn evicted_keys_are_a_loss_to_who_does_not_allow_it_whoever_comes_first() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let (strict, allowing) = (fresh(&server), allowing(&server));
    fence(one(&strict, LONG, acquire("k", owner())).await);
    fence(one(&allowing, LONG, acquire("l", owner())).await);
    for is_renamed in [false, true] {
        evict(&server).await;
        if is_renamed {
            // Then the first client writes the marker.
            server.cli(&["--rdb", "-"]);
        }
        let first = one(&allowing, LONG, acquire("m", owner())).await;
        if !is_renamed {
            fence(first);
        }
        let then = facts(&strict, LONG).await;
        assert!(then.new_history, "{is_renamed}: {then:?}");
        assert_eq!(then.losses.last().map(|loss| loss.from), Some(0), "{is_renamed}: {then:?}");
        assert_quarantined(one(&strict, LONG, acquire("n", owner())).await);
    }
}

pub(super) async fn up(node: &RedisNode) -> Facts {
    let end = Instant::now() + PATIENCE;
    loop {
        let replies = batch(node, LONG, Vec::new(), Duration::from_secs(5)).await;
        if let Some(facts) = replies.facts {
            return facts;
        }
        assert!(Instant::now() < end, "no connection");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Nobody judges its data then, and a process that starts has evicted nothing.
#[tokio::test]
async fn evictions_of_a_server_that_everybody_refuses_outlast_the_process() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let strict = fresh(&server);
    fence(one(&strict, LONG, acquire("k", owner())).await);
    let set = |name, value| assert_eq!(server.cli(&["config", "set", name, value]), "OK");
    set("maxmemory", "1000000000");
    set("maxmemory-policy", "volatile-ttl");
    server.cli(&["client", "kill", "type", "normal"]);
    let end = Instant::now() + PATIENCE;
    let ask = async |terms| batch(&strict, terms, Vec::new(), Duration::from_secs(5)).await.facts;
    while ask(LONG).await.is_some() {
        assert!(Instant::now() < end, "it is not refused");
    }
    let before = marker(&server);
    let longer = Terms { max_ttl: 2 * LONG.max_ttl, clock_error: 2 * LONG.clock_error };
    assert!(ask(longer).await.is_none(), "it is not refused");
    set("maxmemory", "1");
    until("a key is evicted", || {
        server.cli(&["set", "more", "x"]);
        evicted(&server) > 0
    })
    .await;
    set("maxmemory", "1000000000");
    while marker(&server).evicted <= evicted(&server) {
        assert!(ask(longer).await.is_none(), "it is not refused");
        assert!(Instant::now() < end, "nothing is on record");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let shared = |m: Marker| (m.history, m.quarantine, m.clock_error);
    assert_eq!(shared(marker(&server)), shared(before), "who does not vote asks for nothing");
    // Without the policy, as the refusal advises.
    server.restart();
    let then = up(&strict).await;
    assert_eq!(then.losses.last().map(|loss| loss.from), Some(0), "{then:?}");
    assert_quarantined(one(&strict, LONG, acquire("k", owner())).await);
}

/// A process that starts has evicted nothing.
#[tokio::test]
async fn evictions_that_were_only_seen_by_who_allows_them_outlast_the_process() {
    // While a disk is busy, a server puts writes to its file off, and the kill takes them.
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (strict, allowing) = (fresh(&server), allowing(&server));
    fence(one(&strict, LONG, acquire("k", owner())).await);
    drop(strict);
    evict(&server).await;
    fence(one(&allowing, LONG, acquire("l", owner())).await);
    server.restart();
    let first = up(&allowing).await;
    assert_ne!(first.losses.last().expect("a restart").from, 0, "{first:?}");
    let strict = fresh(&server);
    let then = up(&strict).await;
    assert_eq!(then.losses.last().map(|loss| loss.from), Some(0), "{then:?}");
    assert_quarantined(one(&strict, LONG, acquire("m", owner())).await);
}

/// Another process than the marker's, which began to count at 0. A replica over its limit evicts
/// nothing before it is promoted.
#[tokio::test]
async fn keys_that_a_promoted_server_evicts_before_anyone_comes_are_a_loss_of_everything() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let strict = fresh(&server);
    fence(one(&strict, LONG, acquire("k", owner())).await);
    drop(strict);
    let promoted = Server::start(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let text = |of: &Server| of.cli(&["get", "palisade:generation"]);
    let has_all = || {
        promoted.cli(&["info", "replication"]).contains("master_link_status:up")
            && text(&promoted) == text(&server)
    };
    until("the replica has the marker", has_all).await;
    assert_eq!(promoted.cli(&["replicaof", "no", "one"]), "OK");
    evict(&promoted).await;

    let client = fresh(&promoted);
    let begun = facts(&client, LONG).await;
    assert!(begun.new_history, "{begun:?}");
    assert_eq!(begun.losses.last().map(|loss| loss.from), Some(0), "{begun:?}");
    assert_quarantined(one(&client, LONG, acquire("k", owner())).await);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    Others,
    /// A copy of these, from before the last write.
    Copied,
    /// These, as they were saved before the last write, in the same process.
    Loaded,
}

#[tokio::test]
async fn data_in_the_place_of_others_begin_a_history_each_time() {
    // Redis 6.2 needs no permission, and knows no such setting.
    let known = Server::start(&[]).cli(&["config", "get", "enable-debug-command"]);
    let debug = if known.is_empty() { &[][..] } else { &["--enable-debug-command", "yes"][..] };
    for data in [Data::Others, Data::Copied, Data::Loaded] {
        let server = Server::start(debug);
        let mut client = Client::at(&server.addr());
        fence(client.acquire("before").await.0);
        match data {
            Data::Others => {}
            Data::Copied => {
                for key in ["palisade:generation", "palisade:note"] {
                    assert_eq!(server.cli(&["copy", key, key, "db", "1"]), "1");
                }
            }
            Data::Loaded => assert_eq!(server.cli(&["save"]), "OK"),
        }
        fence(client.acquire("after").await.0);
        let mut generation = client.remembers.newest.generation;
        for round in 0..3 {
            let put = match data {
                Data::Others | Data::Copied => server.cli(&["swapdb", "0", "1"]),
                Data::Loaded => server.cli(&["debug", "reload", "nosave"]),
            };
            assert_eq!(put, "OK", "{data:?}");
            let (reply, facts) = client.acquire(&format!("round-{round}")).await;
            assert_quarantined(reply);
            let facts = facts.expect("it was executed");
            generation += 1;
            let begun = (facts.new_history, facts.lineage.generation, facts.losses[0].from);
            assert_eq!(begun, (true, generation, 0), "{data:?} {round}: {facts:?}");
        }
    }
}

#[tokio::test]
async fn a_backup_renames_the_data_and_costs_nothing() {
    let args = ["--repl-backlog-ttl", "1", "--repl-diskless-sync-delay", "0"];
    let server = Server::start(&args);
    if !server.cli(&["info", "stats"]).contains("total_net_repl_input_bytes") {
        return; // Such a server cannot prove that nothing was lost.
    }
    let redlock = Redlock::builder().node(fresh(&server)).ttl(Duration::from_secs(60));
    let redlock = redlock.node_deadline(Duration::from_secs(5)).build().unwrap();
    let mut events = redlock.events();
    // Shorter than a quarantine.
    let soon = Duration::from_secs(20);
    let held = redlock.mutex("held").acquire_timeout(soon).await.unwrap();
    for round in 0..2 {
        let before = replid(&server);
        server.cli(&["--rdb", "-"]);
        until("the data are renamed", || replid(&server) != before).await;
        let renamed = async {
            loop {
                drop(redlock.mutex("other").acquire_timeout(soon).await.expect("as before"));
                while let Some(event) = events.try_next().map(|named| named.event) {
                    assert!(!matches!(event, NodeEvent::QuarantineBegun { .. }), "{event:?}");
                    if event == NodeEvent::Renamed {
                        return;
                    }
                }
            }
        };
        timeout(PATIENCE, renamed).await.unwrap_or_else(|_| panic!("no event: {round}"));
    }
    assert!(held.is_valid());
    assert_eq!(redlock.metrics()[0].quarantines, 0);
}

/// It may have handed its data over by it, and have them back without what was written meanwhile.
#[tokio::test]
async fn a_rename_after_a_call_of_failover_is_a_new_history() {
    let server = Server::start(&["--repl-backlog-ttl", "1", "--repl-diskless-sync-delay", "0"]);
    let node = fresh(&server);
    fence(one(&node, LONG, acquire("k", owner())).await);
    assert!(server.cli(&["failover", "abort"]).contains("No failover in progress"));
    let before = replid(&server);
    server.cli(&["--rdb", "-"]);
    until("the data are renamed", || replid(&server) != before).await;
    let begun = facts(&node, LONG).await;
    assert!(begun.new_history && !begun.renamed, "{begun:?}");
}

#[tokio::test]
async fn an_address_that_leads_to_another_deployment_is_refused_until_it_leads_home() {
    let (ours, theirs) = (Server::start(&[]), Server::start(&[]));
    for server in [&ours, &theirs] {
        let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
        assert!(done.is_done(), "{done}");
    }
    let proxy = Proxy::to(&ours.addr());
    let mut client = Client::at(&proxy.addr());
    fence(client.acquire("k").await.0);
    let kept = || theirs.cli(&["mget", "palisade:generation", "palisade:note", "k", "l"]);
    let before = kept();
    proxy.lead_to(&theirs.addr());
    ours.cli(&["client", "kill", "type", "normal"]);
    let refused = client.acquire_once_up("l").await.expect_err("another deployment's data");
    assert_eq!((refused.fault(), refused.is_ambiguous()), (NodeFault::ForeignData, false));
    assert!(refused.to_string().contains("the address leads to another server"), "{refused}");
    assert_eq!(kept(), before, "nothing was written");
    proxy.lead_to(&ours.addr());
    theirs.cli(&["client", "kill", "type", "normal"]);
    fence(client.acquire_once_up("l").await);
}

#[tokio::test]
async fn a_note_ahead_of_the_clock_is_renewed_to_the_present() {
    let server = Server::start(&[]);
    let node = fresh(&server);
    fence(one(&node, LONG, acquire("k", owner())).await);
    let before = note(&server);
    let ahead = Note { micros: before.micros + 3_600_000_000, ..before };
    server.cli(&["set", "palisade:note", &ahead.to_string()]);
    assert!(!facts(&node, LONG).await.new_history);
    let now = note(&server);
    assert_eq!(now.seq, before.seq + 1);
    assert!((before.micros..ahead.micros).contains(&now.micros), "{now:?} after {before:?}");
}

/// A marker is judged by what the server showed, and the server may have other data meanwhile.
#[tokio::test]
async fn a_marker_that_was_judged_two_seconds_ago_is_not_written() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.addr());
    let url = format!("redis://{}", proxy.addr());
    let node = RedisNode::builder(url).trust_fresh(true).build().unwrap();
    facts(&node, LONG).await;
    proxy.edit(|bytes| {
        if bytes.windows(6).any(|w| w == b"news\r\n") {
            std::thread::sleep(Duration::from_millis(2_200));
        }
    });
    server.cli(&["del", "palisade:generation"]);
    let got = batch(&node, LONG, vec![acquire("k", owner())], PATIENCE).await.items.remove(0);
    assert_eq!(fault(got), (NodeFault::Contended, false));
    assert_eq!(server.cli(&["exists", "palisade:generation", "k"]), "0");
    proxy.honest();
    fence(until_up(&node, acquire("k", owner())).await);
}
