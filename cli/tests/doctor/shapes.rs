//! Tests of the doctor with groups of the wrong shape, that is, with too few or too many servers or
//! Sentinels.

use std::cell::RefCell;
use std::process::Command;

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Info, Warning};
use crate::lab::{Lab, NAME, Plan};
use crate::settings::Ward;
use crate::support::server::Server;

fn patient(lab: &Lab) -> Patient {
    Patient::group(NAME, &lab.sentinel_addrs()).arg("--no-trial")
}

fn sentinel(lab: &Lab, i: usize) -> String {
    format!("{NAME} Sentinel {}", lab.sentinels[i].addr())
}

/// Returns the findings that are worse than `Info`, without their texts.
fn faults(patient: &Patient) -> Vec<(String, String)> {
    let report = patient.examine();
    let all = report.findings.into_iter().filter(|f| f.verdict > Info);
    let mut all: Vec<_> = all.map(|f| (f.check, f.subject)).collect();
    all.sort();
    all
}

fn pairs(all: &[(&str, String)]) -> Vec<(String, String)> {
    all.iter().map(|(check, subject)| ((*check).to_owned(), subject.clone())).collect()
}

#[test]
fn the_recommended_deployment_is_without_any_fault() {
    assert_eq!(faults(&Ward::new().patient()), pairs(&[]));
}

#[test]
fn two_sentinels_are_too_few_and_four_one_too_many() {
    let mut lab = Lab::up(&Plan { boxes: true, sentinels: 2, ..Plan::default() });
    let count = |lab: &Lab, n: usize| {
        let all: Vec<_> = (0..n).map(|i| ("quorum", sentinel(lab, i))).collect();
        let mut all = pairs(&all);
        all.sort();
        all
    };
    let report = patient(&lab).examine();
    for i in 0..2 {
        assert_eq!(report.of("quorum", &sentinel(&lab, i)).verdict, Error);
    }
    assert_eq!(faults(&patient(&lab)), count(&lab, 2));
    lab.add_sentinel("127.0.0.4");
    lab.settle();
    assert_eq!(faults(&patient(&lab)), pairs(&[]));
    // Of four Sentinels, two are no majority. A majority of three tolerates the loss of only one
    // Sentinel.
    lab.add_sentinel("127.0.0.5");
    lab.settle();
    let report = patient(&lab).examine();
    for i in 0..4 {
        assert_eq!(report.of("quorum", &sentinel(&lab, i)).verdict, Error);
        assert_eq!(lab.say(i, &["SENTINEL", "SET", NAME, "quorum", "3"]), "OK");
    }
    let report = patient(&lab).examine();
    for i in 0..4 {
        assert_eq!(report.of("quorum", &sentinel(&lab, i)).verdict, Warning);
    }
    assert_eq!(faults(&patient(&lab)), count(&lab, 4));
}

#[test]
fn a_sentinel_that_is_gone() {
    let mut lab = Lab::up(&Plan { sentinels: 5, quorum: 3, ..Plan::default() });
    let gone = sentinel(&lab, 4);
    let dead = RefCell::new(lab.sentinels.pop().expect("five"));
    let bench = Bench::new(Patient::group(NAME, &lab.sentinel_addrs()));
    // Those that forget it are four.
    let each = (0..4).map(|i| sentinel(&lab, i));
    let missed =
        each.flat_map(|s| [("sentinel-disagreement", Error, s.clone()), ("quorum", Warning, s)]);
    let expected: Vec<_> = missed.chain([("unreachable", Error, gone)]).collect();
    bench.exactly(
        "a Sentinel that is away",
        &expected,
        || dead.borrow_mut().kill(),
        || dead.borrow_mut().again(),
    );
}

#[test]
fn four_servers_can_be_two_halves() {
    let lab = Lab::up(&Plan { servers: 4, ..Plan::default() });
    let server = |i: usize| format!("{NAME} {}", lab.servers[i].addr());
    let mut all = pairs(&[0, 1, 2, 3].map(|i| ("min-replicas", server(i))));
    all.sort();
    assert_eq!(faults(&patient(&lab)), all);
    for i in 0..4 {
        assert_eq!(lab.ask(i, &["CONFIG", "SET", "min-replicas-to-write", "2"]), "OK");
    }
    let report = patient(&lab).examine();
    assert_eq!(report.of("min-replicas", &server(0)).verdict, Fine);
}

/// Lone servers that were marked one by one, and one server by two addresses.
#[test]
fn nodes_of_different_deployments_and_one_vote_twice() {
    let servers = [(); 2].map(|()| Server::start(&["--appendonly", "yes"]));
    let palisade = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_palisade")).args(args).output();
        let out = out.expect("the program can be run");
        assert!(out.status.success(), "{args:?}: {out:?}");
    };
    for server in &servers {
        palisade(&["init", "--new", "--node", &server.url()]);
    }
    let twice = format!("unix://{}", servers[0].socket().display());
    let other = |urls: [&str; 2]| {
        let patient = urls.iter().fold(Patient::default(), |all, url| all.arg("--node").arg(url));
        patient.arg("--no-trial").examine().of("other-deployment", "nodes").clone()
    };
    let urls = servers.each_ref().map(Server::url);
    let urls = urls.each_ref().map(String::as_str);
    let found = other(urls);
    assert_eq!(found.verdict, Error, "{found:#?}");
    assert!(servers.iter().all(|server| found.message.contains(&server.addr())), "{found:#?}");
    let vote = other([urls[0], &twice]);
    assert!(vote.message.contains("several nodes have one vote"), "{vote:#?}");
    let join = ["settings", "--one-deployment", "--yes", "--allow-even-nodes"];
    palisade(&[&join[..], &["--node", urls[0], "--node", urls[1]]].concat());
    assert_eq!(other(urls).verdict, Fine);
}
