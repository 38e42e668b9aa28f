//! Storing one value under a key by consensus: the value that is already stored, or else a
//! candidate.
//!
//! The protocol is: claim the key with `force`, which means even if nodes have a result for it;
//! adopt the result that the promises show, or else the candidate; complete it under the claim's
//! own ballot (idempotency 1). It repairs results that fewer nodes than a majority have, stores
//! what an operator resolves, and is the second try of a handler whose claim was overtaken. Nothing
//! here starts a handler, and nothing takes a running claim away.

use std::sync::Arc;

use super::unknown_past::Doubt;
use super::{Call, NotRecorded};
use crate::client::claim::ClaimTerms;
use crate::error::NodeOutcome;
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::record::{Denied, Refusal};

/// The outcome of [`store`].
#[derive(Debug)]
pub(super) enum Store {
    /// The candidate is now the key's result.
    Ours,
    /// The key has this other result, which stays; `None` if it was too large to be kept.
    Other(Option<Arc<[u8]>>),
    /// Too few nodes know whether the key has a result; nothing was changed.
    Forgotten(Doubt),
    /// The claim was refused: another caller has the key, too few nodes answered, or the key was
    /// used with another fingerprint.
    Refused(Refusal),
    /// The result was sent to the nodes, and is not known to be stored.
    Unsure(Box<NotRecorded>),
}

/// Stores `candidate` under the key unless the key has a result. A candidate of `None` is a result
/// that is too large to be kept. With `sure` the candidate is stored even if nodes may have lost a
/// result, because the caller accepts that the lost result was another one.
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
            // Not expected, because nodes grant a forced claim even if they have a record.
            Err(Denied::Repair(_)) => {
                let outcomes = vec![NodeOutcome::Refused; core.n()];
                return Store::Refused(Refusal::NoQuorum(outcomes));
            }
        };
        if promise.forgotten.is_some() && !sure {
            held.give_back().await;
            // The caller has seen a result, or has run the handler itself, so there was at least
            // one attempt.
            return Store::Forgotten(Doubt { lapsed: 1, forgotten: promise.forgotten });
        }
        let value = promise.adopt.map_or_else(|| candidate.cloned(), |r| r.value);
        // From here on nodes may receive the result, so a drop must not release the claim.
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
