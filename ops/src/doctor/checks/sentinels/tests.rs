//! Cases of the checks of what Sentinels say.

use super::super::super::report::Verdict;
use super::super::tests::{all_masters, broken, fine, unknown, with};
use super::*;

/// The doctor runs beside a Sentinel that names the master rightly. Two elsewhere name 127.0.0.1.
#[test]
fn a_sentinel_that_names_the_master_rightly_is_not_sent_to_the_loopback_of_others() {
    let found = broken("sentinel-disagreement", |f| {
        all_masters(f, "ip", "127.0.0.1");
        let group = &mut f.groups[0];
        let own = &mut group.sentinels[0];
        (own.at, own.hand) = ("127.0.0.1:26379".into(), "redis-cli -p 26379".into());
        own.master.as_mut().unwrap().insert("ip".into(), "10.0.0.1".into());
        let mut local = group.servers[0].clone();
        local.at = "127.0.0.1:6379".into();
        group.servers.push(local);
    });
    let wrong = found.fix.iter().find(|fix| fix.contains("MONITOR orders-a 127.0.0.1"));
    assert_eq!(wrong, None, "{found:#?}");
}

#[test]
fn a_quorum_below_a_majority_is_told_for_each_sentinel() {
    fine("quorum");
    let found = broken("quorum", |f| all_masters(f, "quorum", "1"));
    let fix = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a quorum 2";
    assert_eq!((found.evidence.as_str(), &*found.fix[0]), ("quorum 1 of 3 Sentinels", fix));
    let found = broken("quorum", |f| all_masters(f, "quorum", "4"));
    assert!(found.message.contains("no failover"), "{found:?}");
    with("quorum", |f| all_masters(f, "quorum", "3"), |_| {});
    let found = unknown("quorum", |f| {
        let closed = "SENTINEL MASTER not allowed";
        f.groups[0].sentinels[1].master = Err(Unread::Closed(closed.into()));
    });
    assert_eq!(found.message, "unknown (SENTINEL MASTER not allowed)");
}

#[test]
fn too_few_are_an_error_and_an_even_number_a_warning() {
    let with = |others: &str, quorum| {
        broken("quorum", |f| {
            f.groups[0].sentinels.truncate(others.parse::<usize>().unwrap() + 1);
            all_masters(f, "num-other-sentinels", others);
            all_masters(f, "quorum", quorum);
        })
    };
    for (others, quorum) in [("0", "1"), ("1", "2")] {
        assert_eq!(with(others, quorum).verdict, Verdict::Error);
    }
    assert!(with("1", "2").fix[0].contains("sentinel monitor orders-a 10.0.0.1 6379 2"));
    assert_eq!(with("3", "3").verdict, Verdict::Warning);
}

#[test]
fn sentinels_that_do_not_know_each_other_get_no_other_quorum() {
    let unknown = |f: &mut Facts, n: usize| {
        said(f, n, "num-other-sentinels", "0");
        f.groups[0].sentinels[n].others = Ok(Vec::new());
    };
    let found = broken("quorum", |f| (0..3).for_each(|n| unknown(f, n)));
    assert!(found.message.contains("knows 0 of the 2 other Sentinels"), "{found:?}");
    assert!(found.fix.iter().all(|command| !command.contains(" SET ")), "{found:?}");
}

#[test]
fn a_sentinel_at_port_0_is_explained_and_not_counted() {
    let stale = |f: &mut Facts| {
        for n in 0..3 {
            said(f, n, "num-other-sentinels", "3");
            let Ok(others) = &mut f.groups[0].sentinels[n].others else { return };
            let mut odd = others[0].clone();
            odd.insert("port".into(), "0".into());
            others.push(odd);
        }
    };
    with("quorum", stale, |_| {});
    let found = broken("sentinel-disagreement", stale);
    assert!(found.message.contains("lacks `tls-replication yes`"), "{found:?}");
    assert!(found.fix[0].ends_with("SENTINEL RESET orders-a"), "{found:?}");
}

#[test]
fn nothing_is_reset_while_a_failover_is_under_way() {
    let differs = |flags: &'static str| {
        broken("sentinel-disagreement", move |f| {
            let master = f.groups[0].sentinels[0].master.as_mut().expect("heard");
            master.insert("config-epoch".into(), "9".into());
            master.insert("flags".into(), flags.into());
        })
    };
    assert!(differs("master").fix.iter().any(|fix| fix.contains("SENTINEL RESET")));
    let found = differs("master,o_down,failover_in_progress");
    assert!(!found.fix.iter().any(|fix| fix.contains("RESET")), "{found:?}");
}

#[test]
fn a_sentinel_in_tilt_is_told() {
    let found = broken("sentinel-disagreement", |f| f.groups[0].sentinels[2].tilt = Ok(true));
    assert_eq!((found.verdict, &*found.evidence), (Verdict::Warning, "sentinel_tilt:1"));
}

