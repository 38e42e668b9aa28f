//! Calls whose handler runs in a task of its own, so that it is finished even if the caller's
//! future is dropped.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Call, Context, Failed, Outcome, Probed, Probing, RunError};

/// A call that goes on in a task of its own when its caller's future is dropped. Made by
/// [`Call::detached`] and [`Probing::detached`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Detached<C>(C);

impl Call {
    /// Makes the call run in a task of its own. If the future of [`run`](Detached::run) is dropped,
    /// only the wait for the outcome ends: a handler that has begun is finished and its result is
    /// stored. Use it in request handlers, whose future a server drops when the client hangs up,
    /// and in consumers.
    pub fn detached(self) -> Detached<Self> {
        Detached(self)
    }
}

impl<P> Probing<P> {
    /// Makes the call run in a task of its own, as [`Call::detached`] does. The probe runs in this
    /// task, too.
    pub fn detached(self) -> Detached<Self> {
        Detached(self)
    }
}

impl Detached<Call> {
    /// Runs the call as [`Call::run`] does, in a task of the runtime that polls this future. A
    /// handler that panics counts as one that failed with [`Failed::unknown`], so its claim ends at
    /// once. The text of the panic is in the error.
    ///
    /// # Errors
    /// As [`Call::run`]; `Handler` also if the handler panicked, or the runtime was shut down.
    ///
    /// # Cancellation safety
    /// If dropped before its first poll, nothing is sent. If dropped later, the call goes on in its
    /// task, and its result is stored.
    pub async fn run<T, E, F, Fut>(self, handler: F) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let name = self.0.name();
        let call = self.0.run(move |cx| caught(handler, cx));
        joined(tokio::spawn(call).await, name)
    }
}

impl<P> Detached<Probing<P>> {
    /// Runs the call as [`Probing::run`] does, in a task of the runtime that polls this future. A
    /// handler that panics is treated as in [`run`](Detached::<Call>::run) of a call without a
    /// probe.
    ///
    /// # Errors
    /// As [`Call::run`]; `Handler` also if the handler panicked, or the runtime was shut down.
    ///
    /// # Cancellation safety
    /// If dropped before its first poll, nothing is sent. If dropped later, the call goes on in its
    /// task, and its result is stored.
    pub async fn run<T, E, F, Fut, PF>(self, handler: F) -> Result<Outcome<T>, RunError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        P: FnOnce(Context) -> PF + Send + 'static,
        PF: Future<Output = Probed<T>> + Send + 'static,
        E: Into<Failed> + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let name = self.0.call.name();
        let call = self.0.run(move |cx| caught(handler, cx));
        joined(tokio::spawn(call).await, name)
    }
}

/// Runs the handler, and turns a panic into a handler's error of unknown effect.
async fn caught<T, E, F, Fut>(handler: F, cx: Context) -> Result<T, Failed>
where
    E: Into<Failed>,
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    // `AssertUnwindSafe`: state that a panic left inconsistent belongs to the handler, and is not
    // used again here.
    let run = AssertUnwindSafe(async { handler(cx).await });
    match run.catch_unwind().await {
        Ok(done) => done.map_err(Into::into),
        Err(panic) => Err(Failed::unknown(format!("it panicked: {}", panic_text(&*panic)))),
    }
}

/// Returns the message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

fn joined<T>(
    ended: Result<Result<Outcome<T>, RunError>, tokio::task::JoinError>,
    key: super::KeyName,
) -> Result<Outcome<T>, RunError> {
    ended.unwrap_or_else(|e| {
        // The task was cancelled, or it panicked outside of the handler. If the handler has begun,
        // its claim lapses when the lease ends.
        let failed = Failed::unknown(format!("its task ended before it did: {e}"));
        Err(RunError::Handler { key, attempt: 0, failed })
    })
}
