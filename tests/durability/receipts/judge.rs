//! The judge: thousands of writes with receipts go on while a master is replaced; then what the
//! receipts say is compared with the data on the new master, write by write, through a connection
//! of its own. `PALISADE_RECEIPTS=100000` asks for more writes.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::{Fate, LockGuard, Redlock, SentinelNode, TryAcquire};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{PATIENCE, TTL, handle};
use crate::support::group::{Groups, cli};

/// Set in the test process that runs inside a group's network.
const INSIDE: &str = "PALISADE_RECEIPTS_INSIDE";
/// With this `sentinel-conf/up` ends where it cannot make a network.
const CANNOT: Option<i32> = Some(77);

fn wanted() -> usize {
    std::env::var("PALISADE_RECEIPTS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// What came of the writes of one run.
#[derive(Debug, Default)]
struct Count {
    survived: usize,
    lost: usize,
    unknown: usize,
    /// Said to have survived, and not there: never.
    missed: usize,
    /// Said to be lost, and there.
    cautious: usize,
}

impl Count {
    fn all(&self) -> usize {
        self.survived + self.lost + self.unknown
    }
}

/// Takes lock after lock under names of its own, and keeps them, until one learns that the server
/// is another one; at least `before` of them before `fail` is called.
async fn write(redlock: Redlock, writer: usize, go_on: impl Fn(usize) -> bool) -> Vec<LockGuard> {
    let mut held: Vec<LockGuard> = Vec::new();
    // Several at once in one lane: they leave in one batch, which is one write to the replicas.
    for turn in 0.. {
        let mut all = JoinSet::new();
        for i in 0..8 {
            let name = format!("w{writer}:{turn}:{i}");
            let mutex = redlock.mutex(name).ttl(TTL).auto_renew(false).build().unwrap();
            all.spawn(async move { mutex.try_acquire().await });
        }
        while let Some(got) = all.join_next().await {
            // Without an answer there is no receipt and nothing to judge.
            held.extend(got.unwrap().ok().and_then(TryAcquire::acquired));
        }
        let switched = held.last().is_some_and(|guard| guard.receipts()[0].fate != Fate::Standing);
        if switched || !go_on(held.len()) {
            break;
        }
    }
    held
}

/// Everything that the new master has, asked of it directly.
fn data(groups_servers: &[String], old: &str) -> BTreeSet<String> {
    let master = groups_servers
        .iter()
        .filter(|addr| *addr != old)
        .find(|addr| cli(addr, &["INFO", "replication"]).contains("role:master"))
        .expect("a replica was promoted");
    cli(master, &["KEYS", "w*"]).lines().map(str::to_owned).collect()
}

fn judge(held: &[LockGuard], data: &BTreeSet<String>) -> Count {
    let mut count = Count::default();
    for guard in held {
        let [receipt] = &guard.receipts()[..] else { panic!("one node, one receipt") };
        let there = data.contains(guard.name());
        match receipt.fate {
            Fate::Survived => {
                count.survived += 1;
                count.missed += usize::from(!there);
            }
            Fate::Lost => {
                count.lost += 1;
                count.cautious += usize::from(there);
            }
            Fate::Unknown => count.unknown += 1,
            other => panic!("{}: {other:?} after a switch", guard.name()),
        }
    }
    count
}

/// `writers` connections write while `fail` replaces the master.
async fn run(
    (name, sentinels, servers): (String, Vec<String>, Vec<String>),
    writers: usize,
    fail: impl FnOnce() + Send + 'static,
) -> Count {
    let node = || {
        let node = SentinelNode::builder(name.clone(), sentinels.clone());
        handle(node, Duration::from_secs(3))
    };
    let before = wanted() / 2 / writers;
    let begun = Arc::new(Semaphore::new(0));
    let mut all = JoinSet::new();
    for writer in 0..writers {
        let (redlock, begun) = (node(), Arc::clone(&begun));
        all.spawn(async move {
            let reported = AtomicBool::new(false);
            let end = tokio::time::Instant::now() + 2 * PATIENCE;
            let held = write(redlock, writer, |n| {
                if n >= before && !reported.swap(true, Ordering::Relaxed) {
                    begun.add_permits(1);
                }
                tokio::time::Instant::now() < end
            });
            held.await
        });
    }
    let ready = begun.acquire_many(u32::try_from(writers).unwrap()).await.unwrap();
    ready.forget();
    tokio::task::spawn_blocking(fail).await.unwrap();
    let mut held = Vec::new();
    while let Some(more) = all.join_next().await {
        held.extend(more.unwrap());
    }
    let count = judge(&held, &data(&servers, &servers[0]));
    eprintln!("{writers} writers, {} writes: {count:?}", held.len());
    // Given back one by one they would keep the test busy for longer than it ran.
    std::mem::forget(held);
    count
}

fn of(groups: &Groups) -> (String, Vec<String>, Vec<String>) {
    (groups.name(0), groups.sentinels(0), groups.servers(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_writer_over_a_manual_failover_is_predicted_exactly() {
    let groups = Groups::up_with(1, 2_000, 0, &[]);
    let (known, groups) = (of(&groups), Arc::new(groups));
    let breaking = Arc::clone(&groups);
    let count = run(known, 1, move || drop(breaking.break_("failover", 0, &[]))).await;
    assert!(count.all() >= wanted() / 2, "{count:?}");
    assert!(count.survived > 0 && count.lost > 0, "nothing to tell apart: {count:?}");
    assert_eq!((count.missed, count.cautious, count.unknown), (0, 0, 0), "{count:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_writers_only_err_to_the_safe_side() {
    let groups = Groups::up_with(1, 2_000, 0, &[]);
    let (known, groups) = (of(&groups), Arc::new(groups));
    let breaking = Arc::clone(&groups);
    let count = run(known, 4, move || drop(breaking.break_("failover", 0, &[]))).await;
    assert!(count.survived > 0 && count.lost > 0, "nothing to tell apart: {count:?}");
    assert_eq!((count.missed, count.unknown), (0, 0), "{count:?}");
    assert!(count.cautious * 100 <= count.all(), "more than the last few: {count:?}");
}

#[test]
fn one_writer_over_a_partition_is_predicted_exactly() {
    if std::env::var(INSIDE).is_ok() {
        return;
    }
    let groups = match Groups::try_up_with(1, 2_000, 0, &["--netns"]) {
        Ok(groups) => groups,
        Err((CANNOT, text)) => {
            eprintln!("skipped: a partition needs root and network namespaces: {text}");
            return;
        }
        Err((_, text)) => panic!("sentinel-conf/up failed: {text}"),
    };
    // The writer has to be where the servers are.
    let net = format!("--net=/run/netns/{}", groups.netns().expect("a network of its own"));
    let (name, sentinels, servers) = of(&groups);
    let known = [name, sentinels.join(","), servers.join(",")].join(";");
    let me = std::env::current_exe().expect("this program");
    let mut inside = Command::new("nsenter")
        .arg(net)
        .arg(me)
        .args(["--exact", "receipts::judge::inside_a_partitioned_network", "--nocapture"])
        .env(INSIDE, known)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("nsenter");
    let mut text = BufReader::new(inside.stdout.take().expect("piped"));
    let mut all = String::new();
    while !all.contains("ready to be cut") {
        let n = text.read_line(&mut all).expect("a pipe");
        assert!(n > 0, "it ended early: {all}");
    }
    groups.break_("partition", 0, &[]);
    drop(inside.stdin.take());
    text.read_to_string(&mut all).expect("a pipe");
    assert!(inside.wait().expect("it ends").success(), "{all}");
    assert!(all.contains("predicted exactly"), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_a_partitioned_network() {
    let Ok(known) = std::env::var(INSIDE) else { return };
    let parts: Vec<&str> = known.split(';').collect();
    let list = |i: usize| parts[i].split(',').map(str::to_owned).collect::<Vec<_>>();
    let count = run((parts[0].to_owned(), list(1), list(2)), 1, || {
        println!("ready to be cut");
        // Until the other side has done it.
        let _ = std::io::stdin().read(&mut [0]);
    });
    let count = count.await;
    assert!(count.survived > 0 && count.lost > 0, "nothing to tell apart: {count:?}");
    assert_eq!((count.missed, count.cautious, count.unknown), (0, 0, 0), "{count:?}");
    println!("predicted exactly: {count:?}");
}
