//! A short pause of the master starts no failover.

use std::time::Duration;

use super::super::facts::{Facts, Group, Sentinel};
use super::super::report::{Finding, Severity};
use super::Check;
use palisade::internal::ADVISED_DOWN_AFTER;

pub(super) const CHECK: Check = Check {
    id: "down-after",
    severity: Severity::Warning,
    title: "down-after-milliseconds is at least 2 s",
    why: "with less, a master that pauses for a second is replaced (down-after 1 s: promoted 1.5 s \
          after the cut, measured)",
    run,
};

const LEAST: Duration = Duration::from_secs(2);

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let Some(ms) = sentinel.number("down-after-milliseconds") else {
        let why = sentinel.master.known().err();
        return Finding::unknown(subject, why.unwrap_or_else(|| "no Sentinel reports it".into()));
    };
    let read = format!("down-after-milliseconds {ms}");
    if Duration::from_millis(ms) >= LEAST {
        return Finding::fine(subject, read);
    }
    let says = "a short pause of the server is enough for a failover";
    let advised = ADVISED_DOWN_AFTER.as_millis();
    let set = format!("SENTINEL SET {} down-after-milliseconds {advised}", group.name);
    Finding::warning(subject, says, read).mend([sentinel.by_hand(&set)])
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all_masters, broken, fine};

    #[test]
    fn too_short_is_reported() {
        fine("down-after");
        let found = broken("down-after", |f| all_masters(f, "down-after-milliseconds", "1999"));
        assert!(found.mend[0].ends_with("SENTINEL SET orders-a down-after-milliseconds 4000"));
    }
}
