//! Many calls together: claimed in one request to each node, each with an outcome of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::{Call, Context, Failed, Idempotency, Outcome, RunError};

impl Idempotency {
    /// Makes all these calls together, each with an item for its handler, and answers in their
    /// order. At most `concurrency` handlers run at once.
    ///
    /// The keys are claimed together, in as few requests to each node as their sizes allow, and
    /// results that are ready at the same time are stored together. A claim whose handler waits for
    /// its turn is renewed. Calls with the same key run one after the other, in their order: a
    /// duplicate inside the batch is answered by the result of the first, and never finds it in
    /// flight. One call that fails changes nothing for the others.
    ///
    /// The calls may be of several namespaces. Their settings are their own.
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
    /// One for each call, as of [`Call::run`].
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
        // By key, so that what is the same runs one after the other.
        let mut groups = BTreeMap::<_, Vec<(usize, Call, I)>>::new();
        for (place, (call, item)) in calls.into_iter().enumerate() {
            let key = (Arc::clone(&call.of.namespace), Arc::clone(&call.key));
            groups.entry(key).or_default().push((place, call, item));
        }
        let turns = Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let (turns, handler) = (&turns, &handler);
        let run = |group: Vec<(usize, Call, I)>| async move {
            let mut came_to = Vec::with_capacity(group.len());
            for (place, call, item) in group {
                let outcome = call.run(|cx| async move {
                    // Never closed: the permit comes, or the call is dropped.
                    let _turn = turns.acquire().await;
                    if !cx.is_valid() {
                        let why = "its claim was lost while it waited for its turn";
                        return Err(Failed::no_effect(why));
                    }
                    handler(cx, item).await.map_err(Into::into)
                });
                came_to.push((place, outcome.await));
            }
            came_to
        };
        let done = join_all(groups.into_values().map(run)).await;
        let mut done: Vec<_> = done.into_iter().flatten().collect();
        done.sort_by_key(|(place, _)| *place);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }
}
