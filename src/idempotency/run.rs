//! A run: claim, decide about earlier attempts, run the handler, store its result.
//!
//! ```text
//!  claim ─▶ result stands ─▶ Replayed      ┌ Found ─▶ store ─▶ Replayed
//!    │  └─▶ somebody else's ─▶ InFlight    │
//!    ▼                                     ├ Unknown, Park ─▶ give back ─▶ Parked
//!  ours ─▶ earlier attempt or forgotten? ──┤
//!    │ no                                  └ NotFound, Rerun
//!    ▼                                             │
//!  handler ◀───────────────────────────────────────┘
//!    └─▶ Ok ─▶ complete ─▶ Executed;  overtaken ─▶ look, store ─▶ what stands there
//!    └─▶ Err ─▶ left to lapse (given back after `no_effect`)
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::store::Store;
use super::{
    Call, CodecError, Context, Lapsed, NotRecorded, Outcome, Parked, ParkedReason, Probed, RunError,
};
use crate::driver::claim::{ClaimTerms, Claimed, Held};
use crate::durability::Achieved;
use crate::error::{NoQuorum, NodeOutcome};
use crate::quorum::backoff::RetryPolicy;
use crate::quorum::complete::{Found, Step};
use crate::quorum::record::{Promise, Refusal};

/// What a caller finds before anything is run.
enum Begun {
    /// The claim is ours.
    Ours(Held, Promise),
    /// A result stands; `None` if it was too large to be kept.
    Stored(Option<Arc<[u8]>>),
    InFlight(Duration),
    Mismatch,
    TooOld,
    Parked(Parked),
}

pub(super) async fn run<T, E, F, Fut, P, PF>(
    call: Call,
    probe: Option<P>,
    handler: F,
) -> Result<Outcome<T>, RunError<E>>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    P: FnOnce(Context) -> PF,
    PF: Future<Output = Probed<T>>,
{
    let terms = call.terms()?;
    let core = &call.of.core;
    let (held, promise) = match begin(&call, &terms, probe.is_some()).await? {
        Begun::Ours(held, promise) => (held, promise),
        Begun::Stored(kept) => return Ok(replayed(kept.as_deref())?),
        Begun::InFlight(retry_after) => return Ok(Outcome::InFlight { retry_after }),
        Begun::Mismatch => return Ok(Outcome::Mismatch),
        Begun::TooOld => return Ok(Outcome::TooOld),
        Begun::Parked(why) => return Ok(Outcome::Parked(why)),
    };
    let attempt = promise.attempt;
    let names = (&call.of.namespace, &call.key);
    let cx = Context::new(core, &held.lease, &terms.key, names, attempt);
    if let Some(why) = doubt(&promise) {
        let verdict = match (probe, call.on_lapsed) {
            (Some(probe), _) => {
                held.keep();
                probe(cx.clone()).await
            }
            (None, Lapsed::Rerun) => Probed::NotFound,
            (None, Lapsed::Park) => Probed::Unknown,
        };
        match verdict {
            Probed::NotFound if promise.adopt.is_none() => {}
            Probed::Found(value) => {
                return Ok(match record(&call, &terms, held, value, attempt).await? {
                    // The effect is an earlier attempt's.
                    Outcome::Executed { value, .. } => Outcome::Replayed(value),
                    other => other,
                });
            }
            // "Not found" beside a stored result is a contradiction that a person has to settle.
            Probed::Unknown | Probed::NotFound => {
                tracing::debug!(key = %call.key, ?why, "parked");
                // Given back, so that looking at a parked key does not change it.
                held.give_back().await;
                return Ok(Outcome::Parked(why));
            }
        }
    }
    if !cx.is_valid() {
        // Paused between the promise and here: somebody else may hold the key by now (§5.7). The
        // claim is given back by its drop.
        return Ok(Outcome::InFlight { retry_after: Duration::ZERO });
    }
    held.keep();
    held.begin();
    match handler(cx.clone()).await {
        Ok(value) => record(&call, &terms, held, value, attempt).await,
        Err(e) => {
            if cx.says_no_effect() {
                held.give_back().await;
            }
            Err(RunError::Handler(e))
        }
    }
}

/// Why the handler cannot simply be run.
fn doubt(promise: &Promise) -> Option<Parked> {
    let attempt = promise.attempt - 1;
    let reason = match (attempt, promise.unknown) {
        (0, false) => return None,
        (0, true) => ParkedReason::Forgotten,
        _ => ParkedReason::Lapsed,
    };
    Some(Parked { attempt, reason })
}

/// Claims until it is decided whose the key is.
async fn begin(call: &Call, terms: &ClaimTerms, probing: bool) -> Result<Begun, NoQuorum> {
    let core = &call.of.core;
    let started = core.env.now();
    let in_flight_end = started + call.wait;
    let contended_end = in_flight_end.max(started + 4 * core.config.node_deadline);
    let mut delays = RetryPolicy::default().delays(core.env.random() as u64);
    loop {
        let refusal = match core.claim(terms, false).await {
            Claimed::Replay(value) => return Ok(Begun::Stored(value)),
            Claimed::Promised(held, promise) => match promise.adopt {
                None => return Ok(Begun::Ours(held, promise)),
                Some(seen) => {
                    // Given back by its drop; the repair has a ballot of its own.
                    drop(held);
                    match repair(call, terms, seen.value, probing).await? {
                        Ok(begun) => return Ok(begun),
                        Err(refusal) => refusal,
                    }
                }
            },
            Claimed::Repair(seen) => match repair(call, terms, seen.value, probing).await? {
                Ok(begun) => return Ok(begun),
                Err(refusal) => refusal,
            },
            Claimed::Refused(refusal) => refusal,
        };
        let (retry_after, end) = match refusal {
            Refusal::Mismatch => return Ok(Begun::Mismatch),
            Refusal::TooOld => return Ok(Begun::TooOld),
            Refusal::NoQuorum(nodes) => return Err(core.no_quorum(nodes)),
            Refusal::InFlight { retry_after } => (retry_after, in_flight_end),
            Refusal::Contended { retry_after } => (retry_after, contended_end),
        };
        let now = core.env.now();
        if now >= end {
            return Ok(Begun::InFlight(retry_after));
        }
        let mut pause = delays.next().unwrap_or_default();
        if !retry_after.is_zero() {
            pause = pause.min(retry_after);
        }
        tokio::time::sleep(pause.min(end.since(now)).max(Duration::from_millis(1))).await;
    }
}

