//! Operators list and change idempotency keys on real servers. A list has exactly the requested
//! keys. A change takes effect on a majority of the nodes or not at all.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use palisade::idempotency::{Call, Outcome};
use palisade::{Failed, Idempotency, RedisNode, Redlock};
use palisade_ops::{Audit, Change, KeyChange, KeyState, NodeChange, Purge, Records, Select};
use tokio::task::JoinHandle;

use super::{Deployment, Server};

struct Lab {
    servers: Vec<Server>,
    redlock: Redlock,
    orders: Idempotency,
    records: Records,
}

fn audit() -> Audit {
    Audit::new("alice", "host 7 is gone").unwrap()
}

impl Lab {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(args: &[&str]) -> Self {
        let servers: Vec<_> = (0..3).map(|_| Server::start(args)).collect();
        let node = |s: &Server| RedisNode::builder(s.url()).trust_fresh(true).build().unwrap();
        let redlock = servers.iter().fold(Redlock::builder(), |b, s| b.node(node(s)));
        // On a busy machine, too, each request reaches all three nodes in time.
        let redlock = redlock.prefix("app:").node_deadline(Duration::from_secs(2)).build().unwrap();
        let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
        let deployment = servers.iter().fold(Deployment::new(), |d, s| d.node(s.url()));
        let deployment = deployment.timeout(Duration::from_secs(5));
        let records = Records::new(&deployment, "app:", "orders").unwrap();
        Self { servers, redlock, orders, records }
    }

    /// Returns the state of the key if all nodes have the key.
    async fn state(&self, key: &str) -> Option<KeyState> {
        let list = self.records.list(&Select::default()).await.unwrap();
        list.keys.into_iter().find(|k| k.key == key && k.nodes == 3).map(|k| k.state)
    }

    async fn is(&self, key: &str, state: fn(KeyState) -> bool) {
        let wait = async {
            while !self.state(key).await.is_some_and(state) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, wait).await.expect("the key gets the state");
    }

    /// Parks a key: its handler fails, and its effect is unknown.
    async fn park(&self, key: &str) {
        let failed = || async { Err::<u32, _>(Failed::unknown("broken pipe")) };
        let _ = self.orders.key(key).run(|_| failed()).await.unwrap_err();
        self.is(key, |s| s == KeyState::Lapsed).await;
    }

    /// Starts a handler for the key. The handler does not end.
    async fn hang(&self, key: &str) -> JoinHandle<()> {
        let call = self.orders.key(key);
        let task = tokio::spawn(async move {
            let hang = || async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok::<_, Failed>(0)
            };
            let _ = call.run(|_| hang()).await;
        });
        self.is(key, |s| s == KeyState::Running).await;
        task
    }
}

async fn run(call: Call, value: u32) -> Outcome<u32> {
    call.run(|_| async move { Ok::<_, Failed>(value) }).await.unwrap()
}

