//! Logins at the servers and at the Sentinels of a group that end while a node uses them.

use std::time::{Duration, Instant};

use palisade::error::NodeFault;
use palisade::{Redlock, SentinelNode};
use tokio::time::sleep;

use crate::support::group::{Groups, cli};
use crate::support::tokens::{Ends, Tokens, Trouble};
use crate::support::wait::until;

const LIFE: Duration = Duration::from_secs(4);

fn tokens(at: Vec<String>, ends: Ends) -> Tokens {
    let all = move |args: &[&str]| at.iter().map(|at| cli(at, args) + "\n").collect();
    Tokens::new(ends, LIFE, true, all)
}

async fn a_failover_during_a_rotation(data: Ends, sentinel: Ends) {
    let groups = Groups::up(1);
    let servers = tokens(groups.servers(0), data);
    let sentinels = tokens(groups.sentinels(0), sentinel);
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0))
        .sentinel_deadline(Duration::from_secs(2))
        .trust_fresh(true)
        .credentials(servers.clone())
        .sentinel_credentials(sentinels.clone());
    let node = std::sync::Arc::new(node.build().unwrap());
    let redlock = Redlock::builder()
        .node_deadline(Duration::from_secs(2))
        .node_arc(node.clone())
        .build()
        .unwrap();
    let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
    let lost = held.lost_signal();
    let faults = redlock.metrics()[0].faults_total();
    sleep(2 * LIFE).await;
    assert_eq!(redlock.metrics()[0].faults_total(), faults, "{:?}", redlock.metrics());
    let first = groups.servers(0)[0].clone();
    groups.break_("failover", 0, &[]);
    until("the switch is seen", || node.status().master.is_some_and(|at| at != first)).await;
    until("the new master answers", || redlock.metrics()[0].switches == 1).await;
    let (before, asked) = (redlock.metrics()[0].faults_total(), servers.issued());
    let end = Instant::now() + 3 * LIFE;
    while Instant::now() < end {
        assert!(!lost.is_lost() && held.is_valid(), "the lease is lost");
        assert!(node.status().sentinels_reachable >= 2, "{:?}", node.status());
        sleep(Duration::from_millis(50)).await;
    }
    let metrics = redlock.metrics().remove(0);
    assert_eq!((metrics.faults_total(), metrics.logins_failed), (before, 0), "{metrics:?}");
    assert!(servers.issued() >= asked + 2 && sentinels.issued() >= 4);
    assert_eq!((servers.cut(), sentinels.cut()), (0, 0), "a login ended on a connection");
    assert_eq!((servers.most_at_once(), sentinels.most_at_once()), (1, 1));
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_while_tokens_of_the_servers_end_loses_no_lease() {
    a_failover_during_a_rotation(Ends::Token, Ends::Session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_while_sessions_at_the_servers_end_loses_no_lease() {
    a_failover_during_a_rotation(Ends::Session, Ends::Token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_without_credentials_for_its_sentinels_says_so() {
    let groups = Groups::up(1);
    let sentinels = tokens(groups.sentinels(0), Ends::Token);
    sentinels.trouble(Trouble::Errs);
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0))
        .sentinel_credentials(sentinels)
        .build()
        .unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    let refused = redlock.mutex("a").build().unwrap().try_acquire().await.expect_err("no login");
    let text = refused.to_string();
    let why = "no credentials: the provider failed: the token service is down";
    assert!(text.contains(why) && text.contains("given to `sentinel_credentials`"), "{text}");
    let counted = || redlock.metrics()[0].faults.contains_key(&NodeFault::Credentials);
    until("the fault is counted", counted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_the_sentinels_do_not_know_yet_fails_no_waiter() {
    let groups = Groups::up(1);
    let sentinels = tokens(groups.sentinels(0), Ends::Token);
    sentinels.trouble(Trouble::WrongPassword);
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0))
        .trust_fresh(true)
        .sentinel_credentials(sentinels.clone());
    let redlock = Redlock::builder().node(node.build().unwrap()).build().unwrap();
    let mut events = redlock.events();
    let mutex = redlock.mutex("a").acquire_timeout(Duration::from_secs(20)).build().unwrap();
    let right = async {
        let why = loop {
            let event = events.next().await.unwrap().event;
            if let palisade::node::NodeEvent::LoginFailed { why, .. } = event {
                break why;
            }
        };
        assert!(why.contains("login at the Sentinels: 127.") && why.contains("WRONGPASS"), "{why}");
        sleep(Duration::from_millis(300)).await;
        sentinels.trouble(None);
    };
    let (guard, ()) = tokio::join!(mutex.acquire(), right);
    guard.expect("granted").release().await.unwrap();
    assert!(!redlock.metrics()[0].faults.contains_key(&NodeFault::Auth));
}
