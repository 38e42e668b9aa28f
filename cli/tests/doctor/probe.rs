//! `palisade doctor --probe` at servers that refuse a part of what palisade uses. For each server a
//! table has the verdicts that differ from those at a plain server. After each run the data of the
//! server are those from before.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::access::minimal_profile;
use crate::doctor::{Patient, Run};
use crate::relay::{Act, is, relay};
use crate::settings::Ward;
use crate::support::group::cli;
use crate::support::server::Server;

const PASSWORD: &str = "s3cret-of-the-app";

/// A feature, with every field of the JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tried {
    feature: String,
    verdict: String,
    needed: bool,
    message: String,
    said: String,
    fix: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probe {
    subject: String,
    reached: bool,
    service: Option<serde_json::Value>,
    features: Vec<Tried>,
    then: String,
}

impl Probe {
    /// Returns the features that do not work, with their verdicts.
    fn lacks(&self) -> BTreeMap<&str, &str> {
        let odd = self.features.iter().filter(|f| f.verdict != "works");
        odd.map(|f| (&*f.feature, &*f.verdict)).collect()
    }

    fn of(&self, feature: &str) -> &Tried {
        let found = self.features.iter().find(|f| f.feature == feature);
        found.unwrap_or_else(|| panic!("nothing of {feature}: {self:#?}"))
    }
}

fn run(url: &str, more: &[&str]) -> (Run, Probe) {
    let patient = Patient::default().hides(PASSWORD).arg("--timeout").arg("1s");
    let begun = Instant::now();
    let run = patient.arg("--probe").arg(url).run(&[&["--json"], more].concat());
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let probe = serde_json::from_str(&run.out)
        .unwrap_or_else(|e| panic!("{e} in:\n{}\n{}", run.out, run.err));
    (run, probe)
}

/// Writes a marker, a note and a user's key.
fn used(server: &Server) {
    for (key, value) in
        [("palisade:generation", "theirs"), ("palisade:note", "theirs"), ("cart", "7")]
    {
        assert_eq!(server.cli(&["SET", key, value]), "OK");
    }
}

/// Returns all keys of [`used`], if the server has no others.
fn untouched(server: &Server) {
    let all = server.cli(&["KEYS", "*"]);
    let all: BTreeSet<_> = all.lines().collect();
    assert_eq!(all, BTreeSet::from(["cart", "palisade:generation", "palisade:note"]));
    for (key, value) in [("palisade:generation", "theirs"), ("palisade:note", "theirs")] {
        assert_eq!(server.cli(&["GET", key]), value);
    }
}

/// Probes a server twice, and compares what does not work with the table, and the exit codes.
fn expect(what: &str, url: &str, wanted: &[(&str, &str)], codes: [i32; 2]) -> Probe {
    let (lax, probe) = run(url, &[]);
    let (strict, _) = run(url, &["--strict"]);
    let mut all = BTreeMap::from([("durability", "unknown")]);
    for (feature, verdict) in wanted {
        all.insert(feature, verdict);
    }
    all.retain(|_, verdict| *verdict != "works");
    assert_eq!(probe.lacks(), all, "{what}: {probe:#?}");
    assert_eq!([lax.code, strict.code], codes, "{what}: {probe:#?}");
    for f in &probe.features {
        assert_eq!(f.verdict == "works-with", !f.fix.is_empty(), "{what}: {f:#?}");
        let says = !["works-with", "cannot"].contains(&&*f.verdict) || !f.said.is_empty();
        assert!(says && !f.message.is_empty(), "{what}: {f:#?}");
    }
    probe
}

/// All that one script can do.
const OF_SCRIPTS: [&str; 7] =
    ["scripts", "history", "locks", "idempotency", "shared-locks", "wake-ups", "handover"];

fn each<'a>(features: &[&'a str], verdict: &'a str) -> Vec<(&'a str, &'a str)> {
    features.iter().map(|feature| (*feature, verdict)).collect()
}

