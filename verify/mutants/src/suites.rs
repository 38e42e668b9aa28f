//! The test suites that should detect a change of the library, in order, the quickest first. Also
//! functions that build and run the test programs of a suite.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Mutant;
use crate::copy::Copy;
use crate::switches::Switched;

/// Maximum duration of a test suite with a change of the library, as a multiple of its duration
/// without a change. A suite that takes longer has detected the change.
const PATIENCE: u32 = 3;
/// Time limit of a test program while no change of the library is turned on.
const UNKNOWN: Duration = Duration::from_secs(1_800);
/// Minimum time limit of a suite. Even a quick suite may have to wait for other programs on the
/// machine.
const SHORTEST: Duration = Duration::from_secs(60);

struct Suite {
    name: &'static str,
    build: &'static [&'static str],
    /// Arguments for the test programs of the suite.
    args: &'static [&'static str],
    /// True if the suite runs the library's Lua scripts on real servers.
    on_servers: bool,
}

/// All test suites, in the order in which they run.
const SUITES: [Suite; 5] = [
    Suite {
        name: "unit",
        build: &["test", "--no-run", "--all-features", "--lib"],
        args: &[],
        on_servers: false,
    },
    Suite {
        name: "contract",
        // The command names both packages, so that cargo builds the library with the same features
        // as for the other suites.
        build: &[
            "test",
            "--no-run",
            "--all-features",
            "-p",
            "palisade",
            "-p",
            "palisade-testing",
            "--test",
            "contract",
        ],
        args: &[],
        on_servers: false,
    },
    Suite {
        name: "sim",
        build: &["build", "--release", "-p", "sim", "--bin", "soak"],
        args: &["--seeds", "1000"],
        on_servers: false,
    },
    Suite {
        name: "nodes",
        build: &["test", "--no-run", "--all-features", "--test", "nodes"],
        args: &[],
        on_servers: true,
    },
    Suite {
        name: "callers",
        build: &[
            "test",
            "--no-run",
            "--all-features",
            "-p",
            "palisade",
            "-p",
            "palisade-consumer",
            "--test",
            "locks",
            "--test",
            "idempotency",
            "--test",
            "election",
            "--test",
            "consumer",
            "--test",
            "durability",
            "--test",
            "api",
            "--test",
            "metrics",
            "--test",
            "sentinel",
        ],
        args: &[],
        on_servers: true,
    },
];

/// Result of the tests with one change of the library.
pub(crate) enum Verdict {
    /// A suite failed or did not end. Contains the name of this suite.
    Found(String),
    /// All suites passed, so no test detected the change.
    Unnoticed,
}

/// An error message of the compiler.
pub(crate) struct BuildError {
    pub(crate) message: String,
    /// Files and byte offsets in the message. The first of them is the place of the error.
    places: Vec<(PathBuf, usize)>,
}

impl BuildError {
    /// Returns the numbers of the library's changes (mutants) at the place of this compiler error.
    pub(crate) fn changes(&self, files: &BTreeMap<&Path, Switched>) -> Vec<usize> {
        let found = self.places.iter().find_map(|(file, at)| files.get(&**file)?.at(*at));
        found.unwrap_or_default().to_vec()
    }
}

/// One line of cargo's JSON output.
#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: String,
    spans: Vec<Span>,
}

#[derive(Deserialize)]
struct Span {
    file_name: PathBuf,
    byte_start: usize,
    is_primary: bool,
}

/// Runs cargo in the copy of the repository. Returns the built artifacts and the compiler's errors.
fn cargo(copy: &Copy, args: &[&str]) -> Result<(Vec<Line>, Vec<BuildError>), String> {
    let mut command = Command::new("cargo");
    command.current_dir(copy.dir()).args(args).arg("--message-format=json");
    command.env("CARGO_TARGET_DIR", copy.target()).env("CARGO_INCREMENTAL", "1");
    // The compiler rejects code that certainly panics. With this setting it only warns, and a test
    // can detect such a change.
    command.env("RUSTFLAGS", "--cap-lints=allow");
    let out = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let out = out.map_err(|e| format!("cargo: {e}"))?;
    let lines = out.stdout.split(|b| *b == b'\n');
    let mut lines: Vec<Line> = lines.filter_map(|l| serde_json::from_slice(l).ok()).collect();
    let said = lines.iter_mut().filter_map(|l| l.message.take()).filter(|m| m.level == "error");
    let errors: Vec<BuildError> = said.filter(|m| !m.spans.is_empty()).map(Into::into).collect();
    if !out.status.success() && errors.is_empty() {
        return Err(format!("`cargo {}` fails in {}", args.join(" "), copy.dir().display()));
    }
    Ok((lines, errors))
}

