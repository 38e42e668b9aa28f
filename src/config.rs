//! Settings of a handle, and the checks of the relations between them.

use std::time::Duration;

use crate::error::ConfigError;
use crate::time::{Drift, EXPIRY_PRECISION, validity};

/// Settings that all locks of one [handle](crate::Redlock) share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Lease length of a lock without a ttl of its own. Default 15 s.
    pub ttl: Duration,
    /// Longest lease that any client of these nodes may use. After a restart or a failover, a node
    /// may have lost leases, so it grants nothing for at least this time (quarantine). Default: the
    /// value of `ttl`.
    pub max_ttl: Duration,
    /// Largest error of the speed of a node's clock, against this machine's clock. Default 1 %.
    pub drift: Drift,
    /// Longest time until a node's answer to one request. Default 250 ms.
    pub node_deadline: Duration,
    /// E, the largest error of any clock against true time. E must be less than half of `max_ttl`.
    /// Default: 2 s, or a quarter of `max_ttl` if that is less.
    pub clock_error: Duration,
    /// Prefix of the name of each lock, election and idempotency key on the nodes. Default empty.
    pub prefix: String,
    /// True if the number of nodes may be even.
    pub allow_even: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ttl: TTL,
            max_ttl: TTL,
            drift: Drift::DEFAULT,
            node_deadline: Duration::from_millis(250),
            clock_error: default_clock_error(TTL),
            prefix: String::new(),
            allow_even: false,
        }
    }
}

/// Longer than a failover of the groups that `sentinel-conf` sets up.
const TTL: Duration = Duration::from_secs(15);

/// Default retention of the results of idempotency keys.
pub const RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// Returns the default of E, the clock error: a quarter of `max_ttl`, at most 2 s. The error of
/// clocks that NTP corrects is far below 2 s.
pub fn default_clock_error(max_ttl: Duration) -> Duration {
    (max_ttl / 4).min(Duration::from_secs(2))
}

/// 2 ms are subtracted from each lease, because expiry is not more precise: a fifth of the shortest
/// one.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(10);
/// One day. After a restart or a failover a node is in quarantine for at least `max_ttl`.
pub(crate) const MAX_TTL_MAX: Duration = Duration::from_secs(86_400);
pub(crate) const NODES_MAX: usize = 31;

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        crate::name::check_prefix(&self.prefix)?;
        if self.max_ttl > MAX_TTL_MAX {
            return Err(refuse("max_ttl", self.max_ttl, "at most one day"));
        }
        if self.node_deadline < Duration::from_millis(1) {
            return Err(refuse("node_deadline", self.node_deadline, "at least 1 ms"));
        }
        if self.drift.ppm() > 100_000 {
            let value = format!("{} ppm", self.drift.ppm());
            return Err(ConfigError::new("drift", value, "at most 100000 ppm (10 %)"));
        }
        self.check_ttl(self.ttl)?;
        if self.clock_error.saturating_mul(2) >= self.max_ttl {
            // Two servers' clocks may differ by 2E. A quarantine between two losses must be longer,
            // else tokens after the second loss could be smaller than some before it.
            let rule = format!("less than half of max_ttl ({:?})", self.max_ttl);
            return Err(refuse("clock_error", self.clock_error, &rule));
        }
        self.check_renewed(self.ttl)
    }

    pub(crate) fn check_nodes(&self, n: usize) -> Result<(), ConfigError> {
        if n == 0 || n > NODES_MAX {
            let rule = format!("between 1 and {NODES_MAX} nodes");
            return Err(ConfigError::new("node", format!("{n} nodes"), rule));
        }
        if n.is_multiple_of(2) && !self.allow_even {
            let rule = "an even number tolerates no more faults than one less and splits votes; \
                        use an odd number, or say `allow_even_nodes()`";
            return Err(ConfigError::new("node", format!("{n} nodes"), rule));
        }
        Ok(())
    }

    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<(), ConfigError> {
        if ttl < TTL_MIN {
            return Err(refuse("ttl", ttl, &format!("at least {TTL_MIN:?}")));
        }
        if ttl > self.max_ttl {
            let rule = format!(
                "at most max_ttl ({:?}); raise `max_ttl` in every process that uses these nodes",
                self.max_ttl
            );
            return Err(refuse("ttl", ttl, &rule));
        }
        Ok(())
    }

    /// Time for two tries of each renewal: `renew_every + 2·node_deadline + EXPIRY_PRECISION ≤
    /// ttl·(1 − drift)`.
    pub(crate) fn check_renewed(&self, ttl: Duration) -> Result<(), ConfigError> {
        let tries = self.node_deadline.saturating_mul(2).saturating_add(EXPIRY_PRECISION);
        let needed = tries.saturating_add(renew_every(ttl));
        let room = validity(ttl, self.drift) + EXPIRY_PRECISION;
        if needed <= room {
            return Ok(());
        }
        let rule = format!(
            "renewal needs ttl/4 + 2·node_deadline ({:?}) + {EXPIRY_PRECISION:?} = {needed:?} \
             within ttl·(1 − drift) = {room:?}; use a longer ttl or a shorter node_deadline",
            self.node_deadline
        );
        Err(refuse("ttl", ttl, &rule))
    }
}

