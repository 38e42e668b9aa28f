//! Test of `nemesis ordinary`: a planned handover of one group. No idempotency key may be parked,
//! and new keys must run long before a quarantine would end.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_planned_handover_of_one_group_parks_nothing() {
    let out = Command::new(env!("CARGO_BIN_EXE_nemesis"))
        .args(["ordinary", "--json", "--only", "one group: planned", "--only", "one server: first"])
        .output()
        .expect("it can be run");
    let (text, words) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{words}");
    let rows: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let row = |deployment: &str, event: &str, births: bool| {
        let is = |r: &&Value| {
            r["deployment"] == deployment && r["event"] == event && r["births"] == births
        };
        rows.iter().find(is).unwrap_or_else(|| panic!("no {deployment}, {event}: {text}"))
    };
    for births in [false, true] {
        let planned = row("one group", "planned handover", births);
        assert_eq!(planned["parked"], 0, "{planned}");
        for span in ["no_locks_s", "no_new_keys_s"] {
            assert!(planned[span].as_f64() < Some(15.0), "{span}: {planned}");
        }
        let first = row("one server", "first start", births);
        assert_eq!(first["parked"], 0, "{first}");
        assert!(first["no_locks_s"].as_f64() < Some(5.0), "{first}");
    }
    // Without `palisade init`, the server begins with a quarantine. Keys without a birth are
    // parked: they do not run until an operator decides.
    let unknown = row("one server", "first start without init", false);
    assert!(unknown["no_locks_s"].as_f64() > Some(10.0), "{unknown}");
    assert!(unknown["parked"].as_u64() > Some(0), "{unknown}");
}