impl From<Message> for BuildError {
    fn from(mut m: Message) -> Self {
        m.spans.sort_by_key(|s| !s.is_primary);
        let places = m.spans.into_iter().map(|s| (s.file_name, s.byte_start)).collect();
        Self { message: m.rendered, places }
    }
}

/// Runs `cargo check` on the library in the copy of the repository. Returns the compiler's errors.
pub(crate) fn check(copy: &Copy) -> Result<Vec<BuildError>, String> {
    Ok(cargo(copy, &["check", "--all-features", "--lib"])?.1)
}

pub(crate) fn build(copy: &Copy) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for suite in &SUITES {
        let (lines, errors) = cargo(copy, suite.build)?;
        if let Some(error) = errors.first() {
            return Err(format!("`{}` does not build: {}", suite.name, error.message));
        }
        for line in lines {
            let (Some(path), Some(manifest)) = (line.executable, line.manifest_path) else {
                continue;
            };
            let dir = manifest.parent().expect("a manifest is in a folder").to_owned();
            let (reached, longest) = (HashMap::new(), UNKNOWN);
            let tests = if suite.build[0] == "test" { tests(&path)? } else { BTreeSet::new() };
            programs.push(Program { suite, path, dir, tests, reached, longest });
        }
    }
    Ok(programs)
}

/// Returns the names of all tests of a program.
fn tests(program: &Path) -> Result<BTreeSet<String>, String> {
    let out = Command::new(program).args(["--list", "--format", "terse"]).output();
    let out = out.map_err(|e| format!("{}: {e}", program.display()))?;
    let lines = String::from_utf8_lossy(&out.stdout);
    let tests = lines.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}

/// One test program of a suite.
pub(crate) struct Program {
    suite: &'static Suite,
    path: PathBuf,
    /// Working folder of the test program.
    dir: PathBuf,
    /// Names of the tests in the program. Empty if the program contains no tests.
    tests: BTreeSet<String>,
    /// Names of the threads that reach each change. The thread of a test has the name of this test.
    reached: HashMap<usize, BTreeSet<String>>,
    longest: Duration,
}

/// Result of one run of a program.
enum End {
    Passed,
    /// Some tests failed. Contains their names, if the program printed any.
    Failed(Vec<String>),
    /// The program exceeded its time limit, so it was killed.
    Hangs,
}

impl Program {
    /// Runs the test program on the unchanged library. Records, for each test, the changes
    /// (mutants) whose code the test reaches, and the duration of the program.
    pub(crate) fn explore(&mut self, copy: &Copy) -> Result<(), String> {
        let name = self.path.file_name().expect("a program has a name");
        let file = copy.dir().join(name).with_extension("reached");
        let began = Instant::now();
        let reached = ("MUTANTS_REACHED", file.display().to_string());
        let end = self.run(&reached, self.suite.args, usize::MAX)?;
        let took = began.elapsed();
        // The result of a suite that fails without a change is of no use.
        if self.fails(&reached, self.suite.args, &end)? {
            let tests = if let End::Failed(tests) = end { tests.join(" ") } else { String::new() };
            return Err(format!("`{}` fails without a change: {tests}", self.path.display()));
        }
        eprintln!("{:>13} {:>4} s  {}", self.suite.name, took.as_secs(), self.path.display());
        self.longest = SHORTEST.max(took * PATIENCE);
        for line in std::fs::read_to_string(&file).unwrap_or_default().lines() {
            if let Some((id, thread)) = line.split_once('\t')
                && let Ok(id) = id.parse()
            {
                self.reached.entry(id).or_default().insert(thread.to_owned());
            }
        }
        Ok(())
    }

