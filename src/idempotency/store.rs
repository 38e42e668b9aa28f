//! Stores one value under a key by consensus (idempotency 1): the result in the nodes' replies or,
//! if there is none, the candidate. Starts no handler and never ends a running claim.

use std::sync::Arc;

use super::unknown_past::Doubt;
use super::{Call, NotRecorded};
use crate::client::claim::ClaimTerms;
use crate::error::NodeOutcome;
use crate::quorum::claim::{Denied, Refusal};
use crate::retry_policy::RetryPolicy;

#[derive(Debug)]
pub(super) enum Store {
    Ours,
    /// `None`: too large to be kept.
    Other(Option<Arc<[u8]>>),
    /// No node stored the candidate.
    Forgotten(Doubt),
    Refused(Refusal),
    /// The result was sent to the nodes, but may not be on a majority.
    Unsure(Box<NotRecorded>),
}

/// A `candidate` of `None` stands for a result that is too large. With `sure` it is stored even if
/// the nodes may have lost another result.
pub(super) async fn store(
    call: &Call,
    terms: &ClaimTerms,
    candidate: Option<&Arc<[u8]>>,
    sure: bool,
) -> Store {
    let core = &call.of.core;
    let end = core.env.now() + 4 * core.config.node_deadline;
    let mut delays = RetryPolicy::default().delays(core.env.random() as u64);
    loop {
        let (held, promise) = match core.claim(terms, true).await {
            Ok(claimed) => claimed,
            Err(Denied::Replay(value)) => return standing(value, candidate),
            Err(Denied::Refused(refusal @ Refusal::Contended { .. })) => {
                if core.env.now() >= end {
                    return Store::Refused(refusal);
                }
                tokio::time::sleep(delays.next().unwrap_or_default()).await;
                continue;
            }
            Err(Denied::Refused(refusal)) => return Store::Refused(refusal),
            // Nodes grant a claim with `force` even for a key with a record.
            Err(Denied::Repair(_)) => {
                let outcomes = vec![NodeOutcome::Refused; core.n()];
                return Store::Refused(Refusal::NoQuorum(outcomes));
            }
        };
        if promise.forgotten.is_some() && !sure {
            held.give_back().await;
            // The caller has found a result or has run the handler.
            return Store::Forgotten(Doubt { lapsed: 1, forgotten: promise.forgotten });
        }
        let value = promise.adopt.map_or_else(|| candidate.cloned(), |r| r.value);
        // A node may receive the result now.
        held.begin();
        match core.complete(&held, value.as_ref()).await {
            Ok(()) => return standing(value, candidate),
            Err(why) if why.overtaken && core.env.now() < end => {}
            Err(why) => {
                let ballot = (promise.attempt, promise.token);
                return Store::Unsure(Box::new(call.not_recorded(ballot, false, why.nodes)));
            }
        }
    }
}

fn standing(value: Option<Arc<[u8]>>, candidate: Option<&Arc<[u8]>>) -> Store {
    if value.as_ref() == candidate { Store::Ours } else { Store::Other(value) }
}
