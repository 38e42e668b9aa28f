//! Test cases for barriers. A node never counts replicas for a grant of another data history.

use palisade::Durability;
use palisade::error::NodeError;
use palisade::node::spi::BarrierPoint;

use super::bench::{Bench, LONG};
use super::ops::acquire;
use super::{Case, list};

pub(super) fn cases() -> Vec<Case> {
    list![
        Nothing: a_barrier_of_another_past_confirms_nothing,
        Nothing: a_barrier_without_enough_replicas_refuses,
        Nothing: a_barrier_over_all_replicas_is_answered,
    ]
}

async fn a_barrier_of_another_past_confirms_nothing(b: Bench) {
    let here = b.granted_at().await;
    let process = BarrierPoint { identity: "nobody".into(), ..here.clone() };
    let history = BarrierPoint { replication: here.replication ^ 1, ..here };
    for point in [process, history] {
        let got = b.barrier(point, Durability::AllReplicas).await;
        let refused = got.as_ref().is_err_and(NodeError::is_ambiguous);
        b.check(refused, "what another process or history granted is not confirmed", &got);
    }
}

async fn a_barrier_without_enough_replicas_refuses(b: Bench) {
    let got = b.barrier(b.granted_at().await, Durability::Replicas(1_000_000)).await;
    let refused = got.as_ref().is_err_and(NodeError::is_ambiguous);
    b.check(refused, "too few replicas are a fault, and the grant may have taken effect", &got);
}

async fn a_barrier_over_all_replicas_is_answered(b: Bench) {
    // The suite does not know the number of replicas, and a node without any may refuse.
    match b.barrier(b.granted_at().await, Durability::AllReplicas).await {
        Ok(_) => {}
        Err(e) => b.check(e.is_ambiguous(), "the grant may have taken effect", &e),
    }
}

impl Bench {
    async fn granted_at(&self) -> BarrierPoint {
        self.granted(acquire(&self.lock(), self.owner(), LONG), "a fresh name is free").await;
        let facts = self.facts().await;
        BarrierPoint { identity: facts.identity, replication: facts.replication }
    }
}
