//! Ordinary failures of servers. `palisade doctor` reports exactly the servers that have failed.
//! After the group has recovered, the doctor reports no errors.

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Warning};
use crate::lab::{NAME, wait_for};
use crate::settings::Ward;
use crate::support::group::Groups;

#[test]
fn a_replica_dies_and_a_master_is_replaced() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    bench.exactly(
        "a dead replica",
        &[("unreachable", Error, ward.server(2))],
        || {
            ward.groups.break_("kill", 0, &["--server", "a3"]);
        },
        || {
            ward.groups.break_("restart", 0, &["--server", "a3"]);
        },
    );
    // During the failover two servers are masters. After the failover both servers must be fine.
    ward.groups.break_("failover", 0, &[]);
    let patient = ward.patient().arg("--no-trial");
    wait_for("a new master and nothing wrong", || {
        let report = patient.examine();
        let master = &report.of("two-masters", &ward.name).evidence;
        !master.ends_with(&ward.servers[0]) && report.findings.iter().all(|f| f.verdict < Warning)
    });
}

#[test]
fn three_groups_of_which_one_is_gone() {
    let groups = Groups::up_with(3, 5_000, 2, &["--prefix", NAME]);
    let patient = (0..3).fold(Patient::default(), |all, i| {
        let sentinels = groups.sentinels(i).join(",");
        all.arg("--node").arg(&format!("sentinel://{sentinels}/{}", groups.name(i)))
    });
    let mut wrong = Vec::new();
    let mut is_fine = || {
        wrong = patient.examine().findings;
        wrong.retain(|f| f.verdict >= Warning);
        wrong.is_empty()
    };
    // Three groups that have just begun leave a busy machine no time for the trial lock.
    assert!((0..30).any(|_| is_fine()), "{wrong:#?}");
    for id in ["b1", "b2", "b3", "sb1", "sb2", "sb3"] {
        groups.break_("kill", 1, &["--server", id]);
    }
    let report = patient.arg("--no-trial").examine();
    let errors = report.all(Error);
    let gone = |f: &&&crate::doctor::Finding| f.subject.starts_with(&groups.name(1));
    assert!(errors.len() >= 3, "{errors:#?}");
    assert!(errors.iter().all(|f| f.check == "unreachable" && gone(&f)), "{errors:#?}");
}
