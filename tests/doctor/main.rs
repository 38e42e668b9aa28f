//! `palisade doctor` on real deployments: what is broken is found, exactly that and nothing else,
//! and what is good is found good.

mod access;
mod bench;
mod doctor;
mod lab;
mod middle;
mod program;
mod settings;
mod shapes;
#[path = "../support/mod.rs"]
mod support;

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
