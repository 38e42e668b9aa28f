//! Handles a request with an idempotency key. Reads the request's body, runs the handler in a
//! separate task, stores the response on the nodes, and sends the response to the client. Below, a
//! problem is an error response of the idempotency layer itself:
//!
//! ```text
//!  read the body ─▶ claim ─▶ a result is stored ────────▶ replay it
//!    │                │  └──▶ in flight, mismatch, … ───▶ a problem
//!    │                ▼ ours                     no quorum ─▶ 503, or run without a key
//!    └ 413, 400     handler ─▶ Keep::Response ─▶ record ─▶ answer;  not recorded ─▶ 503
//!                         └──▶ else the claim ends ──────▶ answer, not stored
//! ```

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use palisade::idempotency::{Call, Context};
use palisade::{Advice, Failed, Outcome, RunError};
use tokio_util::task::TaskTracker;
use tower_service::Service;
use tracing::Instrument as _;

use crate::BoxError;
use crate::body::{Answer, Collected, ResponseBody, Unread, collect, read};
use crate::claim::Claim;
use crate::keep::Keep;
use crate::key::IdempotencyKey;
use crate::layer::{IDEMPOTENT_REPLAYED, IDEMPOTENT_STORED};
use crate::problem::{Problem, problem_of};
use crate::settings::Settings;
use crate::stored::StoredResponse;

/// For errors that last until a person changes a setting.
const MISCONFIGURED: Duration = Duration::from_secs(30);

pub(crate) async fn keyed<S, Q, B>(
    settings: Arc<Settings>,
    tasks: TaskTracker,
    ready: S,
    key: IdempotencyKey,
    request: Request<Q>,
) -> Answer<B, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Q: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let call = match settings.call(&parts, &key) {
        Ok(call) => call,
        Err(problem) => return Ok(settings.refusal(&problem)),
    };
    // Here and not in the separate task: if the client closes the connection before it has sent the
    // whole body, the request ends without an effect.
    let body = match read(body, settings.max_body).await {
        Ok(body) => body,
        Err(Unread::TooLong) => {
            return Ok(settings.refusal(&Problem::BodyTooLarge(settings.max_body)));
        }
        Err(Unread::Broken(why)) => {
            tracing::debug!(target: "palisade::tower", %why, "request's body broke off");
            return Ok(settings.refusal(&Problem::BodyUnreadable));
        }
    };
    let call = call.fingerprint_bytes(&settings.fingerprint(&parts, &body));
    let request = Request::from_parts(parts, Q::from(body));
    let work =
        Work { settings: Arc::clone(&settings), handler: Some((ready, request)), answer: None };
    match tasks.spawn(work.run(call).in_current_span()).await {
        Ok(answer) => answer,
        Err(why) => {
            tracing::error!(target: "palisade::tower", %why, "a request's task ended before it");
            Ok(settings.refusal(&Problem::HandlerFailed))
        }
    }
}

struct Work<S: Service<Request<Q>>, Q, B> {
    settings: Arc<Settings>,
    /// The handler's service and the request; `None` after the handler was called.
    handler: Option<(S, Request<Q>)>,
    /// The handler's own response or error for the client; `None` until the handler has returned.
    answer: Option<Answer<B, S::Error>>,
}