#[test]
fn a_plain_server_does_all_and_every_command_is_called() {
    let server = Server::start(&[]);
    used(&server);
    let probe = expect("plain", &server.url(), &[], [0, 0]);
    assert!(probe.reached && probe.service.is_none() && probe.subject == server.addr());
    assert_eq!(probe.then, format!("palisade doctor --node '{}'", server.url()));
    let needed = probe.features.iter().filter(|f| f.needed);
    let needed: BTreeSet<_> = needed.map(|f| &*f.feature).collect();
    assert!(needed.contains("locks") && !needed.contains("wake-ups"), "{needed:?}");
    untouched(&server);
    let stats = server.cli(&["INFO", "commandstats"]);
    for right in minimal_profile().split_whitespace().filter_map(|word| word.strip_prefix('+')) {
        // The address names no database.
        let called = stats.contains(&format!("cmdstat_{right}:"));
        assert!(
            called || ["select", "config|get"].contains(&right),
            "{right} was not tried: {stats}"
        );
    }
    let text = Patient::default().arg("--probe").arg(&server.url()).run(&[]).out;
    assert!(text.contains("works      locks           exclusive"), "{text}");
    assert!(text.lines().last().is_some_and(|last| last.contains("judges its settings")), "{text}");
    let both = Patient::default().arg("--probe").arg(&server.url()).arg("--node").arg("redis://a");
    assert_eq!(both.run(&[]).code, 64);
}

#[test]
fn a_missing_right_costs_its_features_and_comes_back_by_the_command() {
    let server = Server::start(&[]);
    used(&server);
    let url = format!("redis://app:{PASSWORD}@{}", server.addr());
    let set = |rules: &str| {
        let words: Vec<_> = rules.split_whitespace().collect();
        let user = ["ACL", "SETUSER", "app", "reset", "on", &format!(">{PASSWORD}")];
        assert_eq!(server.cli(&[&user[..], &words].concat()), "OK");
    };
    set(&minimal_profile());
    let operator = [("operator", "works-with")];
    expect("the manual's profile", &url, &operator, [0, 1]);
    set("~app:* ~{app:* ~palisade:* &* +@all");
    expect("a prefix", &url, &[], [0, 0]);
    untouched(&server);
    let with = |features: &[&'static str]| each(features, "works-with");
    for (less, wanted, codes) in [
        ("-wait", with(&["durability"]), [0, 1]),
        ("-publish", with(&["wake-ups"]), [0, 1]),
        ("-subscribe", with(&["wake-ups"]), [0, 1]),
        ("resetchannels", with(&["wake-ups"]), [0, 1]),
        ("-zadd", with(&["shared-locks"]), [0, 1]),
        ("-strlen", with(&["idempotency"]), [1, 1]),
        ("-config", vec![], [0, 0]),
        ("-hset", with(&["handover"]), [0, 1]),
        ("-eval", with(&["operator"]), [0, 1]),
    ] {
        set(&format!("~* &* +@all {less}"));
        let probe = expect(less, &url, &wanted, codes);
        untouched(&server);
        let Some((feature, _)) = wanted.first() else { continue };
        let fix = &probe.of(feature).fix[0];
        if *feature == "operator" {
            assert!(fix.contains("ACL SETUSER operator on '>PASSWORD'"), "{fix}");
            continue;
        }
        let (_, command) = fix.split_once(" --askpass ").expect("the login has a password");
        let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        assert_eq!(server.cli(&words), "OK", "{fix}");
        expect("mended", &url, &[], [0, 0]);
    }
    for less in ["-evalsha", "-script", "-info", "-set", "-del", "-time", "resetkeys ~app:*"] {
        set(&format!("~* &* +@all {less}"));
        let (ran, probe) = run(&url, &[]);
        assert_eq!(ran.code, 1, "{less}: {probe:#?}");
        let needs = if less == "-info" { "server" } else { "scripts" };
        let (needs, rule) = (probe.of(needs), less.replace('-', "+"));
        let rule = if less.starts_with("reset") { "'~palisade:*'" } else { &rule };
        assert!(needs.fix[0].contains(rule), "{less}: {needs:#?}");
        if less == "-del" {
            assert!(probe.of("cleaning").fix[0].contains(":palisade:generation'"), "{probe:#?}");
            assert_eq!(lasting(&server), Vec::<String>::new());
            server.session("FLUSHALL\n");
            used(&server);
        }
        untouched(&server);
    }
    assert_eq!(server.cli(&["ACL", "SETUSER", "a$b", "on", ">pw", "~*", "+@all", "-wait"]), "OK");
    let (_, probe) = run(&format!("redis://a%24b:pw@{}", server.addr()), &[]);
    assert!(probe.of("durability").fix[0].contains("ACL SETUSER 'a$b' +wait"), "{probe:#?}");
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-wait"]), "OK");
    let (_, probe) = run(&server.url(), &[]);
    let said = &probe.of("durability").said;
    assert!(said.contains("NOPERM") && said.contains("refuse it to each login"), "{said}");
}

/// Keys of a probe without an expiry.
fn lasting(server: &Server) -> Vec<String> {
    let all = server.cli(&["KEYS", "palisade:probe:*"]);
    let all = all.lines().filter(|key| !key.is_empty()).map(str::to_owned);
    all.filter(|key| server.cli(&["PTTL", key]) == "-1").collect()
}

#[test]
fn a_killed_probe_leaves_keys_for_a_minute_and_an_ended_one_leaves_none() {
    let server = Server::start(&[]);
    used(&server);
    let start = |url: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_palisade"));
        program.args(["doctor", "--timeout", "1s", "--probe", url]).stdout(Stdio::null());
        program.spawn().unwrap()
    };
    for millis in [10, 15, 20, 30, 40, 60, 90] {
        let mut probe = start(&server.url());
        std::thread::sleep(Duration::from_millis(millis));
        let _ = probe.kill();
        probe.wait().unwrap();
        let left = lasting(&server);
        let shared = |key: &String| key.contains(":palisade:");
        assert!(left.iter().all(shared), "after {millis} ms: {left:?}");
    }
    server.session("FLUSHALL\n");
    used(&server);
    // The first trial that waits for a hint.
    let mute: fn(&[String]) -> Act = |words| {
        if is(words, "SUBSCRIBE") { Act::Mute } else { Act::Pass }
    };
    let url = relay(&server, mute);
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None)] {
        // On a busy machine the probe may end before the signal comes.
        let ends = || {
            let mut probe = start(&url);
            crate::lab::wait_for("the trials", || {
                server.cli(&["KEYS", "palisade:probe:*first*"]).contains("first")
            });
            std::thread::sleep(Duration::from_millis(100));
            let kill = Command::new("kill").args([signal, &probe.id().to_string()]).status();
            assert!(kill.unwrap().success());
            probe.wait().unwrap().code()
        };
        let ended = (0..8).map(|_| ends()).find(|ended| ended.is_none_or(|ended| ended > 2));
        assert_eq!(ended, Some(code));
        match code {
            Some(_) => untouched(&server),
            None => assert_eq!(lasting(&server), Vec::<String>::new()),
        }
    }
}

