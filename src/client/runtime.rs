//! What an operation needs of where it is polled: a tokio runtime with timers. Queues and the
//! renewer run on the runtime that used them first; each operation keeps its own time on the
//! runtime that polls it, so that it ends by its deadline whatever becomes of the others.

use std::future::Future;
use std::panic::catch_unwind;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use crate::client::Core;
use crate::error::{NodeError, NodeFault, NodeOutcome};

/// A timer of the runtime that polls this, if it has any.
fn timer() -> Result<Sleep, &'static str> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err("polled outside of a tokio runtime");
    }
    // There is no question that tokio answers; it panics before anything was begun.
    catch_unwind(|| sleep(Duration::ZERO)).map_err(|_| "polled on a tokio runtime without timers")
}

impl Core {
    /// The timer of an operation, or, where nothing can be waited for, what each node then comes
    /// to.
    pub(super) fn timer(&self) -> Result<Sleep, Vec<NodeOutcome>> {
        timer().map_err(|why| {
            let detail = format!("{why}; await it on one with time and IO enabled (`enable_all`)");
            let error = NodeError::not_executed(NodeFault::Closed, detail);
            vec![NodeOutcome::Failed(error); self.n()]
        })
    }
}

/// What the work comes to within this time, also outside of a runtime: there a thread keeps the
/// time.
///
/// # Cancellation safety
/// That of the work.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    if timer().is_ok() {
        return timeout(limit, work).await.ok();
    }
    let (timer, over) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        std::thread::park_timeout(limit);
        drop(timer);
    });
    tokio::select! {
        biased;
        done = work => Some(done),
        _ = over => None,
    }
}
