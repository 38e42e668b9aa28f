//! Examines a deployment. Reports each fault that can lose locks, with the reason and the command
//! that corrects the fault.
//!
//! The doctor reads (`INFO`, `ROLE`, `TIME`, `CONFIG GET`, `SENTINEL …`, `ACL DRYRUN`, palisade's
//! marker) and, unless `trial(false)` is set, acquires and releases one lock with a random name on
//! each node that is not new. The doctor changes nothing else. If a server does not allow the
//! doctor to read a value, the value is *unknown*: neither good nor bad.
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
//! The package `palisade-cli` prints the same report: `palisade doctor --node
//! sentinel://10.0.0.1,…/orders-a`.
//!
//! # Structure, and adding a check
//!
//! `gather` queries all servers and Sentinels concurrently, each within a deadline, and returns
//! plain values (`facts`). Checks are pure functions from facts to findings, so tests run them on
//! made-up facts. `checks/` has one file for each kind of subject. A new check needs:
//!
//! 1. A `Check` in the file of its subject, with its function. The function returns
//!    `Finding::fine(evidence)`, or `Finding::error | warning | info(message, evidence)` with
//!    `.fix([command])`. If the facts are unknown, the function returns the reason as an error.
//!    `by_hand` and `set` make the commands to paste. Only the check `unreachable` is called for
//!    servers that could not be reached. A check looks for a fault that no client reports. If a
//!    fault makes a client refuse a server, the check calls the client's own code (`refused`,
//!    `min-replicas`, `trial`).
//! 2. A line in `CHECKS` (`checks/mod.rs`).
//! 3. Its tests: `fine(id)` on the good deployment, `broken(id, change)` for each fault that the
//!    check finds, `unknown(id, close_config)` if the check reads settings (`checks/tests.rs`). If
//!    the check needs a setting that is not read yet, add the setting to `facts::SETTINGS`. In
//!    `tests/doctor/`, add a real deployment with the fault; a test fails without one.
//! 4. The id of the check in `sentinel-conf/templates`, in the comment of each line that the check
//!    requires. A test compares the ids in the templates with the checks.

mod checks;
mod cluster;
pub mod probe;
mod report;
mod text;
mod trial;

use std::time::Duration;

pub use self::report::{Finding, Report, Verdict};
use super::facts::{self, Facts, is_plain};
use super::{Deployment, gather};
use palisade::Config;
use palisade::ConfigError;
use palisade::internal::{Secrets, default_clock_error};

/// Returns the ids of all checks, in the order of reports.
pub fn checks() -> impl Iterator<Item = &'static str> {
    checks::CHECKS.iter().map(|check| check.id)
}

/// An examination of a deployment, with the settings that the application uses.
#[derive(Clone, Debug)]
#[must_use = "a doctor examines nothing before `examine` is called"]
pub struct Doctor {
    deployment: Deployment,
    max_ttl: Duration,
    clock_error: Duration,
    whose: Option<String>,
    trial: bool,
}

impl Doctor {
    /// Creates a doctor for these nodes. The settings of the deployment have to be those of the
    /// application: each node stores the longest `max_ttl` and the largest `clock_error` of its
    /// clients, and the doctor compares them.
    pub fn new(deployment: Deployment) -> Self {
        let settings = &deployment.settings;
        let max_ttl = settings.max_ttl.or(settings.ttl).unwrap_or(Config::default().max_ttl);
        let clock_error = settings.clock_error.unwrap_or_else(|| default_clock_error(max_ttl));
        Self { deployment, max_ttl, clock_error, whose: None, trial: true }
    }

    /// Sets the ACL user whose rights at the data servers are checked. Set it if the doctor logs in
    /// as another user than the application. The check needs `ACL DRYRUN` (Redis 7.0). The default
    /// is the user that the doctor logs in as.
    pub fn rights_of(mut self, user: impl Into<String>) -> Self {
        self.whose = Some(user.into());
        self
    }

    /// Turns the trial lock on or off; default on. If it is on, the doctor acquires and releases a
    /// lock with a random name on each node that is not new. If it is off, the doctor writes
    /// nothing.
    pub fn trial(mut self, trial: bool) -> Self {
        self.trial = trial;
        self
    }

    /// Queries all servers and Sentinels, runs all checks, and returns the report.
    ///
    /// The call takes at most about three time-outs: one for the Sentinels that the user named, one
    /// for further Sentinels that the named ones report, and one for the data servers. If nodes do
    /// not answer, the trial lock adds about eight seconds.
    ///
    /// # Errors
    /// [`ConfigError`] if the settings are invalid: no node, an invalid address, a value out of
    /// range. Faults of the deployment are in the report.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any await. The trial lock may then remain on the nodes for at
    /// most its ttl.
    pub async fn examine(&self) -> Result<Report, ConfigError> {
        self.check()?;
        let (clusters, others) = self.deployment.clusters()?;
        let (mut is_reached, mut found) = (false, Vec::new());
        for login in &clusters {
            let (reached, findings) = cluster::findings(&self.deployment, login).await;
            is_reached |= reached;
            found.extend(findings);
        }
        let logins = clusters.iter().map(|cluster| &cluster.like);
        let secrets = logins.fold(Secrets::default(), |all, at| all.and(&at.secrets()));
        if !clusters.is_empty() {
            let mut report = Report::new(is_reached, found, &secrets.passwords());
            if !others.is_empty() {
                let rest = Self { deployment: others, ..self.clone() };
                report = report.and(Box::pin(rest.examine()).await?);
            }
            return Ok(report);
        }
        let plan = trial::Plan::new(self)?;
        let access = self.deployment.access()?;
        let whose = self.whose.as_deref();
        let (groups, nodes) = gather::everything(&self.deployment, &access, whose).await;
        let mut facts = Facts {
            groups,
            nodes,
            deployment: self.deployment.id()?,
            max_ttl: self.max_ttl,
            clock_error: self.clock_error,
            trials: Vec::new(),
        };
        // The trial lock is taken after all facts (values of the servers) were read, so it cannot
        // change the facts.
        if self.trial && facts.any_reached() {
            // New nodes are skipped. After a trial lock (a test that locking works) a new node
            // would look used, and `init` would refuse it.
            let new = facts.masters().filter(|(_, s)| s.marker == Ok(None));
            let new = new.map(|(name, _)| name).collect();
            facts.trials = plan.run(&new).await;
        }
        Ok(Report::new(facts.any_reached(), checks::run(&facts), &access.secrets()))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let Some(odd) = self.whose.as_ref().filter(|name| !is_plain(name)) {
            let rule = "write a user name without spaces and shell characters";
            return Err(ConfigError::new("rights_of", format!("{odd:?}"), rule));
        }
        Ok(())
    }
}
