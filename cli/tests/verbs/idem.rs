//! `idem`: what an operator sees of keys, does to them, and leaves in the log.

use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, Run, palisade, text, until};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(10);

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The keys that are listed with these flags.
fn listed(ground: &Ground, flags: &[&str]) -> Vec<String> {
    let run = ground.run(&[&["idem", "list", "--json"], flags].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    let keys = object(&run.out)["keys"].as_array().expect("a list").clone();
    keys.iter().map(|key| key["key"].as_str().expect("a key").to_owned()).collect()
}

#[test]
fn a_run_of_a_dead_process_is_found_released_and_run_again() {
    let ground = Ground::new();
    // The lease is long: nobody wants to wait for its end.
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
    // Not while it runs.
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
    // Neither an age nor the words.
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
