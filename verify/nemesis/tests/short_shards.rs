//! Tests of one row of `nemesis shards`, and of its judge: it finds names that are held twice where
//! each client has a cluster of its own.

use std::process::{Command, Output};

use serde_json::Value;

fn shards(args: &[&str]) -> (Output, Value) {
    let out = Command::new(env!("CARGO_BIN_EXE_nemesis"))
        .args(["shards", "--json"])
        .args(args)
        .output()
        .expect("it can be run");
    let (text, words) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let line = text.lines().last().unwrap_or_else(|| panic!("no row; {words}")).to_owned();
    let row = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}; {words}"));
    (out, row)
}

#[test]
fn a_takeover_breaks_no_promise() {
    let (out, row) = shards(&["--only", "TAKEOVER of one"]);
    assert!(out.status.success(), "{row}");
    assert!(row["holds"].as_u64() > Some(50), "{row}");
    assert!(row["seconds_without_grants"].as_f64() > Some(8.0), "a quarantine of nine: {row}");
    assert!(row["others_without_grants"].as_f64() < row["seconds_without_grants"].as_f64());
}

#[test]
fn the_judge_finds_two_holders() {
    let (out, row) = shards(&["--defeat", "--only", "slot moved"]);
    assert_eq!(out.status.code(), Some(1), "{row}");
    assert!(row["held_twice"].as_u64() > Some(0), "{row}");
    assert!(row["run_twice"].as_u64() > Some(0), "{row}");
}
