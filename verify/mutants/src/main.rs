//! `mutants`: changes the library in small ways, one at a time, and reports the changes that no
//! quick test detects.
//!
//! ```text
//! list      cargo-mutants names the changes of the Rust files, lua.rs those of the scripts
//! draw      the list is shuffled by the seed, and a shard of it is taken
//! switch    a copy of the repository gets all these changes, each behind a switch, and is built
//!           once; a change that does not build is replaced by the next of the list
//! reach     the suites run without any change and record which test reaches which change
//! try       each change is turned on, and the tests that reach it run, those of the quickest suite
//!           first, until one of them fails twice
//! ```
//!
//! A change that no test detects has two possible causes. A test may be missing. Or the change is
//! equivalent: it breaks no documented guarantee. The file `equivalent.txt` lists the equivalent
//! changes with their reasons. The last line of the output is JSON. The exit code is 1 if a change
//! is not detected and not equivalent.

mod copy;
mod draw;
mod lua;
mod rust;
mod suites;
mod switches;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser;

use crate::copy::Copy;
use crate::draw::Shard;
use crate::suites::{Program, Verdict};
use crate::switches::Switched;

/// Tests whether the library's tests notice small changes of the code.
#[derive(Parser)]
struct Args {
    /// Part of the shuffled list to try, as `k/n`; by default a hundred changes.
    #[arg(long)]
    shard: Option<Shard>,
    /// Seed that shuffles the list of changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only changes whose name contains one of these texts, such as `src/quorum`.
    #[arg(long)]
    only: Vec<String>,
    /// Print the changes of the library that were drawn, and end.
    #[arg(long)]
    list: bool,
}

/// Number of changes that are tried concurrently. The test programs spend most of their time
/// waiting.
const AT_A_TIME: usize = 3;

/// A small change of the library's code: a range of a file, and its replacement text.
pub(crate) struct Mutant {
    file: PathBuf,
    /// Line and column of the change, counted from 1.
    place: (usize, usize),
    /// Description of the change, with the name of its function or its line.
    change: String,
    /// Byte range of the file that is replaced.
    range: Range<usize>,
    replacement: String,
}

impl Mutant {
    /// Returns true if `equivalent.txt` lists this change of the library. The line and column are
    /// not compared, because lines move.
    fn is_equivalent(&self) -> bool {
        let name = format!("{}: {}", self.file.display(), self.change);
        // The other lines of `equivalent.txt` give reasons, so a whole line must be equal.
        include_str!("../equivalent.txt").lines().any(|l| l.trim() == name)
    }

    fn is_script(&self) -> bool {
        self.file.extension().is_some_and(|e| e == "lua")
    }

