//! Sentinels whose state was removed while a program runs: they begin at epoch 0 again, below the
//! epoch that the program remembers.

use std::time::Duration;

use palisade::{Redlock, SentinelNode, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::support::group::{Groups, cli};
use crate::support::wait::until;

const TTL: Duration = Duration::from_secs(4);
/// Time limit of a wait. Only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(400);
const PAUSE: Duration = Duration::from_millis(100);

fn handle(groups: &Groups) -> Redlock {
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0)).trust_fresh(true);
    Redlock::builder().ttl(TTL).max_ttl(TTL).node(node.build().unwrap()).build().unwrap()
}

/// Tries to acquire locks with new names until one is granted.
async fn granted(redlock: &Redlock, what: &str) {
    let begun = Instant::now();
    for n in 0.. {
        let tried = redlock.mutex(format!("{what}-{n}")).build().unwrap().try_acquire().await;
        if matches!(tried, Ok(TryAcquire::Acquired(_))) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {tried:?}");
        sleep(PAUSE).await;
    }
}

/// Returns what a Sentinel says of the master: its address, the epoch, the number of replicas and
/// of other Sentinels.
fn says(sentinel: &str, name: &str) -> (String, [u64; 3]) {
    let at = cli(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]).replace('\n', ":");
    let facts = cli(sentinel, &["SENTINEL", "MASTER", name]);
    let number = |field: &str| {
        let value = facts.lines().skip_while(|line| *line != field).nth(1);
        value.and_then(|value| value.parse().ok()).unwrap_or(u64::MAX)
    };
    (at, ["config-epoch", "num-slaves", "num-other-sentinels"].map(number))
}

/// The third Sentinel is dead, so the two others are a majority, and not all that are known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_client_goes_on_with_sentinels_that_were_reset_while_one_is_away() {
    let groups = Groups::up(1);
    let (name, sentinels) = (groups.name(0), groups.sentinels(0));
    let (first, both) = (groups.servers(0)[0].clone(), &sentinels[..2]);
    let redlock = handle(&groups);
    granted(&redlock, "before").await;
    groups.break_("failover", 0, &[]);
    let is_replaced = |sentinel: &String| {
        let (at, [epoch, ..]) = says(sentinel, &name);
        at != first && epoch > 0 && epoch < u64::MAX
    };
    until("the failover", || sentinels.iter().all(is_replaced)).await;
    granted(&redlock, "failover").await;

    let (master, _) = says(&sentinels[0], &name);
    // A Sentinel that forgets the group before leaves a server without its new master.
    let follow = || cli(&master, &["INFO", "replication"]).contains("connected_slaves:2");
    until("both others to follow", follow).await;
    groups.break_("kill", 0, &["--server", "sa3"]);
    let (host, port) = master.rsplit_once(':').expect("host:port");
    // First at both: one that still knows its epoch would tell the other.
    let steps: [&[&str]; 3] = [
        &["REMOVE", &name],
        &["MONITOR", &name, host, port, "2"],
        &["SET", &name, "down-after-milliseconds", "3000"],
    ];
    for words in steps {
        for sentinel in both {
            assert_eq!(cli(sentinel, &[&["SENTINEL"], words].concat()), "OK");
        }
    }
    let knows = |sentinel: &String| says(sentinel, &name) == (master.clone(), [0, 2, 1]);
    until("the Sentinels to know the group", || both.iter().all(knows)).await;
    // A program that is connected goes on; this one has to find the master anew.
    cli(&master, &["CLIENT", "KILL", "TYPE", "normal"]);
    granted(&redlock, "reset").await;

    groups.break_("kill", 0, &["--server", "master"]);
    let is_replaced = |sentinel: &String| {
        let (at, [epoch, ..]) = says(sentinel, &name);
        at != master && epoch > 0 && epoch < u64::MAX
    };
    until("the second failover", || both.iter().all(is_replaced)).await;
    granted(&redlock, "replaced").await;
}
