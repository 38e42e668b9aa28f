//! Promotion of a replica that lags behind its master. The new master reports a time span in which
//! it may have lost writes. All keys that it lacks must have been used within this time span. The
//! test keeps a list of all keys with the times of their runs, to compare.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::node::{MinReplicas, SentinelNode};
use palisade::{Idempotency, Redlock};
use tokio::time::sleep;

use crate::recovery::{ERROR, LONG, NOTED, TTL, is_forgotten, now, run};
use crate::support::group::{Groups, cli};

/// A key whose handler ran, with the times before and after its call, in milliseconds since 1970.
struct Ran {
    key: String,
    begun: u64,
    stored: u64,
}

/// Runs one key after the other until `stop` is set.
async fn ledger(of: Idempotency, stop: Arc<AtomicBool>) -> Vec<Ran> {
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (key, begun) = (format!("k-{}", all.len()), now());
        assert!(run(&of, &key).await.is_executed());
        all.push(Ran { key, begun, stored: now() });
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_promoted_replica_that_was_behind_proves_what_it_lost() {
    let groups = Groups::up_with(1, 2_000, 0, &[]);
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0));
    let node = node.min_replicas_check(MinReplicas::Off).trust_fresh(true).build().unwrap();
    let redlock =
        Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).clock_error(ERROR).build().unwrap();
    let namespace = |name| redlock.idempotency(name).at_most_once();
    let accepting = namespace("accepting").accept_loss(LONG).build().unwrap();
    let strict = namespace("strict").build().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let running = tokio::spawn(ledger(accepting.clone(), Arc::clone(&stop)));
    sleep(Duration::from_secs(2)).await;
    // The replicas lose the connection to the master and cannot connect again. Clients can still
    // use the master.
    let master = &groups.servers(0)[0];
    assert_eq!(cli(master, &["ACL", "SETUSER", "default", "-psync", "-sync"]), "OK");
    assert_eq!(cli(master, &["CLIENT", "KILL", "TYPE", "replica"]), "2");
    let behind_since = now();
    sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let ran = running.await.unwrap();
    groups.break_("kill", 0, &["--server", "a1"]);
    let killed = now();

    assert!(run(&accepting, "after").await.is_executed(), "shorter than accepted");
    let answered = now();
    let parked = run(&strict, "after").await;
    assert!(is_forgotten(&parked), "nothing is accepted unasked: {parked:?}");

    let health = strict.health().await;
    let proved = health.nodes[0].losses.last().expect("a loss of the promotion");
    let (from, to) = (proved.from, proved.to);
    let promoted = groups
        .servers(0)
        .into_iter()
        .skip(1)
        .find(|server| cli(server, &["ROLE"]).starts_with("master"));
    let promoted = promoted.expect("a replica became the master");
    let keys = cli(&promoted, &["KEYS", "idem:accepting:*"]);
    let keys: BTreeSet<_> = keys.lines().collect();
    let is_there = |ran: &Ran| keys.contains(&*format!("idem:accepting:{}", ran.key));
    let (kept, lost): (Vec<_>, Vec<_>) = ran.iter().partition(|ran| is_there(ran));
    assert!(kept.len() > 20 && lost.len() > 20, "{} kept, {} lost", kept.len(), lost.len());
    for Ran { key, begun, stored } in &lost {
        assert!(*stored + 1_000 >= behind_since, "{key} was lost though it was replicated");
        assert!(from <= *stored && *begun <= to, "{key} {begun} {stored}: {from} {to}");
    }
    // The reported loss must be as short as possible. It must begin at most `NOTED` before the
    // newest key that the new master has, and end at most one longest lease after the promotion.
    let newest = kept.iter().map(|ran| ran.begun).max().expect("some");
    assert!(from + NOTED >= newest, "{from} is long before {newest}");
    let lease = TTL.as_millis() as u64;
    assert!(killed <= to && to <= answered + lease, "{killed}, {to}, {answered}");
}
