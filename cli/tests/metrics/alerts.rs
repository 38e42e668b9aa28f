//! The shipped alerts and the shipped dashboard. A real Prometheus scrapes the real program.
//! Without a fault no alert fires. Each fault fires its alert.

use std::time::Duration;

use palisade::Outcome;
use serde_json::Value;

use crate::application::Application;
use crate::ground::{Ground, text};
use crate::prometheus::{Prometheus, promtool, repository};
use crate::scrape::{Watched, wait_for};

const SOON: Duration = Duration::from_secs(25);

fn shipped(file: &str) -> String {
    std::fs::read_to_string(repository().join("docs/monitoring").join(file)).expect("it is there")
}

fn fires(prometheus: &Prometheus, alert: &str, name: &str) {
    let fired = || prometheus.firing().iter().any(|(a, n)| a == alert && n == name).then_some(());
    wait_for(&format!("{alert} fires for {name:?}"), SOON, fired);
}

#[test]
fn what_is_served_and_shipped_is_what_prometheus_reads() {
    let ground = Ground::new();
    let watched = Watched::start(&ground, &["lock", "a", "--", "sleep", "60"]);
    let (_, text) = watched.get("/metrics");
    promtool(&["check", "metrics"], &text).expect("nothing to find fault with");
    let rules = repository().join("docs/monitoring/alerts.yml");
    let said = promtool(&["check", "rules", rules.to_str().expect("UTF-8")], "");
    assert!(said.expect("good rules").contains("8 rules found"));
}

/// All faults are in one test, because one Prometheus observes all programs. First no alert fires.
/// Then one fault follows the other.
#[test]
fn each_alert_is_silent_while_all_is_well_and_fired_by_its_fault() {
    let (ground, frozen, mut emptied) = (Ground::new(), Ground::new(), Ground::new());
    let sleep = ["--", "sleep", "120"];
    // This program is the only candidate of its election, so no other program leads after it was
    // killed. The candidate's command ends with the candidate.
    let leader = Watched::start(&ground, &[&["elect", "lonely"][..], &sleep].concat());
    // Two hosts run the same job, which must not run twice for a tick.
    let job = [
        "cron",
        "* * * * * *",
        "job",
        "--at-most-once",
        "--late",
        "60s",
        "-c",
        "test ! -e hang || { echo $PPID >hanging; sleep 60; }",
    ];
    let hosts = [Watched::start(&ground, &job), Watched::start(&ground, &job)];
    // This program has its lease on a server that the test freezes later.
    let late = ["elect", "late", "--ttl", "3s", "--grace", "300ms"];
    let renewed = Watched::start(&frozen, &[&late[..], &sleep].concat());

    let queue = Ground::new();
    let application = Application::start(&emptied.url(), Duration::from_secs(10));
    assert!(application.order("first").expect("an answer").is_executed());

    let all = [&leader, &hosts[0], &hosts[1], &renewed].map(|watched| watched.address.as_str());
    let targets = [&all[..], &[&application.address]].concat();
    // Only the minimum durations of the alerts are shorter here than in the shipped file.
    let rules = shipped("alerts.yml").replace("for: 30s", "for: 2s").replace("for: 1m", "for: 2s");
    assert_eq!(rules.matches("for: 2s").count(), rules.matches(" for: ").count());
    let prometheus = Prometheus::start(&ground.dir, &rules, &targets);
    wait_for("all are scraped", SOON, || {
        let up = prometheus.query("palisade_node_batches_total > 0").len() == targets.len();
        let leading =
            prometheus.query("palisade_election_leading{name=\"lonely\"} == 1").len() == 1;
        let done = "sum(palisade_cron_ticks_total{outcome=\"done\"}) > 2";
        let renewed = "palisade_lease_renewals_total{name=\"late\",outcome=\"renewed\"} > 2";
        let ran = [done, renewed].iter().all(|query| !prometheus.query(query).is_empty());
        (up && leading && ran).then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(prometheus.firing(), [], "all is well");

    // The test kills the leader. There is no other candidate.
    leader.signal("KILL");
    // The test kills the `palisade cron` process that runs a job now.
    std::fs::write(ground.file("hang"), "").expect("a file");
    let pid: u32 =
        wait_for("a run that hangs", SOON, || text(&ground.file("hanging")).trim().parse().ok());
    std::fs::remove_file(ground.file("hang")).expect("a file");
    let killed = killed_with(pid, &hosts);
    hosts[killed].signal("KILL");
    // The server is frozen for most of a lease, several times.
    let deadline = std::time::Instant::now() + SOON;
    let low = || prometheus.firing().iter().any(|(a, _)| a == "PalisadeRenewalMarginLow");
    while !low() {
        assert!(std::time::Instant::now() < deadline, "PalisadeRenewalMarginLow does not fire");
        frozen.server.freeze();
        std::thread::sleep(Duration::from_millis(2_300));
        frozen.server.resume();
        std::thread::sleep(Duration::from_millis(700));
    }
    fires(&prometheus, "PalisadeRenewalMarginLow", "late");
    fires(&prometheus, "PalisadeLeaderless", "lonely");
    fires(&prometheus, "PalisadeKeysParked", "cron");
    // The server is started again without its data.
    emptied.server.restart();
    fires(&prometheus, "PalisadeQuarantine", "");
    wait_for("a key that counts as forgotten", SOON, || {
        matches!(application.order("second"), Ok(Outcome::Parked(_))).then_some(())
    });
    fires(&prometheus, "PalisadeKeysUnknown", "orders");
    application.consume(&queue.url(), "third");
    fires(&prometheus, "PalisadeMessagesHeld", "orders");
    assert!(prometheus.query("palisade_node_loss_seconds == +Inf").len() == 1, "all was lost");
    assert!(!prometheus.firing().iter().any(|(alert, _)| alert == "PalisadeNoQuorum"));
    for server in [&ground.server, &frozen.server, &emptied.server] {
        server.freeze();
    }
    fires(&prometheus, "PalisadeNotReady", "");
    fires(&prometheus, "PalisadeNoQuorum", "");
    for server in [&ground.server, &frozen.server, &emptied.server] {
        server.resume();
    }
    dashboard_shows(&prometheus);
}

/// Returns the index of the host that is an ancestor of this process.
fn killed_with(pid: u32, hosts: &[Watched]) -> usize {
    let mut at = pid;
    for _ in 0..8 {
        if let Some(host) = hosts.iter().position(|host| host.pid() == at) {
            return host;
        }
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).expect("a process");
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        at = rest.split(' ').nth(1).expect("a parent").parse().expect("a number");
    }
    panic!("process {pid} has no host");
}

/// Runs every query of the dashboard. Each panel must show at least one series.
fn dashboard_shows(prometheus: &Prometheus) {
    let dashboard: Value = serde_json::from_str(&shipped("dashboard.json")).expect("JSON");
    let mut empty = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().expect("queries");
        let exprs = targets.iter().map(|t| t["expr"].as_str().expect("a query"));
        let seen: usize =
            exprs.map(|expr| prometheus.query(&expr.replace("$__rate_interval", "5m")).len()).sum();
        if seen == 0 {
            empty.push(title);
        }
    }
    assert_eq!(empty, Vec::<&str>::new(), "panels that show nothing");
}
