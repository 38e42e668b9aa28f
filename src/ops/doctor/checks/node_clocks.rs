//! The servers' clocks are within the bound on which tokens depend.

use std::time::Duration;

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "node-clocks",
    severity: Severity::Error,
    title: "every server's clock is within half of max_ttl of true time",
    why: "after a node lost its data its tokens begin at its own clock: beyond the bound they may \
          fall below earlier ones, and a fenced resource then takes the old holder's writes",
    run,
};

/// E is never taken to be larger, however long leases are.
const MOST: Duration = Duration::from_secs(60);

fn run(facts: &Facts) -> Vec<Finding> {
    let bound = (facts.max_ttl / 2).min(MOST);
    let reached = facts.servers().filter(|(_, s)| s.reached.is_ok());
    reached.map(|(name, s)| judge(format!("{name} {}", s.at), s, bound)).collect()
}

fn judge(subject: String, server: &Server, bound: Duration) -> Finding {
    let clock = match server.clock.known() {
        Ok(clock) => clock,
        Err(why) => return Finding::unknown(subject, why),
    };
    let (off, error) = (clock.ahead.unsigned_abs(), clock.error);
    let side = if clock.ahead < 0 { "behind" } else { "ahead of" };
    let read = format!(
        "{:.3} s {side} this machine, ± {:.3} s; the bound is {bound:?}",
        Duration::from_micros(off).as_secs_f64(),
        Duration::from_micros(error).as_secs_f64()
    );
    if Duration::from_micros(off.saturating_sub(error)) <= bound {
        return Finding::fine(subject, read);
    }
    let says = "its clock, or this machine's, is wrong beyond what tokens are made for";
    let host = super::super::facts::host_of(&server.at);
    Finding::error(subject, says, read)
        .mend([format!("ssh {host} sudo chronyc makestep"), "chronyc tracking".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Clock, Read};
    use super::super::tests::{broken, fine, unknown, with};

    #[test]
    fn a_clock_beyond_the_bound_is_told_if_it_certainly_is() {
        fine("node-clocks");
        for ahead in [15_100_000, -15_100_000] {
            let clock = |error| Read::Got(Clock { ahead, error });
            let found = broken("node-clocks", |f| f.groups[0].servers[2].clock = clock(1_000));
            assert!(found.read.starts_with("15.100 s"), "{found:?}");
            with("node-clocks", |f| f.groups[0].servers[2].clock = clock(200_000), |_| {});
        }
        unknown("node-clocks", |f| {
            f.groups[0].servers[2].clock = Read::Failed("no answer".into());
        });
    }
}