#[tokio::test]
async fn keys_are_listed_with_their_state() {
    let lab = Lab::new();
    let others = lab.redlock.idempotency("orders2").at_most_once().build().unwrap();
    assert!(run(lab.orders.key("done*"), 1).await.is_executed());
    assert!(run(others.key("not ours"), 1).await.is_executed());
    lab.park("lapsed").await;
    let free = || async { Err::<u32, _>(Failed::no_effect("closed")) };
    let _ = lab.orders.key("free").run(|_| free()).await;
    let running = lab.hang("running").await;
    lab.is("free", |s| s == KeyState::Free).await;
    let listed = lab.records.list(&Select::default()).await.unwrap();
    assert_eq!((&listed.unread[..], listed.more, listed.nodes), (&[][..], false, 3));
    let short: Vec<_> = listed.keys.iter().map(|k| (k.key.as_str(), k.state, k.attempts)).collect();
    let remaining = listed.keys[3].remaining.expect("it runs");
    assert!(remaining > Duration::from_secs(5) && remaining <= Duration::from_secs(15));
    assert_eq!(
        short,
        [
            ("done*", KeyState::Stored, 1),
            ("free", KeyState::Free, 0),
            ("lapsed", KeyState::Lapsed, 1),
            ("running", KeyState::Running, 1),
        ]
    );
    assert!(listed.keys.iter().all(|k| !k.forgotten), "{:?}", listed.keys);
    let day = Duration::from_secs(24 * 3_600);
    assert!(listed.keys[0].expires_in + Duration::from_secs(60) > day);

    let named = async |select: Select| -> Vec<String> {
        let list = lab.records.list(&select).await.unwrap();
        list.keys.into_iter().map(|k| k.key).collect()
    };
    let of = |states: &[KeyState]| Select { states: states.to_vec(), ..Select::default() };
    let (running_ones, stored) = (of(&[KeyState::Running]), of(&[KeyState::Stored]));
    assert_eq!(named(running_ones.clone()).await, ["running"]);
    assert_eq!(named(of(&[KeyState::Lapsed, KeyState::Stored])).await, ["done*", "lapsed"]);
    assert_eq!(named(Select { older_than: day, ..running_ones }).await, [] as [&str; 0]);
    assert_eq!(named(Select { forgotten: true, ..of(&[]) }).await, [] as [&str; 0]);
    let within = |span| Select { expires_within: Some(span), ..stored.clone() };
    assert_eq!(named(within(2 * day)).await, ["done*"]);
    assert_eq!(named(within(day / 2)).await, [] as [&str; 0]);
    let two = lab.records.list(&Select { limit: Some(2), ..of(&[]) }).await.unwrap();
    assert_eq!((two.keys.len(), two.more), (2, true));

    // Two nodes have lost their data. Then the copy of the third node does not prove that there was
    // no other attempt.
    for server in &lab.servers[..2] {
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(named(Select { forgotten: true, ..of(&[KeyState::Lapsed]) }).await, ["lapsed"]);
    running.abort();

    // The list names the node that cannot be read, and contains the keys of the other nodes.
    let Lab { mut servers, records, .. } = lab;
    drop(servers.remove(0));
    let listed = records.list(&Select::default()).await.unwrap();
    assert_eq!((listed.keys.len(), listed.unread.len()), (4, 1), "{listed:?}");
}

#[tokio::test]
async fn thousands_of_keys_are_all_found_page_by_page() {
    let lab = Lab::new();
    for hundred in 0..25 {
        let calls = (0..100).map(|i| (lab.orders.key(format!("k{hundred}-{i}")), i));
        let done = lab.orders.run_each(calls, 64, |_, i| async move { Ok::<_, Failed>(i) }).await;
        assert!(done.iter().all(|d| d.as_ref().is_ok_and(Outcome::is_executed)), "{done:?}");
    }
    let listed = lab.records.list(&Select::default()).await.unwrap();
    let keys: std::collections::BTreeSet<_> = listed.keys.iter().map(|k| &k.key).collect();
    assert_eq!((listed.keys.len(), keys.len()), (2_500, 2_500));
}

#[tokio::test]
async fn a_rerun_lets_a_parked_key_run_again_and_nothing_else() {
    let lab = Lab::new();
    lab.park("parked").await;
    assert!(matches!(run(lab.orders.key("parked"), 2).await, Outcome::Parked(_)));
    lab.is("parked", |s| s == KeyState::Lapsed).await;
    let done = lab.records.change(Change::Rerun, "parked", &audit()).await.unwrap();
    assert!(done.is_done() && done.missing().count() == 0, "{done}");
    assert_eq!(done.audit, audit());
    assert!(matches!(run(lab.orders.key("parked"), 3).await, Outcome::Executed { value: 3, .. }));
    // A key with a result keeps its result. A handler that runs under a key continues.
    lab.is("parked", |s| s == KeyState::Stored).await;
    let not = lab.records.change(Change::Rerun, "parked", &audit()).await.unwrap();
    assert!(!not.is_done(), "{not}");
    assert!(matches!(run(lab.orders.key("parked"), 4).await, Outcome::Replayed(3)));
    let running = lab.hang("running").await;
    let not = lab.records.change(Change::Rerun, "running", &audit()).await.unwrap();
    assert!(!not.is_done() && not.to_string().contains("its claim runs"), "{not}");
    running.abort();
    assert!(lab.records.change(Change::Rerun, "nothing there", &audit()).await.unwrap().is_done());
}

#[tokio::test]
async fn a_released_claim_is_parked_at_once_and_its_owner_stores_nothing() {
    let lab = Lab::new();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let call = lab.orders.key("k");
    let alive = tokio::spawn(async move {
        let handler = || async {
            gone.await.unwrap();
            Ok::<_, Failed>(1)
        };
        call.run(|_| handler()).await
    });
    lab.is("k", |s| s == KeyState::Running).await;
    let done = lab.records.change(Change::Release, "k", &audit()).await.unwrap();
    assert!(done.is_done(), "{done}");
    // The call does not wait for the end of the lease, because the released attempt counts as ended
    // without a result.
    let Outcome::Parked(parked) = run(lab.orders.key("k"), 2).await else { panic!() };
    assert_eq!(parked.attempt, 1);
    assert!(lab.orders.key("k").resolve(&7).await.is_ok());
    // The owner of the released claim is still alive. It gets the stored result instead of its own
    // result.
    go.send(()).unwrap();
    let late = alive.await.unwrap().unwrap();
    assert!(matches!(late, Outcome::Replayed(7)), "{late:?}");
    let not = lab.records.change(Change::Release, "k", &audit()).await.unwrap();
    assert!(!not.is_done() && not.to_string().contains("has a result"), "{not}");
}

#[tokio::test]
async fn a_purge_takes_what_is_finished_and_old_and_a_late_completion_brings_nothing_back() {
    let lab = Lab::new();
    assert!(run(lab.orders.key("done"), 1).await.is_executed());
    lab.is("done", |s| s == KeyState::Stored).await;
    lab.park("parked").await;
    let running = lab.hang("running").await;
    let hour = Duration::from_secs(3_600);
    let purged = lab.records.purge(&Purge::older_than(hour), &audit()).await.unwrap();
    assert!(purged.keys.is_empty(), "{purged:?}");
    let purged = lab.records.purge(&Purge::late_copies_run_again(), &audit()).await.unwrap();
    let of = |purged: &palisade_ops::Purged| -> Vec<_> {
        purged.keys.iter().map(|k| (k.key.clone(), k.is_done())).collect()
    };
    assert_eq!(of(&purged), [("done".to_owned(), true)]);
    let purge = Purge::late_copies_run_again().unfinished_too();
    let purged = lab.records.purge(&purge, &audit()).await.unwrap();
    assert_eq!(of(&purged), [("parked".to_owned(), true)]);
    assert_eq!(lab.state("running").await, Some(KeyState::Running));
    running.abort();
    // The purged keys are free. Only their ballots are left.
    for key in ["done", "parked"] {
        assert_eq!(lab.state(key).await, Some(KeyState::Free), "{key}");
        assert!(matches!(run(lab.orders.key(key), 5).await, Outcome::Executed { value: 5, .. }));
    }
}

#[tokio::test]
async fn a_write_that_is_refused_is_not_called_done() {
    let lab = Lab::new();
    for key in ["one", "two"] {
        let _ = run(lab.orders.key(key), 7).await;
        lab.is(key, |s| s == KeyState::Stored).await;
    }
    let set =
        |right| lab.servers.iter().for_each(|s| _ = s.cli(&["ACL", "SETUSER", "default", right]));
    set("-set");
    let refused = lab.records.change(Change::Purge, "one", &audit()).await.unwrap();
    assert!(!refused.may_be_done() && refused.to_string().contains("not reached"), "{refused}");
    set("+set");
    let purged = lab.records.purge(&Purge::late_copies_run_again(), &audit()).await.unwrap();
    assert!(purged.keys.len() == 2 && purged.keys.iter().all(KeyChange::is_done), "{purged:?}");
}

#[tokio::test]
async fn what_was_used_since_it_was_listed_is_not_purged() {
    let lab = Lab::with(&["--enable-debug-command", "yes"]);
    let keys: Vec<_> = (0..20).map(|n| format!("k{n}")).collect();
    for key in &keys {
        let failed = || async { Err::<u32, _>(Failed::unknown("broken pipe")) };
        let _ = lab.orders.key(key).run(|_| failed()).await.unwrap_err();
    }
    // The additional keys make the listing of the keys slow.
    for server in &lab.servers {
        server.cli(&["debug", "populate", "200000", "other", "1"]);
    }
    let age = Duration::from_secs(3);
    tokio::time::sleep(age).await;
    let used = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut used = Vec::new();
        for key in &keys {
            used.push(Instant::now());
            let _ = lab.orders.key(key).resolve(&7_u32).await.unwrap();
        }
        used
    };
    let (purge, audit) = (Purge::older_than(age).unfinished_too(), audit());
    let purge = async {
        let purged = lab.records.purge(&purge, &audit).await.unwrap();
        (purged.keys.into_iter().filter(KeyChange::is_done).collect::<Vec<_>>(), Instant::now())
    };
    let ((purged, ended), used) = tokio::join!(purge, used);
    for (key, used) in keys.iter().zip(used) {
        let purged = purged.iter().any(|change| change.key == *key);
        // There are two cases in which the key may be purged. The key was resolved long enough
        // before the purge, or after the purge.
        if purged && (used + age < ended || used > ended) {
            continue;
        }
        let next = run(lab.orders.key(key), 8).await;
        let kept = matches!(next, Outcome::Replayed(7));
        assert!(kept, "{key}: {next:?}, used {:?} before the end", ended.duration_since(used));
    }
}

