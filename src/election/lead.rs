//! Runs work that only the leader may do.

use std::sync::Arc;

use super::{CampaignError, Election, Leadership};
use crate::lock::{WorkError, while_held};

impl Election {
    /// Campaigns, runs `work` while this process leads, and resigns at the end of the work. After a
    /// loss of the leadership this function campaigns again and runs the work again.
    ///
    /// When the leadership is lost, or an operator [asks the leader to step down](Self::step_down),
    /// the work is stopped: its future is dropped at its next await. The work receives the
    /// leadership as an `Arc`. With it, the work can [`proclaim`](Leadership::proclaim) other
    /// values, and send the [`term`](Leadership::term) as a fencing token with each write. At the
    /// end of the work the leadership is resigned, even if a clone of this `Arc` still exists. With
    /// [`one_term`](super::ElectionBuilder::one_term) this function returns at the first loss.
    ///
    /// ```
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::{MemoryNode, Redlock};
    /// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let election = redlock.election("billing").build()?;
    /// let billed = election
    ///     .lead("10.0.0.7:8080", |leadership| async move {
    ///         format!("billed in term {}", leadership.term())
    ///     })
    ///     .await?;
    /// # assert!(billed.starts_with("billed in term"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`WorkError::NotStarted`] with the error of [`campaign`](Self::campaign);
    /// [`WorkError::Unconfirmed`] if too few nodes confirmed the resignation; [`WorkError::Lost`]
    /// if the work ended after a loss of the leadership, or if a loss stopped the work and
    /// `one_term` is set. An error that the work returns is inside the `Ok` value:
    /// `lead(…).await??`.
    ///
    /// # Cancellation safety
    /// If this future is dropped during the work, the work is dropped at its current await, and the
    /// leadership is resigned in the background. Before the win, cancellation is as safe as that of
    /// [`campaign`](Self::campaign).
    pub async fn lead<T, F, Fut>(
        &self,
        value: impl Into<String>,
        mut work: F,
    ) -> Result<T, WorkError<T, CampaignError>>
    where
        F: FnMut(Arc<Leadership>) -> Fut,
        Fut: Future<Output = T>,
    {
        let value = value.into();
        loop {
            let won = self.campaign(&*value).await.map_err(WorkError::NotStarted)?;
            let leadership = Arc::new(won);
            let resign_request = async {
                let request = leadership.asked_to_resign().await;
                let (of, by, reason) = (self.resource(), request.by, request.reason);
                tracing::info!(%of, term = %leadership.term(), %by, reason, "asked to step down");
            };
            let work = work(Arc::clone(&leadership));
            match while_held(leadership.guard(), work, resign_request).await {
                Err(WorkError::Lost { value: None, .. }) if !self.one_term => {}
                ended => return ended,
            }
        }
    }
}
