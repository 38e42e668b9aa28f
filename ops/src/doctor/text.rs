//! The doctor's report as text for people. Faults come first; checks without one are only counted.

use std::collections::BTreeSet;
use std::fmt;

use super::report::{Finding, Report, Verdict};

/// In columns.
const WIDTH: usize = 96;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        while let Some(first) = self.findings.get(shown).filter(|x| x.verdict != Verdict::Fine) {
            // The reason is printed once for all of them.
            let same = |x: &&Finding| x.check == first.check && x.verdict == first.verdict;
            let together: Vec<_> = self.findings[shown..].iter().take_while(same).collect();
            entry(f, &together)?;
            shown += together.len();
        }
        let fine: BTreeSet<_> = self.findings[shown..].iter().map(|x| x.check).collect();
        let reported: BTreeSet<_> = self.findings[..shown].iter().map(|x| x.check).collect();
        let counts = [(Verdict::Error, "error"), (Verdict::Warning, "warning")];
        for (verdict, noun) in counts {
            let n = self.count(verdict);
            if n > 0 {
                write!(f, "{n} {noun}{}, ", if n == 1 { "" } else { "s" })?;
            }
        }
        if self.count(Verdict::Unknown) > 0 {
            write!(f, "{} unknown, ", self.count(Verdict::Unknown))?;
        }
        let n = fine.difference(&reported).count();
        writeln!(f, "{n} check{} fine", if n == 1 { "" } else { "s" })
    }
}

fn entry(f: &mut fmt::Formatter<'_>, together: &[&Finding]) -> fmt::Result {
    let first = together[0];
    writeln!(f, "{:<8} {}", first.verdict, first.check)?;
    let mut rest = together;
    while let Some(finding) = rest.first() {
        let alike = |x: &&&Finding| x.message == finding.message && x.evidence == finding.evidence;
        let n = rest.iter().take_while(alike).count();
        let subjects: Vec<_> = rest[..n].iter().map(|x| x.subject.as_str()).collect();
        wrapped(f, 9, &format!("{}: {}", subjects.join(", "), finding.message))?;
        if !finding.evidence.is_empty() {
            wrapped(f, 11, &format!("read: {}", finding.evidence))?;
        }
        rest = &rest[n..];
    }
    if first.verdict != Verdict::Unknown && !first.why.is_empty() {
        wrapped(f, 9, &format!("why: {}", first.why))?;
    }
    let mut printed = BTreeSet::new();
    for command in together.iter().flat_map(|x| &x.fix) {
        if printed.insert(command) {
            // People paste commands.
            writeln!(f, "         $ {command}")?;
        }
    }
    writeln!(f)
}

/// The first line is indented by `indent` columns, each further line by two more.
pub(super) fn wrapped(f: &mut fmt::Formatter<'_>, indent: usize, text: &str) -> fmt::Result {
    let mut line = " ".repeat(indent);
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{line}")?;
            line = " ".repeat(indent + 2);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(f, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade::internal::Secrets;

    #[test]
    fn findings_come_first_and_equal_ones_share_an_entry() {
        let with = |f: Finding, check, why| Finding { check, why, ..f };
        let weak = |at: &str| {
            let fix = [format!("redis-cli -h {at} CONFIG SET x 1")];
            with(Finding::error("x is off", "x 0").fix(fix).on(at), "x-off", "it hurts")
        };
        let findings = vec![
            with(Finding::fine("all").on("a"), "y", "never shown"),
            with(Finding::fine("x 1").on("c"), "x-off", "it hurts"),
            weak("a"),
            weak("b"),
            with(Finding::unknown("CONFIG not allowed").on("a"), "z", "never shown"),
        ];
        let report = Report::new(true, findings, &Secrets::default());
        let want = "\
error    x-off
         a, b: x is off
           read: x 0
         why: it hurts
         $ redis-cli -h a CONFIG SET x 1
         $ redis-cli -h b CONFIG SET x 1

unknown  z
         a: unknown (CONFIG not allowed)

2 errors, 1 unknown, 1 check fine
";
        assert_eq!(report.to_string(), want);
        assert_eq!((report.exit_code(false), report.exit_code(true)), (2, 2));
    }

    #[test]
    fn exit_codes() {
        let warned = || vec![Finding::warning("x", "y")];
        assert_eq!(Report::new(true, warned(), &Secrets::default()).exit_code(false), 0);
        assert_eq!(Report::new(true, warned(), &Secrets::default()).exit_code(true), 1);
        assert_eq!(Report::new(false, warned(), &Secrets::default()).exit_code(true), 69);
        let unknown = vec![Finding::unknown("x")];
        assert_eq!(Report::new(true, unknown, &Secrets::default()).exit_code(true), 0);
    }
}
