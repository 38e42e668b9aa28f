//! The rule for the min-replicas check of a master, and L; pure. Without fresh acknowledgements a
//! master refuses writes after at most `max_lag + 2 s`. Without the check an isolated master
//! accepts writes for the whole partition, and then for about eleven seconds.

use std::fmt;
use std::time::Duration;

use crate::error::ConfigError;

/// Time that is added to `min-replicas-max-lag`. Redis measures the age of an acknowledgement in
/// whole seconds, and checks this age once a second.
pub const LAG_SLACK: Duration = Duration::from_secs(2);

/// Assumed L of a server without the check. Nothing enforces it.
const UNCHECKED: Duration = Duration::from_secs(15);

/// Behaviour of a node if its master's min-replicas check is off or too weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MinReplicas {
    /// The node does not vote while the min-replicas check is off or weaker than required.
    #[default]
    Require,
    /// The node votes, and logs a warning. Then nothing bounds L, on which the length of the
    /// quarantine relies.
    Warn,
    /// The node votes although the min-replicas check is off or too weak, and logs no warning.
    Off,
}

/// Strength of the min-replicas check that a client requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinReplicasRule {
    /// Behaviour of the node if the min-replicas check is off or weaker than required.
    pub policy: MinReplicas,
    /// Smallest permitted `min-replicas-to-write`.
    pub replicas: u32,
    /// Largest permitted `min-replicas-max-lag`, in whole seconds.
    pub max_lag: Duration,
    /// L that the user has set. If the check is required, this is the least L while the settings of
    /// a server are unknown; else it is L itself. With `None`, L is `max_lag` + 2 s, which the
    /// nodes' scripts enforce, or 15 s if the check is not required.
    pub window: Option<Duration>,
}

impl Default for MinReplicasRule {
    /// Requires at least one replica and a lag of at most ten seconds, which is the servers'
    /// default lag.
    fn default() -> Self {
        Self {
            policy: MinReplicas::Require,
            replicas: 1,
            max_lag: Duration::from_secs(10),
            window: None,
        }
    }
}

/// `replicas` is 0, or `max_lag` is not a whole number of seconds between one and 3600: an error.
pub(crate) fn check_min_replicas(replicas: u32, max_lag: Duration) -> Result<(), ConfigError> {
    if replicas == 0 {
        let rule =
            "at least 1 replica; to go without the check call min_replicas_check(MinReplicas::Off)";
        return Err(ConfigError::new("min_replicas", "0 replicas", rule));
    }
    let range = Duration::from_secs(1)..=Duration::from_secs(3_600);
    if !range.contains(&max_lag) || max_lag.subsec_nanos() != 0 {
        let rule = "min-replicas-max-lag is in whole seconds, from one second to one hour";
        return Err(ConfigError::new("min_replicas", format!("{max_lag:?} of lag"), rule));
    }
    Ok(())
}

/// Min-replicas settings and replica counts that a master reports.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MinReplicasFacts {
    /// `min_slaves_good_slaves`: number of replicas that acknowledged in time. A server reports
    /// this number only while the check is on, so `None` means that the check is off.
    pub good_replicas: Option<u32>,
    /// `connected_slaves`: number of connected replicas, in any state.
    pub connected_replicas: Option<u32>,
    /// `min-replicas-to-write`; `None` if `CONFIG GET` is not allowed.
    pub min_replicas: Option<u32>,
    /// `min-replicas-max-lag`; `None` if `CONFIG GET` is not allowed.
    pub max_lag: Option<Duration>,
}

impl MinReplicasFacts {
    /// Parses the text of `INFO replication` and the pairs of `CONFIG GET min-replicas-*`. `config`
    /// is `None` if the server does not allow `CONFIG GET`.
    pub fn parse(info: &str, config: Option<&[(String, String)]>) -> Self {
        let field = |name: &str| {
            info.lines().find_map(|line| {
                let (key, value) = line.trim_end().split_once(':')?;
                (key == name).then(|| value.parse().ok())?
            })
        };
        let setting = |name: &str| {
            let pair = config?.iter().find(|(key, _)| key == name)?;
            pair.1.parse::<u64>().ok()
        };
        let lag = setting("min-replicas-max-lag").map(Duration::from_secs);
        Self {
            good_replicas: field("min_slaves_good_slaves"),
            connected_replicas: field("connected_slaves"),
            min_replicas: setting("min-replicas-to-write").and_then(|k| u32::try_from(k).ok()),
            max_lag: lag,
        }
    }

