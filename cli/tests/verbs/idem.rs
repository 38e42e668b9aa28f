//! The command `palisade idem`: the idempotency keys that it shows to an operator, its changes, and
//! its log.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, Run, object, palisade, signal, text, until};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(40);

/// Returns the keys that `idem list` prints with these flags.
fn listed(ground: &Ground, flags: &[&str]) -> Vec<String> {
    let run = ground.run(&[&["idem", "list", "--json"], flags].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    let keys = run.json()["keys"].as_array().expect("a list").clone();
    keys.iter().map(|key| key["key"].as_str().expect("a key").to_owned()).collect()
}

#[test]
fn redrive_moves_what_was_forgotten_and_nothing_else() {
    let ground = Ground::new();
    let letter = |key: &str, reason: &str| {
        let fields = ["key", key, "body", "b", "reason", reason, "detail", "d", "id", "1-1"];
        ground.server.cli(&[&["XADD", "{orders}:dead", "*"][..], &fields].concat());
    };
    (0..120).for_each(|n| letter(&format!("k{n}"), "forgotten"));
    letter("other", "lapsed");
    let url = ground.url();
    let because = ["--by", "alice", "--reason", "decided", "--json"];
    let redrive = |url: &[&str]| {
        ground.run(&[&["idem", "redrive", "--stream", "orders"][..], url, &because].concat())
    };
    let run = redrive(&["--url", &url]);
    assert_eq!((run.code, &*run.out), (0, "120 moved\n"), "{}", run.err);
    let event = object(run.err.lines().next().expect("an event"));
    let said = ["event", "stream", "by", "reason"].map(|field| event[field].as_str().unwrap_or(""));
    assert_eq!(said, ["redrive", "orders", "alice", "decided"]);
    assert_eq!((&event["moved"], &event["done"]), (&120.into(), &true.into()));
    assert_eq!(ground.server.cli(&["XLEN", "orders"]), "120");
    assert_eq!(ground.server.cli(&["XLEN", "{orders}:dead"]), "1");
    let first = ground.server.cli(&["XRANGE", "orders", "-", "+", "COUNT", "1"]);
    assert!(first.ends_with("key\nk0\nbody\nb"), "{first}");
    assert_eq!(redrive(&["--url", &url]).out, "0 moved\n");
    assert_eq!(redrive(&[]).code, 64);
    let away = format!("redis://127.0.0.1:{}", free_port());
    assert_eq!(redrive(&["--url", &away]).code, 69);
}

#[test]
fn a_redrive_that_is_stopped_says_who_began_it_and_the_next_one_goes_on() {
    let (ground, letters) = (Ground::new(), 200_000);
    let add = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'key', n, 'reason', \
               'forgotten', 'detail', 'd', 'id', '1-1') end";
    ground.server.cli(&["EVAL", add, "1", "{orders}:dead", &letters.to_string()]);
    let back = || ground.server.cli(&["XLEN", "orders"]).parse::<u32>().expect("a number");
    let url = ground.url();
    let args = ["idem", "redrive", "--stream", "orders", "--url", &url, "--json"];
    let args = [&args[..], &["--by", "alice", "--reason", "decided"]].concat();
    let mut redrive = ground.command(&args);
    let redrive = redrive.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = redrive.spawn().expect("it starts");
    until("some are back", SOON, || back() > 0);
    signal(child.id(), "TERM");
    let out = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(128 + 15), "{said}");
    let event = object(said.lines().find(|line| line.contains("\"redrive\"")).expect("an event"));
    assert_eq!((&event["by"], &event["done"]), (&"alice".into(), &false.into()));
    assert!(back() < letters, "it was not stopped");
    assert_eq!(ground.run(&args).code, 0);
    assert_eq!(back(), letters);
}

