//! Gives nodes that were marked one by one the id of one deployment (rule quarantine 22 in
//! docs/design). Nothing else in a marker changes, so no history begins.

use std::fmt;

use futures_util::future::join_all;

use super::Deployment;
use super::marking::{self, Looked};
use super::masters::{self, Master};
use super::script::{Kind, Refusal};
use palisade::ConfigError;
use palisade::internal::lineage::Marker;

/// The result of [`one_deployment`]. `Display` writes a line for each node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it may contain a refusal"]
pub struct OneDeployment {
    /// Id of the deployment: that of the settings, else the one that most of the nodes had; `None`
    /// if no node could be read.
    pub id: Option<u64>,
    /// Each node with its result: true if its id was another one before, or the reason for which
    /// nothing was changed, or how many replicas lack the id.
    pub nodes: Vec<(String, Result<bool, String>)>,
}

/// Gives all nodes the id of one deployment, and waits until the replicas have it that follow now.
/// Changes nothing if a node cannot be read, or has no marker.
///
/// Before it is run, every program that used a part of these nodes without the others has to have
/// ended, and its keys are not to be used again; nothing can prove that. A program that has seen
/// another id on a node refuses the node until it is restarted.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// If the future is dropped, each node has either its old id or the new one. Run it again.
pub async fn one_deployment(deployment: &Deployment) -> Result<OneDeployment, ConfigError> {
    let given = deployment.id()?;
    let found = masters::find_masters(deployment).await?.into_iter();
    let each = found.map(|(node, master)| async move { (node, read(deployment, master).await) });
    let each = join_all(each).await;
    let ids: Vec<u64> = each.iter().flat_map(|(_, one)| one).map(|(_, id)| *id).collect();
    let count = |id: u64| ids.iter().filter(|one| **one == id).count();
    // Of several that as many nodes have, `max_by_key` takes the last one.
    let known = ids.iter().rev().copied().filter(|id| *id != 0);
    let id = given.or(known.max_by_key(|id| count(*id)));
    let all_read = ids.len() == each.len();
    // That is how a wrong address looks, and not nodes that were marked one by one.
    let is_majority = given.is_none() && id.is_some_and(|id| count(id) > ids.len() / 2);
    let is_other = |one: u64| is_majority && one != 0 && Some(one) != id;
    let is_one_other = ids.iter().any(|one| is_other(*one));
    let named = each.into_iter().map(|(node, one)| async move {
        let result = match (one, id) {
            (Ok((_, one)), _) if is_other(one) => Err(format!(
                "it has the data of deployment {one:016x}, and most nodes have others: point its \
                 address at the right server; only if it is the right one, name the id by \
                 `--deployment`"
            )),
            (Ok((master, _)), Some(id)) if all_read && !is_one_other => {
                name(deployment, &master, id).await
            }
            (Ok(_), _) => Err("nothing was changed, because another node cannot be".to_owned()),
            (Err(why), _) => Err(why),
        };
        (node, result)
    });
    Ok(OneDeployment { id, nodes: join_all(named).await })
}

async fn read(
    deployment: &Deployment,
    master: Result<Master, String>,
) -> Result<(Master, u64), String> {
    let master = master?;
    let look = async {
        let conn = master.open(deployment).await?;
        let looked = marking::look(&conn).await.map_err(|refusal| refusal.why)?;
        Ok::<_, String>(marker_of(&looked)?.deployment)
    };
    let id = look.await.map_err(|why| format!("{}: {why}", master.at))?;
    Ok((master, id))
}

fn marker_of(looked: &Looked) -> Result<Marker, String> {
    let why = match looked.shown.marker {
        None => "it has no marker: mark it by `palisade init --new` if it is new",
        Some(marker) if marker.handover.is_some() => {
            "a planned handover is not over: let a program connect, and run this again"
        }
        Some(marker) => return Ok(marker),
    };
    Err(why.to_owned())
}

async fn name(deployment: &Deployment, master: &Master, id: u64) -> Result<bool, String> {
    let at = &master.at;
    let conn = master.open(deployment).await.map_err(|why| format!("{at}: {why}"))?;
    // The replicas may lack it even if the master has the id.
    let written = marking::rewrite(&conn, (deployment, master), |looked| {
        let refused = |why| Refusal { kind: Kind::Refused, why };
        let mut marker = marker_of(looked).map_err(refused)?;
        let is_other = marker.deployment != id || marker.vote == 0;
        marker.deployment = id;
        if marker.vote == 0 {
            marker.vote = rand::random();
        }
        Ok((marker, is_other))
    });
    match written.await {
        Ok((is_other, None)) => Ok(is_other),
        Ok((_, Some(few))) => Err(format!(
            "deployment {id:016x} now at {at}, but {few}: before it is used, find out why they \
             lag, and run this again"
        )),
        Err(refusal) => Err(format!("{at}: {}", refusal.why)),
    }
}

impl OneDeployment {
    /// Returns true if all nodes have the id.
    pub fn is_done(&self) -> bool {
        self.nodes.iter().all(|(_, one)| one.is_ok())
    }
}

impl fmt::Display for OneDeployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.unwrap_or_default();
        for (node, one) in &self.nodes {
            match one {
                Ok(true) => writeln!(f, "{node}: deployment {id:016x} now")?,
                Ok(false) => writeln!(f, "{node}: deployment {id:016x} as before")?,
                Err(why) => writeln!(f, "{node}: {why}")?,
            }
        }
        Ok(())
    }
}
