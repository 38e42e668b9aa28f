//! A short run of `nemesis locks`, with all kinds of locks. All faults must happen, no rule may be
//! broken, and each kind must have been granted.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn eight_seconds_of_faults_break_no_kind_of_lock() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short_locks");
    let out = Command::new(env!("CARGO_BIN_EXE_nemesis"))
        .arg("--out")
        .arg(dir)
        .args(["locks", "--seconds", "8"])
        .output()
        .expect("it can be run");
    let (text, words) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{words}");
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("JSON");
    let fair = &last["kinds"]["fair"];
    assert!(fair["waited"].as_u64() > Some(0), "{text}");
    assert_eq!(fair["out_of_order"], Value::from(0), "{text}");
    for kind in ["read_write", "semaphore", "reentrant", "multi", "degrade", "hand_over", "fair"] {
        let of = &last["kinds"][kind];
        assert!(of["grants"].as_u64() > Some(0), "{kind}: {text}");
        let broken = [&of["overlaps"], &of["tokens_wrong"]];
        assert_eq!(broken, [&Value::from(0); 2], "{kind}: {text}");
    }
    for fault in ["frozen", "restarted", "killed", "clients_killed"] {
        assert!(last["faults"][fault].as_u64() > Some(0), "{fault}: {text}");
    }
}
