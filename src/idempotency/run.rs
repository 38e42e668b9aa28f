//! Runs a call. *Overtaken* means that another call has claimed the key in the meantime.
//!
//! ```text
//!  claim ─▶ has a result ─▶ Replayed       ┌ Found ─▶ store ─▶ Replayed
//!    │  └─▶ another caller's ─▶ InFlight   │
//!    ▼                                     ├ Unknown, Park ─▶ give back ─▶ Parked
//!  ours ─▶ earlier attempt or forgotten? ──┤
//!    │ no                                  └ NotFound, Rerun, Run
//!    ▼                                             │
//!  handler ◀───────────────────────────────────────┘
//!    └─▶ Ok ─▶ complete ─▶ Executed;  overtaken ─▶ read, store ─▶ the stored result
//!    └─▶ Err ─▶ the claim ends: given back, or lapsed if it may have taken effect
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use super::in_flight::WAIT;
use super::lossless;
use super::policy::Forgotten;
use super::store::{Store, store};
use super::unknown_past::{Doubt, Past, by_decision, past};
use super::{Call, CodecError, Context, Failed, Outcome, Parked, Probed, RunError};
use crate::client::claim::{ClaimTerms, Held};
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect, RetryTerms, Wait, retry};
use crate::durability::Achieved;
use crate::op::ClaimEnd;
use crate::quorum::claim::{Denied, Promise, Refusal};
use crate::quorum::complete::{Found, Unstored};
use crate::retry_policy::RetryPolicy;
use crate::span::{self, operation};
use crate::time::Moment;

/// At or below this rest of another's lease, its result is probably being stored now.
const SETTLES: Duration = Duration::from_millis(20);

/// Before the probe or the policies decide about earlier attempts.
enum Begun {
    Ours(Held, Promise),
    /// `None`: too large to be kept.
    Stored(Option<Arc<[u8]>>),
    InFlight(Duration),
    Mismatch,
    TooOld,
    Parked(Parked),
}

pub(super) enum ClaimResult<T> {
    Ours(Granted),
    Answered(Outcome<T>),
}

#[derive(Debug)]
pub(super) struct Granted {
    terms: ClaimTerms,
    held: Held,
    pub(super) cx: Context,
    doubt: Option<Doubt>,
}

pub(super) async fn run<T, E, F, Fut, P, PF>(
    call: Call,
    probe: Option<P>,
    handler: F,
) -> Result<Outcome<T>, RunError>
where
    T: Serialize + DeserializeOwned,
    E: Into<Failed>,
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    P: FnOnce(Context) -> PF,
    PF: Future<Output = Probed<T>>,
{
    let operation = operation!("run", of = %call.name());
    let outcome = attempt(&call, probe, handler, &operation).instrument(operation.span()).await;
    operation.over(call.of.counters.over(&outcome));
    outcome
}

async fn attempt<T, E, F, Fut, P, PF>(
    call: &Call,
    probe: Option<P>,
    handler: F,
    operation: &span::Call,
) -> Result<Outcome<T>, RunError>
where
    T: Serialize + DeserializeOwned,
    E: Into<Failed>,
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    P: FnOnce(Context) -> PF,
    PF: Future<Output = Probed<T>>,
{
    let granted = match claim(call, probe, Some(operation)).await? {
        ClaimResult::Ours(granted) => granted,
        ClaimResult::Answered(outcome) => return Ok(outcome),
    };
    if !granted.begin(call) {
        // The drop of `granted` releases the claim.
        return Ok(Outcome::InFlight { retry_after: Duration::ZERO });
    }
    let begun = call.of.core.env.now();
    let result = handler(granted.cx.clone()).await;
    call.of.in_flight.took(call.of.core.env.now().since(begun));
    granted.finish(call, result).await
}

