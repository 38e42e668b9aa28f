//! The exit codes of `palisade`, and its texts on standard output and standard error.

use std::time::Duration;

use crate::ground::{Ground, Run, fed, palisade};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(40);

fn run(args: &[&str]) -> Run {
    Run::of(&palisade().args(args).output().expect("it can be run"))
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let ground = Ground::new();
    for (command, code) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["-c", "exit 199"], 199),
        (&["-c", "kill -9 $$"], 137),
        (&["-c", "kill -TERM $$"], 143),
        (&["--", "/no/such/program"], 127),
        (&["--", "/etc/passwd"], 126),
    ] {
        for verb in ["lock", "elect"] {
            let run = ground.run(&[&[verb, "a"], command].concat());
            assert_eq!(run.code, code, "{verb} {command:?}: {}", run.err);
        }
    }
}

#[test]
fn each_of_its_own_codes_has_its_cause() {
    let ground = Ground::new();
    let nobody = format!("redis://127.77.0.1:{}", free_port());
    // Exit code 64: wrong use of the command line or of a setting.
    for wrong in [
        &["lock", "a", "--", "true"][..],
        &["lock", "a", "--embedded"],
        &["lock", "a", "--embedded", "--grace", "14s", "--", "true"],
        &["lock", "a", "--embedded", "--no-such", "--", "true"],
        &["lock", "a", "--node", "http://x", "--", "true"],
        &["no-such-verb"],
    ] {
        let run = run(wrong);
        assert_eq!(run.code, 64, "{wrong:?}: {}", run.err);
        assert!(!run.err.is_empty() && run.out.is_empty(), "{wrong:?}");
    }
    // Exit code 69: no server can be reached. Every command fails at once.
    for verb in [&["lock"][..], &["elect"], &["once"], &["lock", "-n"], &["lock", "-w", "300ms"]] {
        let run = run(&[verb, &["a", "--node", &nobody, "--", "true"]].concat());
        assert_eq!(run.code, 69, "{verb:?}: {}", run.err);
    }
    // Exit code 75, or the code of `-E`: another process holds the lock.
    let holder = ground.holding(&["lock", "a"]);
    assert_eq!(ground.run(&["lock", "-n", "a", "--", "true"]).code, 75);
    assert_eq!(ground.run(&["lock", "-n", "-E", "9", "a", "--", "true"]).code, 9);
    assert_eq!(ground.run(&["lock", "-w", "0.2s", "a", "--", "true"]).code, 75);
    // Exit code 143: a signal ends `palisade` while it waits for the lock.
    let waiting = ground.spawn(&["lock", "a", "-v", "--", "true"]);
    std::thread::sleep(Duration::from_secs(2));
    waiting.signal("TERM");
    assert_eq!(waiting.end(SOON).code, 143);
    drop(holder);
    // Exit code 124: the command runs for too long.
    let run = ground.run(&["lock", "b", "--at-most", "200ms", "--", "sleep", "30"]);
    assert_eq!(run.code, 124, "{}", run.err);
    // Exit code 70: no process can be started, because `palisade` may open very few files.
    let lock = "ulimit -n 11; exec \"$0\" lock a --embedded -- true";
    let mut shell = std::process::Command::new("sh");
    let run = Run::of(&shell.args(["-c", lock, env!("CARGO_BIN_EXE_palisade")]).output().unwrap());
    assert_eq!(run.code, 70, "{}", run.err);
    // Exit code 202: the command has run, but its result cannot be stored.
    let kill = format!("kill -9 {}", ground.server.pid());
    let run = ground.run(&["once", "unstored", "-c", &kill]);
    assert_eq!(run.code, 202, "{}", run.err);
}

#[test]
fn who_starts_it_for_the_first_time_is_told_in_one_sentence_what_to_start() {
    let none = run(&["lock", "deploy", "--", "sleep", "5"]);
    let nobody = format!("redis://127.77.0.1:{}", free_port());
    let closed = run(&["lock", "deploy", "--node", &nobody, "--", "sleep", "5"]);
    for run in [none, closed] {
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
        assert!(
            run.err.contains("`redis-server`") && run.err.contains("--embedded"),
            "{}",
            run.err
        );
        assert!(run.err.contains("this one process only"), "{}", run.err);
    }
    let alone = run(&["lock", "deploy", "--embedded", "--", "echo", "done"]);
    assert_eq!((alone.code, alone.out.as_str(), alone.err.as_str()), (0, "done\n", ""));
}

