//! Stores one value under a key by consensus: an existing result, or the candidate (the value that
//! a caller proposes) if there is no result.
//!
//! The protocol has three phases (rule idempotency 1 in docs/design). First, claim the key with
//! `force`, even if nodes have a result. Second, choose the value: the result in the nodes'
//! replies, or the candidate if there is no result. Third, store the value under the ballot
//! (fencing and owner token) of this claim. The protocol has three uses: to store a partial result
//! on a majority of the nodes, to store an operator's result, and to store a handler's result again
//! after another claim has overtaken the handler's claim. This module starts no handler and never
//! ends a running claim.

use std::sync::Arc;

use super::unknown_past::Doubt;
use super::{Call, NotRecorded};
use crate::client::claim::ClaimTerms;
use crate::error::NodeOutcome;
use crate::quorum::claim::{Denied, Refusal};
use crate::retry_policy::RetryPolicy;

#[derive(Debug)]
pub(super) enum Store {
    /// The candidate, which is the caller's value, is the key's result now.
    Ours,
    /// The key has this other result, which was not changed. `None` if the result was too large to
    /// be kept.
    Other(Option<Arc<[u8]>>),
    /// Too few nodes can exclude an earlier result of the key. No node stored the candidate, which
    /// is the caller's value.
    Forgotten(Doubt),
    /// The claim was refused. Another caller has the key, too few nodes answered, or the key was
    /// used with another fingerprint.
    Refused(Refusal),
    /// The result was sent to the nodes, but may not be stored on a majority.
    Unsure(Box<NotRecorded>),
}

/// Stores `candidate` under the key if the key has no result. A `candidate` of `None` stands for a
/// result that is too large to be kept. With `sure` the candidate is stored even if the nodes may
/// have lost another result.
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
            // Not expected: nodes grant a claim with `force` even for a key with a record.
            Err(Denied::Repair(_)) => {
                let outcomes = vec![NodeOutcome::Refused; core.n()];
                return Store::Refused(Refusal::NoQuorum(outcomes));
            }
        };
        if promise.forgotten.is_some() && !sure {
            held.give_back().await;
            // The caller has found a result or has run the handler. So there was at least one
            // attempt.
            return Store::Forgotten(Doubt { lapsed: 1, forgotten: promise.forgotten });
        }
        let value = promise.adopt.map_or_else(|| candidate.cloned(), |r| r.value);
        // From here on a node may receive the result, so a drop of `held` must not release the
        // claim.
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