    /// Returns true if the min-replicas check is on.
    pub fn is_on(&self) -> bool {
        // `min_replicas` or `max_lag` of 0 turns the check off, too.
        let set = |v: Option<u64>| v.is_none_or(|v| v > 0);
        self.good_replicas.is_some()
            && set(self.min_replicas.map(u64::from))
            && set(self.max_lag.map(|l| l.as_secs()))
    }
}

impl fmt::Display for MinReplicasFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |v: Option<u64>| {
            v.map_or_else(|| "unknown (CONFIG not allowed)".to_owned(), |v| v.to_string())
        };
        write!(
            f,
            "check {}; min-replicas-to-write {}; min-replicas-max-lag {}",
            if self.is_on() { "on" } else { "off" },
            number(self.min_replicas.map(u64::from)),
            number(self.max_lag.map(|l| l.as_secs())),
        )?;
        match (self.good_replicas, self.connected_replicas) {
            (Some(good), _) => write!(f, "; {good} good replicas"),
            (None, Some(n)) => write!(f, "; {n} connected replicas"),
            (None, None) => Ok(()),
        }
    }
}

/// Result of checking a master's min-replicas settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The reason for which the node does not vote, and the command that corrects it; `None` if the
    /// node may vote.
    pub fault: Option<String>,
    /// A weakness of the settings to log, although the node may vote.
    pub warning: Option<String>,
    /// L: time for which a replaced master may still accept writes.
    pub window: Duration,
}

/// Advised `min-replicas-max-lag`. With this lag and [`ADVISED_DOWN_AFTER`], a lease of 15 s
/// outlives a failover of the group, and a short pause of the master does not start a failover
/// (sentinel-conf/README.md).
pub const ADVISED_LAG: Duration = Duration::from_secs(2);
/// Advised `down-after-milliseconds` of the Sentinels.
pub const ADVISED_DOWN_AFTER: Duration = Duration::from_secs(4);

impl MinReplicasRule {
    /// Judges a master by the settings and replica counts that it reports, and by the group's
    /// `down-after` and number of replicas, if the Sentinels report them.
    pub fn judge(
        &self,
        facts: &MinReplicasFacts,
        down_after: Option<Duration>,
        replicas: Option<u32>,
    ) -> Checked {
        if self.policy == MinReplicas::Off {
            return Checked { fault: None, warning: None, window: self.hope() };
        }
        let wrong = self.wrong(facts, down_after);
        if self.policy == MinReplicas::Warn {
            let warning = wrong.or_else(|| two_halves(facts, replicas));
            return Checked { fault: None, warning, window: self.hope() };
        }
        // `INFO` shows that the check is on, but not how strong. The script counts the replicas by
        // the required strength.
        let window = match facts.max_lag {
            Some(lag) if wrong.is_none() => lag + LAG_SLACK,
            _ => self.unread(),
        };
        Checked { fault: wrong, warning: two_halves(facts, replicas), window }
    }

    fn hope(&self) -> Duration {
        self.window.unwrap_or(UNCHECKED)
    }

    /// Returns L of a standalone server: its address always belongs to the same server, unless the
    /// user has set L.
    pub fn lone_window(&self) -> Duration {
        self.window.unwrap_or_default()
    }

    /// Returns L of a group: the longest of `own`, which is that of its master, and those of the
    /// servers whose `min-replicas-max-lag` was read. A master with a longer lag than `max_lag` has
    /// no vote, so none of them counts for more.
    pub fn group_window(
        &self,
        own: Duration,
        lags: impl IntoIterator<Item = Duration>,
    ) -> Duration {
        let window = |lag: Duration| lag.min(self.max_lag) + LAG_SLACK;
        lags.into_iter().map(window).fold(own, Duration::max)
    }

    /// Returns the least L of a server whose min-replicas check is on and whose settings of this
    /// check are unknown.
    pub fn unread(&self) -> Duration {
        self.window.unwrap_or_default().max(self.max_lag + LAG_SLACK)
    }