#[test]
fn a_short_down_after_and_a_long_failover_timeout() {
    fine("sentinel-times");
    let found = broken("sentinel-times", |f| all_masters(f, "down-after-milliseconds", "1999"));
    assert!(found.fix[0].ends_with("SENTINEL SET orders-a down-after-milliseconds 4000"));
    let found = broken("sentinel-times", |f| all_masters(f, "failover-timeout", "180000"));
    assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
    assert!(found.message.ends_with("tried again after 360 s"), "{found:?}");
    let to = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL SET orders-a";
    assert_eq!(found.fix, [format!("{to} failover-timeout 15000")]);
}

fn said(f: &mut Facts, n: usize, name: &str, value: &str) {
    let Ok(master) = &mut f.groups[0].sentinels[n].master else { panic!("no answer") };
    master.insert(name.into(), value.into());
}

#[test]
fn a_lost_quorum_is_the_word_of_ckquorum() {
    fine("sentinel-disagreement");
    let found = broken("sentinel-disagreement", |f| {
        let no = "NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach the \
                  majority and authorize a failover";
        f.groups[0].sentinels[0].quorum = Ok(no.into());
    });
    assert!(found.message.contains("no failover"), "{found:?}");
    let closed = |f: &mut Facts| {
        for s in &mut f.groups[0].sentinels {
            s.quorum = Err(Unread::Closed("SENTINEL CKQUORUM not allowed".into()));
        }
    };
    let found = unknown("sentinel-disagreement", closed);
    assert_eq!(found.message, "unknown (SENTINEL CKQUORUM not allowed)");
}

#[test]
fn a_user_that_may_not_read_the_epoch_is_told_the_right() {
    let found = broken("sentinel-disagreement", |f| {
        let why = "SENTINEL MASTER not allowed";
        f.groups[0].sentinels[1].master = Err(Unread::Closed(why.into()));
    });
    assert_eq!(
        (found.verdict, &*found.evidence),
        (Verdict::Warning, "SENTINEL MASTER not allowed")
    );
    assert!(found.message.contains("allow `+sentinel|master`"), "{found:?}");
}

#[test]
fn a_sentinel_out_of_reach_is_told_by_the_one_that_misses_it() {
    let found = broken("sentinel-disagreement", |f| {
        let Ok(others) = &mut f.groups[0].sentinels[0].others else { return };
        others[0].insert("flags".into(), "s_down,sentinel,disconnected".into());
    });
    assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
    assert_eq!(found.fix[0], "redis-cli -h 10.0.0.2 -p 26379 PING");
    assert!(found.fix[1].ends_with("-p 26379 SENTINEL RESET orders-a"), "{found:?}");
}

#[test]
fn what_they_say_differently_is_told_with_who_says_it() {
    let found = broken("sentinel-disagreement", |f| said(f, 2, "ip", "10.0.0.2"));
    assert!(found.evidence.contains("10.0.0.2:6379 at 10.0.0.3:26379"), "{found:?}");
    assert!(found.fix[1].ends_with("SENTINEL MONITOR orders-a 10.0.0.1 6379 2"), "{found:?}");
    for what in ALIKE {
        let found = broken("sentinel-disagreement", |f| said(f, 1, what, "7"));
        assert!(found.message.contains(what), "{found:?}");
        assert!(found.fix[0].starts_with("redis-cli -h 10.0.0.2 -p 26379"), "{found:?}");
    }
    let found = broken("sentinel-disagreement", |f| {
        let why = "ERR No such master with that name";
        f.groups[0].sentinels[1].master = Err(Unread::Failed(why.into()));
    });
    assert!(found.fix[1].ends_with("SENTINEL SET orders-a down-after-milliseconds 4000"));
}

fn change(facts: &mut Facts, name: &str, value: &str) {
    let Ok(all) = &mut facts.groups[0].sentinels[1].replicas else { unreachable!() };
    all[0].insert(name.into(), value.into());
}

#[test]
fn what_answers_us_but_not_a_sentinel() {
    fine("sentinel-sight");
    for (name, value) in [("flags", "s_down,slave,disconnected"), ("info-refresh", "45000")] {
        let found = broken("sentinel-sight", |f| change(f, name, value));
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.2:26379");
        assert!(found.message.ends_with("10.0.0.2:6379"), "{found:?}");
        let to = "redis-cli -h 10.0.0.2 -p 26379 SENTINEL SET orders-a auth-pass";
        assert!(found.fix[2].starts_with(to), "{found:?}");
    }
}

#[test]
fn what_is_down_for_us_too_is_not_the_sentinels_fault() {
    let down = |f: &mut Facts| {
        change(f, "flags", "s_down,slave,disconnected");
        f.groups[0].servers[1].reached = Err("connection refused".into());
    };
    with("sentinel-sight", down, |_| {});
}