/// Changes the markers (`palisade:generation`) as a planned handover does, for one minute. With `c`
/// the servers are closed: they refuse requests. With `s` the servers are settling: leases may last
/// longer than the servers' clocks show.
fn handed_over(lab: &Lab, kind: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    for server in &lab.servers {
        let marker = server.cli(&["get", "palisade:generation"]);
        let until = now + 60_000;
        let mut words: Vec<String> = marker.split_whitespace().map(str::to_owned).collect();
        words[16] = format!("{kind}{until:013}");
        server.cli(&["set", "palisade:generation", &words.join(" ")]);
    }
}

#[tokio::test]
async fn a_claim_that_may_run_after_a_handover_is_not_taken_back() {
    let lab = Lab::new();
    let running = lab.hang("k").await;
    // Sets the end of the claim's lease. By the clock of the new server, the lease has just ended.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    for server in &lab.servers {
        server.cli(&["setrange", "app:idem:orders:k", "136", &(now - 1).to_string()]);
    }
    handed_over(&lab, "s");
    let not = lab.records.change(Change::Rerun, "k", &audit()).await.unwrap();
    assert!(!not.is_done() && not.to_string().contains("soon after a handover"), "{not}");
    let purge = Purge::late_copies_run_again().unfinished_too();
    let not = &lab.records.purge(&purge, &audit()).await.unwrap().keys[0];
    assert!(!not.is_done(), "{not}");
    // An operator can still release the claim, as any running claim, if the owner is dead.
    let done = lab.records.change(Change::Release, "k", &audit()).await.unwrap();
    assert!(done.nodes.iter().all(|(_, change)| *change == NodeChange::Done), "{done}");
    assert!(lab.records.change(Change::Rerun, "k", &audit()).await.unwrap().is_done());
    running.abort();
}

