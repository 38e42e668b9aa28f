//! A lock can be acquired and released.

use super::super::facts::{Facts, Outcome, Trial};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "trial",
    severity: Severity::Error,
    title: "a lock with a random name is granted and released",
    why: "the application does the same",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.trials.iter().map(judge).collect()
}

fn judge(trial: &Trial) -> Finding {
    let subject = trial.subject.as_str();
    match &trial.came_to {
        Outcome::Granted { granted, released } => {
            let ms = |d: &std::time::Duration| d.as_secs_f64() * 1_000.0;
            let read =
                format!("granted in {:.1} ms, released in {:.1} ms", ms(granted), ms(released));
            Finding::fine(subject, read)
        }
        Outcome::NotReleased(why) => {
            Finding::warning(subject, "granted, but the release was not confirmed", why)
        }
        Outcome::Quarantined(left) => {
            let says = "it grants nothing yet: it was restarted, promoted or lost its data, or is \
                        used for the first time; this ends by itself";
            Finding::warning(subject, says, format!("{:.1} s are left", left.as_secs_f64()))
        }
        Outcome::Refused { why, misconfigured: true } => {
            Finding::error(subject, "no lock is granted until a setting is changed", why)
        }
        Outcome::Refused { why, misconfigured: false } => {
            Finding::error(subject, "no lock is granted", why)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine};
    use super::*;

    #[test]
    fn each_outcome_is_reported_as_what_it_is() {
        fine("trial");
        let with = |came_to| broken("trial", |f| f.trials[0].came_to = came_to);
        let found = with(Outcome::Quarantined(Duration::from_millis(12_340)));
        assert_eq!((found.verdict, found.read.as_str()), (Verdict::Warning, "12.3 s are left"));
        let refused =
            |misconfigured| with(Outcome::Refused { why: "check absent".into(), misconfigured });
        assert_eq!(refused(true).verdict, Verdict::Error);
        assert!(refused(true).says.contains("setting"));
        assert_eq!(refused(false).read, "check absent");
        let found = with(Outcome::NotReleased("the lease had run out".into()));
        assert_eq!(found.verdict, Verdict::Warning);
    }
}
