//! Runs every example as a user does, on nodes in memory and on real servers. An example checks its
//! own results, and its exit code reports a failure. For `orders`, these tests compare the printed
//! figures too.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::program;
use crate::support::group::Groups;
use crate::support::proxy::Proxy;
use crate::support::server::Server;

/// Longest duration of an example, on a slow machine, too.
const PATIENCE: Duration = Duration::from_secs(1_000);

/// Runs an example, asserts that it succeeds, and returns its output.
fn run(name: &str, args: &[String]) -> String {
    let (status, words) = run_to_its_end(name, args);
    assert!(status.success(), "{name} {args:?}: {status}\n{words}");
    words
}

fn run_to_its_end(name: &str, args: &[String]) -> (ExitStatus, String) {
    let out = std::env::temp_dir().join(format!("palisade-{name}-{}", fresh()));
    let file = std::fs::File::create(&out).expect("a file below the temporary directory");
    let mut child = Command::new(program(name))
        .args(args)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle"))
        .stderr(file)
        .spawn()
        .expect("the example can be run");
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().expect("a child to wait for") {
            Some(status) => break Some(status),
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let words = std::fs::read_to_string(&out).unwrap_or_default();
    let _ = std::fs::remove_file(&out);
    let status = status.unwrap_or_else(|| panic!("{name} {args:?} hangs:\n{words}"));
    (status, words)
}

fn fresh() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs an example on nodes in memory, on one real server and on three real servers. Calls `check`
/// with the output of each run.
fn everywhere(name: &str, args: &[&str], check: impl Fn(&str)) {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    check(&run(name, &args));
    for n in [1, 3] {
        let servers: Vec<_> = (0..n).map(|_| Server::start(&[])).collect();
        // The servers are new and have lost no data, so `trust_fresh` is safe.
        let url = |server: &Server| format!("{}?trust_fresh=true", server.url());
        let nodes = servers.iter().flat_map(|s| ["--node".to_owned(), url(s)]);
        let args: Vec<_> = args.iter().cloned().chain(nodes).collect();
        check(&run(name, &args));
    }
}

fn last_line(words: &str) -> Value {
    let line = words.trim_end().lines().last().expect("a last line");
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in the last line: {line}"))
}

#[test]
fn quickstart() {
    everywhere("quickstart", &[], |words| {
        assert!(words.contains("another one is refused"), "{words}");
        assert!(words.contains("released"), "{words}");
    });
}

#[test]
fn credentials() {
    let server = Server::start(&[]);
    let words = run("credentials", &["--server".to_owned(), server.url()]);
    assert!(words.ends_with(", 0 faults\n") && words.contains("token 3 has ended"), "{words}");
    assert_eq!(server.cli(&["ACL", "USERS"]), "default");
}

#[test]
fn password_file() {
    let server = Server::start(&[]);
    let words = run("password_file", &["--server".to_owned(), server.url()]);
    assert!(words.ends_with(" times locked with 4 passwords, 0 faults\n"), "{words}");
    assert_eq!(server.cli(&["ACL", "USERS"]), "default");
}

#[test]
fn dns_endpoint() {
    let server = Server::start(&[]);
    let words = run("dns_endpoint", &["--server".to_owned(), server.url()]);
    assert!(words.contains(" times locked, ") && !words.contains("not now"), "{words}");
}

/// A proxy stands in for the name.
#[test]
fn dns_endpoint_over_a_failover() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let name = Proxy::to(&primary.addr());
    let args =
        ["--server", &format!("redis://{}", name.addr()), "--window", "2", "--seconds", "20"];
    let args = args.map(str::to_owned);
    let words = std::thread::scope(|scope| {
        let example = scope.spawn(|| run("dns_endpoint", &args));
        let end = Instant::now() + PATIENCE;
        while replica.cli(&["EXISTS", "palisade:note"]) != "1" {
            assert!(Instant::now() < end, "the replica has nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
        name.lead_to(&replica.addr());
        primary.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        example.join().expect("its test")
    });
    // The lease and L: 3 s and 2 s, of which a busy machine may have used some.
    let begun = ["5", "4."].map(|left| format!("QuarantineBegun {{ remaining: {left}"));
    assert!(begun.iter().any(|begun| words.contains(begun)), "{words}");
    assert!(words.contains("QuarantineEnded") && words.contains(" times locked, "), "{words}");
}

#[test]
fn fenced_writer() {
    everywhere("fenced_writer", &[], |words| {
        assert!(words.contains("refused"), "{words}");
        assert!(words.ends_with("balance 200\n"), "{words}");
    });
}

#[test]
fn election() {
    // On real servers the example runs one candidate. The candidate leads until it receives a
    // signal to end.
    everywhere("election", &["--seconds", "5"], |words| {
        assert!(words.contains("resign"), "{words}");
    });
}

#[test]
fn metrics() {
    everywhere("metrics", &["--seconds", "2", "--listen", "127.0.0.1:0"], |words| {
        assert!(words.contains("/metrics\nclosed"), "{words}");
    });
}

#[test]
fn crontab_leader() {
    everywhere("crontab_leader", &[], |words| {
        assert!(words.contains("has resigned: no space left"), "{words}");
        assert!(words.ends_with("one at a time\n"), "{words}");
    });
    // The code that connects the crontab to the library must stay short.
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crontab_leader.rs");
    let text = std::fs::read_to_string(path).expect("it is part of the package");
    let glue = text.split("// The glue begins here.\n").nth(1).expect("a beginning");
    let glue = glue.split("// The glue ends here.\n").next().expect("an end");
    assert!(glue.lines().count() < 15, "{glue}");
}

#[test]
fn cron_singleton() {
    everywhere("cron_singleton", &[], |words| {
        assert!(words.contains("attempt 2") && words.contains("written by Ada"), "{words}");
        assert!(words.ends_with("each took effect once\n"), "{words}");
    });
}

#[test]
fn a_sentinel_group_is_a_node_like_another() {
    let groups = Groups::up(1);
    let url = format!("sentinel://{}/{}", groups.sentinels(0).join(","), groups.name(0));
    let args = ["--node".to_owned(), url];
    for name in ["quickstart", "fenced_writer", "cron_singleton", "crontab_leader"] {
        run(name, &args);
    }
}

fn new_server() -> Server {
    Server::start(&[])
}

/// Starts a new Redis server and initialises it as `palisade init` does.
fn marked_server() -> Server {
    let marked = Server::start(&[]);
    let deployment = palisade_ops::Deployment::new().node(marked.url());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let done = runtime.block_on(palisade_ops::init(&deployment, "")).expect("good arguments");
    assert!(done.is_done(), "{done}");
    marked
}

/// Runs an example on a new server. On a slow machine the deadlines of requests may be too short.
/// If a line of the example says so, and some line lacks its part of `says`, the function tries
/// again on another server.
fn run_in_time(
    name: &str,
    says: &[&str],
    server: fn() -> Server,
    args: &[&str],
) -> (Server, String) {
    let mut tries = 0;
    loop {
        let server = server();
        let url =
            if args.is_empty() { vec![server.url()] } else { vec!["--node".into(), server.url()] };
        let args: Vec<_> = url.into_iter().chain(args.iter().map(|a| (*a).to_owned())).collect();
        let words = run(name, &args);
        tries += 1;
        let is_said = words.lines().zip(says).all(|(line, says)| line.contains(says));
        let is_late = ["deadline", "no answer"].iter().any(|late| words.contains(late));
        if tries == 60 || is_said || !is_late {
            return (server, words);
        }
    }
}

#[test]
fn the_readmes_payment_on_a_new_server() {
    let read = |path: &str| {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        std::fs::read_to_string(path).expect("it is part of the package")
    };
    let (example, readme) = (read("examples/payments.rs"), read("README.md"));
    let code = &example[example.find("\nuse ").expect("imports")..];
    assert!(readme.contains(&format!("no_run{code}```")), "README.md shows another program");

    let says = ["1: paid now, ", "2: was paid before, "];
    let (_, words) = run_in_time("payments", &says, marked_server, &[]);
    let lines: Vec<_> = words.lines().collect();
    let [first, second] = lines[..] else { panic!("{words}") };
    let charge = first.strip_prefix("1: paid now, ").unwrap_or_else(|| panic!("{words}"));
    assert_eq!(second.strip_prefix("2: was paid before, "), Some(charge), "{words}");

    let (unknown, words) = run_in_time("payments", &["grants begin in"; 2], new_server, &[]);
    let first = words.lines().next().expect("a line");
    let command = format!("`palisade init --new --node {}`", unknown.url());
    let says = ["1: handler of", "grants begin in", &command];
    assert!(says.iter().all(|say| first.contains(say)), "{words}");
    assert_eq!(words.lines().count(), 2, "one line a delivery: {words}");
}

#[test]
fn servers_that_were_never_used_are_waited_for() {
    for name in ["quickstart", "cron_singleton"] {
        let (_, words) = run_in_time(name, &["palisade init"], new_server, &["--ttl-ms=2500"]);
        assert!(words.contains("not yet: "), "{words}");
        assert!(words.contains("palisade init"), "{words}");
    }
}

#[test]
fn the_lease_is_as_asked_for() {
    let server = Server::start(&[]);
    let args = |ttl: &str| ["--node".to_owned(), server.url(), format!("--ttl-ms={ttl}")];
    for name in ["quickstart", "fenced_writer", "cron_singleton", "orders", "election"] {
        let (status, words) = run_to_its_end(name, &args("5"));
        assert!(!status.success() && words.contains("at least 10ms"), "{name}: {words}");
    }
}

#[test]
fn orders_on_real_servers() {
    let args = ["--json", "--limit", "600"];
    everywhere("orders", &args, |words| {
        let report = last_line(words);
        let (request, business) = (&report["request"], &report["business"]);
        assert_eq!(request["executed"], 600, "{report}");
        for level in [request, business] {
            assert_eq!([&level["doubles"], &level["lost"]], [&json!(0), &json!(0)], "{report}");
        }
        assert!(request["delivered"].as_u64() > request["executed"].as_u64(), "{report}");
        let (executed, refused) = (business["executed"].as_u64(), business["refused"].as_u64());
        assert_eq!(executed.zip(refused).map(|(e, r)| e + r), Some(600), "{report}");
    });
}

#[test]
fn every_invoice_takes_effect_once() {
    // The 3,000 first invoices have 18 that repeat an order. `make demo` books all of them.
    let args = ["--json", "--limit", "3000"].map(str::to_owned);
    let report = last_line(&run("orders", &args));
    let (request, business) = (&report["request"], &report["business"]);
    assert_eq!(request["executed"], 3_000, "{report}");
    assert_eq!(business["executed"], 2_982, "{report}");
    assert_eq!(business["refused"], 18, "{report}");
    for level in [request, business] {
        assert_eq!([&level["doubles"], &level["lost"]], [&json!(0), &json!(0)], "{report}");
    }
}

#[test]
fn the_ledger_notices_consumers_that_do_not_ask() {
    let args = ["--json", "--limit", "2000", "--seed", "1", "--blind"].map(str::to_owned);
    let (status, words) = run_to_its_end("orders", &args);
    assert_eq!(status.code(), Some(1), "{words}");
    let report = last_line(&words);
    assert!(report["request"]["doubles"].as_u64() > Some(0), "{report}");
}

#[test]
fn orders_go_on_while_sentinel_groups_fail() {
    let args = ["--demo-sentinel", "--json", "--limit", "2000"].map(str::to_owned);
    let report = last_line(&run("orders", &args));
    assert_eq!(report["request"]["executed"], 2_000, "{report}");
    for level in [&report["request"], &report["business"]] {
        assert_eq!([&level["doubles"], &level["lost"]], [&json!(0), &json!(0)], "{report}");
    }
    let faults = report["faults"].as_array().expect("faults");
    let mut kinds: Vec<_> = faults.iter().filter_map(|f| f["kind"].as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["failover", "freeze", "kill"], "{report}");
}

#[test]
fn orders_go_on_while_masters_of_a_cluster_fail_and_slots_move() {
    let args = ["--demo-cluster", "--json", "--limit", "2000"].map(str::to_owned);
    let report = last_line(&run("orders", &args));
    let moved = report["slots_moved"].as_u64().expect("a number");
    assert!(moved > 100, "{report}");
    let figures = json!({"orders": 2_000, "executed": 2_000, "doubles": 0, "lost": 0,
        "failovers": 3, "slots_moved": moved, "held_twice": 0});
    assert_eq!(report, figures);
}
