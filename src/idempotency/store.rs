//! Putting one value under a key by consensus: what stands there already, else a candidate.
//!
//! Repairs of half-stored results, an operator's `resolve`, and a late handler's second try are all
//! this one protocol: claim with `force`, adopt what the promises show, complete it under the own
//! ballot (§5.7). Nothing here starts a handler, and nothing takes a running claim away.

use std::sync::Arc;

use super::NotRecorded;
use crate::driver::Core;
use crate::driver::claim::{ClaimTerms, Claimed};
use crate::error::NodeOutcome;
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::complete::Step;
use crate::quorum::record::Refusal;

/// What a store came to.
#[derive(Debug)]
pub(super) enum Store {
    /// These bytes are the key's result now; they are the candidate's.
    Ours,
    /// Another result stood there, and stands; `None` if it was too large to be kept.
    Other(Option<Arc<[u8]>>),
    /// Too few nodes remember whether a result stood there; nothing was changed.
    Forgotten,
    /// Somebody is at it, or too few nodes can be asked.
    Refused(Refusal),
    /// Sent, and not known to be stored.
    Unsure(Box<NotRecorded>),
}

impl Core {
    /// Puts `candidate` under the key unless a result is found there. `sure`: the caller answers
    /// for it that no forgotten result contradicts the candidate.
    pub(super) async fn store(
        self: &Arc<Self>,
        terms: &ClaimTerms,
        candidate: Option<&Arc<[u8]>>,
        sure: bool,
    ) -> Store {
        let end = self.env.now() + 4 * self.config.node_deadline;
        let mut delays = RetryPolicy::default().delays(self.env.random() as u64);
        loop {
            let (held, promise) = match self.claim(terms, true).await {
                Claimed::Promised(held, promise) => (held, promise),
                Claimed::Replay(value) => return standing(value, candidate),
                Claimed::Refused(refusal @ Refusal::Contended { .. }) => {
                    if self.env.now() >= end {
                        return Store::Refused(refusal);
                    }
                    tokio::time::sleep(delays.next().unwrap_or_default()).await;
                    continue;
                }
                Claimed::Refused(refusal) => return Store::Refused(refusal),
                // Nodes do not refuse a forced claim for a record; one that does has no say here.
                Claimed::Repair(_) => {
                    let outcomes = vec![NodeOutcome::Refused; self.n()];
                    return Store::Refused(Refusal::NoQuorum(outcomes));
                }
            };
            if promise.unknown && !sure {
                held.give_back().await;
                return Store::Forgotten;
            }
            let value = promise.adopt.map_or_else(|| candidate.cloned(), |r| r.value);
            // A completion may be under way from here on: the claim is not given back.
            held.begin();
            match self.complete(&held.lease, value.as_ref()).await {
                Step::Stored => return standing(value, candidate),
                Step::Overtaken(_) if self.env.now() < end => {}
                Step::Overtaken(nodes) | Step::Unknown(nodes) => {
                    return Store::Unsure(Box::new(NotRecorded {
                        attempt: promise.attempt,
                        token: promise.token,
                        overtaken: false,
                        nodes: self.no_quorum(nodes),
                    }));
                }
                Step::Wait => {}
            }
        }
    }
}

fn standing(value: Option<Arc<[u8]>>, candidate: Option<&Arc<[u8]>>) -> Store {
    if value.as_ref() == candidate { Store::Ours } else { Store::Other(value) }
}