#[test]
fn a_renamed_command_and_an_evicting_server() {
    let all = each(&OF_SCRIPTS, "cannot");
    let evicts = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let rename = |name| ["--rename-command", name, ""];
    for (args, wanted, codes) in [
        (&rename("EVALSHA")[..], all.clone(), [2, 2]),
        (&rename("WAIT")[..], each(&["durability"], "cannot"), [0, 1]),
        (&rename("CONFIG")[..], vec![], [0, 0]),
        (&rename("SUBSCRIBE")[..], each(&["wake-ups"], "cannot"), [0, 1]),
        (&evicts[..], vec![], [0, 0]),
    ] {
        let server = Server::start(args);
        used(&server);
        expect(&args.join(" "), &server.url(), &wanted, codes);
        untouched(&server);
    }
    // A server that has evicted keys grants only after a quarantine, also to the trial.
    let server = Server::start(&["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]);
    let sets = (0..400).map(|n| format!("SET k{n} {}\n", "x".repeat(20_000)));
    server.session(&sets.collect::<String>());
    assert!(!server.cli(&["INFO", "stats"]).contains("evicted_keys:0\r"));
    server.session("CONFIG SET maxmemory 0\nCONFIG SET maxmemory-policy noeviction\nFLUSHALL\n");
    used(&server);
    expect("keys were evicted", &server.url(), &[], [0, 0]);
    untouched(&server);
    // Each key that it deletes begins a quarantine anew.
    let server = Server::start(&["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]);
    let fill = |n: u32| format!("SET k{n} {}\n", "x".repeat(20_000));
    std::thread::scope(|scope| {
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let server = &server;
        scope.spawn(move || {
            for round in 0.. {
                let sets = (0..50).map(|n| fill(round * 50 + n)).collect::<String>();
                server.session(&sets);
                if ended.try_recv().is_ok() {
                    break;
                }
            }
        });
        let (ran, probe) = run(&server.url(), &[]);
        done.send(()).unwrap();
        assert!(ran.code != 2 && !ran.out.contains("Quarantined"), "{probe:#?}");
    });
    let server = Server::start(&["--rename-command", "HELLO", ""]);
    let (ran, probe) = run(&server.url(), &[]);
    assert_eq!((ran.code, &*probe.of("connection").verdict), (2, "cannot"), "{probe:#?}");
    let server = Server::start(&["--cluster-enabled", "yes"]);
    let (ran, probe) = run(&server.url(), &[]);
    let found = probe.of("server");
    assert_eq!((ran.code, &*found.verdict, probe.features.len()), (2, "cannot", 2));
    assert!(found.said.contains("Redis Cluster cannot be a node"), "{found:#?}");
}

#[test]
fn a_server_with_a_replica_and_the_replica_itself() {
    let (server, replica) = (Server::start(&[]), Server::start(&[]));
    let (host, port) = ("127.0.0.1", server.port().to_string());
    assert_eq!(replica.cli(&["REPLICAOF", host, &port]), "OK");
    crate::lab::wait_for("a replica", || {
        server.cli(&["INFO", "replication"]).contains("state=online")
    });
    expect("a replica", &server.url(), &[("durability", "works")], [0, 0]);
    let no_set: fn(&[String]) -> Act = |words| match &*words[0] {
        "SET" if words.len() == 5 && words[2].is_empty() => Act::Refuse("ERR not now"),
        _ => Act::Pass,
    };
    expect("no write", &relay(&server, no_set), &[], [0, 0]);
    replica.freeze();
    expect("a frozen replica", &server.url(), &[], [0, 0]);
    replica.resume();
    let (ran, probe) = run(&replica.url(), &[]);
    assert_eq!((ran.code, &*probe.of("server").said), (2, "role:slave"));
}

#[test]
fn a_group_is_tried_at_the_master_that_its_sentinels_name() {
    let ward = Ward::new();
    let url = format!("sentinel://{}/{}", ward.sentinels.join(","), ward.name);
    let wanted = [("durability", "works")];
    let probe = expect("a group", &url, &wanted, [0, 0]);
    assert_eq!(probe.subject, ward.name);
    let sentinel = &probe.of("sentinel").message;
    assert!(sentinel.contains(&ward.servers[0]), "{sentinel}");
    let keys = cli(&ward.servers[0], &["KEYS", "palisade:probe:*"]);
    assert_eq!(keys, "", "{keys}");
    let (ran, probe) = run(&url.replace(&ward.name, "nobody"), &[]);
    let sentinel = probe.of("sentinel");
    assert_eq!((ran.code, probe.reached), (69, false), "{probe:#?}");
    assert_eq!(sentinel.verdict, "unknown", "{probe:#?}");
    let (ran, probe) = run("sentinel://127.0.0.1:1/nobody", &[]);
    assert_eq!((ran.code, probe.reached), (69, false), "{probe:#?}");
    for at in &ward.servers {
        let user = ["ACL", "SETUSER", "app", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
        assert_eq!(cli(at, &[&user[..], &["-info"]].concat()), "OK");
    }
    let (ran, probe) =
        run(&url.replace("sentinel://", &format!("sentinel://app:{PASSWORD}@")), &[]);
    let found = probe.of("server");
    assert_eq!((ran.code, &*found.verdict), (1, "works-with"), "{probe:#?}");
    assert!(found.fix[0].ends_with("ACL SETUSER app +info"), "{found:#?}");
}

const IN_SCRIPT: &str = "ERR This Redis command is not allowed from script";

#[test]
fn proxies_that_refuse_close_or_fall_silent() {
    let server = Server::start(&[]);
    used(&server);
    // As Redis Enterprise: INFO at the door, and not in scripts.
    let no_info: fn(&[String]) -> Act = |words| match words {
        [name, .., last] if name == "EVALSHA" && (words.len() > 9 || last == "replication") => {
            Act::Refuse(IN_SCRIPT)
        }
        _ => Act::Pass,
    };
    let no_scripts: fn(&[String]) -> Act = |words| match &*words[0] {
        "EVALSHA" | "SCRIPT" | "EVAL" => Act::Refuse("ERR unknown command 'EVALSHA'"),
        _ => Act::Pass,
    };
    let moves: fn(&[String]) -> Act = |words| match &*words[0] {
        "EVALSHA" | "SET" | "DEL" => Act::Refuse("MOVED 866 10.0.0.7:6379"),
        _ => Act::Pass,
    };
    let closes: fn(&[String]) -> Act =
        |words| if is(words, "EVALSHA") { Act::Close } else { Act::Pass };
    let closes_at_wait: fn(&[String]) -> Act =
        |words| if is(words, "WAIT") { Act::Close } else { Act::Pass };
    let mute_at_publish: fn(&[String]) -> Act = |words| {
        if words.iter().any(|word| word == "PUBLISH") { Act::Mute } else { Act::Pass }
    };
    let no_key: fn(&[String]) -> Act = |words| {
        if is(words, "EVAL") && words[2] == "0" { Act::Refuse("ERR no key") } else { Act::Pass }
    };
    let all = |verdict| each(&OF_SCRIPTS, verdict);
    let mut none = all("cannot");
    none.push(("operator", "cannot"));
    for (what, rule, wanted, codes) in [
        ("no INFO in scripts", no_info, all("cannot"), [2, 2]),
        ("no EVAL without a key", no_key, vec![], [0, 0]),
        ("no scripts", no_scripts, none, [2, 2]),
        ("closes at EVALSHA", closes, all("unknown"), [69, 69]),
        ("closes at WAIT", closes_at_wait, vec![], [0, 0]),
        ("silent after PUBLISH", mute_at_publish, each(&["wake-ups"], "unknown"), [0, 0]),
    ] {
        let probe = expect(what, &relay(&server, rule), &wanted, codes);
        untouched(&server);
        if what == "no INFO in scripts" {
            let said = &probe.of("locks").said;
            assert!(said.starts_with("INFO in a script") && said.contains(IN_SCRIPT), "{said}");
        }
    }
    let (ran, probe) = run(&relay(&server, moves), &[]);
    let said = &probe.of("server").said;
    assert!(ran.code == 2 && said.contains("MOVED") && said.contains("Cluster"), "{probe:#?}");
    let (ran, probe) = run(&relay(&server, |_| Act::Mute), &[]);
    assert_eq!((ran.code, probe.reached), (69, false), "{probe:#?}");
    assert_eq!(probe.lacks(), BTreeMap::from([("connection", "unknown")]));
    for url in ["memory://", "http://127.0.0.1"] {
        assert_eq!(Patient::default().arg("--probe").arg(url).run(&[]).code, 64, "{url}");
    }
    let wrong = format!("redis://app:{PASSWORD}@{}", server.addr());
    let (ran, probe) = run(&wrong, &[]);
    assert_eq!((ran.code, probe.reached), (69, false), "{probe:#?}");
    assert_eq!(probe.lacks(), BTreeMap::from([("connection", "unknown")]));
}

#[test]
fn what_another_time_may_not_meet_is_unknown() {
    let server = Server::start(&[]);
    used(&server);
    for error in [
        "NOREPLICAS Not enough good replicas to write",
        "OOM command not allowed",
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script",
        "NOSCRIPT No matching script",
        "READONLY You can't write against a read only replica",
        "MASTERDOWN Link with MASTER is down",
        "MISCONF Redis is configured to save RDB snapshots",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
    ] {
        let rule = move |words: &[String]| {
            if is(words, "EVALSHA") { Act::Refuse(error) } else { Act::Pass }
        };
        let (ran, probe) = run(&relay(&server, rule), &[]);
        assert_eq!(ran.code, 69, "{error}: {probe:#?}");
        for feature in OF_SCRIPTS {
            assert_eq!(probe.of(feature).verdict, "unknown", "{error}: {probe:#?}");
        }
        untouched(&server);
    }
    // Slow, and never silent.
    let slow = |_: &[String]| {
        std::thread::sleep(Duration::from_millis(200));
        Act::Pass
    };
    let (_, probe) = run(&relay(&server, slow), &[]);
    for feature in ["scripts", "operator"] {
        assert_eq!(probe.of(feature).verdict, "works", "{probe:#?}");
    }
    // Scripts that go while the probe runs.
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || {
            while ended.try_recv().is_err() {
                server.cli(&["SCRIPT", "FLUSH"]);
            }
        });
        let (ran, probe) = run(&server.url(), &[]);
        done.send(()).unwrap();
        assert!(ran.code != 2, "{probe:#?}");
    });
    untouched(&server);
}
