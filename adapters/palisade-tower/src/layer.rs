//! The layer, and its settings.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};
use palisade::idempotency::{Call, Context};
use palisade::{ConfigError, Idempotency, Probed};
use tokio_util::task::TaskTracker;
use tower_layer::Layer;

use crate::keep::Keep;
use crate::scope::Scope;
use crate::service::IdempotencyService;
use crate::settings::{Settings, is_server_error};
use crate::stored::StoredResponse;

/// `Idempotent-Replayed: true` is on a response that was stored before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// `Idempotent-Stored: false` is on a handler's response that is not stored: the same request sent
/// again is not answered with it.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// Runs the handler of a request once per `Idempotency-Key`, and answers repetitions with the
/// response that is stored.
///
/// Cheap to clone. Clones share the settings until one is changed, and the handlers that
/// [`finish`](Self::finish) waits for.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    tasks: TaskTracker,
}

impl IdempotencyLayer {
    /// Keys of this namespace. `scope` names the owner of a request's key, from what authenticated
    /// the request; `None`, or an empty name, is answered 403.
    ///
    /// Begins with: POST and PATCH, a key is required, bodies of 1 MiB, responses of 256 KiB, a
    /// wait of 1 s for a running request, fail closed, and [`Keep::by_status`].
    pub fn new(
        idempotency: Idempotency,
        scope: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        let settings = Settings::new(idempotency, Arc::new(scope));
        Self { settings: Arc::new(settings), tasks: TaskTracker::new() }
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }

