//! The tower service that wraps a handler.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::BoxError;
use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::problem::Problem;
use crate::run;
use crate::settings::Settings;

/// A tower service that runs its handler once per idempotency key. It is created by
/// [`IdempotencyLayer`](crate::IdempotencyLayer).
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
    type Future = ResponseFuture<S::Future, B, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !self.settings.covers(request.method()) {
            return ResponseFuture::passed(self.inner.call(request));
        }
        let key = match self.settings.key(request.headers()) {
            Ok(Some(key)) => key,
            Ok(None) if self.settings.key_optional => {
                return ResponseFuture::passed(self.inner.call(request));
            }
            Ok(None) => return self.refused(&Problem::KeyMissing),
            Err(problem) => return self.refused(&problem),
        };
        // Only the service on which `poll_ready` was called is ready to be called. It goes to the
        // request's task, and its clone stays here for the next request.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        let (settings, tasks) = (Arc::clone(&self.settings), self.tasks.clone());
        ResponseFuture::keyed(run::keyed(settings, tasks, ready, key, request))
    }
}

impl<S> IdempotencyService<S> {
    fn refused<F, B, E>(&self, problem: &Problem) -> ResponseFuture<F, B, E>
    where
        B: Send + 'static,
        E: Send + 'static,
    {
        ResponseFuture::keyed(std::future::ready(Ok(self.settings.refusal(problem))))
    }
}