impl<S, Q, B> Work<S, Q, B>
where
    S: Service<Request<Q>, Response = Response<B>> + Send,
    S::Future: Send,
    S::Error: Send,
    Q: Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send,
{
    async fn run(mut self, call: Call) -> Answer<B, S::Error> {
        let work = &mut self;
        let outcome = match work.settings.probe.clone() {
            None => call.run(move |cx| work.handle(cx)).await,
            Some(probe) => call.probe(move |cx| probe(cx)).run(move |cx| work.handle(cx)).await,
        };
        match outcome {
            Ok(Outcome::Executed { value, kept, .. }) => self.answered(kept && value.is_whole()),
            Ok(Outcome::Replayed(stored)) => Ok(self.replay(&stored)),
            Ok(other) => Ok(self.settings.refusal(&problem_of(&other))),
            Err(error) => self.failed(&error).await,
        }
    }

    async fn handle(&mut self, cx: Context) -> Result<StoredResponse, Failed> {
        let (mut handler, mut request) =
            self.handler.take().ok_or_else(|| Failed::no_effect("the request was run before"))?;
        request.extensions_mut().insert(Claim(cx));
        let limit = self.settings.max_response;
        // A panic can leave only the handler's own state inconsistent, and it is not called again.
        let ran = AssertUnwindSafe(async {
            let (parts, body) = match handler.call(request).await {
                Ok(response) => response.into_parts(),
                Err(e) => return Ok(Err(e)),
            };
            collect(body, limit).await.map(|collected| Ok((parts, collected)))
        });
        let (parts, Collected { whole, body }) = match ran.catch_unwind().await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(error))) => {
                self.answer = Some(Err(error));
                return Err(Failed::unknown("its service failed"));
            }
            Ok(Err(broken)) => {
                let broken: BoxError = broken.into();
                return Err(Failed::unknown(format!("its response broke off: {broken}")));
            }
            Err(panic) => {
                return Err(Failed::unknown(format!("it panicked: {}", text(&*panic))));
            }
        };
        let by_status = || self.settings.keep_of(parts.status);
        let keep = parts.extensions.get::<Keep>().copied().unwrap_or_else(by_status);
        let (status, kept) = (parts.status, &self.settings.kept_headers);
        let stored = StoredResponse::of(status, &parts.headers, kept, whole.as_ref(), limit);
        self.answer = Some(Ok(Response::from_parts(parts, body)));
        keep.or_failed(stored, status)
    }

    /// Returns the handler's own response. If the response was not stored, adds the header
    /// `Idempotent-Stored: false`.
    fn answered(&mut self, stored: bool) -> Answer<B, S::Error> {
        let Some(answer) = self.answer.take() else {
            return Ok(self.settings.refusal(&Problem::HandlerFailed));
        };
        answer.map(|mut response| {
            if !stored {
                let headers = response.headers_mut();
                headers.insert(IDEMPOTENT_STORED, HeaderValue::from_static("false"));
            }
            response
        })
    }

    /// Returns the stored response of an earlier request with the same key. Returns an error
    /// response if the stored response cannot be rebuilt.
    fn replay(&self, stored: &StoredResponse) -> Response<ResponseBody<B>> {
        let Some(response) = stored.response() else {
            let problem = if stored.is_whole() {
                tracing::error!(target: "palisade::tower", "a stored response cannot be read");
                Problem::Internal
            } else {
                Problem::ResponseNotKept(Some(stored.status()))
            };
            return self.settings.refusal(&problem);
        };
        let mut response = response.map(ResponseBody::from);
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        response
    }

    /// The handler did not run, or failed, or the nodes have not confirmed the result.
    async fn failed(&mut self, error: &RunError) -> Answer<B, S::Error> {
        let wait = match error.advice() {
            Advice::RetryAfter(wait) => wait,
            _ => MISCONFIGURED,
        };
        let open = self.settings.open;
        tracing::warn!(target: "palisade::tower", %error, open, "a request has no outcome");
        let problem = match error {
            // The handler failed. Send its own response, if it produced one.
            RunError::Handler { failed, .. } => {
                tracing::debug!(target: "palisade::tower", %failed, "why it has none");
                return self.answered(false);
            }
            RunError::NoQuorum { .. } | RunError::NotInitialised { .. } if open => {
                if let Some((mut handler, request)) = self.handler.take() {
                    let passed = handler.call(request).await;
                    self.answer = Some(passed.map(|response| response.map(ResponseBody::passed)));
                }
                return self.answered(false);
            }
            RunError::NotRecorded(_) if open => return self.answered(false),
            RunError::NoQuorum { .. } => Problem::Unavailable(wait),
            RunError::NotInitialised { .. } => Problem::NotInitialised(wait),
            RunError::NotRecorded(_) => Problem::NotRecorded(wait),
            RunError::Config { error, .. } if error.field() == "created_at" => {
                Problem::CreatedLater
            }
            _ => Problem::Internal,
        };
        Ok(self.settings.refusal(&problem))
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}
