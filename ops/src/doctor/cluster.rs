//! What the doctor says of a cluster. It is examined apart from groups and lone servers, whose
//! checks do not fit it.

use super::report::Finding;
use crate::Deployment;
use crate::cluster::{self, Cluster};
use crate::deployment::ClusterLogin;
use crate::masters::Absent;

const ID: &str = "cluster";
const WHY: &str = "a slot without a marker grants nothing for one quarantine from its first use, a \
                   shard without a replica is gone with its master, and with full coverage all \
                   slots are gone with it";

pub(super) async fn findings(
    deployment: &Deployment,
    login: &ClusterLogin,
) -> (bool, Vec<Finding>) {
    let (reached, found) = match cluster::find(deployment, login).await {
        Ok(cluster) => (true, examine(deployment, &cluster, login).await),
        Err(Absent::Refused(why)) => (true, vec![Finding::error(why, "")]),
        Err(Absent::Unreachable(why)) => (false, vec![Finding::error(why, "")]),
    };
    let named = |f: Finding| Finding { check: ID, why: WHY, ..f.on(login.url.clone()) };
    (reached, found.into_iter().map(named).collect())
}

async fn examine(deployment: &Deployment, cluster: &Cluster, login: &ClusterLogin) -> Vec<Finding> {
    let (mut found, mut unmarked) = (Vec::new(), 0);
    for shard in cluster.shards() {
        let at = &shard.at;
        match shard.unmarked(deployment).await {
            Ok(slots) => unmarked += slots,
            Err(why) => found.push(Finding::unknown(format!("{at}: {why}"))),
        }
        if shard.replicas == 0 {
            let message = format!("{at} has no replica, so its names are gone if it dies");
            found.push(Finding::warning(message, format!("{} slots", shard.slots())));
        }
        match shard.covers_all(deployment).await {
            Ok(true) => {
                let message = format!(
                    "{at} refuses all requests while one slot of the cluster has no master"
                );
                let fix = format!(
                    "redis-cli -u redis://{at} CONFIG SET cluster-require-full-coverage no"
                );
                let finding = Finding::warning(message, "cluster-require-full-coverage yes");
                found.push(finding.fix([fix]));
            }
            Ok(false) => {}
            Err(why) => found.push(Finding::unknown(format!("{at}: {why}"))),
        }
    }
    for (at, slots) in &cluster.open {
        let message = format!(
            "{at} has slots that are being moved: their names are neither granted nor renewed, \
             and keys are gone if the move is closed by SETSLOT STABLE, as `--cluster fix` does \
             where no other server imports"
        );
        let finding = Finding::error(message, format!("open slots: {}", slots.join(", ")));
        found.push(finding.fix([format!("redis-cli --cluster reshard {at}: finish the move")]));
    }
    if unmarked > 0 {
        let message = format!("{unmarked} slots have no marker");
        let fix = format!("palisade init --new --node {}", login.url);
        found.push(Finding::warning(message, "palisade:generation:{…}").fix([fix]));
    }
    if found.is_empty() {
        found.push(Finding::fine(format!(
            "{} masters: {}",
            cluster.shards().count(),
            cluster.at()
        )));
    }
    found
}
