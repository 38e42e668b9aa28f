//! The suites that have to notice a change, the quickest first.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::Mutant;
use crate::copy::Copy;

/// Longer than any suite takes on a busy machine: a change that makes one hang is found.
const LONGEST: Duration = Duration::from_secs(240);

/// Result of a change.
pub(crate) enum Verdict {
    /// The change does not compile; not counted.
    DoesNotBuild,
    /// The suite that failed.
    Found(&'static str),
    /// All suites passed.
    Unnoticed,
}

impl Verdict {
    pub(crate) fn word(&self, mutant: &Mutant) -> &'static str {
        match self {
            Self::DoesNotBuild => "no build",
            Self::Found(suite) => suite,
            Self::Unnoticed if mutant.is_equivalent() => "equal",
            Self::Unnoticed => "SURVIVED",
        }
    }
}

struct Suite {
    name: &'static str,
    args: &'static [&'static str],
}

impl Suite {
    fn cargo_args(&self) -> Vec<&'static str> {
        let mut all = vec!["test", "--quiet"];
        if !self.args.contains(&"-p") {
            all.push("--all-features");
        }
        all.extend(self.args);
        all
    }
}

/// In this order.
const SUITES: [Suite; 4] = [
    Suite { name: "unit", args: &["--lib"] },
    Suite { name: "nodes", args: &["--test", "nodes"] },
    Suite {
        name: "callers",
        args: &["--test", "locks", "--test", "idempotency", "--test", "election"],
    },
    Suite { name: "sim", args: &["--release", "-p", "sim", "--test", "slice"] },
];

/// Builds the suites without any change; the first time that takes minutes.
pub(crate) fn build(copy: &Copy) -> Result<(), String> {
    for suite in &SUITES {
        let mut args = suite.cargo_args();
        args.push("--no-run");
        if !cargo(copy.dir(), &args, Duration::MAX)?.is_some_and(|s| s.success()) {
            return Err(format!("`{}` does not build without any change", suite.name));
        }
    }
    Ok(())
}

/// Runs the suites until one fails.
pub(crate) fn judge(copy: &Copy, mutant: &Mutant) -> Result<Verdict, String> {
    // A script is text to the compiler.
    if !is_script(mutant) {
        let mut args = SUITES[0].cargo_args();
        args.push("--no-run");
        if !cargo(copy.dir(), &args, LONGEST)?.is_some_and(|s| s.success()) {
            return Ok(Verdict::DoesNotBuild);
        }
    }
    Ok(failing(copy, Some(mutant))?.map_or(Verdict::Unnoticed, Verdict::Found))
}

/// Returns the first suite that fails, or hangs.
pub(crate) fn failing(
    copy: &Copy,
    mutant: Option<&Mutant>,
) -> Result<Option<&'static str>, String> {
    let is_script = mutant.is_some_and(is_script);
    for suite in &SUITES {
        // No script runs there.
        if is_script && ["unit", "sim"].contains(&suite.name) {
            continue;
        }
        if !cargo(copy.dir(), &suite.cargo_args(), LONGEST)?.is_some_and(|s| s.success()) {
            return Ok(Some(suite.name));
        }
    }
    Ok(None)
}

fn is_script(mutant: &Mutant) -> bool {
    mutant.file.extension().is_some_and(|e| e == "lua")
}

/// Runs cargo in the copy; nothing if it took longer and was ended.
fn cargo(dir: &Path, args: &[&str], longest: Duration) -> Result<Option<ExitStatus>, String> {
    // A group of its own, so that the tests' programs end with it.
    let mut command = Command::new("cargo");
    command.current_dir(dir).args(args).env("CARGO_TARGET_DIR", dir.join("target"));
    // A backtrace is not read here, and most of the time is spent building.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(|e| format!("cargo: {e}"))?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("cargo: {e}"))? {
            return Ok(Some(status));
        }
        if started.elapsed() > longest {
            let group = format!("-{}", child.id());
            let ended = Command::new("kill").args(["-KILL", "--", &group]).status();
            ended.map_err(|e| format!("kill: {e}"))?;
            child.wait().map_err(|e| format!("cargo: {e}"))?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