    /// Runs the tests whose threads reach the change. Returns a word for the result if a test
    /// detected the change.
    ///
    /// A worker thread of a runtime does not have the name of a test. So, if such a thread reaches
    /// the change and no test has failed, all tests run.
    fn notices(&self, id: usize, mutant: &Mutant) -> Result<Option<String>, String> {
        let all = self.suite.args.to_vec();
        if mutant.is_script() {
            return if self.suite.on_servers { self.notices_in(id, &all) } else { Ok(None) };
        }
        let Some(threads) = self.reached.get(&id) else { return Ok(None) };
        let (tests, others): (Vec<&str>, Vec<&str>) =
            threads.iter().map(String::as_str).partition(|thread| self.tests.contains(*thread));
        if !tests.is_empty() {
            let some = [&all[..], &["--exact"], &tests].concat();
            if let Some(word) = self.notices_in(id, &some)? {
                return Ok(Some(word));
            }
        }
        if others.is_empty() { Ok(None) } else { self.notices_in(id, &all) }
    }

    /// Runs the test program with the change of the library turned on. Returns a word for the
    /// result if the run detected the change.
    fn notices_in(&self, id: usize, args: &[&str]) -> Result<Option<String>, String> {
        let on = ("MUTANT", id.to_string());
        for _ in 0..3 {
            let end = self.run(&on, args, 1)?;
            match end {
                End::Passed => break,
                End::Hangs => return Ok(Some(format!("{} hangs", self.suite.name))),
                End::Failed(_) if self.fails(&on, args, &end)? => {
                    return Ok(Some(self.suite.name.to_owned()));
                }
                End::Failed(_) => {}
            }
        }
        Ok(None)
    }

    /// Runs the failed tests once more, because the machine may have been slow. Returns true if a
    /// test fails again.
    fn fails(&self, env: &(&str, String), args: &[&str], end: &End) -> Result<bool, String> {
        let again = match end {
            End::Passed => return Ok(false),
            End::Failed(tests) if !tests.is_empty() => {
                let tests = tests.iter().map(String::as_str);
                self.run(env, &["--exact"].into_iter().chain(tests).collect::<Vec<_>>(), 1)?
            }
            End::Failed(_) | End::Hangs => self.run(env, args, 1)?,
        };
        Ok(!matches!(again, End::Passed))
    }

    /// Runs the test program. Stops the program when `most` of its tests have failed.
    fn run(&self, env: &(&str, String), args: &[&str], most: usize) -> Result<End, String> {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir).env(env.0, &env.1);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // The test program gets its own process group. So the servers that it starts can be ended
        // with it.
        let started = command.process_group(0).spawn();
        let mut child = started.map_err(|e| format!("{}: {e}", self.path.display()))?;
        let output = failed_tests(&mut child);
        let (until, mut failed) = (Instant::now() + self.longest, Vec::new());
        let end = loop {
            match output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(test) => failed.push(test),
                Err(RecvTimeoutError::Timeout) => break End::Hangs,
                // The test program's output has ended, so the program has ended, too.
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.wait().map_err(|e| e.to_string())?;
                    break if status.success() { End::Passed } else { End::Failed(failed) };
                }
            }
            if failed.len() == most {
                break End::Failed(failed);
            }
        };
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        child.wait().map_err(|e| e.to_string())?;
        Ok(end)
    }
}

/// Reads the program's output in a thread. Sends the name of each failed test to the returned
/// channel.
fn failed_tests(child: &mut Child) -> mpsc::Receiver<String> {
    let stdout = child.stdout.take().expect("it is piped");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let test = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"));
            if let Some(test) = test {
                let _ = sender.send(test.to_owned());
            }
        }
    });
    receiver
}

/// Turns a change of the library on, and runs the tests that may detect it.
pub(crate) fn judge(programs: &[Program], id: usize, mutant: &Mutant) -> Result<Verdict, String> {
    for program in programs {
        if let Some(word) = program.notices(id, mutant)? {
            return Ok(Verdict::Found(word));
        }
    }
    Ok(Verdict::Unnoticed)
}
