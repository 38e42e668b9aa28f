//! The ACL files that the project ships. The rights of their user `palisade` are sufficient for the
//! whole contract suite, the tests that every kind of node must pass. The manual shows the same
//! rights as the files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::Redlock;
use palisade::node::{MinReplicas, RedisNode, SentinelNode, SentinelNodeBuilder, spi::LockNode};
use palisade_testing::contract::Hooks;

use crate::support::contract::{Shared, disturbing_cases, group_hooks, quiet_cases, server_hooks};
use crate::support::group::Groups;
use crate::support::server::Server;

const APP: &str = "the-applications-secret";

fn repository(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), path].iter().collect()
}

pub(crate) fn shipped(name: &str) -> String {
    std::fs::read_to_string(repository("sentinel-conf").join(name)).expect("the file")
}

/// Returns the rights of one user in an ACL file, without the password.
pub(crate) fn rights(file: &str, user: &str) -> BTreeSet<String> {
    let line = file.lines().find_map(|l| l.strip_prefix(&format!("user {user} ")));
    words(line.unwrap_or_else(|| panic!("no user {user}")))
}

fn words(rights: &str) -> BTreeSet<String> {
    rights.split_whitespace().filter(|w| !w.starts_with('>')).map(ToOwned::to_owned).collect()
}

#[test]
fn the_manual_shows_what_the_file_says() {
    let page = std::fs::read_to_string(repository("src/manual/deployment.md")).expect("a page");
    let (_, rest) = page.split_once("ACL SETUSER palisade ").expect("the profile");
    let (profile, _) = rest.split_once("```").expect("the end of the block");
    assert_eq!(words(profile), rights(&shipped("users-data.acl"), "palisade"));
}

#[test]
fn only_the_operator_can_read_passwords_or_change_users() {
    for name in ["users-data.acl", "users-sentinel.acl"] {
        let file = shipped(name);
        let default = rights(&file, "default");
        assert!(default.contains("off") && !default.contains("nopass"), "{name}");
        for user in ["palisade", "sentinel", "replica"] {
            if !file.contains(&format!("user {user} ")) {
                continue;
            }
            let rights = rights(&file, user);
            assert!(rights.contains("-@all"), "{name} {user} begins with nothing");
            for closed in ["+config|get", "+config", "+acl", "+@all", "+@admin", "+debug"] {
                assert!(!rights.contains(closed), "{name}: {user} has {closed}");
            }
        }
    }
}

/// Starts a server with the users of the shipped ACL file.
pub(crate) fn served(args: &[&str]) -> Shared {
    let users = shipped("users-data.acl").replace("@APP_SECRET@", APP);
    let users = users.replace("@OPERATOR_SECRET@", "operators");
    let server = Server::start_with_users(&users, args, ("operator", "operators"));
    Arc::new(Mutex::new(server))
}

/// Returns the builder of a node that logs in as the application's user.
pub(crate) fn app(server: &Shared) -> palisade::node::RedisNodeBuilder {
    let url = server.lock().unwrap().url();
    RedisNode::builder(url).username("palisade").password(APP)
}

/// Returns the commands that a server denied, from the text of its `ACL LOG`.
///
/// Two commands are left out, because clients try them and work without them: `CLIENT` for the
/// client's own name, and `CONFIG GET` for the min-replicas settings.
fn denied(log: &str) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let refused = lines.windows(2).filter(|w| w[0] == "object").map(|w| w[1]);
    refused.filter(|d| !d.starts_with("client") && *d != "config|get").collect()
}

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test]
async fn a_server_needs_no_more_for_the_rules() {
    let server = served(&[]);
    let node = app(&server).trust_fresh(true).build().unwrap();
    quiet_cases(Arc::new(node), &server_hooks(&server)).await;
    let log = server.lock().unwrap().cli(&["acl", "log"]);
    assert!(denied(&log).is_empty(), "{:?} in {log}", denied(&log));
}

#[tokio::test]
async fn a_server_needs_no_more_over_restarts_and_losses() {
    let alike = || -> (Arc<dyn LockNode>, Hooks) {
        let server = served(DURABLE);
        (Arc::new(app(&server).build().unwrap()), server_hooks(&server))
    };
    disturbing_cases(vec![alike(), alike()]).await;
}