#[test]
fn a_run_of_a_dead_process_is_found_released_and_run_again() {
    let ground = Ground::new();
    // The lease is much longer than this test. So the test does not wait for its end.
    let long = |args: &[&str]| {
        let mut command = ground.command(args);
        command.env("PALISADE_TTL", "60s").env("PALISADE_MAX_TTL", "60s");
        Run::of(&command.output().expect("it can be run"))
    };
    let script = "echo ran >>runs; [ -e good ] || sleep 30";
    let hangs = ground.spawn(&["once", "k", "--ttl", "60s", "-c", script]);
    until("it runs", SOON, || !text(&ground.file("runs")).is_empty());
    hangs.signal("KILL");
    let table = ground.run(&["idem", "list"]).out;
    assert!(table.contains("1 attempt, the last") && !table.contains("0ns"), "{table}");
    let none = ground.run(&["idem", "list", "--namespace", "none"]);
    assert_eq!((none.code, &*none.out), (0, "no such key in this namespace\n"), "{}", none.err);
    assert_eq!(listed(&ground, &["--running"]), ["k"]);
    assert_eq!(listed(&ground, &["--running", "--older-than", "5m"]), [] as [&str; 0]);
    until("it is old enough", SOON, || {
        listed(&ground, &["--running", "--older-than", "1s"]) == ["k"]
    });
    assert_eq!(long(&["once", "k", "-c", script]).code, 75);
    // A running key cannot be run again.
    let because = ["--by", "alice", "--reason", "host 7 is gone"];
    let rerun = [&["idem", "rerun", "k", "--json"][..], &because].concat();
    let not = ground.run(&rerun);
    assert_eq!(not.code, 2, "{}", not.err);
    assert!(not.out.contains("its claim runs"), "{}", not.out);

    let run = ground.run(&[&["idem", "release", "k", "--json"][..], &because].concat());
    assert_eq!(run.code, 0, "{} {}", run.out, run.err);
    let event = object(run.err.lines().next().expect("an event"));
    let said = ["event", "prefix", "namespace", "key", "by", "reason"];
    let said = said.map(|field| event[field].as_str().unwrap_or("none"));
    assert_eq!(said, ["release", "", "once", "k", "alice", "host 7 is gone"]);
    assert_eq!(event["done"], true);
    assert_eq!(long(&["once", "k", "-c", script]).code, 201);
    assert_eq!(listed(&ground, &["--parked"]), ["k"]);

    let typo = ground.run(&[&["idem", "rerun", "kk"][..], &because].concat());
    assert_eq!(typo.code, 2, "{}", typo.out);
    assert!(typo.out.contains("check the key"), "{}", typo.out);
    assert_eq!(ground.run(&rerun).code, 0);
    std::fs::write(ground.file("good"), "").unwrap();
    assert_eq!(long(&["once", "k", "-c", script]).code, 0);
    assert_eq!(text(&ground.file("runs")).lines().count(), 2);
    assert_eq!(listed(&ground, &["--stored"]), ["k"]);
    let table = ground.run(&["idem", "list"]);
    assert!(table.out.starts_with("\"k\": stored, 1 attempt, "), "{}", table.out);
}

#[test]
fn a_purge_says_what_it_means() {
    let ground = Ground::new();
    let once = || ground.run(&["once", "k", "-c", "echo ran >>runs"]).code;
    assert_eq!((once(), once()), (0, 0));
    let purge = |flags: &[&str]| {
        ground.run(&[&["idem", "purge", "--reason", "tidying up"], flags].concat())
    };
    // The purge has neither an age nor `--late-copies-run-again`.
    assert_eq!(purge(&[]).code, 64);
    let young = purge(&["--older-than", "1h"]);
    assert_eq!((young.code, young.out.as_str()), (0, "purged 0 of 0 keys\n"));
    let all = purge(&["--late-copies-run-again"]);
    assert_eq!((all.code, all.out.as_str()), (0, "purged 1 of 1 keys\n"));
    assert!(all.err.contains("tidying up"), "{}", all.err);
    assert_eq!(once(), 0);
    assert_eq!(text(&ground.file("runs")).lines().count(), 2);
    let help = ground.run(&["idem", "purge", "--help"]).out;
    assert!(help.contains("RUNS AGAIN"), "{help}");
}

