//! The trait of a message handler, which the user writes. A handler may have a probe, which reports
//! if a message took effect.

use std::future::{Future, ready};
use std::sync::Arc;

use palisade::idempotency::{Context, Failed, Probed};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A handler of messages of the type `M`.
///
/// Every `Fn(Context, Arc<M>)` whose future returns `Result<T, impl Into<Failed>>` is a handler
/// without a probe, which checks if an earlier attempt took effect. [`probed`] adds a probe to a
/// handler. A type with its own implementation of this trait can also have a probe.
pub trait Handler<M>: Send + Sync + 'static {
    /// Type of the handler's result. The result is stored as JSON, and later copies of the message
    /// get the stored result.
    type Value: Serialize + DeserializeOwned + Send + 'static;

    /// Handles the message.
    ///
    /// The future runs in its own task, so the drop of the consumer does not drop it.
    fn handle(
        &self,
        cx: Context,
        message: Arc<M>,
    ) -> impl Future<Output = Result<Self::Value, Failed>> + Send;

    /// Returns true if this handler has a [`probe`](Self::probe). If an earlier attempt may have
    /// taken effect, the probe decides in place of the namespace's policies.
    fn has_probe(&self) -> bool {
        false
    }

    /// Reports if an earlier attempt took effect; see [`Call::probe`].
    ///
    /// [`Call::probe`]: palisade::idempotency::Call::probe
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

/// Adds a probe to a handler. The probe is called for a message if an earlier attempt may have
/// taken effect. Without a probe such a message becomes a dead letter or waits for an operator's
/// decision (`at_most_once`), or its handler runs again (`at_least_once`).
///
/// The probe looks for the effect by the key in its context. `inbox::prober` of palisade-sqlx makes
/// a probe.
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