#[tokio::test]
async fn a_closed_server_changes_no_key() {
    let lab = Lab::new();
    lab.park("k").await;
    handed_over(&lab, "c");
    let before = lab.servers[0].cli(&["get", "app:idem:orders:k"]);
    for not in [
        lab.records.change(Change::Rerun, "k", &audit()).await.unwrap(),
        lab.records.change(Change::Release, "k", &audit()).await.unwrap(),
    ] {
        assert!(!not.is_done() && not.to_string().contains("closed for a handover"), "{not}");
    }
    assert_eq!(lab.servers[0].cli(&["get", "app:idem:orders:k"]), before);
}

#[tokio::test]
async fn a_key_that_nobody_has_is_not_done_and_another_programs_is_left_alone() {
    let lab = Lab::new();
    let unknown = lab.records.change(Change::Rerun, "no such key", &audit()).await.unwrap();
    assert!(unknown.is_unknown(), "{unknown}");
    assert!(unknown.to_string().contains("check the key"), "{unknown}");
    for server in &lab.servers {
        server.cli(&["set", "app:idem:orders:theirs", "x"]);
    }
    let theirs = lab.records.change(Change::Rerun, "theirs", &audit()).await.unwrap();
    assert!(!theirs.is_done() && !theirs.is_unknown(), "{theirs}");
    assert!(theirs.to_string().contains("another program's"), "{theirs}");
    assert_eq!(lab.servers[0].cli(&["get", "app:idem:orders:theirs"]).trim(), "x");
}

