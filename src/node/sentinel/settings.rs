//! Settings of a [`SentinelNode`](super::SentinelNode).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::name::check_name;
use crate::sentinel::discovery::SENTINELS_MAX;
use crate::sentinel::watch::SHORTEST_WINDOW;

/// Settings that only a [`SentinelNode`](super::SentinelNode) has.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    pub(super) name: Arc<str>,
    pub(super) sentinels: Vec<Address>,
    /// The address is a placeholder.
    pub(super) sentinel: Endpoint,
    pub(super) within: Duration,
    pub(super) poll_every: Duration,
    pub(super) map: BTreeMap<Address, Address>,
    pub(super) trust_unconfirmed: bool,
}

impl GroupSettings {
    pub(super) fn new(
        name: String,
        sentinels: impl Iterator<Item = String>,
    ) -> Result<Self, ConfigError> {
        check_name("name", &name)?;
        if let Some(c) = name.chars().find(|c| c.is_whitespace()) {
            let rule = format!("a master's name has no white space, and here is {c:?}");
            return Err(ConfigError::new("name", format!("{name:?}"), rule));
        }
        let mut list: Vec<Address> = Vec::new();
        for text in sentinels {
            let at = Address::parse("sentinels", &text)?;
            let same =
                |s: &&Address| s.port() == at.port() && s.host().eq_ignore_ascii_case(at.host());
            if let Some(twice) = list.iter().find(same) {
                let rule = "each Sentinel once: the same one twice would vote twice";
                return Err(ConfigError::new("sentinels", twice.to_string(), rule));
            }
            list.push(at);
        }
        if list.is_empty() || list.len() > SENTINELS_MAX {
            let rule = format!("between 1 and {SENTINELS_MAX} Sentinels, three are usual");
            return Err(ConfigError::new("sentinels", format!("{} of them", list.len()), rule));
        }
        Ok(Self {
            name: name.into(),
            sentinels: list,
            sentinel: Endpoint::anywhere(),
            within: Duration::from_millis(250),
            poll_every: Duration::from_secs(1),
            map: BTreeMap::new(),
            trust_unconfirmed: false,
        })
    }

    /// Without the logins.
    pub(super) fn url(&self, data: &Endpoint) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(Address::to_string).collect();
        let db = match data.database() {
            0 => String::new(),
            db => format!("/{db}"),
        };
        let tls = [("tls", data), ("sentinel_tls", &self.sentinel)];
        let tls = tls.iter().filter(|(_, endpoint)| endpoint.is_tls());
        let tls: Vec<String> = tls.map(|(option, _)| format!("{option}=true")).collect();
        let query = if tls.is_empty() { String::new() } else { format!("?{}", tls.join("&")) };
        format!("sentinel://{}/{}{db}{query}", hosts.join(","), self.name)
    }
}

pub(super) fn check_pause(field: &'static str, span: Duration) -> Result<(), ConfigError> {
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(60));
    if (least..=most).contains(&span) {
        return Ok(());
    }
    Err(ConfigError::new(field, format!("{span:?}"), "between 1ms and one minute"))
}

/// The Sentinels' word ends L after the question, and L is 3 s or more on a group's servers
/// (sentinel 10).
pub(super) fn check_word(
    poll_every: Duration,
    window: Option<Duration>,
) -> Result<(), ConfigError> {
    let refused =
        |field, span: Duration, rule| Err(ConfigError::new(field, format!("{span:?}"), rule));
    if poll_every > Duration::from_secs(1) {
        let rule = "at most 1s, or the Sentinels' word ends before the next question; longer with \
                    `trust_unconfirmed_master(true)`";
        return refused("poll_every", poll_every, rule);
    }
    match window {
        Some(window) if window < SHORTEST_WINDOW => {
            let rule = "at least 3s for a group, or the Sentinels' word ends before the next \
                        question; shorter with `trust_unconfirmed_master(true)`";
            refused("failover_window", window, rule)
        }
        _ => Ok(()),
    }
}

pub(in crate::node) fn address_map(
    map: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<Address, Address>, ConfigError> {
    let parse = |text: &str| Address::parse("map_address", text);
    let mut pairs = BTreeMap::new();
    for (reported, reached) in map {
        let (reported, reached) = (parse(&reported)?, parse(&reached)?);
        if let Some(other) = pairs.insert(reported.clone(), reached.clone())
            && other != reached
        {
            let rule = format!("leads to {other} and to {reached}: give one");
            return Err(ConfigError::new("map_address", reported.to_string(), rule));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::super::{SentinelNode, SentinelNodeBuilder};
    use super::*;

    fn refused(name: &str, sentinels: &[&str]) -> String {
        SentinelNode::new(name, sentinels.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_refused_when_it_is_said() {
        let ok = ["a:26379"];
        assert!(refused("", &ok).starts_with("`name` is \"\": must not be empty"));
        assert!(refused("a\nb", &ok).contains("no control characters"));
        assert!(refused("a b", &ok).contains("no white space"));
        assert!(refused("orders", &[]).starts_with("`sentinels` is 0 of them: between 1 and 16"));
        assert!(refused("orders", &["a"]).contains("write host:port"));
        assert!(refused("orders", &["u:pw@a:1"]).contains("no password"));
        assert!(!refused("orders", &["u:pw@a:1"]).contains("pw"));
        assert!(refused("orders", &["a:1", "b:1", "A:1"]).contains("`sentinels` is a:1: each"));
        let many: Vec<_> = (1..=17).map(|p| format!("a:{p}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(refused("orders", &many).contains("17 of them"));
    }

    #[test]
    fn every_range_has_a_sentence() {
        let node = || SentinelNode::builder("orders", vec!["a:26379".to_owned()]);
        let text = |b: SentinelNodeBuilder| b.build().unwrap_err().to_string();
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert!(text(node().min_replicas(0, s(2))).contains("MinReplicas::Off"));
        assert!(text(node().min_replicas(1, ms(1_500))).contains("whole seconds"));
        assert!(text(node().min_replicas(1, s(0))).contains("whole seconds"));
        assert!(text(node().sentinel_deadline(s(0))).starts_with("`sentinel_deadline` is 0ns"));
        assert!(text(node().poll_every(s(61))).contains("between 1ms and one minute"));
        assert!(text(node().failover_window(s(86_401))).contains("one day"));
        for (node, field) in [
            (node().poll_every(s(2)), "`poll_every` is 2s: at most 1s"),
            (node().failover_window(s(2)), "`failover_window` is 2s: at least 3s"),
        ] {
            assert!(node.clone().trust_unconfirmed_master(true).build().is_ok());
            assert!(text(node).starts_with(field));
        }
        let two = ["a:2", "a:3"].map(|reached| ("10.0.0.1:1".to_owned(), reached.to_owned()));
        let why = text(node().map_address(two));
        assert_eq!(why, "`map_address` is 10.0.0.1:1: leads to a:2 and to a:3: give one");
        let map = [("10.0.0.1:1".to_owned(), "nowhere".to_owned())];
        assert!(text(node().map_address(map)).starts_with("`map_address` is \"nowhere\""));
        assert!(node().min_replicas(2, s(3)).build().is_ok());
    }

    #[test]
    fn secrets_are_not_printed() {
        let node = SentinelNode::builder("orders", ["a:1"]);
        let node = node.password("s3cret").sentinel_password("s3cret");
        assert!(!format!("{node:?}").contains("s3cret"));
        let node = node.build().unwrap();
        assert!(!format!("{node:?}{:?}", node.status()).contains("s3cret"));
    }
}
