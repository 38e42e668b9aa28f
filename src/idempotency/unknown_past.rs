//! Decides about keys whose handlers may have taken effect before. This module finds the reasons
//! for which an earlier effect is possible. The probe, the policies or an operator's decision then
//! allow or forbid the run of the handler.

use std::future::Future;

use super::operator_decision::{Decision, Undecided};
use super::{Call, Context, Parked, ParkedReason, Probed, RunError};
use crate::client::claim::Held;
use crate::quorum::claim::{Forgetting, Promise};

/// Reasons for which a handler may have taken effect in an earlier attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// Number of earlier attempts that began and left no result.
    pub(super) lapsed: u32,
    /// Set if too few nodes can exclude an earlier attempt.
    pub(super) forgotten: Option<Forgetting>,
}

impl Doubt {
    /// Returns the reasons for which an earlier attempt may have taken effect, from the nodes'
    /// replies to a claim. Returns `None` if no earlier attempt can have taken effect.
    pub(super) fn of(promise: &Promise) -> Option<Self> {
        let forgotten = promise.forgotten.clone();
        let doubt = Self { lapsed: promise.attempt.saturating_sub(1), forgotten };
        (doubt.lapsed > 0 || doubt.forgotten.is_some()).then_some(doubt)
    }

    /// Returns the main reason for which the handler may have taken effect before: `Lapsed` if an
    /// earlier attempt is known to have left no result, otherwise `Forgotten`. The policies do not
    /// affect the reason.
    pub(super) fn reason(&self) -> ParkedReason {
        if self.lapsed > 0 { ParkedReason::Lapsed } else { ParkedReason::Forgotten }
    }
}

/// Result of the check if earlier attempts under a key can have taken effect.
pub(super) enum Past<T> {
    /// No earlier effect is possible, or a repeat is allowed. The handler may run.
    Clear,
    /// The probe found the effect of an earlier attempt, with this result.
    Effect(T),
    /// The handler must not run. An earlier attempt may have taken effect, and neither a policy, a
    /// probe nor an operator allows a repeat. The call returns this report of the parked (not run)
    /// key, or this error.
    Unknown(Result<Parked, RunError>),
}

/// Decides if the handler may run: by the probe (the caller's check for an earlier effect), or
/// without a probe by the policies of the call. If the policy does not allow a run for a forgotten
/// key (too few nodes can exclude an earlier use), an operator's decision about the losses of data
/// may still allow it (rule idempotency 20 in docs/design).
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
        // If the probe (the caller's check) found no effect but a node has a result, the two
        // contradict each other. A person has to decide.
        (Probed::NotFound | Probed::Unknown, ParkedReason::Lapsed) => {
            Past::Unknown(Ok(parked(call, doubt, ParkedReason::Lapsed, None)))
        }
        (Probed::NotFound | Probed::Unknown, ParkedReason::Forgotten) => {
            by_decision(call, doubt, promise.adopt.is_none()).await
        }
    }
}

/// Decides if the handler of this call may run, by an operator's decision. The decision is about
/// the losses of data because of which the key is forgotten (an earlier use is possible). If `runs`
/// is false, the key is parked (its handler does not run) even after a decision to run.
pub(super) async fn by_decision<T>(call: &Call, doubt: &Doubt, runs: bool) -> Past<T> {
    let none = (&[][..], &[][..]);
    let known = doubt.forgotten.as_ref();
    let (losses, unheard) = known.map_or(none, |f| (&f.losses[..], &f.not_granted[..]));
    // The future is boxed, because it is rarely used and would enlarge the future of every call.
    match Box::pin(call.of.decision(losses, unheard)).await {
        Ok(Decision::Run) if runs => Past::Clear,
        Err(Undecided { unheard, .. })
            if unheard.is_empty() && known.is_some_and(|f| !f.fresh.is_empty()) =>
        {
            Past::Unknown(Err(call.not_initialised(doubt)))
        }
        decision => Past::Unknown(Ok(parked(call, doubt, ParkedReason::Forgotten, decision.err()))),
    }
}

/// Builds the report of a parked key, whose handler does not run. `open` contains what no operator
/// has decided, if that is the reason.
fn parked(call: &Call, doubt: &Doubt, reason: ParkedReason, open: Option<Undecided>) -> Parked {
    let forgotten = doubt.forgotten.as_ref();
    let (is_undecided, all) = (open.is_some(), || forgotten.map(|f| f.losses.clone()));
    let (undecided, unheard) = open.map(|open| (open.losses, open.unheard)).unzip();
    let losses = match reason {
        // If no operator has decided about some losses of data, the report contains only these. So
        // an operator does not decide again about the other losses.
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
        commands: call.of.core.commands.with_retention(call.of.retention),
        unheard: unheard.unwrap_or_default(),
    };
    tracing::debug!(target: "palisade::idempotency", key = %parked.key, ?reason, "parked");
    parked
}
