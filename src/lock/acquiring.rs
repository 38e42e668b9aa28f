//! The result of one call that acquires a lock, in its tracing span and in the metrics.

use std::sync::Arc;

use super::LockGuard;
use crate::client::Core;
use crate::error::AcquireError;
use crate::metrics::LockMeters;
use crate::span::Call;
use crate::time::Moment;

/// Dropped before `over`, the metrics count the outcome `dropped`.
pub(super) struct Acquiring<'a> {
    core: &'a Core,
    meters: Arc<LockMeters>,
    began: Moment,
    outcome: &'static str,
}

impl<'a> Acquiring<'a> {
    pub(super) fn begin(core: &'a Core, name: &str) -> Self {
        let (meters, began) = (core.meters.lock(name), core.env.now());
        Self { core, meters, began, outcome: "dropped" }
    }

    /// `Ok(None)`: another owner has the lock.
    pub(super) fn over(
        mut self,
        operation: Call,
        result: Result<Option<&LockGuard>, &AcquireError>,
    ) {
        self.outcome = match result {
            Ok(Some(guard)) => {
                operation.token(guard.fencing_token());
                "acquired"
            }
            Ok(None) | Err(AcquireError::TimedOut { .. }) => "taken",
            Err(AcquireError::Closed(_)) => "closed",
            Err(AcquireError::NoQuorum(_)) => "no_quorum",
            Err(AcquireError::Lost(_)) => "lost",
            Err(AcquireError::Config(_)) => "config",
        };
        operation.over(self.outcome);
    }

    pub(super) fn degraded(mut self, operation: Call) {
        self.outcome = "degraded";
        operation.over(self.outcome);
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.meters.over(self.outcome, self.core.env.now().since(self.began));
    }
}
