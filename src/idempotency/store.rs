//! Storing one value under a key by consensus: the value that is already stored, or else a
//! candidate.
//!
//! Repairs of half-stored results, an operator's `resolve`, and a late handler's second try all use
//! this protocol: claim with `force`, adopt what the promises show, complete it under the claim's
//! own ballot (idempotency 1). Nothing here starts a handler, and nothing takes a running claim
//! away.

use std::sync::Arc;

use super::policy::Doubt;
use super::{Call, NotRecorded};
use crate::client::claim::ClaimTerms;
use crate::error::NodeOutcome;
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::record::{Denied, Refusal};

/// The outcome of a store.
#[derive(Debug)]
pub(super) enum Store {
    /// The candidate is now the key's result.
    Ours,
    /// The key has another result, which stays; `None` if it was too large to be kept.
    Other(Option<Arc<[u8]>>),
    /// Too few nodes know whether the key has a result; nothing was changed.
    Forgotten(Doubt),
    /// Another caller is storing, or too few nodes can be asked.
    Refused(Refusal),
    /// The value was sent, and is not known to be stored.
    Unsure(Box<NotRecorded>),
}

/// Stores `candidate` under the key unless the key has a result. `sure`: the caller guarantees that
/// no forgotten result contradicts the candidate.
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
            // Nodes do not refuse a forced claim for a record; the answer of one that does is
            // ignored.
            Err(Denied::Repair(_)) => {
                let outcomes = vec![NodeOutcome::Refused; core.n()];
                return Store::Refused(Refusal::NoQuorum(outcomes));
            }
        };
        if promise.forgotten.is_some() && !sure {
            held.give_back().await;
            // The caller has seen a result or runs a late handler, so there was at least one
            // attempt.
            return Store::Forgotten(Doubt { lapsed: 1, forgotten: promise.forgotten });
        }
        let value = promise.adopt.map_or_else(|| candidate.cloned(), |r| r.value);
        // Nodes may receive the completion from here on, so the claim is not released.
        held.begin();
        match core.complete(&held.lease, value.as_ref()).await {
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
