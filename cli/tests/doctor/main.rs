//! `palisade doctor` on real deployments. If a part is broken, the doctor reports exactly this
//! part. If the deployment is good, the doctor reports no fault.

mod access;
mod bench;
mod disks;
mod doctor;
mod failures;
mod lab;
mod middle;
mod probe;
mod program;
mod relay;
mod settings;
mod shapes;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod trial;

use doctor::Verdict;
use settings::Ward;

#[test]
fn the_recommended_deployment_has_no_errors() {
    let ward = Ward::new();
    let report = ward.patient().examine();
    assert!(report.reached);
    assert!(report.all(Verdict::Error).is_empty(), "{:#?}", report.all(Verdict::Error));
    assert!(report.all(Verdict::Unknown).is_empty(), "{:#?}", report.all(Verdict::Unknown));
}

/// Each check has a test. The test breaks a real deployment, and the check reports this.
#[test]
fn every_check_is_tried_on_real_servers() {
    let rooms = [
        include_str!("access.rs"),
        include_str!("disks.rs"),
        include_str!("middle.rs"),
        include_str!("program.rs"),
        include_str!("settings.rs"),
        include_str!("shapes.rs"),
        include_str!("trial.rs"),
    ];
    for id in palisade_ops::doctor::checks() {
        let tried = rooms.iter().any(|room| room.contains(&format!("\"{id}\"")));
        assert!(tried, "nothing is broken for {id}");
    }
}