/// The attempt begins only with [`Granted::begin`]. A drop before that releases the claim.
pub(super) async fn claim<T, P, PF>(
    call: &Call,
    probe: Option<P>,
    operation: Option<&span::Call>,
) -> Result<ClaimResult<T>, RunError>
where
    T: Serialize + DeserializeOwned,
    P: FnOnce(Context) -> PF,
    PF: Future<Output = Probed<T>>,
{
    let terms = call.terms()?;
    let core = &call.of.core;
    let (held, promise) = match begin(call, &terms, probe.is_some()).await? {
        Begun::Ours(held, promise) => (held, promise),
        Begun::Stored(kept) => return replayed(call, kept.as_deref()).map(ClaimResult::Answered),
        Begun::InFlight(rest) => {
            let retry_after = call.pause(rest);
            return Ok(ClaimResult::Answered(Outcome::InFlight { retry_after }));
        }
        Begun::Mismatch => return Ok(ClaimResult::Answered(Outcome::Mismatch)),
        Begun::TooOld => return Ok(ClaimResult::Answered(Outcome::TooOld)),
        Begun::Parked(parked) => return Ok(ClaimResult::Answered(Outcome::Parked(parked))),
    };
    let number = promise.attempt;
    if let Some(operation) = operation {
        operation.token(promise.token);
        operation.attempts(number);
    }
    let names = (&call.of.namespace, &call.key);
    let cx = Context::new(core, &held, promise.steps.as_ref(), names, number);
    if let Some(forgetting) = promise.forgotten.as_ref().filter(|_| call.of.reports_forgotten) {
        let now = call.of.core.env.wall_micros();
        call.of.counters.keys_unknown_until(now, forgetting.remaining);
    }
    let doubt = Doubt::of(&promise);
    if let Some(doubt) = &doubt {
        match past(call, doubt, (&held, &promise), probe, &cx).await {
            Past::Clear => {}
            Past::Effect(value) => {
                let recorded = record(call, &terms, held, value, number).await?;
                return Ok(ClaimResult::Answered(of_an_earlier_attempt(recorded)));
            }
            Past::Unknown(decided) => {
                // So that this call does not change the record of the key.
                if held.give_back().await {
                    // The other attempt may have left a result in the meantime (consumers 5).
                    let retry_after = Duration::ZERO;
                    return Ok(ClaimResult::Answered(Outcome::InFlight { retry_after }));
                }
                return decided.map(|parked| ClaimResult::Answered(Outcome::Parked(parked)));
            }
        }
    }
    Ok(ClaimResult::Ours(Granted { terms, held, cx, doubt }))
}

impl Granted {
    pub(super) fn keep(&self) {
        self.held.keep();
    }

    /// From here on a dropped claim is not released. Returns false if the lease has already ended:
    /// another caller may then hold the key.
    pub(super) fn begin(&self, call: &Call) -> bool {
        if !self.cx.is_valid() {
            return false;
        }
        if let Some(doubt) = &self.doubt {
            call.of.counters.started(doubt);
        }
        self.held.keep();
        self.held.begin();
        true
    }

    pub(super) async fn finish<T, E>(
        self,
        call: &Call,
        result: Result<T, E>,
    ) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
    {
        let Self { terms, held, cx, .. } = self;
        match result {
            Ok(value) => match cx.unfinished() {
                None => record(call, &terms, held, value, cx.attempt()).await,
                Some(missing) => fail(call, held, cx.attempt(), missing.into()).await,
            },
            Err(e) => fail(call, held, cx.attempt(), e.into()).await,
        }
    }
}

fn of_an_earlier_attempt<T>(recorded: Outcome<T>) -> Outcome<T> {
    match recorded {
        Outcome::Executed { value, .. } => Outcome::Replayed(value),
        other => other,
    }
}

async fn fail<T>(
    call: &Call,
    held: Held,
    number: u32,
    failed: Failed,
) -> Result<Outcome<T>, RunError> {
    let overtaken = held.end(failed.end()).await;
    Err(RunError::Handler { key: call.name(), attempt: number, failed, overtaken })
}

