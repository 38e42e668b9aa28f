//! The doctor's check of the clocks of all servers and of this machine.

use std::time::Duration;

use super::super::facts::{Clock, Facts};
use super::super::report::Finding;
use super::{Check, Run};

/// The limit is half a second, or `clock_error` if that is shorter; the error of the measurement is
/// subtracted from the difference.
pub(super) const CLOCK_SKEW: Check = Check {
    id: "clock-skew",
    why: "locks expire by the server's wall clock, at an absolute time that replicas copy: after \
          the promotion of a replica that was 20 s ahead, a lock of 30 s lasted 9.7 s (measured); \
          and a node that lost its data takes its first fencing token from its own clock: if that \
          is wrong by more than clock_error, tokens may be smaller than earlier ones, and a fenced \
          resource then accepts the old holder's writes",
    run: Run::All(clock_skew),
};

const SKEW: Duration = Duration::from_millis(500);
const HERE: &str = "this machine";

fn clock_skew(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut clocks: Vec<(String, Clock)> = Vec::new();
    for (subject, server) in facts.reached() {
        match server.clock.as_ref() {
            Ok(clock) => clocks.push((subject, *clock)),
            Err(why) => found.push(Finding::unknown(why).on(subject)),
        }
    }
    if clocks.is_empty() {
        return found;
    }
    // With three clocks or more, the median counts as right; with fewer nothing shows which clock
    // is wrong.
    let here = Clock { ahead: 0, error: 0 };
    let mut all: Vec<Clock> = clocks.iter().map(|(_, clock)| *clock).collect();
    all.sort_by_key(|clock| clock.ahead);
    let usual = if all.len() < 3 { here } else { all[all.len() / 2] };
    clocks.push((HERE.to_owned(), here));
    let differs = |(at, clock): (String, Clock)| skew(&at, clock, usual, facts.clock_error).on(at);
    found.extend(clocks.into_iter().map(differs));
    found
}

fn skew(at: &str, clock: Clock, usual: Clock, bound: Duration) -> Finding {
    let apart = clock.ahead.saturating_sub(usual.ahead);
    let doubt = clock.error.saturating_add(usual.error);
    let ms = apart / 1_000;
    let evidence =
        format!("{ms:+} ms, to within {} ms; clock_error {bound:?}", doubt.div_ceil(1_000));
    let certain = Duration::from_micros(apart.unsigned_abs().saturating_sub(doubt));
    let way = if apart > 0 { "ahead of" } else { "behind" };
    let message = format!("its clock is {} ms {way} the others", ms.abs());
    let host = if at == HERE { "here".to_owned() } else { format!("on the box of: {at}") };
    let fix = [format!("timedatectl timesync-status || chronyc tracking    # {host}")];
    if certain <= SKEW.min(bound) {
        Finding::fine(evidence)
    } else if certain <= bound {
        Finding::warning(message, evidence).fix(fix)
    } else {
        let message =
            format!("{message}, more than clock_error ({bound:?}): fencing tokens may go back");
        Finding::error(message, evidence).fix(fix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Unread;
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    fn clock(facts: &mut Facts, n: usize, ahead: i64, error: u64) {
        facts.groups[0].servers[n].clock = Ok(Clock { ahead, error });
    }

    #[test]
    fn the_one_that_differs_from_the_others() {
        fine("clock-skew");
        for (ahead, text) in [(2_000_000, "ahead"), (-2_000_000, "behind")] {
            let found = broken("clock-skew", |f| clock(f, 2, ahead, 1_000));
            assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
            assert_eq!(found.verdict, Verdict::Warning, "{found:?}");
            assert!(found.message.contains(text), "{found:?}");
            assert!(found.fix[0].contains("timedatectl"), "{found:?}");
        }
    }

    #[test]
    fn a_slow_answer_is_no_proof() {
        // With the error of the round trip, the real difference may be 400 ms.
        with("clock-skew", |f| clock(f, 1, 700_000, 300_000), |_| {});
        with("clock-skew", |f| clock(f, 1, 501_000, 1_000), |_| {});
        broken("clock-skew", |f| clock(f, 1, 503_000, 1_000));
    }

    #[test]
    fn beyond_clock_error_it_is_an_error() {
        let skew = |ahead, bound| {
            broken("clock-skew", |f| {
                clock(f, 2, ahead, 1_000);
                f.clock_error = Duration::from_millis(bound);
            })
        };
        for ahead in [2_010_000, -2_010_000] {
            let found = skew(ahead, 2_000);
            assert_eq!(found.verdict, Verdict::Error, "{found:?}");
            assert!(found.message.contains("(2s)"), "{found:?}");
        }
        assert_eq!(skew(2_010_000, 3_000).verdict, Verdict::Warning);
        // If `clock_error` is below half a second, a difference above `clock_error` is an error.
        assert_eq!(skew(300_000, 200).verdict, Verdict::Error);
    }

    #[test]
    fn this_machine_is_reported_if_all_servers_differ_from_it() {
        let found = broken("clock-skew", |f| {
            for n in 0..3 {
                clock(f, n, 3_000_000, 1_000);
            }
        });
        assert_eq!(found.subject, "this machine");
        assert!(found.message.contains("3000 ms behind"), "{found:?}");
        assert!(found.fix[0].ends_with("# here"), "{found:?}");
    }

    #[test]
    fn of_one_server_this_machine_is_the_judge() {
        let found = broken("clock-skew", |f| {
            f.groups[0].servers.truncate(1);
            clock(f, 0, -1_000_000, 1_000);
        });
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        let closed = |f: &mut Facts| {
            f.groups[0].servers[1].clock = Err(Unread::Closed("TIME not allowed".into()));
        };
        assert_eq!(unknown("clock-skew", closed).message, "unknown (TIME not allowed)");
    }
}