#[tokio::test]
async fn a_record_of_another_program_hides_no_other() {
    let lab = Lab::new();
    lab.park("k").await;
    let huge = "for _, k in ipairs(KEYS) do redis.call('SET', k, 'p1' .. \
                string.rep('9', 16 * 1024 * 1024)) end";
    for server in &lab.servers {
        server.cli(&["eval", huge, "1", "app:idem:orders:huge"]);
    }
    let list = lab.records.list(&Select::default()).await.unwrap();
    assert_eq!(list.unread, [], "each node is read");
    assert_eq!(list.keys.iter().map(|key| &*key.key).collect::<Vec<_>>(), ["k"]);
    let purge = Purge::late_copies_run_again().unfinished_too();
    let purged = lab.records.purge(&purge, &audit()).await.unwrap();
    assert_eq!(purged.unread, []);
    assert!(purged.keys.len() == 1 && purged.keys[0].is_done(), "{purged:?}");
}

#[tokio::test]
async fn one_node_of_three_may_be_away_and_two_may_not() {
    let mut lab = Lab::new();
    lab.park("k").await;
    drop(lab.servers.remove(0));
    let done = lab.records.change(Change::Rerun, "k", &audit()).await.unwrap();
    assert!(done.is_done() && done.missing().count() == 1, "{done}");
    assert!(done.to_string().contains("2 of 3 nodes") && done.to_string().contains("not reached"));
    drop(lab.servers.remove(0));
    let not = lab.records.change(Change::Release, "k", &audit()).await.unwrap();
    assert!(!not.is_done(), "{not}");
    let reached = |(_, c): &&(String, NodeChange)| !matches!(c, NodeChange::Unreachable(_));
    assert_eq!(not.nodes.iter().filter(reached).count(), 1);
}

#[test]
fn a_change_without_a_reason_is_refused() {
    for (by, reason) in [("alice", ""), ("alice", "  "), ("", "why"), ("alice", "a\nb")] {
        assert!(Audit::new(by, reason).is_err(), "{by:?} {reason:?}");
    }
    let long = "r".repeat(600);
    assert!(Audit::new("alice", long).is_err());
}

#[tokio::test]
async fn a_change_without_an_answer_is_not_called_refused_and_takes_no_effect_later() {
    let lab = Lab::new();
    assert!(run(lab.orders.key("late"), 1).await.is_executed());
    lab.is("late", |s| s == KeyState::Stored).await;
    let deployment = lab.servers.iter().fold(Deployment::new(), |d, s| d.node(s.url()));
    let deployment = deployment.timeout(Duration::from_millis(1_500));
    let records = Records::new(&deployment, "app:", "orders").unwrap();
    // Two servers stop executing scripts after their records were read.
    let stall = |_: Option<&palisade_ops::KeyFacts>| {
        for server in &lab.servers[1..] {
            server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
        }
        true
    };
    let changed = records.change_if(Change::Purge, "late", stall, &audit()).await;
    let changed = changed.unwrap().unwrap();
    let unanswered = |(_, one): &&(_, NodeChange)| matches!(one, NodeChange::Unanswered(_));
    assert_eq!(changed.nodes.iter().filter(unanswered).count(), 2, "{changed}");
    assert!(changed.may_be_done() && changed.is_partly_done() && !changed.is_done(), "{changed}");
    assert!(changed.to_string().contains("not known to be done"), "{changed}");
    for server in &lab.servers[1..] {
        server.cli(&["CLIENT", "UNPAUSE"]);
    }
    // A server that executes the script after its deadline changes nothing.
    let (script, key) = (super::rights::CHANGE, "app:idem:orders:late");
    let server = &lab.servers[1];
    let (marker, begins) = (server.cli(&["GET", "palisade:generation"]), server.cli(&["GET", key]));
    let purge = |deadline: &str| {
        let keys = ["EVAL", script, "2", "palisade:generation", key];
        server.cli(&[&keys[..], &[&marker, deadline, &begins, &begins[..150], "1"]].concat())
    };
    assert_eq!(purge("1").trim(), "late");
    assert_eq!(purge("99999999999999").trim(), "done");
}
