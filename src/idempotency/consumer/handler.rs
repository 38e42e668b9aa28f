//! The trait for the user's code: the handler of a message, and the probe that reports whether the
//! message took effect.

use std::future::{Future, ready};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::idempotency::{Context, Failed, Probed};

/// A handler of messages of the type `M`.
///
/// Every `Fn(Context, Arc<M>)` whose future returns `Result<T, impl Into<Failed>>` is a handler
/// without a probe; [`probed`] adds a probe to it. A type that implements this trait itself can
/// have a probe, too.
pub trait Handler<M>: Send + Sync + 'static {
    /// Type of the handler's result, which is stored as JSON and answers later copies of the
    /// message.
    type Value: Serialize + DeserializeOwned + Send + 'static;

    /// Handles the message.
    ///
    /// The future runs in a task of its own, so it is not dropped when the consumer is dropped.
    fn handle(
        &self,
        cx: Context,
        message: Arc<M>,
    ) -> impl Future<Output = Result<Self::Value, Failed>> + Send;

    /// Returns true if [`probe`](Self::probe) decides, in place of the namespace's policies, when
    /// an earlier attempt may have taken effect.
    fn has_probe(&self) -> bool {
        false
    }

    /// Reports whether an earlier attempt took effect, as described at [`Call::probe`].
    ///
    /// [`Call::probe`]: crate::idempotency::Call::probe
    fn probe(
        &self,
        cx: Context,
        message: Arc<M>,
    ) -> impl Future<Output = Probed<Self::Value>> + Send {
        let _ = (cx, message);
        ready(Probed::Unknown)
    }
}

impl<M, F, Fut, T, E> Handler<M> for F
where
    F: Fn(Context, Arc<M>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Into<Failed>,
    M: Send + Sync + 'static,
{
    type Value = T;

    fn handle(
        &self,
        cx: Context,
        message: Arc<M>,
    ) -> impl Future<Output = Result<T, Failed>> + Send {
        let handled = self(cx, message);
        async move { handled.await.map_err(Into::into) }
    }
}

/// A handler with a probe. Made by [`probed`].
#[derive(Clone, Debug)]
pub struct ProbedHandler<H, P> {
    handler: H,
    probe: P,
}

/// Adds a probe to a handler. The probe is called for messages of which it is unknown whether an
/// earlier attempt took effect. Without a probe these messages become dead letters or wait for an
/// operator's decision (`at_most_once`), or run again (`at_least_once`).
///
/// The probe finds the effect by the key of its context. `inbox::prober` of palisade-sqlx makes a
/// probe.
pub fn probed<H, P>(handler: H, probe: P) -> ProbedHandler<H, P> {
    ProbedHandler { handler, probe }
}

impl<M, H, P, Fut> Handler<M> for ProbedHandler<H, P>
where
    M: Send + Sync + 'static,
    H: Handler<M>,
    P: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Probed<H::Value>> + Send,
{
    type Value = H::Value;

    fn handle(
        &self,
        cx: Context,
        message: Arc<M>,
    ) -> impl Future<Output = Result<H::Value, Failed>> + Send {
        self.handler.handle(cx, message)
    }

    fn has_probe(&self) -> bool {
        true
    }

    fn probe(&self, cx: Context, _: Arc<M>) -> impl Future<Output = Probed<H::Value>> + Send {
        (self.probe)(cx)
    }
}
