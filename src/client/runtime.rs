//! An operation's timer is that of the runtime that polls it, so it ends by its deadline even if
//! the runtime of the queues and the renewer stops.

use std::future::Future;
use std::panic::catch_unwind;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use crate::client::Core;
use crate::error::{NodeError, NodeFault, NodeOutcome};

fn timer() -> Result<Sleep, &'static str> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err("polled outside of a tokio runtime");
    }
    // tokio does not show whether a runtime has timers. Without them `sleep` panics immediately.
    catch_unwind(|| sleep(Duration::ZERO)).map_err(|_| "polled on a tokio runtime without timers")
}

impl Core {
    pub(super) fn timer(&self) -> Result<Sleep, Vec<NodeOutcome>> {
        timer().map_err(|why| {
            let detail = format!("{why}; await it on one with time and IO enabled (`enable_all`)");
            let error = NodeError::not_executed(NodeFault::Closed, detail);
            vec![NodeOutcome::Failed(error); self.n()]
        })
    }
}

/// Without a runtime with timers, a thread measures the time.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    if timer().is_ok() {
        return timeout(limit, work).await.ok();
    }
    let (timer, over) = oneshot::channel::<()>();
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
