//! Failures of every day: the doctor tells who is gone and nothing more, and is content again when
//! the group is.

use crate::bench::Bench;
use crate::doctor::Verdict::{Error, Warning};
use crate::doctor::{Patient, Report};
use crate::lab::{NAME, wait_for};
use crate::settings::Ward;
use crate::support::group::Groups;

#[test]
fn a_replica_dies_and_a_master_is_replaced() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    let report = bench.exactly(
        "a dead replica",
        &[("unreachable", Error, ward.server(2))],
        || {
            ward.groups.break_("kill", 0, &["--server", "a3"]);
        },
        || {
            ward.groups.break_("restart", 0, &["--server", "a3"]);
        },
    );
    let says = &report.of("unreachable", &ward.server(2)).says;
    assert!(says.contains("Sentinels that know it"), "{says}");
    // While it happens two call themselves master; afterwards nothing is wrong with either.
    ward.groups.break_("failover", 0, &[]);
    let patient = ward.patient().arg("--no-trial");
    wait_for("a new master and nothing wrong", || {
        let report = patient.examine();
        let named = report.findings.iter().find(|f| f.check == "not-master");
        let moved = named.is_some_and(|f| f.subject != ward.server(0));
        moved && is_content(&report)
    });
}

#[test]
fn three_groups_of_which_one_is_gone() {
    let groups = Groups::up_with(3, 5_000, 2, &["--prefix", NAME]);
    let patient = (0..3).fold(Patient::default(), |all, i| {
        let sentinels = groups.sentinels(i).join(",");
        all.arg("--sentinel").arg(&sentinels).arg("--master").arg(&groups.name(i))
    });
    let report = patient.examine();
    assert!(report.all(Error).is_empty(), "{:#?}", report.all(Error));
    let known = ["co-located", "nodes-together"];
    let warnings = report.all(Warning);
    assert!(warnings.iter().all(|f| known.contains(&&*f.check)), "{warnings:#?}");
    for id in ["b1", "b2", "b3", "sb1", "sb2", "sb3"] {
        groups.break_("kill", 1, &["--server", id]);
    }
    let report = patient.arg("--no-trial").examine();
    let errors = report.all(Error);
    let gone = |f: &&&crate::doctor::Finding| f.subject.starts_with(&groups.name(1));
    assert!(errors.len() >= 3, "{errors:#?}");
    assert!(errors.iter().all(|f| f.check == "unreachable" && gone(&f)), "{errors:#?}");
}

/// As good as three processes on one machine can be.
fn is_content(report: &Report) -> bool {
    let wrong = report.findings.iter().filter(|f| f.verdict >= Warning);
    wrong.into_iter().all(|f| f.check == "co-located")
}
