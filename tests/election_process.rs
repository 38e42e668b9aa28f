//! Elections between processes over real servers: what a follower notices when the leader resigns,
//! is killed, or loses its servers.

mod support;

use support::candidate::{Candidate, Line};
use support::server::Server;

const TTL_MS: f64 = 1_500.0;

/// Three standalone servers and the arguments that name them.
fn servers() -> (Vec<Server>, Vec<String>) {
    let servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let mut args = vec!["--ttl-ms".into(), TTL_MS.to_string()];
    for server in &servers {
        args.extend(["--node".into(), server.url()]);
    }
    (servers, args)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// The leader resigns, the other leads, and so on: how long each time, in milliseconds.
fn hand_over(mut leads: Candidate, mut follows: Candidate, times: usize) -> Vec<f64> {
    let mut term = leads.expect("leading").term;
    let mut took = Vec::new();
    for _ in 0..times {
        // The follower takes its place among the waiters; if it is late, the median forgives.
        std::thread::sleep(std::time::Duration::from_millis(500));
        leads.resign();
        let resigning = leads.expect("resigning");
        let next = follows.expect("leading");
        assert!(next.term > term, "terms grow");
        took.push(next.at_ms - resigning.at_ms);
        term = next.term;
        assert_eq!(leads.expect("resigned").term, resigning.term);
        std::mem::swap(&mut leads, &mut follows);
    }
    assert!(leads.terminate(), "a leader that is asked to end resigns cleanly");
    assert!(follows.expect("leading").term > term);
    took
}

#[test]
fn a_resignation_is_followed_at_once() {
    let (_servers, args) = servers();
    let took = hand_over(Candidate::start("a", &args), Candidate::start("b", &args), 7);
    println!("hand-overs took {took:.1?} ms");
    assert!(median(took.clone()) < 100.0, "{took:?}");
}

#[test]
fn a_killed_leader_is_followed_within_its_ttl() {
    let (_servers, args) = servers();
    let mut leads = Candidate::start("0", &args);
    let mut term = leads.expect("leading").term;
    let mut took = Vec::new();
    for i in 1..=3 {
        let follows = Candidate::start(&i.to_string(), &args);
        assert!(follows.line(std::time::Duration::from_millis(700)).is_none(), "two leaders");
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
fn a_leader_without_its_servers_stops_and_leads_again_when_they_are_back() {
    let (servers, args) = servers();
    let leads = Candidate::start("a", &args);
    let first = leads.expect("leading");
    servers[0].freeze();
    assert!(leads.line(std::time::Duration::from_secs(3)).is_none(), "two of three are enough");
    servers[1].freeze();
    let lost: Line = leads.expect("lost");
    assert_eq!(lost.term, first.term);
    servers.iter().take(2).for_each(Server::resume);
    assert!(leads.expect("leading").term > first.term);
}