#[test]
fn the_streams_are_the_commands() {
    let ground = Ground::new();
    let run = fed(&mut ground.command(&["lock", "a", "-c", "cat; echo no >&2"]), "a line\n");
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "a line\n", "no\n"));
    // With `--json`, palisade's own messages are JSON objects on standard error.
    let run = ground.run(&["lock", "a", "--json", "--", "echo", "out"]);
    assert_eq!(run.out, "out\n");
    let line: serde_json::Value = serde_json::from_str(run.err.lines().next().unwrap()).unwrap();
    assert_eq!((line["event"].as_str(), line["name"].as_str()), (Some("acquired"), Some("a")));
    assert!(line["token"].is_u64(), "{line}");
}

#[test]
fn an_error_that_ends_the_program_is_an_object_as_its_other_messages_are() {
    let nobody = format!("redis://127.77.0.1:{}", free_port());
    for (line, code) in [
        (&["lock", "a", "--json", "--node", &nobody, "--", "true"][..], 69),
        (&["once", "a", "--json", "--node", &nobody, "--", "true"], 69),
        (&["elect", "a", "--json", "--node", &nobody, "--", "true"], 69),
        (&["candidates", "a", "--json", "--node", &nobody], 69),
        (&["lock", "a", "--json", "--embedded"], 64),
        (&["lock", "a", "--json", "--node", "http://x", "--", "true"], 64),
    ] {
        let run = run(line);
        assert_eq!(run.code, code, "{line:?}: {}", run.err);
        for said in run.err.lines() {
            let said: serde_json::Value = serde_json::from_str(said).expect("an object");
            assert!(said["text"].is_string(), "{said}");
        }
        let last = run.err.lines().last().expect("an error");
        let last: serde_json::Value = serde_json::from_str(last).expect("an object");
        assert_eq!((&last["event"], &last["code"]), (&"error".into(), &code.into()), "{line:?}");
    }
}

#[test]
fn the_command_finds_what_it_needs_in_its_environment() {
    let ground = Ground::new();
    let script = "echo $PALISADE_NAME $PALISADE_FENCING_TOKEN $PALISADE_DEADLINE_MS $(date +%s)";
    let first = ground.run(&["lock", "outer", "-c", script]);
    let inner = format!("{} lock inner -c '{script}'", env!("CARGO_BIN_EXE_palisade"));
    let second = ground.run(&["lock", "outer", "-c", &format!("{script}; {inner}")]);
    let words = |line: &str| -> (String, Vec<u64>) {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        (name, words.map(|word| word.parse().unwrap()).collect())
    };
    let (name, first) = words(first.out.trim());
    let lines: Vec<_> = second.out.lines().map(words).collect();
    assert_eq!((name.as_str(), lines.len()), ("outer", 2), "{}", second.err);
    assert_eq!((lines[0].0.as_str(), lines[1].0.as_str()), ("outer", "inner"));
    assert!(lines[0].1[0] > first[0], "tokens grow: {first:?} {lines:?}");
    for numbers in [&first, &lines[0].1, &lines[1].1] {
        let left = numbers[1].saturating_sub(numbers[2] * 1_000);
        assert!((1..=3_000).contains(&left), "{numbers:?}");
    }
}

#[test]
fn completions_name_every_verb() {
    for args in [["completions", "bash"], ["completions", "fish"]] {
        let run = run(&args);
        assert_eq!(run.code, 0);
        for verb in [
            "lock",
            "elect",
            "once",
            "list",
            "step-down",
            "run-now",
            "inspect",
            "idem",
            "doctor",
            "init",
            "handover",
        ] {
            assert!(run.out.contains(verb), "{args:?}: {verb}");
        }
    }
}
