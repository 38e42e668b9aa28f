//! The trial lock of the doctor, which shows that locking works. The doctor takes the lock in the
//! same way as an application.

use std::process::Command;

use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Warning};
use crate::lab::{MARKER, marker};
use crate::settings::Ward;
use crate::support::group::cli;
use crate::support::server::Server;

#[test]
fn a_group_grants_until_a_setting_forbids_it() {
    let ward = Ward::new();
    let trial = || ward.patient().examine().of("trial", &ward.name).clone();
    assert_eq!(trial().verdict, Fine, "{:#?}", trial());
    ward.set(0, "min-replicas-to-write", "0");
    let found = trial();
    assert_eq!((found.verdict, found.message.contains("a setting is changed")), (Error, true));
    ward.set(0, "min-replicas-to-write", "1");
    assert_eq!(trial().verdict, Fine, "{:#?}", trial());
    // The setting requires more replicas than the group has. So the master refuses every write.
    ward.set(0, "min-replicas-to-write", "3");
    assert_eq!(trial().verdict, Error, "{:#?}", trial());
    ward.set(0, "min-replicas-to-write", "1");
    assert_eq!(trial().verdict, Fine, "{:#?}", trial());
    // The trial lock leaves no keys except its fence, the key with its last fencing token.
    let keys = cli(&ward.servers[0], &["KEYS", "*doctor*"]);
    assert!(keys.lines().all(|k| k.is_empty() || k.ends_with(":fence")), "{keys}");
}

#[test]
fn a_node_that_nobody_has_used_is_left_as_it_is_until_it_is_marked() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = Patient::default().arg("--node").arg(&server.url()).arg("--max-ttl").arg("5");
    let subject = format!("node {}", server.addr());
    let report = patient.examine();
    let found = report.of("not-initialised", &subject);
    assert_eq!(found.verdict, Warning, "{found:#?}");
    assert!(report.findings.iter().all(|f| f.check != "trial"), "{report:#?}");
    assert_eq!(server.cli(&["DBSIZE"]), "0", "who examines marks nothing");
    let mend = format!("palisade init --new --node {}  # if it never had any data", server.url());
    assert_eq!(found.fix, [mend.as_str()]);
    // Parse the command as a shell does: without the comment.
    let args = mend.split(' ').skip(1).take_while(|word| *word != "#");
    let args: Vec<&str> = args.filter(|word| !word.is_empty()).collect();
    let init = Command::new(env!("CARGO_BIN_EXE_palisade")).args(args).output().unwrap();
    assert!(init.status.success(), "{init:?}");
    let report = patient.examine();
    assert_eq!(report.of("not-initialised", &subject).verdict, Fine);
    assert_eq!(report.of("trial", &subject).verdict, Fine);
}

#[test]
fn a_node_in_quarantine_says_so_until_it_ends() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = Patient::default().arg("--node").arg(&server.url()).arg("--max-ttl").arg("5");
    let subject = format!("node {}", server.addr());
    keep(&server, 5_000);
    let found = patient.examine().of("trial", &subject).clone();
    assert_eq!(found.verdict, Warning, "{found:#?}");
    assert!(found.message.contains("grants nothing yet"), "{found:#?}");
    // The quarantine, in which the server grants nothing, ends by itself.
    crate::lab::wait_for("the end of the quarantine", || {
        patient.examine().of("trial", &subject).verdict == Fine
    });
}

/// Writes the marker of a server that has just lost its data. `length` is the length of the
/// quarantine in ms.
fn keep(server: &Server, length: u64) {
    let time = server.cli(&["TIME"]);
    let now = time.lines().next().expect("seconds").parse::<u64>().unwrap() * 1_000;
    let marker = marker(&server.cli(&["INFO", "replication"]), now, length);
    assert_eq!(server.cli(&["SET", MARKER, &marker]), "OK");
}

#[test]
fn a_quarantine_that_is_longer_than_asked_for() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = |max_ttl: &str| {
        let patient = Patient::default().arg("--node").arg(&server.url()).arg("--no-trial");
        patient.arg("--max-ttl").arg(max_ttl).examine()
    };
    let subject = format!("node {}", server.addr());
    keep(&server, 90_000);
    let report = patient("15");
    let found = report.of("quarantine-long", &subject);
    assert_eq!(found.verdict, Warning, "{found:#?}");
    for words in ["for 90s", "75s longer", "until a person lowers it"] {
        assert!(found.message.contains(words), "{words} in {found:#?}");
    }
    assert_eq!(patient("90").of("quarantine-long", &subject).verdict, Fine);
}