    pub(crate) fn wrong(
        &self,
        facts: &MinReplicasFacts,
        down_after: Option<Duration>,
    ) -> Option<String> {
        if self.policy == MinReplicas::Off {
            return None;
        }
        self.weakness(facts).or_else(|| lag_rule(facts, self.max_lag, down_after))
    }

    fn weakness(&self, facts: &MinReplicasFacts) -> Option<String> {
        let (k, lag) = (self.replicas, self.max_lag.as_secs());
        let advised = ADVISED_LAG.min(self.max_lag).as_secs();
        let mend = format!(
            "on every server of the group, replicas too, run: CONFIG SET min-replicas-to-write {k} \
             min-replicas-max-lag {advised} and then CONFIG REWRITE"
        );
        let what = if !facts.is_on() {
            "the min-replicas check is off".to_owned()
        } else if let Some(is) = facts.min_replicas.filter(|is| *is < k) {
            format!("min-replicas-to-write is {is}, but {k} is required")
        } else if let Some(is) = facts.max_lag.filter(|is| *is > self.max_lag) {
            format!("min-replicas-max-lag is {}, but at most {lag} is required", is.as_secs())
        } else {
            return None;
        };
        Some(format!("{what}; {mend}"))
    }
}

/// `max_lag + 2 s` is more than `down-after`: the old master may accept writes after the new one
/// has begun (sentinel 4). Measured overlap with a lag of 10 s and a down-after of 5 s: 4.9 s.
fn lag_rule(
    facts: &MinReplicasFacts,
    requested: Duration,
    down_after: Option<Duration>,
) -> Option<String> {
    let down_after = down_after?;
    let lag = facts.max_lag.unwrap_or(requested);
    if lag.saturating_add(LAG_SLACK) <= down_after {
        return None;
    }
    let enough = down_after.as_secs().saturating_sub(LAG_SLACK.as_secs());
    if facts.max_lag.is_none() && enough >= 1 {
        return Some(format!(
            "this user may not read min-replicas-max-lag (CONFIG), and the assumed {} s + {} s are \
             more than Sentinel's down-after-milliseconds ({}): set `min_replicas(…)` to the lag \
             that is set on all servers, at most {enough} s here, or allow the user +config|get",
            lag.as_secs(),
            LAG_SLACK.as_secs(),
            down_after.as_millis(),
        ));
    }
    let advised = ADVISED_LAG.as_secs();
    let mend = if enough >= 1 && lag > ADVISED_LAG {
        format!(
            "on every server of the group run: CONFIG SET min-replicas-max-lag {} and then CONFIG \
             REWRITE",
            enough.min(advised)
        )
    } else {
        let least = lag.saturating_add(LAG_SLACK).max(ADVISED_DOWN_AFTER).as_millis();
        format!("on every Sentinel run: SENTINEL SET <name> down-after-milliseconds {least}")
    };
    Some(format!(
        "min-replicas-max-lag ({} s) + {} s is more than down-after-milliseconds ({}): a replaced \
         master would still take writes when the new one begins; {mend}",
        lag.as_secs(),
        LAG_SLACK.as_secs(),
        down_after.as_millis(),
    ))
}

