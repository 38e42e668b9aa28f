//! There are enough Sentinels to outvote one that is cut off.

use super::super::facts::{Facts, Group, Sentinel};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "sentinel-count",
    severity: Severity::Error,
    title: "an odd number of Sentinels, at least three",
    why: "a failover needs a majority of all Sentinels ever known: two tolerate no loss, and four \
          no more losses than three",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.watches().map(|(group, sentinel)| judge(group, sentinel)).collect()
}

fn judge(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let all = match sentinel.counts() {
        Ok((_, others)) => others.saturating_add(1),
        Err(why) => return Finding::unknown(subject, why),
    };
    let read = format!("it knows {all} Sentinels, itself included");
    let add = || one_more(group, all.div_ceil(2) + 1);
    if all < 3 {
        let says = format!(
            "with {all}, no failover is possible after the loss of one Sentinel or its \
                     network"
        );
        Finding::error(subject, says, read).mend([add()])
    } else if all % 2 == 0 {
        let says = format!("{all} Sentinels tolerate no more losses than {} do", all - 1);
        Finding::warning(subject, says, read).mend([add()])
    } else {
        Finding::fine(subject, read)
    }
}

/// The command that starts another Sentinel; it finds the others by itself.
pub(super) fn one_more(group: &Group, quorum: u64) -> String {
    let at = group.master_at().unwrap_or_else(|| "<master's host>:<port>".into());
    let (host, port) = at.rsplit_once(':').unwrap_or((&at, "6379"));
    format!(
        "echo 'sentinel monitor {} {host} {port} {quorum}' >>sentinel.conf; \
         redis-sentinel sentinel.conf    # on another box",
        group.name
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Verdict;
    use super::super::tests::{all_masters, broken, fine};

    #[test]
    fn too_few_are_an_error_and_an_even_number_a_warning() {
        fine("sentinel-count");
        let with =
            |others| broken("sentinel-count", |f| all_masters(f, "num-other-sentinels", others));
        for others in ["0", "1"] {
            assert_eq!(with(others).verdict, Verdict::Error);
        }
        assert!(with("1").mend[0].contains("sentinel monitor orders-a 10.0.0.1 6379 2"));
        assert_eq!(with("3").verdict, Verdict::Warning);
    }
}