    /// Returns a part of the file with this change made. The part begins at the byte `offset` of
    /// the file.
    fn made(&self, part: &str, offset: usize) -> String {
        let mut text = part.to_owned();
        text.replace_range(self.range.start - offset..self.range.end - offset, &self.replacement);
        text
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
    /// Number of changes that were tried. Changes that do not build are not counted.
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
    let started = Instant::now();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let mut all = rust::list(&root)?;
    all.extend(lua::list(&root)?);
    all.retain(|m| {
        let name = m.to_string();
        args.only.is_empty() || args.only.iter().any(|text| name.contains(text))
    });
    let total = all.len();
    let (drawn, wanted) = draw::draw(all, args.seed, args.shard);
    if args.list {
        drawn.iter().take(wanted).for_each(|mutant| println!("{mutant}"));
        return Ok(Sum::default());
    }
    let copy = Copy::of(&root)?;
    let built = put_switches(&copy, &drawn)?;
    let tried: Vec<usize> = built.into_iter().take(wanted).collect();
    eprintln!("{} of {total} changes", tried.len());
    let mut programs = suites::build(&copy)?;
    // All test programs run concurrently, because most of them only wait. A program that fails
    // under this load runs again alone.
    let explored: Vec<_> = std::thread::scope(|scope| {
        let explore = |program| scope.spawn(|| Program::explore(program, &copy));
        let explorers: Vec<_> = programs.iter_mut().map(explore).collect();
        explorers.into_iter().map(|explorer| explorer.join().expect("no thread panics")).collect()
    });
    for (program, explored) in programs.iter_mut().zip(explored) {
        if explored.is_err() {
            program.explore(&copy)?;
        }
    }
    eprintln!("{:>13} {:>4} s", "prepared", started.elapsed().as_secs());
    let sum = try_all(&drawn, tried, &programs)?;
    eprintln!("{} s", started.elapsed().as_secs());
    println!("{}", serde_json::to_string(&sum).expect("numbers"));
    Ok(sum)
}

/// Writes the drawn mutants (changes of the code) into the copy of the repository. A switch turns
/// each change on. Returns the numbers of the changes that build.
fn put_switches(copy: &Copy, drawn: &[Mutant]) -> Result<BTreeSet<usize>, String> {
    let mut files: BTreeMap<&Path, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (id, mutant) in drawn.iter().enumerate() {
        files.entry(&mutant.file).or_default().push((id, mutant));
    }
    let (scripts, sources): (BTreeMap<_, _>, BTreeMap<_, _>) =
        files.into_iter().partition(|(_, changes)| changes[0].1.is_script());
    copy.add_module(scripts.values().flatten())?;
    let texts: Vec<String> = sources.keys().map(|f| copy.text(f)).collect::<Result<_, _>>()?;
    let mut builds: BTreeSet<usize> = (0..drawn.len()).collect();
    loop {
        let mut switched = BTreeMap::new();
        let mut kept: BTreeSet<usize> = scripts.values().flatten().map(|(id, _)| *id).collect();
        for ((file, changes), text) in sources.iter().zip(&texts) {
            let changes: Vec<_> =
                changes.iter().filter(|(id, _)| builds.contains(id)).copied().collect();
            let new =
                Switched::new(text, &changes).map_err(|e| format!("{}: {e}", file.display()))?;
            copy.write(file, &new.text)?;
            kept.extend(new.ids());
            switched.insert(*file, new);
        }
        let errors = suites::check(copy)?;
        let wrong: BTreeSet<usize> = errors.iter().flat_map(|e| e.changes(&switched)).collect();
        if let (Some(error), true) = (errors.first(), wrong.is_empty()) {
            return Err(format!("the switches do not build:\n{}", error.message));
        }
        eprintln!("{:>13} {:>4} changes do not build", "check", wrong.len());
        builds = &kept - &wrong;
        if wrong.is_empty() {
            return Ok(builds);
        }
    }
}

/// Runs the tests with each change, several changes at a time, and prints the result of each
/// change.
fn try_all(drawn: &[Mutant], tried: Vec<usize>, programs: &[Program]) -> Result<Sum, String> {
    let (next, sum) = (Mutex::new(tried.into_iter()), Mutex::new(Sum::default()));
    let work = || {
        loop {
            let Some(id) = next.lock().expect("no thread panics").next() else { return Ok(()) };
            let (mutant, began) = (&drawn[id], Instant::now());
            let verdict = suites::judge(programs, id, mutant)?;
            let mut sum = sum.lock().expect("no thread panics");
            sum.mutants += 1;
            let word = match verdict {
                Verdict::Found(word) => {
                    sum.found += 1;
                    word
                }
                Verdict::Unnoticed if mutant.is_equivalent() => {
                    sum.equivalent += 1;
                    "equal".to_owned()
                }
                Verdict::Unnoticed => {
                    sum.survived += 1;
                    "SURVIVED".to_owned()
                }
            };
            println!("{word:>17} {:>4} s  {mutant}", began.elapsed().as_secs());
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
    })
    .map(|()| sum.into_inner().expect("no thread panics"))
}
