//! What the nodes' data may lack.

use std::time::Duration;

use super::super::facts::{Facts, Marker, Server};
use super::super::report::{Finding, Severity};
use super::Check;
use super::not_initialised::named;
use crate::nodes::LOST_EVERYTHING;
use palisade::internal::RETENTION;
use palisade::internal::{AtMost, until_utc};
use palisade::node::spi::Loss;

pub(super) const CHECK: Check = Check {
    id: "data-loss",
    severity: Severity::Info,
    title: "no node lost data within the last 24 h",
    why: "after a restart, a failover or from a backup a server may lack what was written last; \
          the keys of requests that were made before then may have been used and forgotten, so \
          palisade does not run them as new ones",
    run,
};

/// The longest loss for which it is worth accepting it: of a restart or failover.
const SHORT: Duration = Duration::from_secs(60);

fn run(facts: &Facts) -> Vec<Finding> {
    facts.masters().map(|(subject, master)| judge(facts, subject, master)).collect()
}

fn judge(facts: &Facts, subject: String, server: &Server) -> Finding {
    // As is added to the length of a loss (idempotency 6).
    let margin = 2 * facts.clock_error;
    let marker = match server.marker.known() {
        Err(why) => return Finding::unknown(subject, why),
        Ok(Marker::Absent) => return Finding::fine(subject, "no marker"),
        Ok(Marker::Kept(kept)) => kept,
    };
    let read = format!("{} losses in palisade:generation of {}", marker.losses.len(), server.at);
    // A server that began without data is reported as not initialised.
    let began_so = |loss: &Loss| loss.from == 0 && marker.empty_for.is_some();
    let Some((loss, left)) = marker.loss(RETENTION).filter(|(loss, _)| !began_so(loss)) else {
        return Finding::fine(subject, read);
    };
    let until = u64::try_from(margin.as_millis()).unwrap_or(u64::MAX).saturating_add(loss.to);
    let accepted = loss.length().map(|length| length.saturating_add(margin).as_millis());
    let accept = match accepted.map(|ms| ms.div_ceil(1_000)) {
        Some(secs) if u128::from(SHORT.as_secs()) >= secs => format!(
            "; where a request of those moments may run again, accept_loss of {secs} s or more on \
             its namespace ends that"
        ),
        _ => String::new(),
    };
    let says = format!(
        "{loss}; keys whose created_at is not after {}, or is not given, count as forgotten for \
         another {} (with a retention of 24 h){accept}",
        until_utc(until),
        AtMost(left.saturating_add(margin))
    );
    if marker.lost_everything {
        let says = format!("its clients knew data that it lost; {says}; {LOST_EVERYTHING}");
        let mend = format!("palisade idem incidents {}", named(facts, &subject, server));
        return Finding::warning(subject, says, read).mend([mend]);
    }
    Finding::info(subject, says, read)
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Kept, Read};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, unknown, with};
    use super::*;
    use crate::marker::between;

    const NOON: u64 = 1_763_906_600_000;

    fn lost(losses: &[(u64, u64)], now: u64, empty_for: Option<Duration>) -> Read<Marker> {
        let losses = losses.iter().map(|&(from, to)| between(from, to)).collect();
        Read::Got(Marker::Kept(Kept { empty_for, now, losses, ..Kept::default() }))
    }

    fn of(losses: &[(u64, u64)], now: u64) -> Finding {
        broken("data-loss", |f| f.groups[0].servers[0].marker = lost(losses, now, None))
    }

    #[test]
    fn a_loss_is_named_with_what_it_means_for_keys() {
        fine("data-loss");
        let found = of(&[(1, 2), (NOON + 100, NOON + 1_399)], NOON + 3_600_000);
        assert_eq!((found.verdict, &*found.subject), (Verdict::Info, "orders-a"));
        // 2E is 4 s.
        assert_eq!(
            found.says,
            "lost at most 1.3 s of writes, 2025-11-23 14:03:20.1–14:03:21.4 UTC; keys whose \
             created_at is not after 2025-11-23 14:03:25.4 UTC, or is not given, count as \
             forgotten for another 23 h 1 min (with a retention of 24 h); where a request of \
             those moments may run again, accept_loss of 6 s or more on its namespace ends that"
        );
        let long = of(&[(NOON, NOON + 600_000)], NOON + 600_000);
        assert!(long.says.starts_with("lost at most 10 min 1 s of writes"), "{long:?}");
        assert!(long.says.ends_with("24 h)"), "{long:?}");
        let all = of(&[(0, NOON)], NOON);
        assert!(all.says.starts_with("may have lost every write until 2025-11-23"), "{all:?}");
        assert!(all.says.ends_with("24 h)"), "{all:?}");
    }

    #[test]
    fn a_server_that_lost_everything_is_told_what_to_do() {
        let marker = Kept {
            lost_everything: true,
            now: NOON + 1,
            losses: vec![between(0, NOON)],
            ..Kept::default()
        };
        let found = broken("data-loss", |f| {
            f.groups[0].servers[0].marker = Read::Got(Marker::Kept(marker));
        });
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.says.contains("palisade idem decide"), "{found:?}");
        assert!(found.says.contains("palisade init --lost-everything"), "{found:?}");
        assert!(found.mend[0].starts_with("palisade idem incidents --sentinel"), "{found:?}");
    }

    #[test]
    fn an_old_loss_and_a_server_that_began_empty_are_not_reported_here() {
        let of = |losses: &[(u64, u64)], now, empty_for| {
            let marker = lost(losses, now, empty_for);
            with("data-loss", |f| f.groups[0].servers[0].marker = marker, |_| {});
        };
        of(&[(NOON, NOON + 1)], NOON + 1 + 86_400_000, None);
        of(&[(0, NOON)], NOON + 1, Some(Duration::from_millis(1)));
        let closed = |f: &mut Facts| {
            f.groups[0].servers[0].marker = Read::Closed("GET not allowed".into());
        };
        assert_eq!(unknown("data-loss", closed).says, "unknown (GET not allowed)");
    }
}
