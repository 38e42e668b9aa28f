//! The wait until enough replicas have a grant of a node (durability 1). A grant that too few have
//! is no vote; the error means "may have been executed", so the caller releases its owner token on
//! all nodes.

use crate::client::node_queue::GRACE;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::LockNode;
use crate::time::Moment;

/// Returns at the latest `GRACE` after `deadline`, even if the node never answers.
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
        // The node gave the grant before this wait for replicas. So the request was executed, even
        // if the error of the wait says "not executed".
        Ok(Err(e)) => Err(e.after_execution()),
        Err(_) => not_durable("the node overran its deadline".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::broadcast;

    use super::*;
    use crate::env::SystemEnv;
    use crate::node::{BoxFuture, NodeSignal};
    use crate::op::{Batch, Replies};

    struct Denies;

    impl LockNode for Denies {
        fn call(&self, _: Batch, _: Moment) -> BoxFuture<'_, Replies> {
            unreachable!("only the replicas are asked")
        }

        fn barrier(
            &self,
            _: BarrierPoint,
            _: Durability,
            _: Moment,
        ) -> BoxFuture<'_, Result<u32, NodeError>> {
            let error = NodeError::not_executed(NodeFault::Unreachable, "refused".to_owned());
            Box::pin(std::future::ready(Err(error)))
        }

        fn events(&self) -> broadcast::Receiver<NodeSignal> {
            broadcast::channel(1).1
        }

        fn name(&self) -> std::sync::Arc<str> {
            "denies".into()
        }
    }

    /// After a "not executed" error, the caller would not release what the node has granted.
    #[tokio::test]
    async fn what_was_not_confirmed_may_have_been_executed() {
        let (env, by) = (SystemEnv, SystemEnv.now() + Duration::from_secs(9));
        let point = BarrierPoint { identity: "process".into(), replication: 1 };
        let got = confirm(&Denies, &env, Some(point), Durability::Replicas(1), by).await;
        let error = got.expect_err("the node denies it");
        assert_eq!((error.fault(), error.is_ambiguous()), (NodeFault::Unreachable, true));
    }
}
