//! Runs the real program `palisade doctor` and reads its output.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

/// Maximum duration of a run. A longer run counts as a hang. The timeouts of `palisade doctor`
/// itself are much shorter.
const HANG: Duration = Duration::from_secs(60);

/// One finding, with every field of the JSON of `palisade doctor`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) subject: String,
    pub(crate) verdict: Verdict,
    pub(crate) message: String,
    pub(crate) evidence: String,
    pub(crate) why: String,
    pub(crate) fix: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Fine,
    Unknown,
    Info,
    Warning,
    Error,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    pub(crate) reached: bool,
    pub(crate) findings: Vec<Finding>,
}

/// The arguments and the environment of a run, and the secrets that its output must not contain.
#[derive(Clone, Default)]
pub(crate) struct Patient {
    args: Vec<String>,
    env: Vec<(String, String)>,
    hidden: Vec<String>,
}

/// The result of a run of `palisade doctor`.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Patient {
    /// Creates the arguments for a group with these Sentinel addresses.
    pub(crate) fn group(name: &str, sentinels: &[String]) -> Self {
        Self::default().arg("--node").arg(&format!("sentinel://{}/{name}", sentinels.join(",")))
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Adds an environment variable with a password. The output must not contain the password.
    pub(crate) fn secret(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self.hides(value)
    }

    /// Adds a secret that the output must not contain.
    pub(crate) fn hides(mut self, secret: &str) -> Self {
        self.hidden.push(secret.to_owned());
        self
    }

    /// Runs `palisade doctor` with the additional arguments `more`.
    pub(crate) fn run(&self, more: &[&str]) -> Run {
        let out = Command::new("timeout")
            .args(["-k", "1", &HANG.as_secs().to_string(), env!("CARGO_BIN_EXE_palisade")])
            .arg("doctor")
            .args(&self.args)
            .args(more)
            .envs(self.env.iter().cloned())
            .output()
            .expect("the program can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let run = Run {
            code: out.status.code().expect("it ends by itself"),
            out: text(&out.stdout),
            err: text(&out.stderr),
        };
        assert!(run.code != 124 && run.code != 137, "it hangs, and was ended after {HANG:?}");
        for secret in &self.hidden {
            let shown = run.out.contains(&**secret) || run.err.contains(&**secret);
            assert!(!shown, "a password is shown:\n{}{}", run.out, run.err);
        }
        run
    }

    /// Runs `palisade doctor` and returns its report.
    pub(crate) fn examine(&self) -> Report {
        let run = self.run(&["--json"]);
        serde_json::from_str(&run.out)
            .unwrap_or_else(|e| panic!("{e} in:\n{}\n{}", run.out, run.err))
    }
}

impl Report {
    /// Returns the findings that are not fine, without their texts.
    pub(crate) fn complaints(&self) -> BTreeSet<(String, Verdict, String)> {
        let wrong = self.findings.iter().filter(|f| f.verdict != Verdict::Fine);
        wrong.map(|f| (f.check.clone(), f.verdict, f.subject.clone())).collect()
    }

    /// Returns the findings with this verdict.
    pub(crate) fn all(&self, verdict: Verdict) -> Vec<&Finding> {
        self.findings.iter().filter(|f| f.verdict == verdict).collect()
    }

    /// Returns the finding of this check about this subject.
    pub(crate) fn of(&self, check: &str, subject: &str) -> &Finding {
        let found = self.findings.iter().find(|f| f.check == check && f.subject == subject);
        found.unwrap_or_else(|| panic!("nothing of {check} at {subject}: {:#?}", self.findings))
    }
}
