//! For nodes whose yes counts only if replicas have it: what must be confirmed, and by which
//! replicas (durability 1).
//!
//! A yes below its level never counts: it is a fault, and one that may have been executed, so that
//! the caller rolls it back by token on all nodes.

use std::time::Duration;

use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::LockNode;
use crate::op::Reply;
use crate::time::Moment;

/// How much longer than its deadline a node's own answer is awaited before it is given up on.
const GRACE: Duration = Duration::from_millis(250);

/// How many replicas have what the node said yes to before; an error unless it is enough. Ends by
/// the deadline plus grace whatever the node does.
pub(super) async fn confirm(
    node: &dyn LockNode,
    env: &dyn Env,
    after: Option<BarrierPoint>,
    level: Durability,
    deadline: Moment,
) -> Result<u32, NodeError> {
    let not_durable = |detail| Err(NodeError::maybe_executed(NodeFault::NotDurable, detail));
    let Some(after) = after else {
        return not_durable("the node did not report its identity".to_owned());
    };
    let limit = deadline.since(env.now()) + GRACE;
    match tokio::time::timeout(limit, node.barrier(after, level, deadline)).await {
        Ok(Ok(replicas)) => match level {
            Durability::Replicas(k) if replicas < k => {
                not_durable(format!("{replicas} of {k} replicas have it"))
            }
            _ => Ok(replicas),
        },
        // What is to be confirmed was executed, whatever became of the question.
        Ok(Err(e)) if !e.is_ambiguous() => Err(e.after_execution()),
        Ok(Err(e)) => Err(e),
        Err(_) => not_durable("the node overran its deadline".to_owned()),
    }
}

/// What a caller will rely on: a yes, or a stored result. A result, too, because it was perhaps
/// written without being confirmed, and once it is answered it may not be lost (idempotency 1).
pub(super) fn must_last(reply: &Reply) -> bool {
    #[cfg(feature = "sim-bugs")]
    if crate::bugs::on(crate::bugs::Bug::YesBeforeReplicas) {
        return false;
    }
    match reply {
        Reply::Granted { .. } | Reply::Claimed { .. } | Reply::Done | Reply::Completed(_) => true,
        Reply::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
        _ => false,
    }
}
