//! Keys whose past is not known: why an earlier attempt may have taken effect, and whether the
//! handler may run all the same. The probe, the policies or an operator's decision decide that.

use std::future::Future;

use super::operator_decision::Decision;
use super::{Call, Context, Parked, ParkedReason, Probed, RunError};
use crate::client::claim::Held;
use crate::op::Loss;
use crate::quorum::record::{Forgetting, Promise};

/// Reason for which an earlier attempt under a key may have taken effect although no result is
/// known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// Number of earlier attempts that began and left no result.
    pub(super) lapsed: u32,
    /// Set if too few nodes know whether there was an earlier attempt.
    pub(super) forgotten: Option<Forgetting>,
}

impl Doubt {
    /// Returns why an earlier attempt may have taken effect, according to the promise of a claim;
    /// `None` if it is certain that none has.
    pub(super) fn of(promise: &Promise) -> Option<Self> {
        let forgotten = promise.forgotten.clone();
        let doubt = Self { lapsed: promise.attempt.saturating_sub(1), forgotten };
        (doubt.lapsed > 0 || doubt.forgotten.is_some()).then_some(doubt)
    }

    /// Returns the reason that is reported if the key is parked, whatever the policy is: a known
    /// attempt without a result comes before a forgotten key.
    pub(super) fn reason(&self) -> ParkedReason {
        if self.lapsed > 0 { ParkedReason::Lapsed } else { ParkedReason::Forgotten }
    }
}

/// Result of examining the earlier attempts of a key: whether the handler may run.
pub(super) enum Past<T> {
    /// The handler may run.
    Clear,
    /// The probe found that an earlier attempt took effect, with this result.
    Effect(T),
    /// The handler must not run, because an earlier attempt may have taken effect and nothing
    /// allows a repeat. The call returns this parked key or error.
    Unknown(Result<Parked, RunError>),
}

/// Asks the probe, or without a probe the policies, whether the handler may run. Before a forgotten
/// key is parked, the operator's decision about the losses of data is read (idempotency 20).
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
        // If the probe found no effect although a node has a stored result, this is a contradiction
        // that a person has to resolve.
        (Probed::NotFound | Probed::Unknown, ParkedReason::Lapsed) => {
            Past::Unknown(Ok(parked(call, doubt, ParkedReason::Lapsed, None)))
        }
        (Probed::NotFound | Probed::Unknown, ParkedReason::Forgotten) => {
            by_decision(call, doubt, promise.adopt.is_none()).await
        }
    }
}

/// Returns what follows for this call from an operator's decision about the losses because of which
/// the key is forgotten. If `runs` is false, the key is parked even if the decision is to run.
pub(super) async fn by_decision<T>(call: &Call, doubt: &Doubt, runs: bool) -> Past<T> {
    let losses = doubt.forgotten.as_ref().map_or(&[][..], |forgotten| &forgotten.losses);
    // The future is boxed because it is rarely needed and would otherwise enlarge every call's
    // future.
    match Box::pin(call.of.decision(losses)).await {
        Ok(Decision::Run) if runs => Past::Clear,
        Err(_) if doubt.forgotten.as_ref().is_some_and(|f| !f.fresh.is_empty()) => {
            Past::Unknown(Err(call.not_initialised(doubt)))
        }
        decision => Past::Unknown(Ok(parked(call, doubt, ParkedReason::Forgotten, decision.err()))),
    }
}

/// Builds the report of a parked key. If the key is parked because no operator has decided about
/// some losses, `undecided` has these losses.
fn parked(
    call: &Call,
    doubt: &Doubt,
    reason: ParkedReason,
    undecided: Option<Vec<Loss>>,
) -> Parked {
    let forgotten = doubt.forgotten.as_ref();
    let (is_undecided, all) = (undecided.is_some(), || forgotten.map(|f| f.losses.clone()));
    let losses = match reason {
        // If some losses are undecided, only these are reported, so that the operator does not
        // decide again about the others.
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
