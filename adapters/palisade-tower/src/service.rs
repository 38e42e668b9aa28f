//! The tower service that wraps a handler and runs it once per idempotency key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::TryFutureExt as _;
use http::{Request, Response};
use http_body::Body;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::BoxError;
use crate::body::{Answer, ResponseBody};
use crate::problem::Problem;
use crate::run;
use crate::settings::Settings;

/// A tower service that runs its handler once per idempotency key. It is created by
/// [`IdempotencyLayer`](crate::IdempotencyLayer).
///
/// If the future of a request is dropped before the whole body has arrived, the handler does not
/// run. A server may drop the future later, because the client has closed the connection. Then the
/// handler continues in its own task, and its response is recorded. If the layer does not apply to
/// the request, the handler is dropped with the future.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    settings: Arc<Settings>,
    tasks: TaskTracker,
}

impl<S> IdempotencyService<S> {
    pub(crate) fn new(inner: S, settings: Arc<Settings>, tasks: TaskTracker) -> Self {
        Self { inner, settings, tasks }
    }
}

impl<S, Q, B> Service<Request<Q>> for IdempotencyService<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Q: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Answer<B, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !self.settings.covers(request.method()) {
            return passed(self.inner.call(request));
        }
        let refused = |problem: &Problem| -> Self::Future {
            Box::pin(std::future::ready(Ok(self.settings.refusal(problem))))
        };
        let key = match self.settings.key(request.headers()) {
            Ok(Some(key)) => key,
            Ok(None) if self.settings.key_optional => {
                return passed(self.inner.call(request));
            }
            Ok(None) => return refused(&Problem::KeyMissing),
            Err(problem) => return refused(&problem),
        };
        // Only the service on which `poll_ready` was called may be called. The request's task gets
        // this service. A clone of the service stays here for the next request.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        let (settings, tasks) = (Arc::clone(&self.settings), self.tasks.clone());
        Box::pin(run::keyed(settings, tasks, ready, key, request))
    }
}

/// Returns the handler's response to a request to which the idempotency layer does not apply.
fn passed<F, B, E>(handler: F) -> Pin<Box<dyn Future<Output = Answer<B, E>> + Send>>
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
{
    Box::pin(handler.map_ok(|response| response.map(ResponseBody::passed)))
}
