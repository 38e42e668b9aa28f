//! The future that the layer's service returns for each request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use pin_project_lite::pin_project;

use crate::body::ResponseBody;

/// What the layer's service returns for a request: a response, or the error of the wrapped service.
pub(crate) type Answer<B, E> = Result<Response<ResponseBody<B>>, E>;

pin_project! {
    /// The response future of [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation safety
    /// If the future is dropped while the request's body is still being read, the handler has not
    /// run and does not run. If it is dropped later, as servers do when the client hangs up, the
    /// handler continues in its own task, and its response is stored. The handler of a request to
    /// which the layer does not apply runs inside this future and is dropped with it.
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        kind: Kind<F, B, E>,
    }
}

pin_project! {
    #[project = Projected]
    enum Kind<F, B, E> {
        /// A request to which the layer does not apply; `handler` is the future of its handler.
        Passed { #[pin] handler: F },
        /// A request with an idempotency key, or a request that was refused before it ran; `answer`
        /// produces the response of both.
        Keyed { answer: Pin<Box<dyn Future<Output = Answer<B, E>> + Send>> },
    }
}

impl<F, B, E> ResponseFuture<F, B, E> {
    pub(crate) fn passed(handler: F) -> Self {
        Self { kind: Kind::Passed { handler } }
    }

    pub(crate) fn keyed(answer: impl Future<Output = Answer<B, E>> + Send + 'static) -> Self {
        Self { kind: Kind::Keyed { answer: Box::pin(answer) } }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Answer<B, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            Projected::Passed { handler } => handler
                .poll(cx)
                .map(|response| response.map(|response| response.map(ResponseBody::passed))),
            Projected::Keyed { answer } => answer.as_mut().poll(cx),
        }
    }
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Passed { .. } => "passed",
            Kind::Keyed { .. } => "keyed",
        };
        f.debug_struct("ResponseFuture").field("kind", &kind).finish_non_exhaustive()
    }
}
