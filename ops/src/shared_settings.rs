//! The settings that all clients of a node share. Clients raise them in the node's marker, and
//! never lower them.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;

use super::marking::{self, Looked};
use super::masters::{self, Master};
use super::script::Refusal;
use super::{Deployment, gather};
use palisade::ConfigError;
use palisade::internal::lineage::Marker;
use palisade::internal::{AtMost, until_utc};

pub(super) const UNMARKED: &str = "it has no marker, so no client has asked for anything yet";

/// The settings that all clients of one node share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedSettings {
    /// Length of a quarantine: the longest `max_ttl` and failover window that any client has asked
    /// for.
    pub quarantine: Duration,
    /// Failover window of the node, by its address and by the settings of a group's servers; zero
    /// for a lone server whose address has none.
    pub window: Duration,
    /// Largest clock error that any client has asked for.
    pub clock_error: Duration,
    /// Time since which the settings have been these, or earlier: the server's clock at the last
    /// write of the marker, in milliseconds since 1970.
    pub since: u64,
    /// Id of the deployment; `None` if the data have no name.
    pub deployment: Option<u64>,
    /// Id of the vote; `None` if the data have no name.
    pub vote: Option<u64>,
    /// Epoch in the marker, and that in which the Sentinels name the master, if it is lower. No
    /// failover up to the first one is noticed by its epoch (rule quarantine 16 in docs/design).
    pub epoch_above: Option<(u64, u64)>,
}

/// One node with the settings that its clients share. `Display` writes some lines for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeSettings {
    /// The name of the group, or `node host:port`.
    pub node: String,
    /// Address of the server that was read, `host:port`. In a group, that is the master. Empty if
    /// no server was read.
    pub server: String,
    /// The settings, or the reason for which they could not be read. `None` if no client has used
    /// the node yet.
    pub settings: Result<Option<SharedSettings>, String>,
}

/// Reads the settings that the clients of each node share.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// The function only reads.
pub async fn shared_settings(deployment: &Deployment) -> Result<Vec<NodeSettings>, ConfigError> {
    let each =
        find(deployment).await?.into_iter().map(|Place { node, master, window, .. }| async move {
            let (server, settings) = match master {
                Err(why) => (String::new(), Err(why)),
                Ok(master) => {
                    let looked = look(deployment, &master).await.map_err(|refusal| refusal.why);
                    let of = |m: &Marker| SharedSettings::of(m, window, master.epoch);
                    (master.at, looked.map(|looked| looked.shown.marker.as_ref().map(of)))
                }
            };
            NodeSettings { node, server, settings }
        });
    Ok(join_all(each).await)
}

pub(super) struct Place {
    pub(super) node: String,
    pub(super) master: Result<Master, String>,
    pub(super) window: Duration,
    /// For a client that may not have read what it depends on.
    pub(super) longest_window: Duration,
}

pub(super) async fn find(deployment: &Deployment) -> Result<Vec<Place>, ConfigError> {
    let access = deployment.access()?;
    let (groups, lone) = gather::everything(deployment, &access, None).await;
    let of_groups = groups.iter().map(|group| (group.window(), group.longest_window()));
    let windows = of_groups.chain(lone.iter().map(|server| (server.window, server.window)));
    let found = masters::find_masters(deployment).await?;
    let place =
        |((node, master), (window, longest_window))| Place { node, master, window, longest_window };
    Ok(found.into_iter().zip(windows).map(place).collect())
}

pub(super) async fn look(deployment: &Deployment, master: &Master) -> Result<Looked, Refusal> {
    let conn = master.open(deployment).await.map_err(Refusal::failed)?;
    marking::look(&conn).await
}

impl SharedSettings {
    pub(super) fn of(marker: &Marker, window: Duration, epoch: Option<u64>) -> Self {
        Self {
            quarantine: Duration::from_millis(marker.quarantine),
            window,
            clock_error: Duration::from_micros(marker.clock_error),
            since: marker.written,
            deployment: Some(marker.deployment).filter(|id| *id != 0),
            vote: Some(marker.vote).filter(|id| *id != 0),
            epoch_above: epoch.filter(|now| *now < marker.epoch).map(|now| (marker.epoch, now)),
        }
    }
}

impl fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node)?;
        if !self.server.is_empty() && !self.node.ends_with(&self.server) {
            write!(f, " ({})", self.server)?;
        }
        let of = match &self.settings {
            Ok(Some(settings)) => settings,
            Ok(None) => return write!(f, "\n  {UNMARKED}"),
            Err(why) => return write!(f, "\n  not read: {why}"),
        };
        write!(f, "\n  quarantine   {}: the longest max_ttl", AtMost(of.quarantine))?;
        if !of.window.is_zero() {
            let window = AtMost(of.window);
            write!(f, ", and the failover window ({window} by the settings)")?;
        }
        write!(f, "\n  clock_error  {:?}", of.clock_error)?;
        if let Some((above, now)) = of.epoch_above {
            write!(
                f,
                "\n  epoch        {above}, above the Sentinels' {now}, so that no failover up to \
                 it is noticed:\n               `palisade settings --lower --max-ttl {} \
                 --clock-error {}` sets it back",
                of.quarantine.saturating_sub(of.window).as_secs_f64(),
                of.clock_error.as_secs_f64(),
            )?;
        }
        if of.since > 0 {
            write!(f, "\n  since        {} at the latest", until_utc(of.since))?;
        }
        match (of.deployment, of.vote) {
            (Some(deployment), Some(vote)) => {
                write!(f, "\n  deployment   {deployment:016x}, vote {vote:016x}")
            }
            _ => f.write_str("\n  deployment   without a name"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn settings() -> SharedSettings {
        SharedSettings {
            quarantine: Duration::from_secs(19),
            window: Duration::from_secs(4),
            clock_error: Duration::from_secs(2),
            since: 1_763_906_600_000,
            deployment: Some(0xab),
            vote: Some(0xcd),
            epoch_above: None,
        }
    }

    #[test]
    fn a_node_is_shown_with_what_its_clients_share() {
        let shown = |settings| {
            let (node, server) = ("orders-a".to_owned(), "10.0.0.1:6379".to_owned());
            NodeSettings { node, server, settings: Ok(settings) }.to_string()
        };
        assert_eq!(
            shown(Some(settings())),
            "\
orders-a (10.0.0.1:6379)
  quarantine   19 s: the longest max_ttl, and the failover window (4 s by the settings)
  clock_error  2s
  since        2025-11-23 14:03:20.0 UTC at the latest
  deployment   00000000000000ab, vote 00000000000000cd"
        );
        let new = SharedSettings { since: 0, deployment: None, vote: None, ..settings() };
        assert!(shown(Some(new)).ends_with("clock_error  2s\n  deployment   without a name"));
        let above = shown(Some(SharedSettings { epoch_above: Some((57, 5)), ..settings() }));
        assert!(above.contains("\n  epoch        57, above the Sentinels' 5, so"), "{above}");
        assert!(above.contains("--lower --max-ttl 15 --clock-error 2`"), "{above}");
        assert!(
            shown(None).ends_with("\n  it has no marker, so no client has asked for anything yet")
        );
    }
}
