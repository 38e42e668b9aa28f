//! The program `palisade doctor`: its exit codes, its JSON, and its behaviour if no server replies.

use std::net::{Ipv4Addr, TcpListener};

use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Unknown};
use crate::settings::Ward;
use crate::support::server::{Server, free_port};

#[test]
fn exit_codes() {
    let ward = Ward::new();
    // The trial lock fails on a machine that is too busy.
    let patient = ward.patient().arg("--no-trial");
    // The good deployment may have warnings already. Then `--strict` changes the exit code without
    // any further fault.
    let warned = !patient.examine().all(crate::doctor::Verdict::Warning).is_empty();
    assert_eq!(patient.run(&[]).code, 0);
    assert_eq!(patient.run(&["--strict"]).code, i32::from(warned));
    ward.set(1, "appendfsync", "no");
    assert_eq!(patient.run(&[]).code, 0);
    assert_eq!(patient.run(&["--strict"]).code, 1);
    ward.set(1, "appendonly", "no");
    let run = patient.run(&[]);
    assert_eq!(run.code, 2, "{}", run.out);
    let (_, port) = ward.servers[1].rsplit_once(':').expect("host:port");
    let mend = format!("$ redis-cli -h 127.0.0.1 -p {port} CONFIG SET appendonly yes");
    assert!(run.out.contains("error    persistence") && run.out.contains(&mend), "{}", run.out);
    assert_eq!(patient.run(&["--strict"]).code, 2);

    let nobody = format!("127.0.0.1:{}", free_port());
    assert_eq!(Patient::group("orders", &[nobody]).run(&[]).code, 69);
    for wrong in [&[][..], &["--node", "sentinel://127.0.0.1:1"], &["--no-such"]] {
        let run = Patient::default().run(wrong);
        assert_eq!(run.code, 64, "{wrong:?}: {}{}", run.out, run.err);
        assert!(!run.err.is_empty(), "{wrong:?}");
    }
}

#[test]
fn json_holds_every_field() {
    let ward = Ward::new();
    let run = ward.patient().run(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["reached"], true);
    let all = json["findings"].as_array().unwrap();
    assert!(all.len() > 30, "{}", all.len());
    for finding in all {
        for name in ["check", "subject", "verdict", "message", "evidence", "why"] {
            assert!(finding[name].is_string(), "{name}: {finding}");
        }
        assert!(finding["fix"].is_array() && !finding["why"].as_str().unwrap().is_empty());
    }
    // The findings are sorted, with the worst finding first.
    let order = ["error", "warning", "unknown", "info", "fine"];
    let ranks = all.iter().map(|f| order.iter().position(|o| f["verdict"] == *o).unwrap());
    assert!(ranks.is_sorted(), "{}", run.out);
}

#[test]
fn who_does_not_answer_keeps_nobody_waiting() {
    let ward = Ward::new();
    ward.groups.break_("freeze", 0, &["--server", "a2"]);
    ward.groups.break_("freeze", 0, &["--server", "sa3"]);
    // One Sentinel does not exist. The other Sentinel accepts connections and sends nothing.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let nobody = format!("127.0.0.1:{}", free_port());
    for at in [nobody, silent] {
        let all = [&ward.sentinels[..2], std::slice::from_ref(&at)].concat();
        let report = Patient::group(&ward.name, &all).examine();
        let subject = format!("{} Sentinel {at}", ward.name);
        assert_eq!(report.of("unreachable", &subject).verdict, Error);
    }
    let report = Patient::group(&ward.name, &ward.sentinels).examine();
    let is = |subject: &str| report.of("unreachable", subject).verdict;
    assert_eq!(is(&ward.server(1)), Error);
    assert_eq!(is(&ward.sentinel(2)), Error);
    // The doctor examines the other servers as usual.
    assert_eq!(is(&ward.server(0)), Fine);
    assert_eq!(report.of("persistence", &ward.server(2)).verdict, Fine);
    assert_eq!(report.of("sentinel-times", &ward.sentinel(0)).verdict, Fine);
    let of_frozen = |f: &&crate::doctor::Finding| f.subject == ward.server(1);
    let reported: Vec<_> = report.findings.iter().filter(of_frozen).collect();
    assert!(
        reported.iter().all(|f| f.check == "unreachable" || f.verdict == Unknown),
        "{reported:#?}"
    );
    ward.groups.break_("resume", 0, &[]);
}

#[test]
fn a_lone_node_is_examined_too() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = Patient::default().arg("--node").arg(&server.url()).arg("--no-trial");
    let report = patient.examine();
    let subject = format!("node {}", server.addr());
    for check in ["persistence", "refused", "clock-skew", "permissions"] {
        assert_eq!(report.of(check, &subject).verdict, Fine, "{check}");
    }
    server.freeze();
    assert_eq!(patient.run(&[]).code, 69);
    server.resume();
}
