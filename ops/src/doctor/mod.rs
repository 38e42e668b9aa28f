//! Examines a deployment and reports what would lose locks, why, and which command corrects it.
//!
//! It reads (`INFO`, `ROLE`, `TIME`, `CONFIG GET`, `SENTINEL …`, `ACL DRYRUN`, palisade's marker)
//! and, unless `trial(false)` is set, acquires and releases one lock with a random name on each
//! node that is not new. It changes nothing else. A value that it may not read is *unknown*:
//! neither good nor bad.
//!
//! ```no_run
//! # async fn demo() -> Result<(), palisade::error::ConfigError> {
//! use palisade_ops::Deployment;
//! use palisade_ops::doctor::Doctor;
//! let group = Deployment::new().node("sentinel://10.0.0.1,10.0.0.2,10.0.0.3/orders-a");
//! let report = Doctor::new(group).examine().await?;
//! println!("{report}");
//! # Ok(()) }
//! ```
//!
//! The same from a shell: `palisade doctor --node sentinel://10.0.0.1,…/orders-a`
//! (package `palisade-cli`).
//!
//! # How it is built, and how a check is added
//!
//! `gather` queries all servers and Sentinels concurrently, each within a deadline, and returns
//! plain values (`facts`). Checks are pure functions from facts to findings, in `checks/` by their
//! subject, so each is tested on made-up facts. A new one:
//!
//! 1. In the file of its subject a `Check` and its function, which returns `Finding::fine(read)`,
//!    or `Finding::error | warning | info(says, read)` with `.mend([command])`; an error is the
//!    reason for which the facts are unknown. Commands to paste come from `by_hand` and `set`.
//!    `unreachable` reports servers that could not be reached; other checks are not called for
//!    them. It measures what no client reports by itself: what a client refuses is judged by the
//!    client's own code (`refused`, `min-replicas`, `trial`).
//! 2. A line in `CHECKS` (`checks/mod.rs`).
//! 3. Its tests: `fine(id)` on the good deployment, `broken(id, change)` for each thing it finds,
//!    `unknown(id, close_config)` if it reads settings (`checks/tests.rs`). If it needs a setting
//!    that is not read yet, add it to `facts::SETTINGS`.
//!    And a real deployment that has the fault, in `tests/doctor/`: a test requires one.
//! 4. If a line of `sentinel-conf/templates` is there because of it, name the id in that line's
//!    comment; a test holds both sides together.

mod checks;
mod report;
mod table;
mod trial;

use std::time::Duration;

pub use self::report::{Finding, Report, Verdict};
use super::facts::{self, Facts, Marker, is_plain};
use super::{Deployment, gather};
use palisade::Config;
use palisade::ConfigError;
use palisade::internal::default_clock_error;

/// The ids of all checks, in the order of reports.
pub fn checks() -> impl Iterator<Item = &'static str> {
    checks::CHECKS.iter().map(|check| check.id)
}

/// What to examine, and what the application is set to.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked before `examine`"]
pub struct Doctor {
    deployment: Deployment,
    max_ttl: Duration,
    clock_error: Option<Duration>,
    whose: Option<String>,
    trial: bool,
}

impl Doctor {
    /// Examines these nodes, with the library's defaults.
    pub fn new(deployment: Deployment) -> Self {
        Self {
            deployment,
            max_ttl: Config::default().max_ttl,
            clock_error: None,
            whose: None,
            trial: true,
        }
    }

    /// The application's `max_ttl`; default 15 s, as in the library. Nodes keep the longest value
    /// of all clients, so set it if the application uses another one.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// The application's `clock_error`. The default is the library's, which depends on `max_ttl`.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = Some(error);
        self
    }

    /// The ACL user whose rights at the data servers are checked, if the doctor itself logs in as
    /// an operator. It needs `ACL DRYRUN` (Redis 7.0). Default: the user that the doctor logs in
    /// as.
    pub fn rights_of(mut self, user: impl Into<String>) -> Self {
        self.whose = Some(user.into());
        self
    }

    /// Whether the doctor acquires and releases a lock with a random name on each node that is not
    /// new; default true. With false it writes nothing.
    pub fn trial(mut self, trial: bool) -> Self {
        self.trial = trial;
        self
    }

    /// Queries all servers and Sentinels, runs all checks, and reports.
    ///
    /// It takes at most about three time-outs (Sentinels, those that they name, data servers) and
    /// some eight seconds for the trial lock where nodes do not answer.
    ///
    /// # Errors
    /// The settings are invalid: no node, an invalid address, a value out of range. Faults of the
    /// deployment are in the report.
    ///
    /// # Cancellation safety
    /// May be dropped at any await. Then only the trial lock remains, for at most its ttl.
    pub async fn examine(&self) -> Result<Report, ConfigError> {
        self.check()?;
        let plan = trial::Plan::new(self)?;
        let access = self.deployment.access()?;
        let whose = self.whose.as_deref();
        let (groups, nodes) = gather::everything(&self.deployment, &access, whose).await;
        let mut facts = Facts {
            groups,
            nodes,
            max_ttl: self.max_ttl,
            clock_error: self.error_bound(),
            trials: Vec::new(),
        };
        // After everything was read: the trial must not influence the facts that are checked.
        if self.trial && facts.any_reached() {
            // A lock would mark a new deployment as one that was used, and `init` would refuse it.
            let new = facts.masters().filter(|(_, s)| s.marker.ok() == Some(&Marker::Absent));
            let new = new.map(|(name, _)| name).collect();
            facts.trials = plan.run(&new).await;
        }
        Ok(Report::new(facts.any_reached(), checks::run(&facts), &access.secrets()))
    }

    /// E.
    fn error_bound(&self) -> Duration {
        self.clock_error.unwrap_or_else(|| default_clock_error(self.max_ttl))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let Some(odd) = self.whose.as_ref().filter(|name| !is_plain(name)) {
            let rule = "write a user name without spaces and shell characters";
            return Err(ConfigError::new("rights_of", format!("{odd:?}"), rule));
        }
        Ok(())
    }
}
