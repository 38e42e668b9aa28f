//! `mutants`: changes the library in small ways, one at a time, and reports which changes its quick
//! tests do not notice.
//!
//! ```text
//! list   cargo-mutants names the changes of the Rust files, lua.rs those of the scripts
//! draw   the list is shuffled by the seed, and a shard of it taken
//! try    each change is made in a copy of the repository, and the suites run there, the quickest
//!        first, until one of them fails
//! ```
//!
//! A change that no test notices either shows a missing test, or it is equivalent: nothing that is
//! promised depends on it. Those are listed with their reasons in `equivalent.txt`. The last line
//! is JSON; the exit code is 1 if any other change was not noticed.

mod copy;
mod draw;
mod lua;
mod rust;
mod suites;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::copy::Copy;
use crate::draw::Shard;
use crate::suites::{Suites, Verdict};

/// Tries whether the tests notice small changes of the code.
#[derive(Parser)]
struct Args {
    /// The part of the shuffled list to try, as `k/n`; by default about a hundred changes.
    #[arg(long)]
    shard: Option<Shard>,
    /// Shuffles the list.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only changes whose name contains this text, such as `src/quorum`.
    #[arg(long)]
    only: Option<String>,
    /// Print the drawn changes and end.
    #[arg(long)]
    list: bool,
    /// End the trials after this many seconds; what was not tried is not counted.
    #[arg(long)]
    seconds: Option<u64>,
}

/// One change: a range of a file, and what to put there.
pub(crate) struct Mutant {
    file: PathBuf,
    /// Line and column, from 1.
    place: (usize, usize),
    /// The change, and its function or line.
    change: String,
    /// In bytes.
    range: std::ops::Range<usize>,
    replacement: String,
}

impl Mutant {
    /// Returns true if the list of equivalent changes has it. Lines move, so places are not
    /// compared.
    fn is_equivalent(&self) -> bool {
        let name = format!("{}: {}", self.file.display(), self.change);
        // Each has its reason above it.
        include_str!("../equivalent.txt").lines().any(|l| l.trim() == name)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.place;
        write!(f, "{}:{line}:{column}: {}", self.file.display(), self.change)
    }
}

#[derive(Default, serde::Serialize)]
struct Sum {
    /// Changes that build.
    mutants: usize,
    found: usize,
    equivalent: usize,
    survived: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(sum) if sum.survived == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("mutants: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<Sum, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let mut all = rust::list(&root)?;
    all.extend(lua::list(&root)?);
    if let Some(text) = &args.only {
        all.retain(|m| m.to_string().contains(text.as_str()));
    }
    let total = all.len();
    let drawn = draw::draw(all, args.seed, args.shard);
    eprintln!("{} of {total} changes", drawn.len());
    let mut sum = Sum::default();
    if args.list {
        for mutant in &drawn {
            println!("{mutant}");
        }
        return Ok(sum);
    }
    let copy = Copy::of(&root)?;
    let suites = Suites::new(&copy)?;
    let started = Instant::now();
    let until = args.seconds.map(|s| started + Duration::from_secs(s));
    for mutant in &drawn {
        if until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        let tried = Instant::now();
        let verdict = copy.with(mutant, || suites.judge(&copy, mutant))?;
        println!("{:>13} {:>4} s  {mutant}", verdict.word(mutant), tried.elapsed().as_secs());
        match verdict {
            Verdict::DoesNotBuild => continue,
            Verdict::Found(_) | Verdict::Hangs(_) => sum.found += 1,
            Verdict::Unnoticed if mutant.is_equivalent() => sum.equivalent += 1,
            Verdict::Unnoticed => sum.survived += 1,
        }
        sum.mutants += 1;
    }
    eprintln!("{} s", started.elapsed().as_secs());
    println!("{}", serde_json::to_string(&sum).expect("numbers"));
    Ok(sum)
}
