//! The marker of each node as operators read it: data history, quarantine, token floor, losses.
//! Only reads.

use std::fmt;
use std::time::Duration;

use super::facts::{Kept, Marker, Server};
use super::{Deployment, gather};
use palisade::ConfigError;
use palisade::FencingToken;
use palisade::internal::SENTENCE_MAX;
use palisade::internal::{AtMost, until_utc};
use palisade::node::spi::Loss;

/// Instruction for an operator about a server that lost everything.
pub(super) const LOST_EVERYTHING: &str = "keys of before wait or are parked: list the loss by \
    `palisade idem incidents`, and decide about it by `palisade idem decide`; only where no key of \
    before can come again, mark all nodes as new by `palisade init --lost-everything`";

/// The marker of one node. `Display` writes a few lines for people, with times in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeData {
    /// The group's name, or `node host:port`.
    pub node: String,
    /// Address of the server that was read, `host:port`; for a group, its master. Empty if there is
    /// none.
    pub server: String,
    /// The fields of its marker; `None` if it has no palisade data; or the reason for which it
    /// could not be read.
    pub kept: Result<Option<KeptData>, String>,
}

/// The facts of a marker by which a node grants or refuses. Times are by the server's clock, in
/// milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptData {
    /// Data history in which the marker was written (the server's `master_replid`).
    pub history: String,
    /// The server's data history now. If it differs from `history`, a quarantine begins with the
    /// next request, and one more loss is added.
    pub history_now: String,
    /// Time when the history began; `None` if the server never lost anything.
    pub since: Option<u64>,
    /// True if the history began without any palisade data.
    pub began_empty: bool,
    /// True if the history began without data that clients had a record of: the server lost
    /// everything.
    pub lost_everything: bool,
    /// Length of a quarantine.
    pub quarantine: Duration,
    /// End of the last quarantine; `None` if there was none.
    pub quarantine_until: Option<u64>,
    /// Rest of the quarantine; zero outside of a quarantine.
    pub quarantine_left: Duration,
    /// Smallest fencing token that is handed out.
    pub floor: FencingToken,
    /// Age of the last note of the server's clock. A crash now would lose at least this much.
    pub note_age: Duration,
    /// Losses: the writes that the data may lack, the latest last; at most eight.
    pub losses: Vec<Loss>,
}

/// Reads the marker of each node. Nothing is written.
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
    let all = of_group.chain(lone).map(|(node, server)| match server {
        Ok(server) => {
            NodeData { node, server: server.at.clone(), kept: kept(server).map_err(clean) }
        }
        Err(why) => NodeData { node, server: String::new(), kept: Err(clean(why)) },
    });
    Ok(all.collect())
}

fn kept(server: &Server) -> Result<Option<KeptData>, String> {
    server.reached.clone()?;
    let marker = match server.marker.known()? {
        Marker::Absent => return Ok(None),
        Marker::Kept(marker) => marker,
    };
    Ok(Some(data(marker, server.info("master_replid")?)))
}

fn data(marker: &Kept, history_now: &str) -> KeptData {
    let since = Some(marker.since).filter(|since| *since > 0);
    let length = u64::try_from(marker.quarantine.as_millis()).unwrap_or(u64::MAX);
    let until = since.map(|since| since.saturating_add(length));
    let left = until.unwrap_or(0).saturating_sub(marker.now);
    KeptData {
        history: marker.history.clone(),
        history_now: history_now.to_owned(),
        since,
        began_empty: marker.empty_for.is_some(),
        lost_everything: marker.lost_everything,
        quarantine: marker.quarantine,
        quarantine_until: until,
        quarantine_left: Duration::from_millis(left),
        floor: FencingToken::new(marker.floor),
        note_age: Duration::from_millis(marker.now.saturating_sub(marker.note)),
        losses: marker.losses.clone(),
    }
}

impl fmt::Display for NodeData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node)?;
        if !self.server.is_empty() && !self.node.ends_with(&self.server) {
            write!(f, " ({})", self.server)?;
        }
        match &self.kept {
            Ok(Some(kept)) => kept.fmt(f),
            Ok(None) => f.write_str("\n  no palisade data: new, or emptied"),
            Err(why) => write!(f, "\n  not read: {why}"),
        }
    }
}

/// Writes each line after a line break, so the text can follow a title.
impl fmt::Display for KeptData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: &dyn fmt::Display| write!(f, "\n  {name:<13}{text}");
        line("history", &self.history)?;
        if self.history != self.history_now {
            line(
                "now",
                &format!("{}: a quarantine begins with the next request", self.history_now),
            )?;
        }
        let since = match (self.since, self.began_empty) {
            (None, _) => "its first write: it never lost anything".to_owned(),
            (Some(since), _) if self.lost_everything => {
                format!("{}, without the data that its clients knew", until_utc(since))
            }
            (Some(since), true) => format!("{}, without palisade data", until_utc(since)),
            (Some(since), false) => format!("{}, with the data of before", until_utc(since)),
        };
        line("since", &since)?;
        let quarantine = match self.quarantine_until.filter(|_| !self.quarantine_left.is_zero()) {
            Some(until) => {
                format!("until {}, for another {}", until_utc(until), AtMost(self.quarantine_left))
            }
            None => format!("none now; {} after a restart or failover", AtMost(self.quarantine)),
        };
        line("quarantine", &quarantine)?;
        line("token floor", &self.floor)?;
        line("note", &format!("{} old", AtMost(self.note_age)))?;
        if self.losses.is_empty() {
            line("losses", &"none")?;
        }
        self.losses.iter().try_for_each(|loss| line("loss", loss))?;
        if self.lost_everything { line("to do", &LOST_EVERYTHING) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::between;

    #[test]
    fn a_node_is_shown_with_its_history_quarantine_and_losses() {
        let noon = 1_763_906_600_000;
        let marker = Kept {
            quarantine: Duration::from_secs(19),
            history: "a".repeat(40),
            since: noon,
            floor: 7,
            note: noon,
            now: noon + 1_500,
            losses: vec![between(noon - 1_299, noon)],
            ..Kept::default()
        };
        let shown = |marker: &Kept, now: &str| {
            let kept = Ok(Some(data(marker, now)));
            NodeData { node: "orders-a".into(), server: "10.0.0.1:6379".into(), kept }.to_string()
        };
        assert_eq!(
            shown(&marker, &marker.history),
            "\
orders-a (10.0.0.1:6379)
  history      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  since        2025-11-23 14:03:20.0 UTC, with the data of before
  quarantine   until 2025-11-23 14:03:39.0 UTC, for another 17.5 s
  token floor  7
  note         1.5 s old
  loss         lost at most 1.3 s of writes, 2025-11-23 14:03:18.7–14:03:20.0 UTC"
        );
        let lost = Kept { lost_everything: true, ..marker.clone() };
        let text = shown(&lost, &lost.history);
        assert!(text.contains("UTC, without the data that its clients knew\n"), "{text}");
        assert!(text.contains("\n  to do        keys of before wait or are parked"), "{text}");
        let new = Kept { since: 0, losses: Vec::new(), ..marker };
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
