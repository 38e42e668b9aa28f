//! Calls with a handler in its own task, which finishes even if the caller's future is dropped.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Call, Context, Failed, Outcome, Probed, Probing, RunError};

/// A call that runs in its own task, so it continues after the drop of its caller's future. Made by
/// [`Call::detached`] and [`Probing::detached`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until one of its operations is awaited"]
pub struct Detached<C>(C);

impl Call {
    /// Makes the call run in its own task. A drop of the future of [`run`](Detached::run) ends only
    /// the wait for the outcome: a started handler is finished, and its result is stored. Use
    /// `detached` in request handlers, because a server drops their futures when the client
    /// disconnects. Use it also in consumers.
    pub fn detached(self) -> Detached<Self> {
        Detached(self)
    }
}

impl<P> Probing<P> {
    /// Makes the call run in its own task, like [`Call::detached`]. The call's probe also runs in
    /// this task.
    pub fn detached(self) -> Detached<Self> {
        Detached(self)
    }
}

impl Detached<Call> {
    /// Runs the call like [`Call::run`], in a task of the runtime that polls this future. A panic
    /// of the handler counts as a failure with [`Failed::unknown`], so the claim ends at once. The
    /// error contains the text of the panic.
    ///
    /// # Errors
    /// As [`Call::run`]; `Handler` also if the handler panicked, or the runtime was shut down.
    ///
    /// # Cancellation safety
    /// If the future is dropped before its first poll, nothing is sent. If the future is dropped
    /// later, the call continues in its task, and the result is stored.
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
    /// Runs the call like [`Probing::run`], in a task of the runtime that polls this future. A
    /// panic of the handler has the same effect as in [`run`](Detached::<Call>::run) of a call
    /// without a probe.
    ///
    /// # Errors
    /// As [`Call::run`]; `Handler` also if the handler panicked, or the runtime was shut down.
    ///
    /// # Cancellation safety
    /// If the future is dropped before its first poll, nothing is sent. If the future is dropped
    /// later, the call continues in its task, and the result is stored.
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

async fn caught<T, E, F, Fut>(handler: F, cx: Context) -> Result<T, Failed>
where
    E: Into<Failed>,
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    // `AssertUnwindSafe`: the panicked state belongs to the handler, and is not used again.
    let run = AssertUnwindSafe(async { handler(cx).await });
    match run.catch_unwind().await {
        Ok(done) => done.map_err(Into::into),
        Err(panic) => Err(Failed::unknown(format!("it panicked: {}", panic_text(&*panic)))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

fn joined<T>(
    ended: Result<Result<Outcome<T>, RunError>, tokio::task::JoinError>,
    key: super::KeyName,
) -> Result<Outcome<T>, RunError> {
    ended.unwrap_or_else(|e| {
        // If it was started, other callers find an attempt without a result.
        let failed = Failed::unknown(format!("its task ended before it did: {e}"));
        Err(RunError::Handler { key, attempt: 0, failed, overtaken: false })
    })
}