/// A quarter of the ttl. If a server crashes just before a renewal, three quarters are left, less
/// the drift: with the default ttl longer than a failover of the groups of `sentinel-conf`. (etcd
/// and Redisson renew after a third.)
pub(crate) fn renew_every(ttl: Duration) -> Duration {
    ttl / 4
}

/// Returns the smallest remaining validity of a lease that is renewed in time. The remaining
/// validity is smallest just before a renewal.
pub fn lasts(ttl: Duration, drift: Drift) -> Duration {
    validity(ttl, drift).saturating_sub(renew_every(ttl))
}

fn refuse(field: &'static str, value: Duration, rule: &str) -> ConfigError {
    ConfigError::new(field, format!("{value:?}"), rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(r: Result<(), ConfigError>) -> String {
        r.unwrap_err().to_string()
    }

    #[test]
    fn defaults_hold() {
        Config::default().check().unwrap();
    }

    #[test]
    fn every_inequality_has_a_sentence() {
        let ok = Config::default();
        let ms = Duration::from_millis;
        let with = |f: &dyn Fn(&mut Config)| {
            let mut c = ok.clone();
            f(&mut c);
            text(c.check())
        };
        assert!(with(&|c| c.ttl = Duration::ZERO).starts_with("`ttl` is 0ns: at least 10ms"));
        assert!(
            with(&|c| c.ttl = ms(15_001)).contains("at most max_ttl (15s); raise `max_ttl` in")
        );
        assert!(with(&|c| c.ttl = ms(650)).contains("use a longer ttl or a shorter node_deadline"));
        assert!(with(&|c| c.max_ttl = ms(86_400_001)).starts_with("`max_ttl`"));
        assert!(with(&|c| c.node_deadline = Duration::ZERO).starts_with("`node_deadline`"));
        assert!(with(&|c| c.drift = Drift::from_ppm(100_001)).starts_with("`drift`"));
        assert!(with(&|c| c.clock_error = ms(7_500)).contains("less than half of max_ttl (15s)"));
        assert!(with(&|c| c.prefix = "a\tb".into()).starts_with("`prefix`"));
        assert!(text(ok.check_nodes(0)).contains("between 1 and 31"));
        assert!(text(ok.check_nodes(32)).contains("between 1 and 31"));
        assert!(text(ok.check_nodes(4)).contains("allow_even_nodes"));
        let mut even = ok.clone();
        even.allow_even = true;
        even.check_nodes(4).unwrap();
        for n in [1, 3, 5] {
            ok.check_nodes(n).unwrap();
        }
    }
}
