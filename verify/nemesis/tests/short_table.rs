//! Tests of one row of the failover table of `nemesis`, with short leases. The row runs once with
//! the library's safety checks and once without them. The check of the events' log must accept the
//! first run and reject the second.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn table(name: &str, args: &[&str]) -> Output {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    Command::new(env!("CARGO_BIN_EXE_nemesis"))
        .arg("--out")
        .arg(dir)
        .args(["table", "--json", "--max-ttl", "3000"])
        .args(args)
        .output()
        .expect("it can be run")
}

/// Returns the row of the failover table that the program printed. Returns `None` if this machine
/// cannot create networks.
fn row(out: &Output) -> Option<Value> {
    let words = String::from_utf8_lossy(&out.stderr);
    if out.status.code() == Some(77) {
        println!("skipped: {}", words.trim());
        return None;
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().last().unwrap_or_else(|| panic!("no row; {words}"));
    Some(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}; {words}")))
}

#[test]
fn a_manual_failover_breaks_no_promise() {
    let out = table("short_table", &["--only", "manual"]);
    let Some(row) = row(&out) else { return };
    assert!(out.status.success(), "{row}");
    for zero in ["wrong_votes", "held_twice"] {
        assert_eq!(row[zero], 0, "{zero}: {row}");
    }
    assert_eq!(row["fault"], "manual failover");
    assert!(row["votes"].as_u64() >= Some(500), "{row}");
    assert!(row["seconds_without_grants"].as_f64() > Some(5.0), "a quarantine of six: {row}");
}

#[test]
fn without_a_guard_the_judge_finds_two_holders() {
    let out = table("short_table_defeat", &["--defeat", "--only", "isolated"]);
    let Some(row) = row(&out) else { return };
    assert_eq!(out.status.code(), Some(1), "{row}");
    assert!(row["held_twice"].as_u64() > Some(0), "{row}");
    assert!(row["wrong_votes"].as_u64() > Some(0), "{row}");
}
