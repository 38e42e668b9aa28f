//! `palisade doctor --probe` at servers that refuse a part of what palisade uses. For each server a
//! table has the verdicts that differ from those at a plain server. After each run the data of the
//! server are those from before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::access::minimal_profile;
use crate::doctor::{Patient, Run};
use crate::settings::Ward;
use crate::support::group::cli;
use crate::support::server::Server;

const PASSWORD: &str = "s3cret-of-the-app";

/// A feature, with every field of the JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tried {
    feature: String,
    subject: String,
    verdict: String,
    needed: bool,
    message: String,
    said: String,
    fix: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probe {
    reached: bool,
    services: Vec<serde_json::Value>,
    features: Vec<Tried>,
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
        assert!(says && !f.message.is_empty() && !f.subject.is_empty(), "{what}: {f:#?}");
    }
    probe
}

/// All that one script can do.
const OF_SCRIPTS: [&str; 8] = [
    "scripts",
    "history",
    "locks",
    "idempotency",
    "elections",
    "shared-locks",
    "wake-ups",
    "handover",
];

fn each<'a>(features: &[&'a str], verdict: &'a str) -> Vec<(&'a str, &'a str)> {
    features.iter().map(|feature| (*feature, verdict)).collect()
}

#[test]
fn a_plain_server_does_all_and_every_command_is_called() {
    let server = Server::start(&[]);
    used(&server);
    let probe = expect("plain", &server.url(), &[], [0, 0]);
    assert!(probe.reached && probe.services.is_empty());
    let needed = probe.features.iter().filter(|f| f.needed);
    let needed: BTreeSet<_> = needed.map(|f| &*f.feature).collect();
    assert!(needed.contains("locks") && !needed.contains("wake-ups"), "{needed:?}");
    untouched(&server);
    let stats = server.cli(&["INFO", "commandstats"]);
    for right in minimal_profile().split_whitespace().filter_map(|word| word.strip_prefix('+')) {
        // The address names no database.
        let called = stats.contains(&format!("cmdstat_{right}:"));
        assert!(called || right == "select", "{right} was not tried: {stats}");
    }
    let text = Patient::default().arg("--probe").arg(&server.url()).run(&[]).out;
    assert!(text.contains("works      locks           acquired"), "{text}");
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
        let Some((feature, _)) = wanted.first() else {
            assert!(probe.of("min-replicas").said.contains("config|get"), "{probe:#?}");
            continue;
        };
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
    for less in ["-evalsha", "-script", "-info", "-set", "-del", "-time", "resetkeys ~orders:*"] {
        set(&format!("~* &* +@all {less}"));
        let (ran, probe) = run(&url, &[]);
        assert_eq!(ran.code, 1, "{less}: {probe:#?}");
        let needs = if less == "-info" { "server" } else { "scripts" };
        let (needs, rule) = (probe.of(needs), less.replace('-', "+"));
        let rule = if less.starts_with("reset") { "'~*'" } else { &rule };
        assert!(needs.fix[0].contains(rule), "{less}: {needs:#?}");
        untouched(&server);
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
        (&evicts[..], each(&["eviction"], "works-with"), [1, 1]),
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
    let wanted = [
        ("durability", "works"),
        ("min-replicas", "works-with"),
        ("failover-window", "works-with"),
    ];
    let probe = expect("a replica", &server.url(), &wanted, [0, 1]);
    let asks = format!("palisade doctor --node '{}?failover_window=12s'", server.url());
    assert_eq!(probe.of("failover-window").fix, [asks]);
    assert_eq!(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    let url = format!("{}?failover_window=12s", server.url());
    expect("a replica, stated", &url, &[("durability", "works")], [0, 0]);
    let (ran, probe) = run(&replica.url(), &[]);
    assert_eq!((ran.code, &*probe.of("server").said), (2, "role:slave"));
}

#[test]
fn a_group_is_tried_at_the_master_that_its_sentinels_name() {
    let ward = Ward::new();
    let url = format!("sentinel://{}/{}", ward.sentinels.join(","), ward.name);
    let wanted = [("durability", "works")];
    let probe = expect("a group", &url, &wanted, [0, 0]);
    assert_eq!(probe.of("locks").subject, ward.name);
    let sentinel = &probe.of("sentinel").message;
    assert!(sentinel.contains(&ward.servers[0]), "{sentinel}");
    let keys = cli(&ward.servers[0], &["KEYS", "palisade:probe:*"]);
    assert_eq!(keys, "", "{keys}");
    let (ran, probe) = run(&url.replace(&ward.name, "nobody"), &[]);
    assert_eq!((ran.code, &*probe.of("sentinel").verdict), (2, "cannot"), "{probe:#?}");
}

const IN_SCRIPT: &str = "ERR This Redis command is not allowed from script";

/// What a relay does with a command.
enum Act {
    Pass,
    /// The server answers this error.
    Refuse(&'static str),
    Close,
    /// Nothing is answered from now on.
    Mute,
}

/// Starts a relay to a server.
fn relay(server: &Server, rule: fn(&[String]) -> Act) -> String {
    let (to, listener) = (server.addr(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { continue };
            let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || serve(&client, &server, rule));
        }
    });
    format!("redis://{at}")
}

fn serve(client: &TcpStream, mut server: &TcpStream, rule: fn(&[String]) -> Act) {
    let mut from = BufReader::new(client);
    while let Some(words) = command(&mut from) {
        let refusal = ["EVAL", "return redis.error_reply(ARGV[1])", "0"].map(str::to_owned);
        let words = match rule(&words) {
            Act::Pass => words,
            Act::Refuse(why) => refusal.into_iter().chain([why.to_owned()]).collect(),
            Act::Close => break,
            Act::Mute => continue,
        };
        let each = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let bytes = format!("*{}\r\n{}", words.len(), each.collect::<String>());
        if server.write_all(bytes.as_bytes()).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn command(from: &mut impl std::io::BufRead) -> Option<Vec<String>> {
    let number = |from: &mut dyn std::io::BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse::<usize>().ok()
    };
    let count = number(from)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

fn is(words: &[String], name: &str) -> bool {
    words.first().is_some_and(|word| word == name)
}

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
    let of_script = ["scripts", "history", "locks", "idempotency", "elections", "shared-locks"];
    let all = |verdict| each(&OF_SCRIPTS, verdict);
    let mut enterprise = each(&of_script, "cannot");
    enterprise.push(("wake-ups", "cannot"));
    let mut none = all("cannot");
    none.push(("operator", "cannot"));
    for (what, rule, wanted, codes) in [
        ("no INFO in scripts", no_info, enterprise, [2, 2]),
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
    assert_eq!(probe.lacks(), BTreeMap::from([("connection", "cannot")]));
}
