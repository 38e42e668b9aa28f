//! Examines a deployment and says what would lose locks, why, and which command mends it.
//!
//! It reads (`INFO`, `ROLE`, `TIME`, `CONFIG GET`, `SENTINEL …`, `ACL DRYRUN`) and, unless told
//! not to, takes and releases one lock of a name that nobody uses. It changes nothing else. What it
//! may not read is *unknown*: neither good nor bad.
//!
//! ```no_run
//! # async fn demo() -> Result<(), palisade::error::ConfigError> {
//! use palisade::ops::doctor::Doctor;
//! let report = Doctor::new()
//!     .groups(["10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"], ["orders-a"])
//!     .examine()
//!     .await?;
//! println!("{report}");
//! # Ok(()) }
//! ```
//!
//! The same from a shell: `palisade doctor --sentinel 10.0.0.1:26379,… --master orders-a`
//! (feature `cli`).
//!
//! # How it is built, and how a check is added
//!
//! `gather` asks everybody at once, within a deadline each, and leaves plain values (`facts`).
//! Checks are pure functions from facts to findings, one a file in `checks/`, so each is tested on
//! made-up facts. A new one:
//!
//! 1. `checks/its_name.rs`: `pub(super) const CHECK: Check = Check { id: "its-name", severity,
//!    title, why, run }` and `fn run(facts: &Facts) -> Vec<Finding>`. One finding for each subject
//!    that was looked at: `Finding::fine(subject, read)`, `Finding::unknown(subject, why)` where a
//!    `Read` is closed or failed, else `Finding::error | warning | info(subject, says, read)` with
//!    `.mend([command])`. Write subjects as the others do: `orders-a`, `orders-a 10.0.0.1:6379`,
//!    `orders-a Sentinel 10.0.0.1:26379`, `nodes`. Commands to paste come from `by_hand` and `set`.
//!    What could not be reached at all says `unreachable`; other checks leave it out.
//! 2. `mod its_name;` and a line in `CHECKS` (`checks/mod.rs`).
//! 3. Its tests: `fine(id)` on the good deployment, `broken(id, change)` for each thing it finds,
//!    `unknown(id, close_config)` if it reads settings (`checks/tests.rs`). If it needs a setting
//!    that is not read yet, add it to `facts::SETTINGS`.
//!    And a real deployment that is broken for it, in `tests/doctor/`: one is asked for by a test.
//! 4. If a line of `sentinel-conf/templates` is there because of it, name the id in that line's
//!    comment; a test holds both sides together.

mod checks;
mod facts;
mod gather;
mod login;
mod probe;
mod report;
mod table;

use std::time::Duration;

use futures_util::future::join_all;

use self::facts::{Facts, is_plain};
use self::gather::{Lone, Watch, Ways};
use self::login::{Certificates, Login};
pub use self::report::{Finding, Report, Severity, Verdict};
use crate::error::ConfigError;

/// A check that the doctor makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// Its id, which does not change.
    pub id: &'static str,
    /// The worst that it can find.
    pub severity: Severity,
    /// What is checked, in one line.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
}

/// All checks, in the order of reports.
pub fn checks() -> Vec<About> {
    let about =
        |c: &checks::Check| About { id: c.id, severity: c.severity, title: c.title, why: c.why };
    checks::CHECKS.iter().map(about).collect()
}

/// What to examine, and as whom.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked before `examine`"]
pub struct Doctor {
    watches: Vec<Watch>,
    nodes: Vec<String>,
    data: Login,
    sentinels: Login,
    tls: Option<Certificates>,
    node_tls: Option<Certificates>,
    sentinel_tls: Option<Certificates>,
    within: Duration,
    ttl: Option<Duration>,
    max_ttl: Duration,
    max_lag: Option<Duration>,
    map: Vec<(String, String)>,
    whose: Option<String>,
    probe: bool,
}

impl Default for Doctor {
    fn default() -> Self {
        Self::new()
    }
}

