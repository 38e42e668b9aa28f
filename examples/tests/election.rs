//! Tests of elections between processes over real servers: one process leads and another follows
//! while the leader resigns, is killed, or loses its servers.

use std::time::Duration;

use crate::candidate::{Candidate, Line};
use crate::support::group::Groups;
use crate::support::server::Server;

const TTL_MS: f64 = 1_500.0;

/// Starts three standalone servers. Returns the servers and the arguments with their addresses.
fn servers() -> (Vec<Server>, Vec<String>) {
    let servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let mut args = vec!["--ttl-ms".into(), TTL_MS.to_string()];
    for server in &servers {
        args.extend(["--node".into(), format!("{}?trust_fresh=true", server.url())]);
    }
    (servers, args)
}

/// Starts a Sentinel group. Returns the group and the arguments with its address.
fn group(ttl_ms: f64) -> (Groups, Vec<String>) {
    let groups = Groups::up(1);
    let (sentinels, master) = (groups.sentinels(0).join(","), groups.name(0));
    let url = format!("sentinel://{sentinels}/{master}?trust_fresh=true");
    let args = ["--ttl-ms".to_owned(), ttl_ms.to_string(), "--node".to_owned(), url];
    (groups, args.to_vec())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Makes two candidates resign in turn. Returns the duration of each change of leader in
/// milliseconds.
fn hand_over(args: &[String], times: usize) -> Vec<f64> {
    let mut leads = Candidate::start("a", args);
    let mut term = leads.expect("leading").term;
    let mut follows = Candidate::start("b", args);
    let mut took = Vec::new();
    for _ in 0..times {
        // Leave the follower time to begin waiting for the leadership. One late follower does not
        // change the median.
        std::thread::sleep(Duration::from_millis(500));
        let (next, resigning) = loop {
            leads.resign();
            let resigning = leads.expect("resigning");
            assert_eq!(leads.expect("resigned").term, resigning.term);
            if let Some(next) = follows.within("leading", Duration::from_secs(5)) {
                break (next, resigning);
            }
            // On a busy machine the leader that resigned may become leader again.
            assert!(leads.expect("leading").term > resigning.term, "terms grow");
        };
        assert!(next.term > term, "terms grow");
        took.push(next.at_ms - resigning.at_ms);
        term = next.term;
        std::mem::swap(&mut leads, &mut follows);
    }
    assert!(leads.terminate(), "a leader that is asked to end resigns cleanly");
    assert!(follows.expect("leading").term > term);
    took
}

fn resignation(args: &[String]) {
    let took = hand_over(args, 7);
    println!("hand-overs took {took:.1?} ms");
    assert!(median(took.clone()) < TTL_MS / 2.0, "{took:?}");
}

#[test]
fn a_resignation_is_followed_at_once() {
    let (_servers, args) = servers();
    resignation(&args);
}

#[test]
fn a_resignation_is_followed_at_once_over_a_sentinel_group() {
    let (_groups, args) = group(TTL_MS);
    resignation(&args);
}

fn kill_three_times(args: &[String]) {
    let mut leads = Candidate::start("0", args);
    let mut term = leads.expect("leading").term;
    let mut took = Vec::new();
    for i in 1..=3 {
        let follows = Candidate::start(&i.to_string(), args);
        assert!(follows.line(Duration::from_millis(700)).is_none(), "two leaders");
        let killed = leads.kill();
        let next = follows.expect("leading");
        assert!(next.term > term, "terms grow");
        took.push(next.at_ms - killed);
        term = next.term;
        leads = follows;
    }
    println!("after a kill it took {took:.0?} ms");
    assert!(median(took.clone()) < TTL_MS + 1_000.0, "{took:?}");
}

#[test]
fn a_killed_leader_is_followed_within_its_ttl() {
    let (_servers, args) = servers();
    kill_three_times(&args);
}

#[test]
fn a_killed_leader_is_followed_within_its_ttl_over_a_sentinel_group() {
    let (_groups, args) = group(TTL_MS);
    kill_three_times(&args);
}

#[test]
fn a_leader_without_its_servers_stops_and_leads_again_when_they_are_back() {
    let (servers, args) = servers();
    let leads = Candidate::start("a", &args);
    let first = leads.expect("leading");
    servers[0].freeze();
    assert!(leads.line(Duration::from_secs(3)).is_none(), "two of three are enough");
    servers[1].freeze();
    let lost: Line = leads.expect("lost");
    assert_eq!(lost.term, first.term);
    servers.iter().take(2).for_each(Server::resume);
    assert!(leads.expect("leading").term > first.term);
}

#[test]
fn a_sentinel_failover_does_not_end_a_term() {
    let (groups, args) = group(9_000.0);
    let mut a = Candidate::start("a", &args);
    let first = a.expect("leading");
    let b = Candidate::start("b", &args);
    std::thread::sleep(Duration::from_millis(500));
    a.resign();
    let second = b.expect("leading");
    assert!(second.term > first.term);
    a.expect("resigned");
    groups.break_("failover", 0, &[]);
    // The leader keeps its term for 11 s. That is longer than the lease, so the leader renewed its
    // lease on the new master.
    assert!(b.line(Duration::from_secs(11)).is_none(), "the leader lost its term");
    assert!(a.line(Duration::ZERO).is_none(), "two leaders");
}
