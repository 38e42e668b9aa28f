//! The lock that is taken on trial, as an application would take it.

use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Warning};
use crate::settings::Ward;
use crate::support::group::cli;
use crate::support::server::Server;

#[test]
fn a_group_grants_until_a_setting_forbids_it() {
    let ward = Ward::new();
    let probe = || ward.patient().examine().of("probe", &ward.name).clone();
    assert_eq!(probe().verdict, Fine, "{:#?}", probe());
    ward.set(0, "min-replicas-to-write", "0");
    let found = probe();
    assert_eq!((found.verdict, found.says.contains("a setting is changed")), (Error, true));
    ward.set(0, "min-replicas-to-write", "1");
    assert_eq!(probe().verdict, Fine, "{:#?}", probe());
    // More replicas than there are: every write is refused.
    ward.set(0, "min-replicas-to-write", "3");
    assert_eq!(probe().verdict, Error, "{:#?}", probe());
    ward.set(0, "min-replicas-to-write", "1");
    assert_eq!(probe().verdict, Fine, "{:#?}", probe());
    // Nothing of it is left, but the memory that orders tokens.
    let keys = cli(&ward.servers[0], &["KEYS", "*doctor*"]);
    assert!(keys.lines().all(|k| k.is_empty() || k.ends_with(":fence")), "{keys}");
}

#[test]
fn a_node_that_nobody_has_used_waits_first() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = Patient::default().arg("--node").arg(&server.url()).arg("--max-ttl").arg("5");
    let subject = format!("node {}", server.addr());
    let found = patient.examine().of("probe", &subject).clone();
    assert_eq!(found.verdict, Warning, "{found:#?}");
    assert!(found.says.contains("grants nothing yet"), "{found:#?}");
    // It ends by itself.
    crate::lab::wait_for("the end of the quarantine", || {
        patient.examine().of("probe", &subject).verdict == Fine
    });
}
