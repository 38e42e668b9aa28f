//! A short run of `nemesis` on real Sentinel groups. Faults must happen, no rule may be broken, and
//! no process may remain. A second check of the same log must give the same result.

use std::path::Path;
use std::process::{Command, Output};

fn nemesis(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nemesis")).args(args).output().expect("it can be run")
}

fn words(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn fifteen_seconds_of_faults_break_nothing() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short_run");
    let dir = dir.to_str().expect("a path in UTF-8");
    let out = nemesis(&["--seconds", "15", "--out", dir]);
    if out.status.code() == Some(77) {
        println!("skipped: {}", words(&out).trim());
        return;
    }
    let text = words(&out);
    assert!(out.status.success(), "{text}");
    let last = String::from_utf8_lossy(&out.stdout);
    let last: serde_json::Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert_eq!(last["violations"], 0, "{text}");
    assert!(last["faults"].as_u64() >= Some(2), "{text}");
    assert!(last["operations"].as_u64() >= Some(500), "{text}");
    let picture = std::fs::read_to_string(Path::new(dir).join("timeline.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));

    let events = Path::new(dir).join("events.jsonl");
    let again = nemesis(&["--out", dir, "judge", events.to_str().unwrap()]);
    assert!(again.status.success(), "{}", words(&again));
    let log = std::fs::read_to_string(&events).unwrap();

    // Add a second holder of the lock in the log's first event `held`. The command `judge` must
    // report the second holder.
    let held = log.lines().find(|l| l.contains("\"what\":\"held\"")).expect("something was held");
    let mut second: serde_json::Value = serde_json::from_str(held).unwrap();
    second["who"]["l"] = 999.into();
    second["token"] = (second["token"].as_u64().unwrap() + 1).into();
    std::fs::write(&events, format!("{log}{second}\n")).unwrap();
    let bad = nemesis(&["--out", dir, "judge", events.to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(1), "{}", words(&bad));
    assert!(words(&bad).contains("one holder at a time"), "{}", words(&bad));
}
