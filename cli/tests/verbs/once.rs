//! The commands `palisade once` and `palisade idem`.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::ground::{Ground, Run, text, until};

const SOON: Duration = Duration::from_secs(40);

fn state(ground: &Ground, key: &str) -> serde_json::Value {
    let run = ground.run(&["idem", "show", key]);
    assert_eq!(run.code, 0, "{}", run.err);
    run.json()
}

#[test]
fn output_and_code_are_replayed_and_the_command_runs_once() {
    let ground = Ground::new();
    let script = "echo ran >>runs; echo out; printf '\\377'; echo err >&2; exit 3";
    let first = ground.command(&["once", "k", "-c", script]).output().unwrap();
    let again = ground.command(&["once", "k", "-c", script]).output().unwrap();
    assert_eq!(first.status.code(), Some(3));
    assert_eq!(again.status.code(), Some(3));
    assert_eq!(first.stdout, b"out\n\xff");
    assert_eq!((&again.stdout, &again.stderr), (&first.stdout, &first.stderr));
    assert_eq!(text(&ground.file("runs")), "ran\n");
    assert_eq!(ground.run(&["once", "k", "-c", "another"]).code, 65);
    let shown = state(&ground, "k");
    assert_eq!((shown["state"].as_str(), &shown["result"]["code"]), (Some("stored"), &3.into()));
}

#[test]
fn words_that_are_no_text_are_other_commands_too() {
    use std::os::unix::ffi::OsStrExt as _;
    let ground = Ground::new();
    let code = |words: &[&[u8]]| {
        let mut command = ground.command(&["once", "k", "--", "echo"]);
        command.args(words.iter().map(|word| std::ffi::OsStr::from_bytes(word)));
        command.output().unwrap().status.code()
    };
    assert_eq!(code(&[b"a\xff", b"b"]), Some(0));
    assert_eq!(code(&[b"a\xff", b"b"]), Some(0));
    // Each of these commands has other bytes than the first command. If bytes that are not UTF-8
    // were replaced, one of them would look the same.
    for other in [&[&b"a\xfe"[..], b"b"][..], &[b"a", b"\xffb"], &[b"a\xffb"]] {
        assert_eq!(code(other), Some(65), "{other:?}");
    }
}

#[test]
fn a_command_that_wants_to_run_again_runs_again() {
    let ground = Ground::new();
    let script = "echo ran >>runs; [ -e good ] || exit 75";
    assert_eq!(ground.run(&["once", "k", "-c", script]).code, 75);
    assert_eq!(ground.run(&["once", "k", "-c", script]).code, 75);
    std::fs::write(ground.file("good"), "").unwrap();
    assert_eq!(ground.run(&["once", "k", "-c", script]).code, 0);
    assert_eq!(ground.run(&["once", "k", "-c", script]).code, 0);
    assert_eq!(text(&ground.file("runs")).lines().count(), 3);
}

#[test]
fn a_killed_run_parks_the_key_until_somebody_decides() {
    let ground = Ground::new();
    let script = "echo $PALISADE_ATTEMPT >>runs; [ -e good ] || sleep 30";
    for key in ["resolved", "again"] {
        std::fs::write(ground.file("runs"), "").unwrap();
        let run = ground.spawn(&["once", key, "-c", script]);
        until("it runs", 3 * SOON, || !text(&ground.file("runs")).is_empty());
        // Another call ends at once while the command runs.
        assert_eq!(ground.run(&["once", key, "-E", "9", "-c", script]).code, 9);
        run.signal("KILL");
        // Exit code 69: the server replied too late, because the machine was busy. The test tries
        // again.
        until("the lease is over", 3 * SOON, || {
            let run = ground.run(&["idem", "show", key]);
            assert!([0, 69].contains(&run.code), "{}", run.err);
            run.code == 0 && run.out.contains("\"lapsed\"")
        });
        let parked = ground.run(&["once", key, "-c", script]);
        assert_eq!(parked.code, 201, "{}", parked.err);
        assert_eq!(parked.err.lines().count(), 1);
    }
    let resolve = |code| ["idem", "resolve", "resolved", "--reason", "seen", "--code", code];
    assert_eq!(ground.run(&resolve("4")).code, 0);
    assert_eq!(ground.run(&["once", "resolved", "-c", script]).code, 4);
    assert_eq!(ground.run(&resolve("5")).code, 2);
    std::fs::write(ground.file("good"), "").unwrap();
    assert_eq!(ground.run(&["once", "again", "--at-least-once", "-c", script]).code, 0);
    assert_eq!(text(&ground.file("runs")), "1\n2\n");
}