/// A cut can leave two halves that both pass the check: with `2·(1 + k)` servers or more, where k
/// is `min-replicas-to-write`.
fn two_halves(facts: &MinReplicasFacts, replicas: Option<u32>) -> Option<String> {
    let (k, servers) = (u64::from(facts.min_replicas?), u64::from(replicas?) + 1);
    (servers >= 2 * (1 + k)).then(|| {
        format!(
            "min-replicas-to-write is {k} in a group of {servers} servers: two halves of it could \
             each satisfy the check; set it to {} to prevent that",
            servers / 2
        )
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    const INFO_ON: &str = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
                           min_slaves_good_slaves:2\r\nslave0:ip=a,port=1\r\n";
    const INFO_OFF: &str = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n";
    const S: fn(u64) -> Duration = Duration::from_secs;

    fn config(k: &str, lag: &str) -> Vec<(String, String)> {
        vec![
            ("min-replicas-max-lag".to_owned(), lag.to_owned()),
            ("min-replicas-to-write".to_owned(), k.to_owned()),
        ]
    }

    fn rule(policy: MinReplicas, replicas: u32, lag: u64) -> MinReplicasRule {
        MinReplicasRule { policy, replicas, max_lag: S(lag), window: None }
    }

    fn facts(k: &str, lag: &str) -> MinReplicasFacts {
        MinReplicasFacts::parse(INFO_ON, Some(&config(k, lag)))
    }

    #[test]
    fn a_guard_that_is_strong_enough_bounds_the_window() {
        let verdict = rule(MinReplicas::Require, 1, 3).judge(&facts("1", "2"), Some(S(5)), Some(2));
        assert_eq!(verdict, Checked { fault: None, warning: None, window: S(4) });
        let edge = rule(MinReplicas::Require, 1, 3).judge(&facts("1", "3"), Some(S(5)), Some(2));
        assert_eq!(edge.fault, None);
        assert_eq!(edge.window, S(5));
    }

    #[test]
    fn absent_or_weak_guards_name_the_command() {
        let cases = [
            (MinReplicasFacts::parse(INFO_OFF, Some(&config("0", "10"))), "check is off"),
            (MinReplicasFacts::parse(INFO_OFF, None), "check is off"),
            (facts("1", "2"), "min-replicas-to-write is 1, but 2 is required"),
            (facts("2", "9"), "min-replicas-max-lag is 9, but at most 3 is required"),
        ];
        for (facts, what) in cases {
            let fault = rule(MinReplicas::Require, 2, 3).judge(&facts, None, None).fault.unwrap();
            assert!(fault.contains(what), "{fault}");
            let command = "CONFIG SET min-replicas-to-write 2 min-replicas-max-lag 2";
            assert!(fault.contains(command), "{fault}");
            let warn = rule(MinReplicas::Warn, 2, 3).judge(&facts, None, None);
            assert_eq!((warn.fault, warn.window), (None, S(15)));
            assert!(warn.warning.unwrap().contains(command));
            let off = rule(MinReplicas::Off, 2, 3).judge(&facts, None, None);
            assert_eq!((off.fault, off.warning, off.window), (None, None, S(15)));
        }
    }

    #[test]
    fn the_lag_rule_names_what_would_be_enough() {
        let require = rule(MinReplicas::Require, 1, 10);
        let fault = require.judge(&facts("1", "10"), Some(S(5)), None).fault.unwrap();
        assert!(fault.contains("CONFIG SET min-replicas-max-lag 2 and then"), "{fault}");
        let fault = require.judge(&facts("1", "1"), Some(S(1)), None).fault.unwrap();
        assert!(fault.contains("down-after-milliseconds 4000"), "{fault}");
        // The lag is the advised one.
        let fault = require.judge(&facts("1", "2"), Some(S(3)), None).fault.unwrap();
        assert!(fault.contains("down-after-milliseconds 4000"), "{fault}");
    }

    #[test]
    fn closed_config_takes_what_was_asked_for() {
        let facts = MinReplicasFacts::parse(INFO_ON, None);
        assert!(facts.is_on());
        assert!(facts.to_string().contains("unknown (CONFIG not allowed)"), "{facts}");
        let verdict = rule(MinReplicas::Require, 1, 3).judge(&facts, Some(S(5)), Some(2));
        assert_eq!(verdict, Checked { fault: None, warning: None, window: S(5) });
        let stated = MinReplicasRule { window: Some(S(15)), ..rule(MinReplicas::Require, 1, 3) };
        assert_eq!(stated.judge(&facts, Some(S(5)), Some(2)).window, S(15));
        let long = rule(MinReplicas::Require, 1, 20).judge(&facts, None, None);
        assert_eq!(long.window, S(22));
        let fault = rule(MinReplicas::Require, 1, 10).judge(&facts, Some(S(5)), None).fault;
        let fault = fault.unwrap();
        assert!(
            fault.contains("set `min_replicas(…)`") && fault.contains("at most 3 s"),
            "{fault}"
        );
    }

    #[test]
    fn two_halves_that_both_satisfy_the_check_are_reported() {
        let require = rule(MinReplicas::Require, 1, 3);
        assert_eq!(require.judge(&facts("1", "2"), None, Some(2)).warning, None);
        let warning = require.judge(&facts("1", "2"), None, Some(3)).warning.unwrap();
        assert!(warning.contains("set it to 2 to prevent that"), "{warning}");
    }
}