#[test]
fn every_change_needs_a_reason_and_a_server() {
    let ground = Ground::new();
    for verb in ["resolve", "rerun", "release"] {
        let code: &[&str] = if verb == "resolve" { &["--code", "0"] } else { &[] };
        assert_eq!(ground.run(&[&["idem", verb, "k"], code].concat()).code, 64, "{verb}");
        let empty = ground.run(&[&["idem", verb, "k", "--reason", " "], code].concat());
        assert_eq!(empty.code, 64, "{verb}: {}", empty.err);
    }
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    for verb in
        [&["list"][..], &["rerun", "k", "--reason", "x"], &["release", "k", "--reason", "x"]]
    {
        let out = palisade().arg("idem").args(verb).args(["--node", &nobody]).output();
        let run = Run::of(&out.expect("it can be run"));
        assert_eq!(run.code, 69, "{verb:?}: {} {}", run.out, run.err);
    }
    let embedded = palisade().args(["idem", "list", "--embedded"]).output();
    assert_eq!(Run::of(&embedded.expect("it can be run")).code, 64);
}

#[test]
fn a_namespace_that_no_program_can_have_is_refused_and_touches_no_key() {
    let ground = Ground::new();
    assert_eq!(ground.run(&["once", "--namespace", "pay", "eu:order-7", "-c", "true"]).code, 0);
    let because = ["--by", "alice", "--reason", "old"];
    let all = ["idem", "purge", "--namespace", "pay:eu", "--late-copies-run-again"];
    let of = ["--namespace", "pay:eu"];
    for args in [
        [&all[..], &because].concat(),
        [&["idem", "rerun", "order-7"][..], &of, &because].concat(),
        [&["idem", "release", "order-7"][..], &of, &because].concat(),
        [&["idem", "list"][..], &of].concat(),
        [&["idem", "show", "order-7"][..], &of].concat(),
    ] {
        let run = ground.run(&args);
        assert_eq!(run.code, 64, "{args:?}: {} {}", run.out, run.err);
        assert!(run.err.contains("`namespace` is \"pay:eu\": no colon"), "{args:?}: {}", run.err);
    }
    assert_eq!(listed(&ground, &["--namespace", "pay", "--stored"]), ["eu:order-7"]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story from the loss to the last decision")]
fn one_command_decides_about_every_key_that_a_loss_made_forgotten() {
    let mut ground = Ground::new();
    let once = |ground: &Ground, key: &str| {
        let key = key.to_owned();
        let run = ground.run(&["once", &key, "-c", "echo ran >>runs"]);
        (run.code, run.err)
    };
    let because = ["--namespace", "once", "--by", "alice", "--reason", "the ledger has none"];
    let decide = |ground: &Ground, loss: &str, flags: &[&str]| {
        ground.run(&[&["idem", "decide", "--loss", loss, "--json"], &because[..], flags].concat())
    };
    let list = |ground: &Ground| {
        let run = ground.run(&["idem", "incidents", "--json"]);
        assert_eq!(run.code, 0, "{} {}", run.out, run.err);
        run.json()["incidents"].as_array().expect("a list").clone()
    };
    let number = |incident: &Value| incident["loss"].as_str().expect("a number").to_owned();
    assert_eq!(once(&ground, "before").0, 0);
    assert_eq!(list(&ground), [] as [Value; 0]);
    assert_eq!(decide(&ground, "20261123-140321.417", &["--run"]).code, 2, "there is none");

    // The data on the disk are older than the last run. A restart then loads an old state, as from
    // a backup.
    assert_eq!(ground.server.cli(&["SAVE"]), "OK");
    assert_eq!(once(&ground, "lost").0, 0);
    ground.server.restart();
    until("it grants again, and parks", SOON, || once(&ground, "new").0 == 201);
    let parked = once(&ground, "lost");
    assert_eq!(parked.0, 201);
    assert!(parked.1.contains("lost at most") && parked.1.contains("idem decide"), "{}", parked.1);
    let rerun = ground.run(&["idem", "rerun", "lost", "--reason", "x"]);
    assert!(rerun.out.contains("palisade idem incidents"), "{}", rerun.out);
    assert!(rerun.out.contains("one of `palisade once` by"), "{}", rerun.out);
    // A user who may not list the keys of a server can name a namespace.
    ground.server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-scan"]);
    let as_app = |args: &[&str]| {
        let mut command =
            ground.command(&[&["idem", "incidents", "--username", "app"], args].concat());
        let out = command.env("PALISADE_PASSWORD", "pw").output().expect("it can be run");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, unnamed) = as_app(&[]);
    assert!(code == Some(2) && unnamed.contains("name yours by --namespace"), "{unnamed}");
    for wrong in ["losses of this node alone are missing", "no namespace has a record"] {
        assert!(!unnamed.contains(wrong), "{unnamed}");
    }
    let (code, named) = as_app(&["--namespace", "once"]);
    assert!(code == Some(0) && named.contains("\"once\": undecided"), "{named}");

    let all = list(&ground);
    let [incident] = &all[..] else { panic!("{all:?}") };
    let loss = number(incident);
    assert_eq!(incident["namespaces"][0]["namespace"], "once");
    assert_eq!(incident["namespaces"][0]["losses"][0]["decided"], Value::Null);
    assert!(parked.1.contains(&loss), "{} {loss}", parked.1);

    for flags in [&[][..], &["--run", "--park"]] {
        let unclear = decide(&ground, &loss, flags);
        assert_eq!(unclear.code, 64, "{}", unclear.err);
    }
    for bad in
        ["", "1", "2026-11-23", "20261123-140321", "20261123-140321.41x", "20261123-140321.417,"]
    {
        let unreadable = decide(&ground, bad, &["--run"]);
        assert_eq!(unreadable.code, 64, "{bad}: {}", unreadable.err);
        assert!(unreadable.err.contains("palisade idem incidents"), "{}", unreadable.err);
    }
    let other = decide(&ground, "20200101-000000.000", &["--run"]);
    assert_eq!(other.code, 2, "{}", other.err);
    assert!(other.err.contains(&loss) && other.err.contains("--retention"), "{}", other.err);
    let park = decide(&ground, &loss, &["--park"]);
    assert_eq!(park.code, 0, "{} {}", park.out, park.err);
    assert!(park.out.contains("park, stored on 1 of 1 nodes"), "{}", park.out);
    assert!(park.out.contains("keys of \"once\" under the prefix \"\""), "{}", park.out);
    assert!(park.out.contains("BGSAVE` saves it now"), "{}", park.out);
    let unnamed =
        ["idem", "decide", "--namespace", "once", "--loss", &loss, "--run", "--reason", " "];
    let unnamed = ground.run(&unnamed);
    assert_eq!(unnamed.code, 64, "{} {}", unnamed.out, unnamed.err);
    assert!(unnamed.err.contains("reason"), "{}", unnamed.err);
    let event = object(park.err.lines().next().expect("an event"));
    let said = ["event", "namespace", "key", "by", "reason"];
    let said = said.map(|field| event[field].as_str().unwrap_or("none"));
    assert_eq!(said, ["decide-park", "once", &loss, "alice", "the ledger has none"]);
    let parked = once(&ground, "new");
    assert!(parked.0 == 201 && parked.1.contains("decided: park"), "{}", parked.1);
    assert!(parked.1.contains("--run --replace"), "{}", parked.1);

    let run = decide(&ground, &loss, &["--run"]);
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(run.out.contains("park was decided before by alice"), "{}", run.out);
    assert!(run.out.contains("--replace does"), "{}", run.out);
    ground.server.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    for _ in 0..2 {
        let run = decide(&ground, &loss, &["--run", "--replace"]);
        assert_eq!(run.code, 0, "{} {}", run.out, run.err);
        assert!(!run.out.contains("BGSAVE"), "its file has it: {}", run.out);
        assert!(run.out.contains("loses power within two seconds, this is lost"), "{}", run.out);
    }
    let without = decide(&ground, &loss, &["--run", "--without", "gone"]);
    assert!(without.code == 2 && without.err.contains("every node answered"), "{}", without.err);
    assert_eq!(decide(&ground, &loss, &["--park"]).code, 2, "it is final");
    for key in ["new", "lost", "before"] {
        assert_eq!(once(&ground, key).0, 0, "{key}");
    }
    assert_eq!(text(&ground.file("runs")).lines().count(), 4, "the lost one again, as decided");
    let table = ground.run(&["idem", "incidents", "--namespace", "once"]).out;
    assert!(table.contains("\"once\": run, by alice: the ledger has none"), "{table}");

    // A second loss of data needs another decision of an operator.
    std::thread::sleep(Duration::from_millis(1_100));
    ground.server.restart_empty();
    // No earlier call of this command used the server's data. So the command cannot decide if the
    // server is new or was emptied.
    until("it grants again, and asks", SOON, || {
        once(&ground, "later").1.contains("no operator has said whether")
    });
    let all = list(&ground);
    let latest = number(all.last().expect("a loss"));
    assert_ne!(latest, loss);
    assert_eq!(decide(&ground, &latest, &["--run"]).code, 0);
    assert_eq!(once(&ground, "later").0, 0);
}

#[test]
fn one_command_decides_wherever_keys_wait_and_decides_what_it_showed() {
    let mut ground = Ground::new();
    let once = |ground: &Ground, namespace: &str, key: &str| {
        ground.run(&["once", key, "--namespace", namespace, "-c", "echo ran >>runs"]).code
    };
    for namespace in ["bills", "orders", "quiet"] {
        assert_eq!(once(&ground, namespace, "before"), 0);
    }
    assert_eq!(ground.server.cli(&["SAVE"]), "OK");
    ground.server.restart();
    for namespace in ["orders", "bills"] {
        until("it grants again, and parks", SOON, || once(&ground, namespace, "new") == 201);
    }
    // A key of this namespace has a result since the loss, and none waits.
    let resolve = ["idem", "resolve", "known", "--namespace", "quiet", "--code", "0"];
    let resolve = ground.run(&[&resolve[..], &["--reason", "in the ledger"]].concat());
    assert_eq!(resolve.code, 0, "{} {}", resolve.out, resolve.err);
    let decide = |flags: &[&str]| {
        ground.run(
            &[&["idem", "decide", "--all", "--run", "--reason", "none of them"], flags].concat(),
        )
    };
    let shown = decide(&[]);
    assert_eq!(shown.code, 64, "{} {}", shown.out, shown.err);
    for words in ["\"bills\": ", "\"orders\": ", "nothing was decided"] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    assert!(!shown.out.contains("quiet"), "{}", shown.out);
    let command = shown.out.split('`').nth(1).expect("a command").to_owned();
    let begins = "palisade idem decide --all --run --reason 'none of them' --yes ";
    let number = command.strip_prefix(begins).unwrap_or_else(|| panic!("{command}")).to_owned();

    let table = ground.run(&["idem", "incidents"]).out;
    for words in ["\"quiet\": no key waits", "\"bills\": undecided, ", "decide --all --run"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    // A key of another namespace begins to wait, and its author was not shown.
    assert_eq!(once(&ground, "quiet", "new"), 201);
    let changed = decide(&["--yes", &number]);
    assert_eq!(changed.code, 2, "{} {}", changed.out, changed.err);
    assert!(changed.out.contains("has changed since"), "{}", changed.out);
    assert_eq!(once(&ground, "orders", "new"), 201, "nothing was decided");
    let again = changed.out.split('`').nth(1).expect("a command");
    let number = again.strip_prefix(begins).unwrap_or_else(|| panic!("{again}"));
    let done = decide(&["--yes", number]);
    assert_eq!(done.code, 0, "{} {}", done.out, done.err);
    assert!(done.out.contains("has no append-only file"), "{}", done.out);
    for namespace in ["bills", "orders", "quiet"] {
        assert_eq!(once(&ground, namespace, "new"), 0, "{namespace}");
    }
    let nothing = decide(&[]);
    assert!(nothing.code == 0 && nothing.out.contains("no key waits"), "{}", nothing.out);
    let table = ground.run(&["idem", "incidents"]).out;
    assert!(!table.contains("undecided") && !table.contains("decide --all"), "{table}");
}