#[test]
fn a_command_is_run_once_whatever_code_it_ends_with() {
    let ground = Ground::new();
    // 70, 126 and 127 are also the exit codes for a command that could not be started.
    for code in [70, 126, 127] {
        let (key, script) = (format!("k{code}"), format!("echo ran >>runs{code}; exit {code}"));
        for _ in 0..2 {
            let run = ground.run(&["once", &key, "-c", &script]);
            assert_eq!(run.code, code, "{}", run.err);
        }
        assert_eq!(text(&ground.file(&format!("runs{code}"))), "ran\n", "{code}");
    }
    let script = "echo charged >>charges; no-such-command";
    for _ in 0..2 {
        assert_eq!(ground.run(&["once", "charge", "-c", script]).code, 127);
    }
    assert_eq!(text(&ground.file("charges")), "charged\n");
}

#[test]
fn a_command_that_could_not_be_started_leaves_no_result() {
    let ground = Ground::new();
    let line = ["once", "k", "--", "./later"];
    assert_eq!(ground.run(&line).code, 127, "it is not there");
    let later = ground.file("later");
    std::fs::write(&later, "#!/bin/sh\necho ran >>runs\n").unwrap();
    assert_eq!(ground.run(&line).code, 126, "it may not be run");
    std::fs::set_permissions(&later, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(ground.run(&line).code, 0);
    assert_eq!(ground.run(&line).code, 0);
    assert_eq!(text(&ground.file("runs")), "ran\n");
}

#[test]
fn a_run_that_fails_for_want_of_files_is_made_up_for_and_not_repeated() {
    let ground = Ground::new();
    let mut short = 0;
    // `palisade` may open only this number of files. With few files `palisade`, its starter or the
    // command fails. With enough files nothing fails.
    for files in 5..24 {
        let (key, runs) = (format!("k{files}"), format!("runs{files}"));
        let script = format!("exec >>{runs}; echo ran");
        let limited = ["sh", "-c", "ulimit -n $FILES; exec \"$0\" \"$@\""];
        let mut limited = ground.through(&limited, &["once", &key, "-c", &script]);
        limited.env("FILES", files.to_string());
        let first = Run::of(&limited.output().expect("it can be run"));
        short += u32::from(first.code != 0);
        // If a run of `palisade` could not release its claim, the claim ends with its lease.
        until("it was run", 3 * SOON, || {
            let run = ground.run(&["once", &key, "-c", &script]);
            assert!([0, 75, 69].contains(&run.code), "{files}: {run:?}, after {first:?}");
            run.code == 0
        });
        assert_eq!(text(&ground.file(&runs)), "ran\n", "{files}: {first:?}");
    }
    assert!((1..19).contains(&short), "{short} runs failed");
}

#[test]
fn a_program_that_was_started_to_ignore_its_children_sees_how_they_end() {
    let ground = Ground::new();
    for verb in ["lock", "once"] {
        let line = [verb, "k", "-c", "echo ran >>runs; exit 3"];
        let mut ignoring = ground.through(&["env", "--ignore-signal=CHLD"], &line);
        let run = Run::of(&ignoring.output().expect("it can be run"));
        assert_eq!(run.code, 3, "{verb}: {}", run.err);
    }
}

#[test]
fn a_signal_ends_a_call_that_waits_and_starts_nothing() {
    let ground = Ground::new();
    let script = "echo ran >>runs; while [ ! -e go ]; do sleep 0.02; done; exit 75";
    let first = ground.spawn(&["once", "k", "-c", script]);
    until("it runs", SOON, || ground.file("runs").exists());
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let second = ground.spawn(&["once", "k", "-w", "60s", "-c", script]);
        second.listens();
        second.signal(name);
        let second = second.end(SOON);
        assert_eq!(second.code, code, "{}", second.err);
    }
    std::fs::write(ground.file("go"), "").unwrap();
    assert_eq!(first.end(SOON).code, 75);
    assert_eq!(text(&ground.file("runs")), "ran\n");
    // The interrupted calls did not run the command, so the key is not parked. So the next call
    // runs the command.
    assert_eq!(ground.run(&["once", "k", "-c", script]).code, 75);
    assert_eq!(text(&ground.file("runs")), "ran\nran\n");
}