impl Doctor {
    /// Examines nothing yet.
    pub fn new() -> Self {
        Self {
            watches: Vec::new(),
            nodes: Vec::new(),
            data: Login::default(),
            sentinels: Login::default(),
            tls: None,
            node_tls: None,
            sentinel_tls: None,
            within: Duration::from_secs(2),
            ttl: None,
            max_ttl: Duration::from_secs(30),
            max_lag: None,
            map: Vec::new(),
            whose: None,
            probe: true,
        }
    }

    /// Sentinels (`host:port`) and the names of masters that they watch over: one node each.
    pub fn groups<S, M>(mut self, sentinels: S, masters: M) -> Self
    where
        S: IntoIterator,
        S::Item: Into<String>,
        M: IntoIterator,
        M::Item: Into<String>,
    {
        self.watches.push(Watch {
            sentinels: sentinels.into_iter().map(Into::into).collect(),
            masters: masters.into_iter().map(Into::into).collect(),
        });
        self
    }

    /// A lone server that is a node by itself: `redis://…`, as `RedisNode` takes it.
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(url.into());
        self
    }

    /// The ACL user at the groups' data servers, and at lone nodes whose address names none.
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.data.username = Some(name.into());
        self
    }

    /// The password at the groups' data servers, and at lone nodes whose address has none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.data.password = Some(password.into());
        self
    }

    /// The ACL user at the Sentinels.
    pub fn sentinel_username(mut self, name: impl Into<String>) -> Self {
        self.sentinels.username = Some(name.into());
        self
    }

    /// The password at the Sentinels.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinels.password = Some(password.into());
        self
    }

    /// How long each server and Sentinel may take for all its answers, connecting included; 50 ms
    /// to one minute, default 2 s. All are asked at once.
    pub fn timeout(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The application's usual lease, against which `down-after` is judged.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// `max_ttl` as the application has it; default 30 s, the library's. Nodes keep the longest
    /// that they are told, so say it when the application uses another one.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// The second of what the application says by `SentinelNode::min_replicas`, if it does. It is
    /// what the trial lock goes by where `CONFIG GET` is not allowed.
    pub fn max_lag(mut self, max_lag: Duration) -> Self {
        self.max_lag = Some(max_lag);
        self
    }

    /// The ACL user whose rights at the data servers are looked at, where the doctor itself comes
    /// as an operator. It needs `ACL DRYRUN` (Redis 7.0). Default: the user it comes as.
    pub fn rights_of(mut self, user: impl Into<String>) -> Self {
        self.whose = Some(user.into());
        self
    }

    /// Where an address that Sentinels tell is reached from here (NAT, container networks), both as
    /// `host:port`; what the application says by `SentinelNode::map_address`.
    pub fn map_address(mut self, told: impl Into<String>, reached: impl Into<String>) -> Self {
        self.map.push((told.into(), reached.into()));
        self
    }

    /// What `redis-cli` needs for TLS, as `--cacert ca.pem`: it is put into the commands that mend.
    /// No secrets.
    pub fn redis_cli(mut self, words: &str) -> Self {
        words.clone_into(&mut self.data.more);
        words.clone_into(&mut self.sentinels.more);
        self
    }

    /// Whether a lock of a random name is taken and released on each node; default true. Without it
    /// nothing is written anywhere.
    pub fn probe(mut self, probe: bool) -> Self {
        self.probe = probe;
        self
    }

    /// Asks everybody, runs all checks, and reports.
    ///
    /// It takes at most about three time-outs (Sentinels, those that they name, data servers) and
    /// some eight seconds for the trial lock where nodes do not answer.
    ///
    /// # Errors
    /// What was given makes no sense: nothing to examine, an address that is none, a range left.
    /// Whatever is wrong with the deployment is in the report.
    ///
    /// # Cancellation safety
    /// Dropped at any await nothing goes on but, for at most its ttl, the probe's lock.
    pub async fn examine(&self) -> Result<Report, ConfigError> {
        self.check()?;
        // The nodes as an application makes them refuse what cannot work, in their own words.
        let plan = probe::Plan::new(self)?;
        let (data, sentinels) = self.logins()?;
        let named = self.nodes.iter().zip(plan.lone_names());
        let lone: Vec<Lone> = named
            .map(|(url, name)| login::lone(url, &name, &data, self.node_tls.as_ref()))
            .collect::<Result<_, _>>()?;
        let map = self.map.iter().cloned().collect();
        let whose = self.whose.as_deref();
        let ways = Ways { data: &data, sentinels: &sentinels, whose, map, within: self.within };
        let watched = join_all(self.watches.iter().map(|w| gather::groups(w, &ways)));
        let (groups, nodes) = tokio::join!(watched, gather::nodes(&lone, &ways));
        let mut facts = Facts {
            groups: groups.into_iter().flatten().collect(),
            nodes,
            ttl: self.ttl,
            max_ttl: self.max_ttl,
            probes: Vec::new(),
        };
        // After everything was read: the probe itself must not show in what is judged.
        if self.probe && facts.any_reached() {
            facts.probes = plan.run().await;
        }
        Ok(Report::new(facts.any_reached(), checks::run(&facts)))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let nothing = |field, rule: &str| Err(ConfigError::new(field, "missing", rule));
        if self.watches.is_empty() && self.nodes.is_empty() {
            return nothing("node", "name Sentinels with a master, or a node");
        }
        for watch in &self.watches {
            if watch.masters.is_empty() {
                return nothing("master", "Sentinels need the name of a master");
            }
            if let Some(odd) = watch.masters.iter().find(|name| !is_plain(name)) {
                // It stands in the commands that mend; Sentinels know no others either.
                let rule = "a master's name has letters, digits and . _ - only";
                return Err(ConfigError::new("master", format!("{odd:?}"), rule));
            }
            if watch.sentinels.is_empty() {
                return nothing("sentinel", "a master needs the Sentinels that know it");
            }
        }
        for (field, login) in [("username", &self.data), ("sentinel_username", &self.sentinels)] {
            if let (Some(name), None) = (&login.username, &login.password) {
                // A client would go on as the default user, and who is examined is another one.
                let rule = "needs its password; the empty one, if it has none";
                return Err(ConfigError::new(field, format!("{name:?}"), rule));
            }
        }
        if let Some(odd) = self.whose.as_ref().filter(|name| !is_plain(name)) {
            let rule = "a user's name, without spaces or what a shell takes for its own";
            return Err(ConfigError::new("rights_of", format!("{odd:?}"), rule));
        }
        let range = Duration::from_millis(50)..=Duration::from_secs(60);
        if !range.contains(&self.within) {
            let value = format!("{:?}", self.within);
            return Err(ConfigError::new("timeout", value, "between 50 ms and one minute"));
        }
        Ok(())
    }

    fn logins(&self) -> Result<(Login, Login), ConfigError> {
        let (data, sentinels) = (self.data.clone(), self.sentinels.clone());
        Ok((
            data.over("tls", self.tls.as_ref())?,
            sentinels.over("sentinel_tls", self.sentinel_tls.as_ref())?,
        ))
    }
}

#[cfg(feature = "tls")]
impl Doctor {
    /// TLS to the groups' data servers, with the system's or the given root certificate (PEM) and,
    /// if given, a client certificate with its key (PEM).
    pub fn tls(mut self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.tls = Some(Certificates { root, client });
        self
    }

    /// Certificates for lone nodes whose address begins with `rediss://`.
    pub fn node_tls(mut self, root: Option<Vec<u8>>, client: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        self.node_tls = Some(Certificates { root, client });
        self
    }

    /// TLS to the Sentinels, as [`Self::tls`] and independent of it.
    pub fn sentinel_tls(
        mut self,
        root: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.sentinel_tls = Some(Certificates { root, client });
        self
    }
}
