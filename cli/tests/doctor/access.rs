//! Users, passwords and rights at the servers. If the doctor may not read a setting, the setting is
//! unknown and not a fault. Missing rights are reported. No password is shown.

use crate::bench::Bench;
use crate::doctor::Verdict::{Error, Fine, Unknown, Warning};
use crate::doctor::{Finding, Patient};
use crate::lab::{Lab, NAME, Plan, ok};
use crate::settings::Ward;
use crate::support::group::{Groups, cli};

const PASSWORD: &str = "s3cret-of-the-servers";
const SENTINELS: &str = "s3cret-of-the-sentinels";

/// Creates a user on every data server.
fn user(ward: &Ward, name: &str, rules: &str) {
    for at in &ward.servers {
        let words: Vec<&str> = rules.split_whitespace().collect();
        let set = ["ACL", "SETUSER", name, "reset", "on", &format!(">{PASSWORD}")];
        ok(at, &[&set[..], &words].concat());
    }
}

fn patient(ward: &Ward, user: &str) -> Patient {
    ward.patient().arg("--username").arg(user).secret("PALISADE_PASSWORD", PASSWORD)
}

/// Returns the ACL rules of the minimal profile in the manual.
pub(crate) fn minimal_profile() -> String {
    let page = include_str!("../../../src/manual/deployment.md");
    let rules = page.split("ACL SETUSER palisade on >secret ").nth(1).expect("the profile");
    rules.split("```").next().expect("its end").to_owned()
}

#[test]
fn an_operator_looks_at_the_rights_of_the_application() {
    let ward = Ward::new();
    user(&ward, "app", &minimal_profile());
    user(&ward, "ops", "~* &* +@all");
    let patient = patient(&ward, "ops").arg("--rights-of").arg("app").arg("--no-trial");
    let report = patient.examine();
    let of = |i| ("permissions", ward.server(i));
    for (check, subject) in [of(0), of(1), of(2)] {
        assert_eq!(report.of(check, &subject).verdict, Fine, "{:#?}", report.findings);
    }
    ok(&ward.servers[1], &["ACL", "SETUSER", "app", "-evalsha"]);
    let report = patient.examine();
    let found = report.of("permissions", &ward.server(1));
    assert_eq!(found.verdict, Error);
    // The doctor prints a command that the operator runs for the application's user.
    let mend = "--user ops --askpass ACL SETUSER app +evalsha";
    assert!(found.fix[0].ends_with(mend), "{found:#?}");
    assert_eq!(report.of("permissions", &ward.server(0)).verdict, Fine);
}

#[test]
fn rights_of_our_own_user() {
    let ward = Ward::new();
    user(&ward, "joe", "~* &* +@all");
    let bench = Bench::new(patient(&ward, "joe"));
    let all = |verdict| [0, 1, 2].map(|i| ("permissions", verdict, ward.server(i)));
    let acl = |rule: &'static str| move |at: &String| ok(at, &["ACL", "SETUSER", "joe", rule]);
    for (less, more) in
        [("-evalsha", "+evalsha"), ("-script|load", "+script|load"), ("-set", "+set")]
    {
        let report = bench.exactly(
            less,
            &all(Error),
            || ward.servers.iter().for_each(acl(less)),
            || ward.servers.iter().for_each(acl(more)),
        );
        let mend = &report.of("permissions", &ward.server(1)).fix[0];
        assert!(mend.ends_with(&format!("ACL SETUSER joe {more}")), "{mend}");
    }
    let not_told = [("two-masters", Unknown, ward.name.clone())];
    for (less, more, found) in [
        ("-role", "+role", &not_told[..]),
        ("-wait", "+wait", &all(Warning)),
        ("-publish", "+publish", &all(Warning)),
    ] {
        bench.exactly(
            less,
            found,
            || ward.servers.iter().for_each(acl(less)),
            || ward.servers.iter().for_each(acl(more)),
        );
    }
    // On one server the user has rights to fewer keys than on the other servers. An application
    // notices this only after a failover to that server.
    bench.exactly(
        "keys of others",
        &[("permissions", Error, ward.server(2))],
        || {
            ok(&ward.servers[2], &["ACL", "SETUSER", "joe", "resetkeys", "~orders:*"]);
        },
        || acl("allkeys")(&ward.servers[2]),
    );
    bench.exactly(
        "no channel",
        &all(Warning),
        || ward.servers.iter().for_each(acl("resetchannels")),
        || ward.servers.iter().for_each(acl("allchannels")),
    );
    sight(&ward, &bench);
}

/// Tests the check `sentinel-sight`: the Sentinels log in to the data servers as the user
/// `default`, and this user is switched off.
fn sight(ward: &Ward, bench: &Bench) {
    let all = [0, 1, 2].map(|i| ("sentinel-sight", Error, ward.sentinel(i)));
    let as_joe = |command: &[&str]| {
        let login = ["--user", "joe", "--pass", PASSWORD, "--no-auth-warning"];
        cli(&ward.servers[1], &[&login[..], command].concat())
    };
    let report = bench.exactly(
        "a replica at which Sentinels cannot log in",
        &all,
        || {
            assert_eq!(as_joe(&["ACL", "SETUSER", "default", "off"]), "OK");
            as_joe(&["CLIENT", "KILL", "USER", "default"]);
        },
        || assert_eq!(as_joe(&["ACL", "SETUSER", "default", "on"]), "OK"),
    );
    let found = report.of("sentinel-sight", &ward.sentinel(0));
    assert!(found.message.contains(&ward.servers[1]), "{found:#?}");
    let set = format!("SENTINEL SET {} auth-pass", ward.name);
    assert!(found.fix.iter().any(|m| m.contains(&set)), "{found:#?}");
}