/// A result was seen on too few nodes: makes it, or what else the promises show, certain. The
/// handler is not started again, whatever the repair finds.
async fn repair(
    call: &Call,
    terms: &ClaimTerms,
    seen: Option<Arc<[u8]>>,
    probing: bool,
) -> Result<Result<Begun, Refusal>, NoQuorum> {
    let sure = call.on_lapsed == Lapsed::Rerun;
    Ok(match call.of.core.store(terms, seen.as_ref(), sure).await {
        Store::Ours => Ok(Begun::Stored(seen)),
        Store::Other(value) => Ok(Begun::Stored(value)),
        // Too few remember whether what was seen is the result: that is for the probe to say.
        Store::Forgotten if probing => match call.of.core.claim(terms, true).await {
            Claimed::Promised(held, promise) if promise.unknown => Ok(Begun::Ours(held, promise)),
            Claimed::Replay(value) => Ok(Begun::Stored(value)),
            Claimed::Refused(refusal) => Err(refusal),
            Claimed::Promised(..) | Claimed::Repair(_) => {
                Err(Refusal::Contended { retry_after: Duration::ZERO })
            }
        },
        Store::Forgotten => {
            Ok(Begun::Parked(Parked { attempt: 1, reason: ParkedReason::Forgotten }))
        }
        Store::Refused(refusal) => Err(refusal),
        Store::Unsure(not) => return Err(not.nodes),
    })
}

/// Stores what the handler returned, and answers what stands under the key afterwards.
async fn record<T, E>(
    call: &Call,
    terms: &ClaimTerms,
    held: Held,
    value: T,
    attempt: u32,
) -> Result<Outcome<T>, RunError<E>>
where
    T: Serialize + DeserializeOwned,
{
    let core = &call.of.core;
    held.begin();
    let bytes = encode(&value)?;
    // A value that is too large leaves the fact that there is a result.
    let kept = (bytes.len() <= call.of.max_result).then_some(&bytes);
    // Held until the result stands: a node that begins a new life takes it only from a holder.
    held.rest();
    let done = core.complete(&held.lease, kept).await;
    held.stop();
    let (nodes, refused) = match done {
        Step::Stored => {
            let durability = held.lease.durability();
            return Ok(Outcome::Executed { value, attempt, durability, kept: kept.is_some() });
        }
        Step::Overtaken(nodes) => (nodes, true),
        Step::Unknown(nodes) => (nodes, false),
        Step::Wait => (vec![NodeOutcome::Silent; core.n()], false),
    };
    tracing::warn!(key = %call.key, attempt, refused, "result not stored under its own ballot");
    // One's own value is never answered on one's own word (§5.7): read what a majority says.
    let found = core.look(&terms.key, terms.durability).await;
    // Stored by others, or in pieces: certain is what the level asks for.
    let durability = Achieved::at_least(terms.durability);
    if let Found::Stored(record) = &found {
        let same = kept.is_some() && record.value.as_ref() == kept;
        return if record.token == held.lease.token || same {
            Ok(Outcome::Executed { value, attempt, durability, kept: kept.is_some() })
        } else {
            Ok(replayed(record.value.as_deref())?)
        };
    }
    // A node that forgot the promise refuses too: overtaken is who sees a higher one.
    let mine = held.lease.token.get();
    let overtaken = refused && matches!(found, Found::Open { promised, .. } if promised > mine);
    // Overtaken by somebody who only looked and left, or died: nothing is decided, so propose it
    // again. A claim that runs is not taken away, and a result found on the way is adopted.
    if !matches!(found, Found::NoQuorum(_)) {
        match core.store(terms, kept, false).await {
            Store::Ours => {
                return Ok(Outcome::Executed { value, attempt, durability, kept: kept.is_some() });
            }
            Store::Other(stored) => return Ok(replayed(stored.as_deref())?),
            Store::Forgotten | Store::Refused(_) | Store::Unsure(_) => {}
        }
    }
    let (token, nodes) = (held.lease.token, core.no_quorum(nodes));
    Err(RunError::NotRecorded(NotRecorded { attempt, token, overtaken, nodes }))
}

/// What a caller hears of a result that stands.
fn replayed<T: DeserializeOwned>(kept: Option<&[u8]>) -> Result<Outcome<T>, CodecError> {
    kept.map_or(Ok(Outcome::NotKept), |bytes| decode(bytes).map(Outcome::Replayed))
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Arc<[u8]>, CodecError> {
    let refuse = |e| CodecError::new("the result cannot be stored as JSON", &e);
    serde_json::to_vec(value).map(Arc::from).map_err(refuse)
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let refuse = |e| CodecError::new("the stored result does not read as this type", &e);
    serde_json::from_slice(bytes).map_err(refuse)
}
