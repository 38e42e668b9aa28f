//! Breaks one part of a good deployment, runs `palisade doctor`, repairs the part, and runs the
//! doctor again.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use crate::doctor::{Finding, Patient, Report, Verdict};
use crate::lab::PATIENCE;

/// A finding that is not fine: the id of its check, its verdict, and its subject.
pub(crate) type Complaint = (String, Verdict, String);

/// A good deployment, and the findings that the doctor reports about it.
pub(crate) struct Bench {
    patient: Patient,
    good: BTreeSet<Complaint>,
}

impl Bench {
    /// Runs the doctor on the good (unbroken) deployment, and keeps its findings for later
    /// comparisons.
    ///
    /// # Panics
    /// If the doctor reports an error.
    pub(crate) fn new(patient: Patient) -> Self {
        // The doctor takes a trial lock to see that locking works. A wrong setting could also make
        // this lock fail, which would be one more error. The trial lock has its own tests, so the
        // doctor does not take it here.
        let patient = patient.arg("--no-trial");
        let report = patient.examine();
        assert!(report.all(Verdict::Error).is_empty(), "{:#?}", report.all(Verdict::Error));
        Self { good: report.complaints(), patient }
    }

    /// Runs `change`. Then the doctor must report exactly the findings `expected` in addition.
    /// After `mend` the doctor must report the same findings as before `change`. Returns the report
    /// before `mend`.
    pub(crate) fn exactly(
        &self,
        what: &str,
        expected: &[(&str, Verdict, String)],
        change: impl FnOnce(),
        mend: impl FnOnce(),
    ) -> Report {
        change();
        let report = self.found(what, expected);
        mend();
        self.wait(&format!("{what}, mended"), &self.good, &BTreeSet::new());
        report
    }

    /// Runs `change`. Then `palisade doctor` must report exactly the findings `expected` (results
    /// of its checks) in addition. Runs the commands that the doctor prints for these findings.
    /// After that the doctor must report the same findings as before `change`.
    pub(crate) fn healed(
        &self,
        what: &str,
        expected: &[(&str, Verdict, String)],
        change: impl FnOnce(),
    ) -> Report {
        change();
        let report = self.found(what, expected);
        let of =
            |f: &&Finding| expected.iter().any(|(id, _, of)| f.check == *id && f.subject == *of);
        for command in report.findings.iter().filter(of).flat_map(|f| &f.fix) {
            let out = Command::new("timeout").args(["10", "sh", "-c", command]).output();
            let out = out.expect("a shell");
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && !said.contains("ERR"), "{what}: {command}: {said}");
        }
        self.wait(&format!("{what}, healed"), &self.good, &BTreeSet::new());
        report
    }

    fn found(&self, what: &str, expected: &[(&str, Verdict, String)]) -> Report {
        let owned =
            |(id, verdict, of): &(&str, Verdict, String)| ((*id).to_owned(), *verdict, of.clone());
        let expected: BTreeSet<Complaint> = expected.iter().map(owned).collect();
        let all: BTreeSet<Complaint> = self.good.union(&expected).cloned().collect();
        let report = self.wait(what, &all, &expected);
        let is_one =
            |f: &&Finding| expected.contains(&(f.check.clone(), f.verdict, f.subject.clone()));
        for finding in report.findings.iter().filter(is_one) {
            let reported = [&finding.message, &finding.why];
            assert!(reported.iter().all(|t| !t.is_empty()), "{what}: {finding:#?}");
            let known = finding.verdict != Verdict::Unknown;
            assert!(!known || !finding.evidence.is_empty(), "{what}: {finding:#?}");
            assert!(!known || !finding.fix.is_empty(), "{what}: {finding:#?}");
        }
        report
    }

    /// Runs the doctor until its findings are as expected. Sentinels and replicas may need some
    /// seconds.
    fn wait(
        &self,
        what: &str,
        all: &BTreeSet<Complaint>,
        expected: &BTreeSet<Complaint>,
    ) -> Report {
        let end = Instant::now() + PATIENCE;
        loop {
            let report = self.patient.examine();
            let now = report.complaints();
            // A finding that is no longer there is accepted if the same check reports an expected
            // finding about the same subject instead.
            let replaced = |c: &Complaint| expected.iter().any(|e| e.0 == c.0 && e.2 == c.2);
            let more: Vec<_> = now.difference(all).collect();
            let less: Vec<_> = all.difference(&now).filter(|c| !replaced(c)).collect();
            if more.is_empty() && less.is_empty() && expected.is_subset(&now) {
                return report;
            }
            assert!(
                Instant::now() < end,
                "{what}: not expected {more:#?}\nexpected, but not there {less:#?}\nin {:#?}",
                report.findings.iter().filter(|f| f.verdict != Verdict::Fine).collect::<Vec<_>>()
            );
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}
