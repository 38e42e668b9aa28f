//! Batches of calls: claimed in one request to each node, each with an outcome of its own.

use std::collections::BTreeMap;
use std::future::{Future, Ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::run::{self, ClaimResult, Granted};
use super::{Call, Claim, Claimed, Context, Failed, Idempotency, Outcome, Probed, RunError};

impl Idempotency {
    /// Runs all these calls together, each with an item for its handler, and returns the outcomes
    /// in their order. At most `concurrency` handlers run at once.
    ///
    /// A key is claimed when there is a turn for its handler, and the handler begins at once. So a
    /// batch that is dropped, or whose process dies, leaves no claim of a handler that did not
    /// begin, except for the keys that were being claimed at that moment: at most `concurrency`.
    /// Keys whose turns come at the same time are claimed together, in one request to each node, or
    /// a few if they are many; results that are ready at the same time are stored together. A large
    /// `concurrency` therefore saves requests. Calls with the same key run one after the other, in
    /// their order: a duplicate inside the batch is answered by the result of the first, and never
    /// finds it in flight. One call that fails changes nothing for the other calls.
    ///
    /// A call that waits for another process's handler
    /// ([`in_flight_timeout`](Call::in_flight_timeout)) occupies a turn while it waits.
    ///
    /// The calls may be of several namespaces, each with its own settings.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::{Failed, MemoryNode, Redlock};
    /// # let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let orders = redlock.idempotency("orders").at_most_once().build()?;
    /// let batch = ["a", "b", "a"].map(|id| (orders.key(id), id));
    /// let done = orders
    ///     .run_each(batch, 32, |cx, id| async move {
    ///         Ok::<_, Failed>(format!("{id} with token {}", cx.fencing_token()))
    ///     })
    ///     .await;
    /// assert_eq!(done[0].as_ref().unwrap().value(), done[2].as_ref().unwrap().value());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// One for each call, as those of [`Call::run`].
    ///
    /// # Cancellation safety
    /// As [`Call::run`], for each call.
    pub async fn run_each<I, T, E, F, Fut>(
        &self,
        calls: impl IntoIterator<Item = (Call, I)>,
        concurrency: usize,
        handler: F,
    ) -> Vec<Result<Outcome<T>, RunError>>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
        F: Fn(Context, I) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        // Calls with the same key run one after the other.
        let groups = by_key(calls);
        let turns = Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let (turns, handler) = (&turns, &handler);
        let run = |group: Vec<(usize, Call, I)>| async move {
            let mut outcomes = Vec::with_capacity(group.len());
            for (place, call, item) in group {
                // The turn is acquired before the claim, because a claim counts as begun if the
                // process is killed. The semaphore is never closed: the permit is granted, or the
                // batch is dropped.
                let turn = turns.acquire().await;
                let outcome = call.run(|cx| async move {
                    let ended = handler(cx, item).await;
                    // The turn is released here so that the next key is claimed while this result
                    // is stored.
                    drop(turn);
                    ended
                });
                outcomes.push((place, outcome.await));
            }
            outcomes
        };
        in_order(join_all(groups.into_iter().map(run)).await)
    }

    /// Claims the keys of all these calls together, for work that is done on all of them at once:
    /// one insert of many rows, one request to another service. The results are stored by
    /// [`complete_many`](Self::complete_many). Where each item has work of its own, use
    /// [`run_each`](Self::run_each), which completes each claim by itself.
    ///
    /// The keys are claimed in one request to each node, or a few if they are many. The answers are
    /// in the order of the calls. A call with the same key and fingerprint as an earlier one is not
    /// made, and is answered by the index of the earlier one, even if its own policy is different.
    /// Otherwise policies apply as to [`Call::run`]. A call with an
    /// [`in_flight_timeout`](Call::in_flight_timeout) delays the whole batch; the keys that are
    /// claimed by then are renewed.
    ///
    /// The calls may be of several namespaces.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::idempotency::Claimed;
    /// # use palisade::{Failed, MemoryNode, Redlock};
    /// # async fn insert(rows: &[String]) -> Result<Vec<u64>, std::io::Error> {
    /// #     Ok((0..).take(rows.len()).collect())
    /// # }
    /// # let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let orders = redlock.idempotency("orders").at_most_once().build()?;
    /// let (mut ours, mut rows) = (Vec::new(), Vec::new());
    /// for claimed in orders.claim_many(["a", "b", "a"].map(|id| orders.key(id))).await {
    ///     match claimed? {
    ///         Claimed::Ours(claim) => {
    ///             let cx = claim.context();
    ///             rows.push(format!("{} {}", cx.key(), cx.fencing_token()));
    ///             ours.push(claim);
    ///         }
    ///         Claimed::Answered(outcome) => println!("nothing to do: {outcome:?}"),
    ///         Claimed::SameAs(place) => println!("as the call at {place}"),
    ///     }
    /// }
    /// let done: Vec<_> = match insert(&rows).await {
    ///     Ok(ids) => ours.into_iter().zip(ids.into_iter().map(Ok)).collect(),
    ///     Err(e) => {
    ///         let rolled_back = || Failed::no_effect(e.to_string());
    ///         ours.into_iter().map(|claim| (claim, Err(rolled_back()))).collect()
    ///     }
    /// };
    /// for outcome in orders.complete_many(done).await {
    ///     println!("{:?}", outcome?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// One for each call, as those of [`Call::run`]; a call with an error has no claim.
    ///
    /// # Cancellation safety
    /// If dropped, the claimed keys are released, and no attempt counts.
    pub async fn claim_many<T: Serialize + DeserializeOwned>(
        &self,
        calls: impl IntoIterator<Item = Call>,
    ) -> Vec<Result<Claimed<T>, RunError>> {
        let groups = by_key(calls.into_iter().map(|call| (call, ())));
        let claims = join_all(groups.into_iter().map(claim_group::<T>)).await;
        in_order(claims).into_iter().map(ClaimedCall::hand_out).collect()
    }

    /// Stores the results of claimed keys together, in one request to each node, or a few if they
    /// are many or large. Returns the outcomes in the order of the claims, as [`Call::run`] does
    /// after its handler. An error decides about its key as a handler's error does.
    ///
    /// # Errors
    /// One for each claim, as those of [`Call::run`]: `Handler` with the error that was passed in,
    /// `NotRecorded` and `Codec`.
    ///
    /// # Cancellation safety
    /// If dropped, the requests are already sent: a result is stored if it can be.
    pub async fn complete_many<T, E>(
        &self,
        done: impl IntoIterator<Item = (Claim<T>, Result<T, E>)>,
    ) -> Vec<Result<Outcome<T>, RunError>>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failed>,
    {
        let complete = |(claim, result): (Claim<T>, Result<T, E>)| async move {
            let (call, granted) = claim.into_inner();
            let outcome = granted.finish(&call, result).await;
            call.of.counters.over(&outcome);
            outcome
        };
        join_all(done.into_iter().map(complete)).await
    }
}

