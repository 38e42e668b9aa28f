//! Small changes of the library's Rust files, from the output of `cargo mutants --list`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::Mutant;

/// Modules that decide about leases.
const FILES: [&str; 6] = [
    "src/quorum/**/*.rs",
    "src/rules/**/*.rs",
    "src/node/**/*.rs",
    "src/client/**/*.rs",
    "src/idempotency/**/*.rs",
    "src/election/**/*.rs",
];

/// Files that only tests use.
const EXCEPT: [&str; 2] = ["**/fuzz.rs", "**/tests.rs"];

#[derive(Deserialize)]
struct Listed {
    file: PathBuf,
    name: String,
    replacement: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// A position in a file: line and column in characters, counted from 1.
#[derive(Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn offset(&self, text: &str) -> Option<usize> {
        let line = text.split_inclusive('\n').nth(self.line - 1)?;
        let start = line.as_ptr() as usize - text.as_ptr() as usize;
        let column = line.char_indices().map(|(at, _)| at).nth(self.column - 1);
        Some(start + column.unwrap_or(line.len()))
    }
}

/// Lists all changes (mutants) of the library's Rust files that a run of this program may try.
pub(crate) fn list(root: &Path) -> Result<Vec<Mutant>, String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["mutants", "--list", "--json", "--package", "palisade"]);
    for file in FILES {
        cargo.args(["--file", file]);
    }
    for file in EXCEPT {
        cargo.args(["--exclude", file]);
    }
    // The library guarantees nothing about its debug texts, so their code is not changed.
    cargo.args(["--exclude-re", "impl fmt::Debug for"]);
    let out = cargo.output().map_err(|e| format!("cargo mutants: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo mutants: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let listed: Vec<Listed> = serde_json::from_slice(&out.stdout)
        .map_err(|e| format!("the list of cargo mutants: {e}"))?;
    listed.into_iter().map(|l| l.mutant(root)).collect()
}

impl Listed {
    fn mutant(self, root: &Path) -> Result<Mutant, String> {
        let file = root.join(&self.file);
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", self.name))?;
        let (start, end) = (self.span.start.offset(&text), self.span.end.offset(&text));
        let range = start.zip(end).ok_or_else(|| format!("{}: no such place", self.name))?;
        // In the output of `cargo mutants`, the name of a change begins with the file, the line and
        // the column.
        let change = self.name.splitn(4, ':').last().unwrap_or_default().trim().to_owned();
        Ok(Mutant {
            place: (self.span.start.line, self.span.start.column),
            change,
            file: self.file,
            range: range.0..range.1,
            replacement: self.replacement,
        })
    }
}