#[test]
fn what_is_closed_is_unknown_and_no_fault() {
    let ward = Ward::new();
    // The first rules are those of managed services. The second rules are those of the manual.
    let managed = "~* &* +@all -config -acl -debug -replicaof -save -bgsave -shutdown -module";
    for (name, rules) in [("managed", managed), ("least", &minimal_profile())] {
        user(&ward, name, rules);
        // The doctor takes no trial lock (to see that locking works) here, because this would
        // report errors of its own: without CONFIG the library judges the lag of replicas by the
        // settings of the application.
        let patient = patient(&ward, name).arg("--no-trial");
        let report = patient.examine();
        let wrong = |v| v == Error || v == Warning;
        let faults: Vec<_> = report.findings.iter().filter(|f| wrong(f.verdict)).collect();
        let open = ward.patient().arg("--no-trial").examine();
        let new = faults.iter().filter(|f| {
            let known = |o: &&Finding| o.check == f.check && o.subject == f.subject;
            !open.findings.iter().filter(known).any(|o| wrong(o.verdict))
        });
        assert_eq!(new.count(), 0, "{name}: {faults:#?}");
        for check in ["persistence", "min-replicas"] {
            let found = report.of(check, &ward.server(0));
            let says = (found.verdict, &*found.message);
            assert_eq!(says, (Unknown, "unknown (CONFIG not allowed)"), "{name}");
        }
        assert_eq!(report.of("permissions", &ward.server(0)).verdict, Unknown, "{name}");
        assert_eq!(patient.run(&[]).code, 0, "{name}");
    }
}

/// Examines a group with the users that palisade ships: the application's user at the servers and
/// at the Sentinels.
#[test]
fn the_shipped_users_are_enough_to_be_examined() {
    let groups = Groups::up_with(1, 5_000, 2, &["--prefix", NAME, "--acl"]);
    let password = groups.password().expect("users have passwords");
    let patient = Patient::group(&groups.name(0), &groups.sentinels(0))
        .arg("--username")
        .arg("palisade")
        .secret("PALISADE_PASSWORD", &password)
        .arg("--sentinel-username")
        .arg("palisade")
        .secret("PALISADE_SENTINEL_PASSWORD", &password)
        .arg("--no-trial");
    let report = patient.examine();
    let wrong = |f: &&Finding| f.verdict == Error || f.verdict == Warning;
    let wrong: Vec<_> = report.findings.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for unknown in report.all(Unknown) {
        assert!(unknown.message.contains("not allowed"), "{unknown:#?}");
    }
    for at in groups.servers(0) {
        // The settings cannot be read. But the result of this check comes from INFO.
        let found = report.of("refused", &format!("{} {at}", groups.name(0)));
        assert_eq!(found.verdict, Fine, "{found:#?}");
    }
    assert_eq!(patient.run(&[]).code, 0);
}

#[test]
fn passwords_are_used_and_never_shown() {
    let plan = Plan {
        server_args: &["--requirepass", PASSWORD, "--masterauth", PASSWORD],
        sentinel_args: &["--requirepass", SENTINELS],
        auth_pass: Some(PASSWORD),
        sentinel_pass: Some(SENTINELS),
        ..Plan::default()
    };
    let lab = Lab::up(&plan);
    let at = lab.sentinel_addrs();
    let bare = Patient::group(NAME, &at);
    let good = || {
        let bare = bare.clone().secret("PALISADE_PASSWORD", PASSWORD);
        bare.secret("PALISADE_SENTINEL_PASSWORD", SENTINELS)
    };
    let report = good().arg("--no-trial").examine();
    assert!(report.all(Error).is_empty(), "{:#?}", report.all(Error));
    let run = good().run(&["--no-trial"]);
    assert_eq!(run.code, 0, "{}", run.out);
    // Wrong passwords are not shown either. The doctor distinguishes them from correct passwords.
    let wrong = bare.clone().secret("PALISADE_SENTINEL_PASSWORD", "wr0ng");
    let run = wrong.run(&[]);
    assert_eq!(run.code, 69, "{}{}", run.out, run.err);
    let wrong = bare.clone().secret("PALISADE_SENTINEL_PASSWORD", SENTINELS);
    let wrong = wrong.secret("PALISADE_PASSWORD", "wr0ng");
    assert_eq!(wrong.run(&[]).code, 2);
    let report = wrong.arg("--no-trial").examine();
    for i in 0..3 {
        let found = report.of("unreachable", &format!("{NAME} {}", lab.servers[i].addr()));
        assert_eq!(found.verdict, Error, "{found:#?}");
    }
    // The password is part of the address of a lone server. First the address is correct, then it
    // is malformed.
    let url = format!("redis://:{PASSWORD}@{}", lab.servers[0].addr());
    let run = Patient::default().hides(PASSWORD).run(&["--node", &url, "--no-trial", "--json"]);
    assert!(run.out.contains(&lab.servers[0].addr()), "{}", run.out);
    let url = format!("redis://joe:{PASSWORD}/0");
    assert_eq!(Patient::default().hides(PASSWORD).run(&["--node", &url]).code, 64);
}
