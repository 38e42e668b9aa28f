//! One name, behind which the primary changes, as services give it. The name is resolved by the
//! system, out of a file of hosts that only this test's own mount and network namespaces have.

use std::process::Command;

use super::*;
use crate::support::proxy::Proxy;
use crate::support::wait::until;

/// Set in the namespaces, with the path of their file of hosts.
const HOSTS: &str = "PALISADE_TEST_HOSTS";
const NAME: &str = "orders.palisade.test";
const WINDOW: Duration = Duration::from_secs(7);

/// Runs this test's second half in its own namespaces; `None` if it is already there.
fn outside(test: &str) -> Option<()> {
    if std::env::var_os(HOSTS).is_some() {
        return None;
    }
    let hosts = std::env::temp_dir().join(format!("palisade-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "127.0.0.1 localhost\n").expect("a file below the temporary directory");
    let script =
        "ip link set lo up && mount --bind \"$1\" /etc/hosts && exec \"$2\" --exact \"$3\"";
    let within = |args: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(args).args(["--mount", "--net"]).env(HOSTS, &hosts);
        unshare
    };
    let allowed = |args: &[&str]| {
        within(args)
            .args(["ip", "link", "set", "lo", "up"])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    let Some(args) = [&[][..], &["--map-root-user"]].into_iter().find(|args| allowed(args)) else {
        eprintln!("skipped: neither root nor a user who may make namespaces");
        return Some(());
    };
    let program = std::env::current_exe().expect("this program");
    let mut run = within(args);
    run.args(["sh", "-c", script, "sh"]).arg(&hosts).arg(program).arg(test);
    let out = run.output().expect("it can be run");
    let _ = std::fs::remove_file(&hosts);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (words, errors) = (said(&out.stdout), said(&out.stderr));
    assert!(out.status.success() && words.contains("1 passed"), "{words}{errors}");
    Some(())
}

fn leads_to(host: &str) {
    let hosts = std::env::var_os(HOSTS).expect("within the namespaces");
    std::fs::write(hosts, format!("127.0.0.1 localhost\n{host} {NAME}\n")).expect("its file");
}

async fn marked() -> Server {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    super::durable::init(&server).await;
    server
}

/// A promoted replica is one more server behind the name, with the window L for the one before.
#[tokio::test]
async fn a_name_is_asked_again_at_each_dial_and_a_wrong_server_behind_it_is_refused() {
    let here =
        "redis::dns::a_name_is_asked_again_at_each_dial_and_a_wrong_server_behind_it_is_refused";
    if outside(here).is_some() {
        return;
    }
    let (home, foreign) = (marked().await, marked().await);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &home.port().to_string()]);
    // One port at three addresses.
    let at =
        |host: u8, port, to: &Server| Proxy::between(([127, 0, 1, host], port).into(), &to.addr());
    let first = at(1, 0, &home);
    let (second, third) = (at(2, first.port(), &foreign), at(3, first.port(), &replica));
    leads_to("127.0.1.1");
    let url = format!("redis://{NAME}:{}", first.port());
    let node = RedisNode::builder(url).failover_window(WINDOW).build().unwrap();
    let mut remembers = Remembered::default();
    let mut ask = async |name: &str| {
        let ops = vec![acquire(name, owner())];
        let batch = Batch { terms: LONG, not_after: None, remembers, ops };
        let mut replies = node.call(batch, SystemEnv.now() + TTL).await;
        replies.facts.iter().for_each(|facts| remembers.learn(facts));
        (replies.items.remove(0), replies.facts)
    };
    let mut until_up = async |name: &str| {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let (reply, facts) = ask(name).await;
            let fault = reply.as_ref().err().map(NodeError::fault);
            if !matches!(fault, Some(NodeFault::Unreachable | NodeFault::Disconnected)) {
                return (reply, facts);
            }
            assert!(Instant::now() < end, "{reply:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let run_id = |server: &Server| {
        let info = server.cli(&["info", "server"]);
        let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        id.expect("an id").trim().to_owned()
    };
    fence(until_up("before").await.0);
    let before = foreign.cli(&["mget", "palisade:generation", "palisade:note"]);
    for round in 0..5 {
        leads_to("127.0.1.2");
        // The connection that is open is asked nothing.
        let (reply, facts) = until_up(&format!("open-{round}")).await;
        fence(reply);
        assert_eq!(*facts.expect("facts").identity, run_id(&home));
        home.cli(&["client", "kill", "type", "normal"]);
        let refused = until_up("wrong").await.0.expect_err("another deployment's data");
        assert_eq!(refused.fault(), NodeFault::ForeignData, "{refused}");
        leads_to("127.0.1.1");
        foreign.cli(&["client", "kill", "type", "normal"]);
        let (reply, facts) = until_up(&format!("home-{round}")).await;
        fence(reply);
        assert_eq!(*facts.expect("facts").identity, run_id(&home));
    }
    let after = foreign.cli(&["mget", "palisade:generation", "palisade:note"]);
    assert_eq!(after, before, "nothing was written");
    // The service promotes the replica, and the name follows.
    let newest = || home.cli(&["get", "palisade:note"]);
    until("the replica has all", || replica.cli(&["get", "palisade:note"]) == newest()).await;
    assert_eq!(replica.cli(&["replicaof", "no", "one"]), "OK");
    leads_to("127.0.1.3");
    home.cli(&["client", "kill", "type", "normal"]);
    let (reply, facts) = until_up("new").await;
    assert_quarantined(reply);
    let facts = facts.expect("facts");
    assert_eq!(*facts.identity, run_id(&replica));
    assert_eq!(facts.quarantine_len, LONG.max_ttl + WINDOW);
    let loss = facts.losses.last().copied().expect("it may lack the last writes");
    assert_eq!(Duration::from_millis(loss.to - loss.began), WINDOW);
    drop((first, second, third));
}
