//! Keys whose handlers may have taken effect before.

use std::future::Future;

use super::operator_decision::{Decision, Undecided};
use super::{Call, Context, Parked, ParkedReason, Probed, RunError};
use crate::client::claim::Held;
use crate::quorum::claim::{Forgetting, Promise};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) lapsed: u32,
    pub(super) forgotten: Option<Forgetting>,
}

impl Doubt {
    /// `None` if no earlier attempt can have taken effect.
    pub(super) fn of(promise: &Promise) -> Option<Self> {
        let forgotten = promise.forgotten.clone();
        let doubt = Self { lapsed: promise.attempt.saturating_sub(1), forgotten };
        (doubt.lapsed > 0 || doubt.forgotten.is_some()).then_some(doubt)
    }

    /// `Lapsed` if an earlier attempt is known, whatever the policies.
    pub(super) fn reason(&self) -> ParkedReason {
        if self.lapsed > 0 { ParkedReason::Lapsed } else { ParkedReason::Forgotten }
    }
}

pub(super) enum Past<T> {
    Clear,
    Effect(T),
    Unknown(Result<Parked, RunError>),
}

/// By the probe or, without one, by the policies and operators' decisions (idempotency 20).
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
        // The probe found no effect but a node has a result: a contradiction.
        (Probed::NotFound | Probed::Unknown, ParkedReason::Lapsed) => {
            Past::Unknown(Ok(parked(call, doubt, ParkedReason::Lapsed, None)))
        }
        (Probed::NotFound | Probed::Unknown, ParkedReason::Forgotten) => {
            by_decision(call, doubt, promise.adopt.is_none()).await
        }
    }
}

pub(super) async fn by_decision<T>(call: &Call, doubt: &Doubt, runs: bool) -> Past<T> {
    let none = (&[][..], &[][..]);
    let known = doubt.forgotten.as_ref();
    let (losses, unheard) = known.map_or(none, |f| (&f.losses[..], &f.not_granted[..]));
    // Rarely used, and would enlarge the future of every call.
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

/// `open` is what no operator has decided.
fn parked(call: &Call, doubt: &Doubt, reason: ParkedReason, open: Option<Undecided>) -> Parked {
    let forgotten = doubt.forgotten.as_ref();
    let (is_undecided, all) = (open.is_some(), || forgotten.map(|f| f.losses.clone()));
    let (undecided, unheard) = open.map(|open| (open.losses, open.unheard)).unzip();
    let losses = match reason {
        // So that no operator decides again about the others.
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
