//! The runtime that polls an operation: a tokio runtime with timers. Node queues and the renewer
//! run on the runtime that first used them. Each operation uses a timer of the runtime that polls
//! the operation. So an operation ends by its deadline, even if the runtime of the queues stops.

use std::future::Future;
use std::panic::catch_unwind;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use crate::client::Core;
use crate::error::{NodeError, NodeFault, NodeOutcome};

/// Returns a timer of the present runtime. Returns an error if there is no runtime, or if the
/// runtime has no timers.
fn timer() -> Result<Sleep, &'static str> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err("polled outside of a tokio runtime");
    }
    // tokio has no function that shows if a runtime has timers. Without timers `sleep` panics
    // immediately.
    catch_unwind(|| sleep(Duration::ZERO)).map_err(|_| "polled on a tokio runtime without timers")
}

impl Core {
    /// Returns the timer of an operation. If there is no runtime with timers, returns an error
    /// about that as the outcome of each node.
    pub(super) fn timer(&self) -> Result<Sleep, Vec<NodeOutcome>> {
        timer().map_err(|why| {
            let detail = format!("{why}; await it on one with time and IO enabled (`enable_all`)");
            let error = NodeError::not_executed(NodeFault::Closed, detail);
            vec![NodeOutcome::Failed(error); self.n()]
        })
    }
}

/// Returns the result of `work`, or `None` if `work` takes longer than `limit`. If there is no
/// runtime with timers, a thread measures the time.
///
/// # Cancellation safety
/// If the future is dropped, `work` is dropped too.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    if timer().is_ok() {
        return timeout(limit, work).await.ok();
    }
    let (timer, over) = oneshot::channel::<()>();
    // The thread ends when `_stop` is dropped.
    let (_stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = stopped.recv_timeout(limit);
        drop(timer);
    });
    tokio::select! {
        biased;
        done = work => Some(done),
        _ = over => None,
    }
}
