//! Do the servers agree on what time it is?

use super::super::facts::{Clock, Facts};
use super::super::report::{Finding, Severity};
use super::Check;

/// Microseconds beyond which a difference is told.
const SKEW: u64 = 500_000;
/// What the difference of this machine itself is told of.
const HERE: &str = "this machine";

/// Wall clocks that differ by more than half a second for certain.
pub(super) const CHECK: Check = Check {
    id: "clock-skew",
    severity: Severity::Warning,
    title: "wall clocks of servers and of this machine are within half a second",
    why: "locks expire by the server's wall clock, at an absolute time that replicas copy: a \
          replica that was 20 s ahead left a lock of 30 s 9.7 s after its promotion; and new \
          fencing tokens are taken from the clients' clocks",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut clocks: Vec<(String, Clock)> = Vec::new();
    for (name, server) in facts.servers().filter(|(_, s)| s.reached.is_ok()) {
        let subject = format!("{name} {}", server.at);
        match server.clock.known() {
            Ok(clock) => clocks.push((subject, *clock)),
            Err(why) => found.push(Finding::unknown(subject, why)),
        }
    }
    let Some(usual) = usual(&clocks) else { return found };
    // This machine is a client like others.
    clocks.push((HERE.to_owned(), Clock { ahead: 0, error: 0 }));
    found.extend(clocks.into_iter().map(|(at, clock)| judge(&at, clock, usual)));
    found
}

/// The clock in the middle; with fewer than three nobody can say who is wrong, and this machine
/// counts as right.
fn usual(clocks: &[(String, Clock)]) -> Option<Clock> {
    let mut all: Vec<Clock> = clocks.iter().map(|(_, c)| *c).collect();
    all.sort_by_key(|c| c.ahead);
    match all.len() {
        0 => None,
        1 | 2 => Some(Clock { ahead: 0, error: 0 }),
        n => Some(all[n / 2]),
    }
}

fn judge(at: &str, clock: Clock, usual: Clock) -> Finding {
    let apart = clock.ahead.saturating_sub(usual.ahead);
    let doubt = clock.error.saturating_add(usual.error);
    let ms = |micros: i64| micros / 1000;
    let read = format!("{:+} ms, to within {} ms", ms(apart), doubt.div_ceil(1000));
    if apart.unsigned_abs().saturating_sub(doubt) <= SKEW {
        return Finding::fine(at, read);
    }
    let way = if apart > 0 { "ahead" } else { "behind" };
    let says = format!("its clock is {} ms {way} of the others", ms(apart).abs());
    let host = if at == HERE { "here".to_owned() } else { format!("on the box of: {at}") };
    let mend = [format!("timedatectl timesync-status || chronyc tracking    # {host}")];
    Finding::warning(at, says, read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;

    fn clock(facts: &mut Facts, n: usize, ahead: i64, error: u64) {
        facts.groups[0].servers[n].clock = Read::Got(Clock { ahead, error });
    }

    #[test]
    fn the_one_that_differs_from_the_others() {
        fine("clock-skew");
        for (ahead, words) in [(2_000_000, "ahead"), (-2_000_000, "behind")] {
            let found = broken("clock-skew", |f| clock(f, 2, ahead, 1_000));
            assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
            assert!(found.says.contains(words), "{found:?}");
            assert!(found.mend[0].contains("timedatectl"), "{found:?}");
        }
    }

    #[test]
    fn a_slow_answer_is_no_proof() {
        // 700 ms apart, but the answer took so long that it may be 400.
        with("clock-skew", |f| clock(f, 1, 700_000, 300_000), |_| {});
        with("clock-skew", |f| clock(f, 1, 501_000, 1_000), |_| {});
        broken("clock-skew", |f| clock(f, 1, 503_000, 1_000));
    }

    #[test]
    fn this_machine_is_the_one() {
        let found = broken("clock-skew", |f| {
            for n in 0..3 {
                clock(f, n, 3_000_000, 1_000);
            }
        });
        assert_eq!(found.subject, "this machine");
        assert!(found.says.contains("3000 ms behind"), "{found:?}");
        assert!(found.mend[0].ends_with("# here"), "{found:?}");
    }

    #[test]
    fn of_one_server_this_machine_is_the_judge() {
        let found = broken("clock-skew", |f| {
            f.groups[0].servers.truncate(1);
            clock(f, 0, -1_000_000, 1_000);
        });
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        let closed = |f: &mut Facts| {
            f.groups[0].servers[1].clock = Read::Closed("TIME not allowed".into());
        };
        assert_eq!(unknown("clock-skew", closed).says, "unknown (TIME not allowed)");
    }
}
