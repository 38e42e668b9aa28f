//! The report for people: what is wrong first, with what mends it; what is fine only counted.

use std::collections::BTreeSet;
use std::fmt;

use super::report::{Finding, Report, Verdict};

/// Columns of text.
const WIDTH: usize = 96;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        while let Some(first) = self.findings.get(shown).filter(|x| x.verdict != Verdict::Fine) {
            // One check often says the same of several subjects: why it matters is told once.
            let same = |x: &&Finding| x.check == first.check && x.verdict == first.verdict;
            let together: Vec<_> = self.findings[shown..].iter().take_while(same).collect();
            entry(f, &together)?;
            shown += together.len();
        }
        let fine: BTreeSet<_> = self.findings[shown..].iter().map(|x| x.check).collect();
        let told: BTreeSet<_> = self.findings[..shown].iter().map(|x| x.check).collect();
        let counts = [(Verdict::Error, "error"), (Verdict::Warning, "warning")];
        for (verdict, word) in counts {
            let n = self.count(verdict);
            if n > 0 {
                write!(f, "{n} {word}{}, ", if n == 1 { "" } else { "s" })?;
            }
        }
        if self.count(Verdict::Unknown) > 0 {
            write!(f, "{} unknown, ", self.count(Verdict::Unknown))?;
        }
        writeln!(f, "{} checks fine", fine.difference(&told).count())
    }
}

fn entry(f: &mut fmt::Formatter<'_>, together: &[&Finding]) -> fmt::Result {
    let first = together[0];
    writeln!(f, "{:<8} {}", first.verdict, first.check)?;
    for finding in together {
        wrapped(f, 9, &format!("{}: {}", finding.subject, finding.says))?;
        if !finding.read.is_empty() {
            wrapped(f, 11, &format!("read: {}", finding.read))?;
        }
    }
    if first.verdict != Verdict::Unknown && !first.why.is_empty() {
        wrapped(f, 9, &format!("why: {}", first.why))?;
    }
    let mut told = BTreeSet::new();
    for command in together.iter().flat_map(|x| &x.mend) {
        if told.insert(command) {
            // Never broken: it is there to be pasted.
            writeln!(f, "         $ {command}")?;
        }
    }
    writeln!(f)
}

/// Words at this indent, further lines two deeper.
fn wrapped(f: &mut fmt::Formatter<'_>, indent: usize, text: &str) -> fmt::Result {
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
