//! The marker of each node, as text for operators. Only reads.

use std::fmt;

use super::facts::{KeptData, Server};
use super::masters::{Absent, is_usable};
use super::{Deployment, gather};
use palisade::ConfigError;
use palisade::internal::SENTENCE_MAX;
use palisade::internal::{AtMost, until_utc};

pub(super) const LOST_EVERYTHING: &str = "keys used before the loss wait or are parked: list it \
    by `palisade idem incidents`, and decide about it by `palisade idem decide`; only where no \
    such key can come again, mark all nodes as new by `palisade init --lost-everything`";

/// The marker of one node. `Display` writes some lines for people, with times in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeData {
    /// The name of the group, or `node host:port`.
    pub node: String,
    /// Address of the server that was read, `host:port`. In a group, that is the master. Empty if
    /// no server was read.
    pub server: String,
    /// The fields of the marker, or the reason for which it could not be read. `None` if the server
    /// has no palisade data.
    pub kept: Result<Option<KeptData>, String>,
    /// The server's present `master_replid`, if the server has palisade data. If the marker has
    /// another, the server may have lost data; the next request of a client then begins a
    /// quarantine.
    pub history_now: String,
}

/// Reads the marker of each node.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// The function only reads.
pub async fn nodes(deployment: &Deployment) -> Result<Vec<NodeData>, ConfigError> {
    let access = deployment.access()?;
    let (groups, nodes) = gather::everything(deployment, &access, None).await;
    let secrets = access.secrets();
    let clean = |why: String| secrets.sentence(&why, SENTENCE_MAX);
    let of_group = groups.iter().map(|group| {
        let sentinel = group.sentinels.iter().find_map(|s| s.reached.clone().err());
        let none = sentinel.unwrap_or_else(|| "its Sentinels name no master".to_owned());
        (group.name.clone(), group.master().ok_or(none))
    });
    let lone = nodes.iter().map(|server| (format!("node {}", server.at), Ok(server)));
    let all = of_group.chain(lone).map(|(node, server)| {
        let at = server.as_ref().map(|server| server.at.clone()).unwrap_or_default();
        let (kept, history_now) = match server.and_then(kept) {
            Ok((kept, history_now)) => (Ok(kept), history_now),
            Err(why) => (Err(clean(why)), String::new()),
        };
        NodeData { node, server: at, kept, history_now }
    });
    Ok(all.collect())
}

fn kept(server: &Server) -> Result<(Option<KeptData>, String), String> {
    server.reached.clone()?;
    is_usable(server).map_err(Absent::why)?;
    let marker = server.marker.clone()?;
    let history_now = if marker.is_some() { server.info("master_replid")? } else { "" };
    Ok((marker, history_now.to_owned()))
}

impl fmt::Display for NodeData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node)?;
        if !self.server.is_empty() && !self.node.ends_with(&self.server) {
            write!(f, " ({})", self.server)?;
        }
        let kept = match &self.kept {
            Ok(Some(kept)) => kept,
            Ok(None) => return f.write_str("\n  no palisade data: new, or emptied"),
            Err(why) => return write!(f, "\n  not read: {why}"),
        };
        let mut line = |name: &str, text: &dyn fmt::Display| write!(f, "\n  {name:<13}{text}");
        line("history", &kept.history)?;
        if kept.history != self.history_now {
            line(
                "now",
                &format!("{}: a quarantine begins with the next request", self.history_now),
            )?;
        }
        let since = match (kept.since, kept.empty_for) {
            (None, _) => "its first write: it never lost anything".to_owned(),
            (Some(since), _) if kept.lost_everything => {
                format!("{}, without the data that its clients had seen", until_utc(since))
            }
            (Some(since), Some(_)) => format!("{}, without palisade data", until_utc(since)),
            (Some(since), None) => format!("{}, with its earlier data", until_utc(since)),
        };
        line("since", &since)?;
        let left = kept.quarantine_left();
        let quarantine = match kept.quarantine_until().filter(|_| !left.is_zero()) {
            Some(until) => format!("until {}, for another {}", until_utc(until), AtMost(left)),
            None => format!("none now; {} after a restart or failover", AtMost(kept.quarantine)),
        };
        line("quarantine", &quarantine)?;
        line("token floor", &kept.floor)?;
        line("note", &format!("{} old", AtMost(kept.note_age())))?;
        if kept.losses.is_empty() {
            line("losses", &"none")?;
        }
        kept.losses.iter().try_for_each(|loss| line("loss", loss))?;
        if kept.lost_everything { line("to do", &LOST_EVERYTHING) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::marker::between;
    use palisade::FencingToken;

    #[test]
    fn a_node_is_shown_with_its_history_quarantine_and_losses() {
        let noon = 1_763_906_600_000;
        let marker = KeptData {
            quarantine: Duration::from_secs(19),
            history: "a".repeat(40),
            since: Some(noon),
            floor: FencingToken::new(7),
            note: noon,
            now: noon + 1_500,
            losses: vec![between(noon - 1_299, noon)],
            ..KeptData::default()
        };
        let shown = |marker: &KeptData, now: &str| {
            let (node, server) = ("orders-a".into(), "10.0.0.1:6379".into());
            let (kept, history_now) = (Ok(Some(marker.clone())), now.to_owned());
            NodeData { node, server, kept, history_now }.to_string()
        };
        assert_eq!(
            shown(&marker, &marker.history),
            "\
orders-a (10.0.0.1:6379)
  history      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  since        2025-11-23 14:03:20.0 UTC, with its earlier data
  quarantine   until 2025-11-23 14:03:39.0 UTC, for another 17.5 s
  token floor  7
  note         1.5 s old
  loss         lost at most 1.3 s of writes, 2025-11-23 14:03:18.7–14:03:20.0 UTC"
        );
        let lost = KeptData { lost_everything: true, ..marker.clone() };
        let text = shown(&lost, &lost.history);
        assert!(text.contains("UTC, without the data that its clients had seen\n"), "{text}");
        assert!(text.contains("\n  to do        keys used before the loss wait"), "{text}");
        let new = KeptData { since: None, losses: Vec::new(), ..marker };
        assert_eq!(
            shown(&new, "b"),
            "\
orders-a (10.0.0.1:6379)
  history      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  now          b: a quarantine begins with the next request
  since        its first write: it never lost anything
  quarantine   none now; 19 s after a restart or failover
  token floor  7
  note         1.5 s old
  losses       none"
        );
    }
}
