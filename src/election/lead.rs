//! Work that only the leader does, stopped when the leadership is lost.

use std::sync::Arc;

use super::{CampaignError, Election, Leadership};
use crate::lock::{WorkError, while_held};

impl Election {
    /// Campaigns, runs `work` while this process leads, and resigns.
    ///
    /// If the leadership is lost, the work is stopped: its future is dropped at its next await. The
    /// work has the leadership, to [`proclaim`](Leadership::proclaim) other values and for its
    /// [`term`](Leadership::term), which is a fencing token; when the work has ended it resigns,
    /// even if a clone of the leadership is left. One term only: call it again to campaign again.
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
    /// [`WorkError::Lost`] if this process did not lead until the work had ended;
    /// [`WorkError::Unconfirmed`] if it did, and too few nodes confirmed the resignation. An error
    /// of the work itself is its value: `lead(…).await??`.
    ///
    /// # Cancellation safety
    /// Dropped, the work is dropped with it where it is, and the leadership is resigned in the
    /// background. Before it is won, as [`campaign`](Self::campaign).
    pub async fn lead<T, F, Fut>(
        &self,
        value: impl Into<String>,
        work: F,
    ) -> Result<T, WorkError<T, CampaignError>>
    where
        F: FnOnce(Arc<Leadership>) -> Fut,
        Fut: Future<Output = T>,
    {
        let won = self.campaign(value).await.map_err(WorkError::NotStarted)?;
        let leadership = Arc::new(won);
        while_held(leadership.guard(), work(Arc::clone(&leadership))).await
    }
}
