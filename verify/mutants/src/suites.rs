//! The suites that have to notice a change, the quickest first.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Mutant;
use crate::copy::Copy;

/// Largest factor by which a change may prolong a suite: one that a change makes hang has noticed
/// it.
const PATIENCE: u32 = 5;
/// A quick suite may wait for the other programs of the machine.
const SHORTEST: Duration = Duration::from_secs(120);
/// Longest build; the first one compiles the dependencies.
const BUILD: Duration = Duration::from_secs(1_800);

/// Result of a change.
pub(crate) enum Verdict {
    /// The change does not compile; not counted.
    DoesNotBuild,
    /// The suite that failed.
    Found(&'static str),
    /// The suite that did not end.
    Hangs(&'static str),
    /// All suites passed.
    Unnoticed,
}

impl Verdict {
    pub(crate) fn word(&self, mutant: &Mutant) -> String {
        match self {
            Self::DoesNotBuild => "no build".into(),
            Self::Found(suite) => (*suite).into(),
            Self::Hangs(suite) => format!("{suite} hangs"),
            Self::Unnoticed if mutant.is_equivalent() => "equal".into(),
            Self::Unnoticed => "SURVIVED".into(),
        }
    }
}

struct Suite {
    name: &'static str,
    args: &'static [&'static str],
}

impl Suite {
    fn cargo_args(&self) -> Vec<&'static str> {
        let mut all = vec!["test"];
        if !self.args.contains(&"-p") {
            all.push("--all-features");
        }
        all.extend(self.args);
        all
    }

    fn builds(&self, copy: &Copy) -> Result<bool, String> {
        let mut args = self.cargo_args();
        args.push("--no-run");
        Ok(cargo(copy.dir(), &args, BUILD)? == End::Passed)
    }
}

/// In this order.
const SUITES: [Suite; 5] = [
    Suite { name: "unit", args: &["--lib"] },
    Suite { name: "contract", args: &["-p", "palisade-testing"] },
    Suite { name: "nodes", args: &["--test", "nodes"] },
    Suite {
        name: "callers",
        args: &["--test", "locks", "--test", "idempotency", "--test", "election"],
    },
    Suite { name: "sim", args: &["--release", "-p", "sim", "--test", "slice"] },
];

/// The suites, and how long each may take on this machine.
pub(crate) struct Suites([Duration; SUITES.len()]);

impl Suites {
    /// Builds the suites without any change, which takes minutes the first time, and runs them.
    pub(crate) fn new(copy: &Copy) -> Result<Self, String> {
        for suite in &SUITES {
            if !suite.builds(copy)? {
                return Err(format!("`{}` does not build without any change", suite.name));
            }
        }
        let mut longest = [SHORTEST; SUITES.len()];
        for (suite, longest) in SUITES.iter().zip(&mut longest) {
            let began = Instant::now();
            // A suite that fails without a change shows nothing.
            if cargo(copy.dir(), &suite.cargo_args(), Duration::MAX)? != End::Passed {
                return Err(format!("`{}` fails without any change", suite.name));
            }
            let took = began.elapsed();
            eprintln!("{:>13} {:>4} s  without any change", suite.name, took.as_secs());
            *longest = SHORTEST.max(took * PATIENCE);
        }
        Ok(Self(longest))
    }

    /// Runs the suites with the change until one fails or does not end.
    pub(crate) fn judge(&self, copy: &Copy, mutant: &Mutant) -> Result<Verdict, String> {
        let is_script = is_script(mutant);
        for (suite, &longest) in SUITES.iter().zip(&self.0) {
            // No script runs there.
            if is_script && ["unit", "contract", "sim"].contains(&suite.name) {
                continue;
            }
            // A script is text to the compiler.
            if !is_script && !suite.builds(copy)? {
                return Ok(Verdict::DoesNotBuild);
            }
            match cargo(copy.dir(), &suite.cargo_args(), longest)? {
                End::Passed => {}
                End::Failed => return Ok(Verdict::Found(suite.name)),
                End::Hangs => return Ok(Verdict::Hangs(suite.name)),
            }
        }
        Ok(Verdict::Unnoticed)
    }
}

fn is_script(mutant: &Mutant) -> bool {
    mutant.file.extension().is_some_and(|e| e == "lua")
}

/// End of a run of cargo.
#[derive(PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    /// It took longer than it may, and was ended.
    Hangs,
}

/// Runs cargo in the copy. Ends the run at the first test that fails: one is enough.
fn cargo(dir: &Path, args: &[&str], longest: Duration) -> Result<End, String> {
    // A group of its own, so that the tests' programs end with it.
    let mut command = Command::new("cargo");
    command.current_dir(dir).args(args).env("CARGO_TARGET_DIR", dir.join("target"));
    // A backtrace is not read here, and most of the time is spent building.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().map_err(|e| format!("cargo: {e}"))?;
    let failed = watch(&mut child);
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("cargo: {e}"))? {
            return Ok(if status.success() { End::Passed } else { End::Failed });
        }
        let failed = failed.load(Ordering::Relaxed);
        if failed || started.elapsed() > longest {
            let group = format!("-{}", child.id());
            let ended = Command::new("kill").args(["-KILL", "--", &group]).status();
            ended.map_err(|e| format!("kill: {e}"))?;
            child.wait().map_err(|e| format!("cargo: {e}"))?;
            return Ok(if failed { End::Failed } else { End::Hangs });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Reads what the tests print; the flag is set when one has failed.
fn watch(child: &mut Child) -> Arc<AtomicBool> {
    let failed = Arc::new(AtomicBool::new(false));
    let (flag, stdout) = (Arc::clone(&failed), child.stdout.take().expect("it is piped"));
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.starts_with("test ") && line.ends_with("... FAILED") {
                flag.store(true, Ordering::Relaxed);
            }
        }
    });
    failed
}
