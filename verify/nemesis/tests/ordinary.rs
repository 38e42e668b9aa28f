//! Test of `nemesis ordinary`. A planned handover of one group, and a restart of a server that was
//! declared durable: no idempotency key may be parked, and new keys must run long before a
//! quarantine would end. A name that leads to a promoted replica, and to another's server.

use std::process::Command;

use serde_json::Value;

struct Rows(Vec<Value>);

impl Rows {
    fn of(cells: &[&str]) -> Self {
        let out = Command::new(env!("CARGO_BIN_EXE_nemesis"))
            .args(["ordinary", "--json"])
            .args(cells.iter().flat_map(|cell| ["--only", cell]))
            .output()
            .expect("it can be run");
        let (text, words) =
            (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{text}{words}");
        Self(text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect())
    }

    fn row(&self, deployment: &str, event: &str, births: bool) -> &Value {
        let is = |r: &&Value| {
            r["deployment"] == deployment && r["event"] == event && r["births"] == births
        };
        let found = self.0.iter().find(is);
        found.unwrap_or_else(|| panic!("no {deployment}, {event}: {:?}", self.0))
    }
}

#[test]
fn a_declared_server_pays_for_no_restart_and_a_name_for_its_failover() {
    let rows = Rows::of(&[
        "durable: clean",
        "one name, one replica: kill",
        "one name, one replica: another",
    ]);
    for births in [false, true] {
        let restarted = rows.row("one server, durable", "clean restart", births);
        assert_eq!(restarted["parked"], 0, "{restarted}");
        assert_eq!(restarted["backlog_parked"], 0, "{restarted}");
        assert_eq!(restarted["proved_loss_s"], 0.0, "{restarted}");
        assert_eq!(restarted["true_loss_s"], 0.0, "{restarted}");
        assert!(restarted["no_locks_s"].as_f64() < Some(15.0), "{restarted}");
        let elsewhere = rows.row("one name, one replica", "another's server", births);
        assert_eq!(elsewhere["backlog_parked"], 0, "another's data were refused: {elsewhere}");
    }
    let failed = rows.row("one name, one replica", "kill -9 of the master", true);
    // `max_ttl`, L, and the ten seconds until the replica is promoted.
    assert!(failed["no_locks_s"].as_f64() > Some(15.0 + 4.0 + 9.0), "{failed}");
    assert!(failed["proved_loss_s"].as_f64() >= failed["true_loss_s"].as_f64(), "{failed}");
}

#[test]
fn a_planned_handover_of_one_group_parks_nothing() {
    let rows = Rows::of(&["one group: planned", "one server: first"]);
    let row = |deployment, event, births| rows.row(deployment, event, births);
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