    /// The methods to which the layer applies; other requests pass. Default POST and PATCH, for
    /// GET, HEAD, OPTIONS, PUT and DELETE are idempotent by their definition.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|s| s.methods = methods.into_iter().collect())
    }

    /// The header that carries the key, where clients have used another one for long.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|s| s.header = name)
    }

    /// Lets requests without a key pass, unprotected. Default: they are answered 400.
    pub fn key_optional(self) -> Self {
        self.with(|s| s.key_optional = true)
    }

    /// Accepts keys in quotation marks only, as the draft has it. Default: bare keys, too.
    pub fn quoted_keys_only(self) -> Self {
        self.with(|s| s.bare_keys = false)
    }

    /// Accepts only keys of this form; others are answered 400. For example those long enough that
    /// nobody guesses them, in the form that your documentation publishes.
    pub fn accept_keys(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|s| s.accept = Some(Arc::new(accept)))
    }

    /// When the request was made, from its headers and its key; `None` if it does not say so.
    /// [`Call::created_at`] has what it is for, and whose clocks are good enough. For keys that are
    /// UUIDs of version 7 or ULIDs:
    ///
    /// ```
    /// # fn demo(layer: palisade_tower::IdempotencyLayer) {
    /// use palisade::idempotency::{created_in_ulid, created_in_uuid_v7};
    /// let layer = layer.created_at(|_, key| created_in_uuid_v7(key).or(created_in_ulid(key)));
    /// # let _ = layer;
    /// # }
    /// ```
    pub fn created_at(
        self,
        created: impl Fn(&Parts, &str) -> Option<SystemTime> + Send + Sync + 'static,
    ) -> Self {
        self.with(|s| s.created = Some(Arc::new(created)))
    }

    /// The part of a body that distinguishes requests, in place of all its bytes: for clients that
    /// do not send the same bytes again, such as JSON with its members in another order. The
    /// method, the path and the query always count, as the layer sees them. A layer on a router
    /// that axum nests in another one sees the path without the nest's prefix: put the layer around
    /// the outer router, or add the prefix here. Otherwise equal requests to `/a/x` and `/b/x`
    /// under one key are one request.
    pub fn fingerprint_by(
        self,
        form: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.with(|s| s.body_form = Some(Arc::new(form)))
    }

    /// Called when it is not known whether an earlier request under the key took effect, as
    /// [`Call::probe`] has it; for example the row that the handler wrote in the transaction of its
    /// effect.
    pub fn probe<P, F>(self, probe: P) -> Self
    where
        P: Fn(Context) -> F + Send + Sync + 'static,
        F: Future<Output = Probed<StoredResponse>> + Send + 'static,
    {
        let probe = move |cx: Context| -> BoxFuture<'static, _> { Box::pin(probe(cx)) };
        self.with(|s| s.probe = Some(Arc::new(probe)))
    }

    /// What is kept of a response, by its status. A [`Keep`] in the response's extensions, set by a
    /// handler that knows more, overrides it. Default [`Keep::by_status`], but see
    /// [`server_errors`](Self::server_errors).
    pub fn keep_by(self, keep: impl Fn(StatusCode) -> Keep + Send + Sync + 'static) -> Self {
        self.with(|s| s.keep = Some(Arc::new(keep)))
    }

    /// Says what a 5xx means that the handler answered; other statuses are kept by
    /// [`Keep::by_status`].
    ///
    /// By default the [`probe`](Self::probe) decides if there is one, or the policy of a namespace
    /// with `at_least_once()`, which runs again ([`Keep::Unknown`]). With `at_most_once()` alone
    /// neither can tell, and the response is the result ([`Keep::Response`]): it is replayed, so
    /// that a repetition neither runs again nor waits for a person.
    ///
    /// With `at_most_once()` alone [`Keep::Unknown`] parks the key: repetitions are answered 409
    /// `outcome-unknown` until a person has settled it. [`Keep::NoEffect`] is for handlers that
    /// roll everything back before they answer a 5xx. A handler that panics, or whose response
    /// breaks off, always leaves an unknown outcome.
    pub fn server_errors(self, keep: Keep) -> Self {
        self.keep_by(move |s| if is_server_error(s) { keep } else { Keep::by_status(s) })
    }

    /// Stores these headers of a response, too. By default those that describe the body and say
    /// where the result is: `Cache-Control`, `Content-Disposition`, `Content-Encoding`,
    /// `Content-Language`, `Content-Location`, `Content-Type`, `ETag`, `Last-Modified`, `Link`,
    /// `Location` and `Vary`.
    ///
    /// # Errors
    /// A header whose value is one caller's, one connection's or one moment's: `Set-Cookie`, those
    /// of authentication, those of a hop, `Content-Length` and `Date`.
    pub fn keep_headers(
        mut self,
        names: impl IntoIterator<Item = HeaderName>,
    ) -> Result<Self, ConfigError> {
        match Arc::make_mut(&mut self.settings).keep_headers(names) {
            Ok(()) => Ok(self),
            Err(name) => {
                let rule = "not one that belongs to one caller, one connection or one moment: \
                            stored, it would be replayed to others; leave it out";
                Err(ConfigError::new("keep_headers", name.as_str(), rule))
            }
        }
    }

    /// The longest body of a request under a key, which is read before the handler runs; longer
    /// ones are answered 413. Default 1 MiB.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|s| s.max_body = bytes)
    }

    /// The longest body of a response that is stored. Default 256 KiB. Of a longer one the fact is
    /// stored: the caller whose request ran is sent all of it, later ones are answered 410, and
    /// nothing runs again. In the store a response may be up to twice as long, and must be within
    /// the namespace's `max_result`.
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|s| s.max_response = bytes)
    }

    /// How long a request waits for the response of a running one under the same key before it is
    /// answered 409; zero: not at all. Default 1 s.
    pub fn in_flight_timeout(self, timeout: Duration) -> Self {
        self.with(|s| s.in_flight_timeout = Some(timeout))
    }

    /// Runs requests without the protection of their key while too few nodes answer, or were never
    /// initialised. Default: they are answered 503 and not run.
    ///
    /// For routes where a second effect costs less than a refusal. Their responses then carry
    /// `Idempotent-Stored: false`, and the handler has no [`Claim`](crate::Claim).
    pub fn fail_open(self) -> Self {
        self.with(|s| s.open = true)
    }

    /// Where your rules for keys are published: how long they are kept, what form they have. The
    /// refusals link to this page; their `type` is the page with the problem's code as its anchor.
    pub fn documentation(self, page: impl Into<Arc<str>>) -> Self {
        let page = page.into();
        self.with(|s| s.documentation = Some(page))
    }

    /// The call under this key, for people who settle it: [`Call::lookup`] and [`Call::resolve`]
    /// with a [`StoredResponse`].
    ///
    /// # Errors
    /// A scope without a name, or a key that is too long with it.
    pub fn call(&self, scope: &Scope, key: &str) -> Result<Call, ConfigError> {
        self.settings.call_of(scope, key).map_err(|_| {
            let rule = "a scope whose parts have names, and with it at most 512 bytes";
            ConfigError::new("key", format!("{key:?} of {scope:?}"), rule)
        })
    }

    /// Waits until the handlers have ended whose clients are gone, at most so long, and returns how
    /// many still run. For the end of a program, after the server has stopped: what runs when the
    /// runtime ends is lost in the middle.
    ///
    /// # Cancellation safety
    /// Dropped, it stops waiting. It may be called again.
    pub async fn finish(&self, within: Duration) -> usize {
        self.tasks.close();
        let _ = tokio::time::timeout(within, self.tasks.wait()).await;
        self.tasks.len()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.settings), self.tasks.clone())
    }
}