/// A call of a batch, after the claim of its key was answered.
enum ClaimedCall<T> {
    Ours(Box<(Call, Granted)>),
    Answered(Result<Claimed<T>, RunError>),
}

impl<T> ClaimedCall<T> {
    /// Counts the outcome of a call that has nothing to run.
    fn answered(call: &Call, outcome: Result<Outcome<T>, RunError>) -> Self {
        call.of.counters.over(&outcome);
        Self::Answered(outcome.map(Claimed::Answered))
    }

    /// Passes the claim to the caller, and marks its attempt as begun.
    fn hand_out(self) -> Result<Claimed<T>, RunError> {
        match self {
            Self::Ours(ours) if ours.1.begin(&ours.0) => Ok(Claimed::Ours(Claim::new(ours))),
            // The claim was lost while other keys were claimed. Dropping it releases it on the
            // nodes that still have it.
            Self::Ours(ours) => {
                let gone = Outcome::InFlight { retry_after: Duration::ZERO };
                Self::answered(&ours.0, Ok(gone)).hand_out()
            }
            Self::Answered(answer) => answer,
        }
    }
}

/// Claims the key of a group of calls. Calls with the same fingerprint are claimed once.
async fn claim_group<T: Serialize + DeserializeOwned>(
    group: Vec<(usize, Call, ())>,
) -> Vec<(usize, ClaimedCall<T>)> {
    let mut answered = Vec::with_capacity(group.len());
    let mut first = Vec::new();
    for (place, mut call, ()) in group {
        let same = first.iter().find(|(fingerprint, _)| *fingerprint == call.fingerprint);
        if let Some((_, place_of_first)) = same {
            answered.push((place, ClaimedCall::Answered(Ok(Claimed::SameAs(*place_of_first)))));
            continue;
        }
        first.push((call.fingerprint.clone(), place));
        // If this batch already holds the key, a wait would be for this batch itself.
        let own = answered.iter().any(|(_, one)| matches!(one, ClaimedCall::Ours(_)));
        let wait = call.in_flight_timeout.filter(|_| !own).unwrap_or_default();
        call.in_flight_timeout = Some(wait);
        let no_probe = None::<fn(Context) -> Ready<Probed<T>>>;
        let claimed = match run::claim(&call, no_probe, None).await {
            Ok(ClaimResult::Ours(granted)) => {
                granted.keep();
                ClaimedCall::Ours(Box::new((call, granted)))
            }
            Ok(ClaimResult::Answered(outcome)) => ClaimedCall::answered(&call, Ok(outcome)),
            Err(e) => ClaimedCall::answered(&call, Err(e)),
        };
        answered.push((place, claimed));
    }
    answered
}

/// Groups the calls by key, each with its index. The same key at the nodes of another handle is a
/// different key, so the handle is part of the group's key.
fn by_key<I>(calls: impl IntoIterator<Item = (Call, I)>) -> Vec<Vec<(usize, Call, I)>> {
    let mut groups = BTreeMap::<_, Vec<(usize, Call, I)>>::new();
    for (place, (call, item)) in calls.into_iter().enumerate() {
        let at = Arc::as_ptr(&call.of.core);
        let key = (at, Arc::clone(&call.of.namespace), Arc::clone(&call.key));
        groups.entry(key).or_default().push((place, call, item));
    }
    groups.into_values().collect()
}

/// Merges the results of all groups, in the order of the calls.
fn in_order<T>(groups: Vec<Vec<(usize, T)>>) -> Vec<T> {
    let mut all: Vec<_> = groups.into_iter().flatten().collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, one)| one).collect()
}