fn node(groups: &Groups) -> SentinelNodeBuilder {
    let secret = groups.password().expect("a group with users");
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0));
    let node = node.username("palisade").password(&*secret);
    let node = node.sentinel_deadline(Duration::from_secs(2));
    node.sentinel_username("palisade").sentinel_password(secret)
}

/// Returns a group's node, its servers, and the hooks by which the contract suite disturbs them.
///
/// Sentinel waits 30 s before it replaces a server (down-after), so that a slow restart does not
/// become a failover. Other tests cover failovers. The failover window is zero, so the quarantines
/// are short.
fn for_contract() -> (Arc<dyn LockNode>, Hooks, Arc<Groups>) {
    let groups = Arc::new(Groups::up_with(1, 30_000, 1, &["--acl"]));
    let node = node(&groups).min_replicas_check(MinReplicas::Off).trust_unconfirmed_master(true);
    let node = node.failover_window(Duration::ZERO).build().unwrap();
    (Arc::new(node), group_hooks(&groups), groups)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_needs_no_more_for_the_rules() {
    let (node, hooks, groups) = for_contract();
    quiet_cases(node, &hooks).await;
    // The servers denied no required command to any user, including the Sentinels and the replicas.
    for at in groups.servers(0).iter().chain(&groups.sentinels(0)) {
        let log = groups.cli(at, &["ACL", "LOG"]);
        let denied: Vec<_> =
            denied(&log).into_iter().filter(|d| !d.starts_with("client")).collect();
        assert!(denied.is_empty(), "{at}: {denied:?} in {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_needs_no_more_over_restarts_and_losses() {
    let alike = || {
        let (node, hooks, _) = for_contract();
        (node, hooks)
    };
    disturbing_cases((0..6).map(|_| alike()).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_with_users_fails_over_and_the_lock_goes_on() {
    let groups = Groups::up_with(1, 3_000, 1, &["--acl"]);
    let second = Duration::from_secs(1);
    // The application's user may not read the min-replicas settings of the server, so the program
    // must pass these settings to the node by `min_replicas`.
    let silent = Redlock::builder().node(node(&groups).build().unwrap());
    let silent = silent.ttl(60 * second).node_deadline(5 * second).build().unwrap();
    let e =
        silent.mutex("m").build().unwrap().try_acquire().await.expect_err("no vote").to_string();
    assert!(e.contains("set `min_replicas(…)`") && e.contains("at most 1 s"), "{e}");
    let (node, ttl) = (Arc::new(node(&groups).min_replicas(1, second).build().unwrap()), second);
    let redlock = Redlock::builder().node_arc(node.clone()).ttl(ttl).max_ttl(ttl).build().unwrap();
    let guard = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    guard.release().await.unwrap();
    let old = groups.servers(0)[0].clone();
    groups.break_("failover", 0, &[]);
    let begun = std::time::Instant::now();
    while node.status().master.is_none_or(|m| m == old) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", node.status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let guard = redlock.mutex("m").build().unwrap().acquire().await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(redlock.metrics()[0].switches, 1, "{:?}", redlock.metrics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_forbidden_at_run_time_is_a_permission_with_its_name() {
    let acl = "user default on nopass ~* &* +@all\nuser app on >secret ~* &* +@all\n";
    let server = Server::start_with_users(acl, &[], ("default", ""));
    let url = server.url().replace("redis://", "redis://app:secret@");
    let node = RedisNode::builder(url).trust_fresh(true).build().expect("settings");
    let redlock = Redlock::builder().node(node).build().expect("settings");
    let mutex = redlock.mutex("a").build().expect("a name");
    let _ = mutex.acquire().await.expect("free").release().await;
    assert_eq!(server.cli(&["ACL", "SETUSER", "app", "-set"]).trim(), "OK");
    let refused = mutex.try_acquire().await.expect_err("forbidden").to_string();
    assert!(refused.contains("the ACL user lacks a permission"), "{refused}");
    assert!(refused.contains("allow this user +set"), "{refused}");
}