async fn begin(call: &Call, terms: &ClaimTerms, probing: bool) -> Result<Begun, RunError> {
    let core = &call.of.core;
    let started = core.env.now();
    let in_flight_end = started + call.in_flight_timeout.unwrap_or(WAIT);
    let no_answer_end = started + 4 * core.config.node_deadline;
    let mut attempt = ClaimAttempt {
        call,
        terms: terms.clone(),
        probing,
        in_flight_end,
        no_answer_end,
        contended_end: in_flight_end.max(no_answer_end),
    };
    let terms = RetryTerms {
        key: &terms.key,
        wait: Wait::Answer,
        policy: RetryPolicy::default(),
        deadline: None,
        since: None,
    };
    match retry(core, &mut attempt, terms).await {
        Ok(begun) => Ok(begun),
        Err(GivenUp { closed: true, .. }) => Err(call.no_quorum(core.closed())),
        Err(GivenUp { refused, .. }) => match refused {
            Unclaimed::Failed(error) => Err(error),
            Unclaimed::Refused(refusal) => match refusal {
                Refusal::Mismatch => Ok(Begun::Mismatch),
                Refusal::TooOld => Ok(Begun::TooOld),
                Refusal::NoQuorum(nodes) => Err(call.no_quorum(nodes)),
                Refusal::InFlight { retry_after } | Refusal::Contended { retry_after } => {
                    Ok(Begun::InFlight(retry_after))
                }
            },
        },
    }
}

struct ClaimAttempt<'a> {
    call: &'a Call,
    terms: ClaimTerms,
    probing: bool,
    in_flight_end: Moment,
    /// A node without an answer may still have the record of a forgotten key.
    no_answer_end: Moment,
    contended_end: Moment,
}

enum Unclaimed {
    Refused(Refusal),
    Failed(RunError),
}

impl From<Refusal> for Unclaimed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Attempt for ClaimAttempt<'_> {
    type Granted = Begun;
    type Refused = Unclaimed;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Begun, Unclaimed> {
        let Self { call, probing, .. } = *self;
        let core = &call.of.core;
        self.terms.wait = terms.if_held.is_some();
        let seen = match core.claim(&self.terms, false).await {
            Err(Denied::Replay(value)) => return Ok(Begun::Stored(value)),
            Err(Denied::Repair(seen)) => seen,
            Err(Denied::Refused(refusal)) => return Err(refusal.into()),
            // A node without a reply may have the record that others lost.
            Ok((held, promise))
                if promise.forgotten.as_ref().is_some_and(|f| f.unheard)
                    && call.policy.forgotten == Forgotten::Park
                    && !probing
                    && core.env.now() < self.no_answer_end =>
            {
                held.give_back().await;
                return Err(Refusal::Contended { retry_after: Duration::ZERO }.into());
            }
            Ok((held, promise)) => match promise.adopt {
                None => return Ok(Begun::Ours(held, promise)),
                Some(seen) => {
                    // The drop releases this claim.
                    drop(held);
                    seen
                }
            },
        };
        let repaired = repair(call, &self.terms, seen.value, probing).await;
        repaired.map_err(Unclaimed::Failed)?.map_err(Unclaimed::Refused)
    }

    fn prospect(&mut self, refused: &Unclaimed, deadline: &mut Option<Moment>) -> Option<Prospect> {
        let Unclaimed::Refused(refusal) = refused else { return None };
        let (left, end) = match refusal {
            Refusal::InFlight { retry_after } => (*retry_after, self.in_flight_end),
            Refusal::Contended { retry_after } => (*retry_after, self.contended_end),
            Refusal::Mismatch | Refusal::TooOld | Refusal::NoQuorum(_) => return None,
        };
        *deadline = Some(end);
        Some(if left > SETTLES { Prospect::Held(Some(left)) } else { Prospect::Settling(left) })
    }
}

/// Stores `seen`, which fewer nodes than a majority have, or another result that its own claim
/// finds. If the key is forgotten and the call has a probe, returns the claim.
async fn repair(
    call: &Call,
    terms: &ClaimTerms,
    seen: Option<Arc<[u8]>>,
    probing: bool,
) -> Result<Result<Begun, Refusal>, RunError> {
    // A policy (here) or an operator's decision (below) that lets forgotten keys run accepts the
    // loss of another result than `seen`.
    let sure = call.policy.forgotten == Forgotten::Run && !probing;
    let mut stored = store(call, terms, seen.as_ref(), sure).await;
    if let Store::Forgotten(doubt) = &stored
        && !probing
    {
        match by_decision::<()>(call, doubt, true).await {
            Past::Unknown(decided) => return decided.map(|parked| Ok(Begun::Parked(parked))),
            Past::Clear | Past::Effect(()) => {
                stored = store(call, terms, seen.as_ref(), true).await;
            }
        }
    }
    Ok(match stored {
        Store::Ours => Ok(Begun::Stored(seen)),
        Store::Other(value) => Ok(Begun::Stored(value)),
        // `seen` may not be the key's result.
        Store::Forgotten(_) => match call.of.core.claim(terms, true).await {
            Ok((held, promise)) if promise.forgotten.is_some() => Ok(Begun::Ours(held, promise)),
            Err(Denied::Replay(value)) => Ok(Begun::Stored(value)),
            Err(Denied::Refused(refusal)) => Err(refusal),
            Ok(_) | Err(Denied::Repair(_)) => {
                Err(Refusal::Contended { retry_after: Duration::ZERO })
            }
        },
        Store::Refused(refusal) => Err(refusal),
        Store::Unsure(not) => {
            return Err(RunError::NoQuorum { key: call.name(), error: not.nodes });
        }
    })
}

