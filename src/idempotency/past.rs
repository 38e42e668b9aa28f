//! Decides about a key whose past is not known: by the probe, the policies or an operator's
//! decision.

use std::future::Future;

use super::decision::Decision;
use super::policy::Doubt;
use super::{Call, Context, Parked, ParkedReason, Probed, RunError};
use crate::client::claim::Held;
use crate::op::Loss;
use crate::quorum::record::Promise;

/// Result of examining a key's past: whether the handler may run.
pub(super) enum Past<T> {
    /// The handler may run.
    Clear,
    /// An earlier attempt took effect, with this result.
    Effect(T),
    /// It is unknown whether an earlier attempt took effect, or a person has to decide: the call
    /// returns this.
    Unknown(Result<Parked, RunError>),
}

/// Asks the probe, or without a probe the policies. Where a forgotten key would be parked, the
/// decision about the losses is asked for (idempotency 20).
pub(super) async fn past<T, P, PF>(
    call: &Call,
    doubt: &Doubt,
    (held, promise): (&Held, &Promise),
    probe: Option<P>,
    cx: &Context,
) -> Past<T>
where
    P: FnOnce(Context) -> PF,
    PF: Future<Output = Probed<T>>,
{
    let Some(probe) = probe else {
        return match call.policy.parks(doubt) {
            None => Past::Clear,
            Some(ParkedReason::Lapsed) => {
                Past::Unknown(Ok(parked(call, doubt, ParkedReason::Lapsed, None)))
            }
            Some(ParkedReason::Forgotten) => by_decision(call, doubt, true).await,
        };
    };
    held.keep();
    match (probe(cx.clone()).await, doubt.reason()) {
        (Probed::Found(value), _) => Past::Effect(value),
        (Probed::NotFound, _) if promise.adopt.is_none() => Past::Clear,
        // "Not found" although a node has a stored result is a contradiction that a person has to
        // resolve.
        (Probed::NotFound | Probed::Unknown, ParkedReason::Lapsed) => {
            Past::Unknown(Ok(parked(call, doubt, ParkedReason::Lapsed, None)))
        }
        (Probed::NotFound | Probed::Unknown, ParkedReason::Forgotten) => {
            by_decision(call, doubt, promise.adopt.is_none()).await
        }
    }
}

/// Follows the operator's decision about the losses for which the key is forgotten. `runs`: a
/// decision to run applies to this key.
pub(super) async fn by_decision<T>(call: &Call, doubt: &Doubt, runs: bool) -> Past<T> {
    let losses = doubt.forgotten.as_ref().map_or(&[][..], |forgotten| &forgotten.losses);
    // Boxed because it is rare and would otherwise enlarge every call's future.
    match Box::pin(call.of.decision(losses)).await {
        Ok(Decision::Run) if runs => Past::Clear,
        Err(_) if doubt.forgotten.as_ref().is_some_and(|f| !f.fresh.is_empty()) => {
            Past::Unknown(Err(call.not_initialised(doubt)))
        }
        decision => Past::Unknown(Ok(parked(call, doubt, ParkedReason::Forgotten, decision.err()))),
    }
}

/// Builds the report of a parked key. `undecided`: the losses about which an operator may still
/// decide, if the key is parked because of them.
fn parked(
    call: &Call,
    doubt: &Doubt,
    reason: ParkedReason,
    undecided: Option<Vec<Loss>>,
) -> Parked {
    let forgotten = doubt.forgotten.as_ref();
    let (is_undecided, all) = (undecided.is_some(), || forgotten.map(|f| f.losses.clone()));
    let losses = match reason {
        // The operator who reads the report decides about the undecided losses only, not again
        // about those already decided.
        ParkedReason::Forgotten => undecided.or_else(all).unwrap_or_default(),
        ParkedReason::Lapsed => Vec::new(),
    };
    let parked = Parked {
        key: call.name(),
        attempt: doubt.lapsed,
        reason,
        forgotten_for: forgotten.map(|f| f.remaining).unwrap_or_default(),
        losses,
        undecided: is_undecided,
    };
    tracing::debug!(target: "palisade::idempotency", key = %parked.key, ?reason, "parked");
    parked
}
