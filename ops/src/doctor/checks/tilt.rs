//! Does each Sentinel trust its own clock?

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

/// A Sentinel that only watches, because its clock jumped or its process was stopped.
pub(super) const CHECK: Check = Check {
    id: "tilt",
    severity: Severity::Warning,
    title: "every Sentinel trusts its own clock",
    why: "a Sentinel whose clock jumped or whose process was stopped for two seconds declares no \
          server down for the next thirty; a quorum of such Sentinels replaces no master",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (group, sentinel) in facts.watches() {
        let subject = format!("{} Sentinel {}", group.name, sentinel.at);
        let info = match sentinel.info.known() {
            Ok(info) => info,
            Err(why) => {
                found.push(Finding::unknown(subject, why));
                continue;
            }
        };
        match info.get("sentinel_tilt").map(String::as_str) {
            Some("0") => found.push(Finding::fine(subject, "sentinel_tilt:0")),
            Some(on) => {
                let since = info.get("sentinel_tilt_since_seconds");
                let since = since.map_or_else(String::new, |s| format!(" for {s} s"));
                let says = format!("in TILT{since}: it takes no part in failovers");
                let watch = sentinel.by_hand("INFO sentinel | grep tilt");
                let steal =
                    format!("vmstat 1 5    # on the box of {}: CPU time short?", sentinel.at);
                let read = format!("sentinel_tilt:{on}");
                let found_one = Finding::warning(subject, says, read);
                found.push(found_one.mend([watch, steal]));
            }
            None => found.push(Finding::unknown(subject, "INFO has no sentinel_tilt")),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, fine, unknown};
    use super::*;

    #[test]
    fn a_sentinel_in_tilt() {
        fine("tilt");
        let found = broken("tilt", |f| {
            let Read::Got(info) = &mut f.groups[0].sentinels[1].info else { unreachable!() };
            info.insert("sentinel_tilt".into(), "1".into());
            info.insert("sentinel_tilt_since_seconds".into(), "7".into());
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.2:26379");
        assert!(found.says.starts_with("in TILT for 7 s"), "{found:?}");
        let closed = |f: &mut Facts| {
            f.groups[0].sentinels[0].info = Read::Closed("INFO not allowed".into());
        };
        assert_eq!(unknown("tilt", closed).says, "unknown (INFO not allowed)");
    }
}
