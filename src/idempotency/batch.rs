//! Batches of calls, whose keys are claimed together in one request to each node.

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
    /// Runs `calls` together and returns their outcomes in the same order. Each call has an item,
    /// which `handler` receives. At most `concurrency` handlers run at once.
    ///
    /// A key is claimed only while fewer than `concurrency` handlers run, so its handler begins at
    /// once. After a drop of the batch or the death of its process, at most `concurrency` keys keep
    /// a claim without a started handler. Keys that become ready at the same time are claimed
    /// together, in one or a few requests to each node. Results that become ready at the same time
    /// are stored together. So a large `concurrency` saves requests. Calls with the same key run
    /// one after the other, in the order of the batch. So a duplicate inside the batch gets the
    /// result of the first call. A call that fails does not affect the other calls.
    ///
    /// A call that waits for the handler of another process
    /// ([`in_flight_timeout`](Call::in_flight_timeout)) counts as a running handler.
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
    /// Each call has its own error. The variants are those of [`Call::run`].
    ///
    /// # Cancellation safety
    /// If the future is dropped, each call behaves like a dropped [`Call::run`].
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
        let groups = by_key(calls);
        let turns = Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let (turns, handler) = (&turns, &handler);
        let run = |group: Vec<(usize, Call, I)>| async move {
            let mut outcomes = Vec::with_capacity(group.len());
            for (place, call, item) in group {
                // A claimed key that waits for a turn would count as a started attempt if the
                // process died. The semaphore is never closed.
                let turn = turns.acquire().await;
                let outcome = call.run(|cx| async move {
                    let ended = handler(cx, item).await;
                    // So that the next key can be claimed while the result is stored.
                    drop(turn);
                    ended
                });
                outcomes.push((place, outcome.await));
            }
            outcomes
        };
        in_order(join_all(groups.into_iter().map(run)).await)
    }

    /// Claims the keys of all calls together. Use it for work that handles all keys at once, for
    /// example one insert of many rows or one request to another service. After the work, store the
    /// results by [`complete_many`](Self::complete_many). If each key has its own work, use
    /// [`run_each`](Self::run_each) instead.
    ///
    /// The keys are claimed in one or a few requests to each node. The results are in the order of
    /// the calls. A call with the same key and fingerprint as an earlier call is not made. Its
    /// result is [`Claimed::SameAs`] with the index of the earlier call, even if the two policies
    /// differ. For all other calls the policies apply as for [`Call::run`]. A call that waits for
    /// another caller's handler ([`in_flight_timeout`](Call::in_flight_timeout)) delays the whole
    /// batch. During this wait the other claims of the batch are renewed.
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
    /// Each call has its own error. The variants are those of [`Call::run`]. A call with an error
    /// has no claim.
    ///
    /// # Cancellation safety
    /// If the future is dropped, all claimed keys are released, and no attempt counts.
    pub async fn claim_many<T: Serialize + DeserializeOwned>(
        &self,
        calls: impl IntoIterator<Item = Call>,
    ) -> Vec<Result<Claimed<T>, RunError>> {
        let groups = by_key(calls.into_iter().map(|call| (call, ())));
        let claims = join_all(groups.into_iter().map(claim_group::<T>)).await;
        in_order(claims).into_iter().map(ClaimedCall::hand_out).collect()
    }

    /// Stores the results of claimed keys together, in one or a few requests to each node. Returns
    /// the outcomes in the order of the claims. Each outcome is the same as that of [`Call::run`]
    /// after its handler. An error of the work for a key has the same effect as an error of a
    /// handler.
    ///
    /// # Errors
    /// Each claim has its own error, one of these variants of [`RunError`]: `Handler` with the
    /// error of the work, `NotRecorded` or `Codec`.
    ///
    /// # Cancellation safety
    /// If the future is dropped after its first poll, the requests are already sent. The results
    /// are then stored if enough nodes execute the requests.
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

enum ClaimedCall<T> {
    Ours(Box<(Call, Granted)>),
    Answered(Result<Claimed<T>, RunError>),
}

impl<T> ClaimedCall<T> {
    fn answered(call: &Call, outcome: Result<Outcome<T>, RunError>) -> Self {
        call.of.counters.over(&outcome);
        Self::Answered(outcome.map(Claimed::Answered))
    }

    /// Marks the attempt as begun: a claim that is dropped later is not released.
    fn hand_out(self) -> Result<Claimed<T>, RunError> {
        match self {
            Self::Ours(ours) if ours.1.begin(&ours.0) => Ok(Claimed::Ours(Claim::new(ours))),
            // The drop releases it on the remaining nodes.
            Self::Ours(ours) => {
                let gone = Outcome::InFlight { retry_after: Duration::ZERO };
                Self::answered(&ours.0, Ok(gone)).hand_out()
            }
            Self::Answered(answer) => answer,
        }
    }
}

/// Only the first call of each fingerprint makes a claim.
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
        // This call would wait for its own batch.
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

/// Calls of different [`Redlock`](crate::Redlock) handles are apart even for the same key, because
/// their nodes may differ.
fn by_key<I>(calls: impl IntoIterator<Item = (Call, I)>) -> Vec<Vec<(usize, Call, I)>> {
    let mut groups = BTreeMap::<_, Vec<(usize, Call, I)>>::new();
    for (place, (call, item)) in calls.into_iter().enumerate() {
        let at = Arc::as_ptr(&call.of.core);
        let key = (at, Arc::clone(&call.of.namespace), Arc::clone(&call.key));
        groups.entry(key).or_default().push((place, call, item));
    }
    groups.into_values().collect()
}

fn in_order<T>(groups: Vec<Vec<(usize, T)>>) -> Vec<T> {
    let mut all: Vec<_> = groups.into_iter().flatten().collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, one)| one).collect()
}
