//! `once` and `idem`.

use std::time::Duration;

use crate::ground::{Ground, text, until};

const SOON: Duration = Duration::from_secs(10);

fn state(ground: &Ground, key: &str) -> serde_json::Value {
    let run = ground.run(&["idem", "show", key]);
    assert_eq!(run.code, 0, "{}", run.err);
    serde_json::from_str(&run.out).expect("JSON")
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
        // Elsewhere it is waited for, or not.
        assert_eq!(ground.run(&["once", key, "-E", "9", "-c", script]).code, 9);
        run.signal("KILL");
        // 69: the server answered too late, on a busy machine; it is asked again.
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