async fn record<T>(
    call: &Call,
    terms: &ClaimTerms,
    held: Held,
    value: T,
    attempt: u32,
) -> Result<Outcome<T>, RunError>
where
    T: Serialize + DeserializeOwned,
{
    let core = &call.of.core;
    held.begin();
    let bytes = match encode(&value) {
        Ok(bytes) => bytes,
        Err(e) => {
            // The handler took effect, but its value is no JSON.
            let overtaken = held.end(ClaimEnd::Lapsed).await;
            if overtaken {
                let failed = Failed::unknown(e);
                return Err(RunError::Handler { key: call.name(), attempt, failed, overtaken });
            }
            return Err(call.codec(e));
        }
    };
    let kept = (bytes.len() <= call.of.max_result).then_some(&bytes);
    let executed =
        |value, durability| Outcome::Executed { value, attempt, durability, kept: kept.is_some() };
    // Only the automatic renewal: a node that was restarted or failed over since it granted the
    // claim accepts the result only after one.
    held.rest();
    let done = core.complete(&held, kept).await;
    held.stop();
    let Err(Unstored { overtaken: refused, nodes }) = done else {
        return Ok(executed(value, held.lease.durability()));
    };
    tracing::warn!(
        target: "palisade::idempotency",
        key = %call.name(),
        attempt,
        refused,
        "result not stored under its own ballot"
    );
    // Not before a majority has it (idempotency 1).
    let found = core.look(terms).await;
    // The result may be another attempt's, whose replicas were not counted.
    let durability = Achieved::at_least(terms.durability);
    if let Found::Stored(record) = &found {
        let same = kept.is_some() && record.value.as_ref() == kept;
        return if record.token == held.lease.token || same {
            Ok(executed(value, durability))
        } else {
            replayed(call, record.value.as_deref())
        };
    }
    // A node also refuses after it has lost this claim's grant.
    let mine = held.lease.token.get();
    let overtaken = refused && matches!(found, Found::Open { promised, .. } if promised > mine);
    // Who has overtaken this call may have run no handler, or may have died. `store` ends no
    // running claim, and adopts an existing result.
    if !matches!(found, Found::NoQuorum(_)) {
        match store(call, terms, kept, false).await {
            Store::Ours => return Ok(executed(value, durability)),
            Store::Other(stored) => return replayed(call, stored.as_deref()),
            Store::Forgotten(_) | Store::Refused(_) | Store::Unsure(_) => {}
        }
    }
    let ballot = (attempt, held.lease.token);
    Err(RunError::NotRecorded(Box::new(call.not_recorded(ballot, overtaken, nodes))))
}

fn replayed<T: DeserializeOwned>(call: &Call, kept: Option<&[u8]>) -> Result<Outcome<T>, RunError> {
    let Some(bytes) = kept else { return Ok(Outcome::NotKept) };
    decode(bytes).map(Outcome::Replayed).map_err(|e| call.codec(e))
}

pub(super) fn encode<T: Serialize + DeserializeOwned>(value: &T) -> Result<Arc<[u8]>, CodecError> {
    let json = lossless::encode(value).map_err(|(what, e)| CodecError::new(what, &e))?;
    Ok(Arc::from(json.into_bytes()))
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let refuse = |e| CodecError::new("the stored result cannot be read as this type", &e);
    serde_json::from_slice(bytes).map_err(refuse)
}
