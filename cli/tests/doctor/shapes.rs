//! Groups of the wrong shape: too few or too many of something, on one box, or not apart.

use std::cell::RefCell;

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Info, Warning};
use crate::lab::{Lab, MARKER, NAME, Plan, marker, wait_for};
use crate::settings::Ward;
use crate::support::proxy::{Proxy, answer};
use crate::support::server::Server;

fn patient(lab: &Lab) -> Patient {
    Patient::group(NAME, &lab.sentinel_addrs()).arg("--no-trial")
}

fn sentinel(lab: &Lab, i: usize) -> String {
    format!("{NAME} Sentinel {}", lab.sentinels[i].addr())
}

/// What is worse than information, without the text.
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
fn three_boxes_are_without_any_fault_and_one_is_not() {
    let lab = Lab::up(&Plan { boxes: true, ..Plan::default() });
    assert_eq!(faults(&patient(&lab)), pairs(&[]));
    drop(lab);
    let ward = Ward::new();
    let together = pairs(&[("co-located", ward.name.clone())]);
    assert_eq!(faults(&ward.patient()), together);
}

#[test]
fn two_sentinels_are_too_few_and_four_one_too_many() {
    let mut lab = Lab::up(&Plan { boxes: true, sentinels: 2, ..Plan::default() });
    let count = |lab: &Lab, n: usize| {
        let all: Vec<_> = (0..n).map(|i| ("sentinel-count", sentinel(lab, i))).collect();
        let mut all = pairs(&all);
        all.sort();
        all
    };
    // Two addresses: without one of them there is no majority.
    let report = patient(&lab).examine();
    for i in 0..2 {
        assert_eq!(report.of("sentinel-count", &sentinel(&lab, i)).verdict, Error);
    }
    let both = [pairs(&[("co-located", NAME.to_owned())]), count(&lab, 2)].concat();
    assert_eq!(faults(&patient(&lab)), both);
    lab.add_sentinel("127.0.0.4");
    lab.settle();
    assert_eq!(faults(&patient(&lab)), pairs(&[]));
    // With four, two are no majority.
    lab.add_sentinel("127.0.0.5");
    lab.settle();
    let report = patient(&lab).examine();
    for i in 0..4 {
        assert_eq!(report.of("sentinel-count", &sentinel(&lab, i)).verdict, Warning);
    }
    let low: Vec<_> = (0..4).map(|i| ("quorum-low", sentinel(&lab, i))).collect();
    let mut low = pairs(&low);
    low.sort();
    assert_eq!(faults(&patient(&lab)), [low, count(&lab, 4)].concat());
}

#[test]
fn a_sentinel_that_is_gone_for_good() {
    let mut lab = Lab::up(&Plan { sentinels: 5, quorum: 3, ..Plan::default() });
    let gone = sentinel(&lab, 4);
    let dead = RefCell::new(lab.sentinels.pop().expect("five"));
    let proxies: Vec<_> = lab.sentinels.iter().map(|s| Proxy::to(&s.addr())).collect();
    let at: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let bench = Bench::new(Patient::group(NAME, &at));
    let subject = |at: &String| format!("{NAME} Sentinel {at}");
    let stale: Vec<_> = at.iter().map(|at| ("stale-sentinels", Warning, subject(at))).collect();
    let absent = [("unreachable", Error, gone)];
    bench.exactly(
        "a Sentinel that has been away for longer than this test may last",
        &[&stale[..], &absent].concat(),
        || {
            dead.borrow_mut().kill();
            for proxy in &proxies {
                proxy.edit(answer("s-down-time", "700000"));
            }
            wait_for("the others to see it down", || {
                (0..4).all(|i| lab.say(i, &["SENTINEL", "SENTINELS", NAME]).contains("s_down"))
            });
        },
        || {
            dead.borrow_mut().again();
            proxies.iter().for_each(Proxy::honest);
        },
    );
}

#[test]
fn four_servers_can_be_two_halves() {
    let lab = Lab::up(&Plan { servers: 4, ..Plan::default() });
    let together = pairs(&[("co-located", NAME.to_owned()), ("two-halves", NAME.to_owned())]);
    assert_eq!(faults(&patient(&lab)), together);
    for i in 0..4 {
        assert_eq!(lab.ask(i, &["CONFIG", "SET", "min-replicas-to-write", "2"]), "OK");
    }
    let report = patient(&lab).examine();
    assert_eq!(report.of("two-halves", NAME).verdict, Fine);
}

#[test]
fn sentinels_elsewhere_can_leave_the_master_a_replica() {
    let mut lab = Lab::up(&Plan { boxes: true, sentinels: 0, ..Plan::default() });
    for i in 0..3 {
        lab.add_sentinel(&format!("127.0.0.{}", i + 11));
    }
    lab.settle();
    let side = pairs(&[("minority-side", NAME.to_owned())]);
    assert_eq!(faults(&patient(&lab)), side);
    // One on each server's box, and two elsewhere are still too many.
    let mut lab = Lab::up(&Plan { boxes: true, sentinels: 0, ..Plan::default() });
    for host in ["127.0.0.13", "127.0.0.2", "127.0.0.3"] {
        lab.add_sentinel(host);
    }
    lab.settle();
    let report = patient(&lab).examine();
    let found = report.of("minority-side", NAME);
    assert!(found.mend[0].contains("(127.0.0.4)"), "{found:#?}");
}

#[test]
fn nodes_that_are_not_apart() {
    let boxes = |n: usize| {
        let start = |i| {
            let args = ["--appendonly", "yes", "--repl-backlog-ttl", "0"];
            let server = Server::start_on(&format!("127.0.0.{}", i + 2), "redis-server", &args);
            let mark = marker(&server.cli(&["INFO", "replication"]), 0, 0, 0);
            assert_eq!(server.cli(&["SET", MARKER, &mark]), "OK");
            server
        };
        (0..n).map(start).collect::<Vec<_>>()
    };
    let all = boxes(3);
    let over = |urls: &[String]| {
        let bare = Patient::default().arg("--no-trial");
        urls.iter().fold(bare, |p, url| p.arg("--node").arg(url))
    };
    let urls: Vec<_> = all.iter().map(Server::url).collect();
    let nodes = |check| pairs(&[(check, "nodes".to_owned())]);
    assert_eq!(faults(&over(&urls)), pairs(&[]));
    assert_eq!(faults(&over(&urls[..1])), pairs(&[]));
    // Of two, one is half of them.
    let two = faults(&over(&urls[..2]));
    assert_eq!(
        two.iter().filter(|f| f.0 != "nodes-together").cloned().collect::<Vec<_>>(),
        nodes("even-nodes")
    );
    // Two on one box.
    let neighbour = Server::start_on("127.0.0.2", "redis-server", &["--appendonly", "yes"]);
    let mark = marker(&neighbour.cli(&["INFO", "replication"]), 0, 0, 0);
    assert_eq!(neighbour.cli(&["SET", MARKER, &mark]), "OK");
    let three = [&urls[..2], &[neighbour.url()]].concat();
    assert_eq!(faults(&over(&three)), nodes("nodes-together"));
    // One server under two names.
    let port = all[0].port();
    let alias = Proxy::between(([127, 0, 0, 9], 0).into(), &format!("127.0.0.2:{port}"));
    let twice = [&urls[..2], &[format!("redis://{}", alias.addr())]].concat();
    assert_eq!(faults(&over(&twice)), nodes("same-server-twice"));
}
