//! The layer, and the methods that change its settings.

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

/// Header of a stored response that is sent again: `Idempotent-Replayed: true`.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Header of a handler's response that is not stored: `Idempotent-Stored: false`. A repetition of
/// the request is not answered with this response.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// Runs the handler of a request once per `Idempotency-Key`, and answers repetitions with the
/// stored response.
///
/// Cloning is cheap. Clones share the settings until one of them is changed. They also share the
/// handlers that [`finish`](Self::finish) waits for.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    tasks: TaskTracker,
}

impl IdempotencyLayer {
    /// Creates a layer for the keys of this namespace. `scope` returns the owner of a request's
    /// key, from the data that authenticated the request. If it returns `None` or an empty name,
    /// the request is answered with 403.
    ///
    /// Defaults: the methods POST and PATCH, a required key, request bodies up to 1 MiB, responses
    /// up to 256 KiB, a wait of 1 s for a running request, fail closed, and [`Keep::by_status`].
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

    /// Sets the methods to which the layer applies; other requests pass unprotected. Default: POST
    /// and PATCH, because GET, HEAD, OPTIONS, PUT and DELETE are idempotent by definition.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|s| s.methods = methods.into_iter().collect())
    }

    /// Sets the header that carries the key, for clients that already use another one.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|s| s.header = name)
    }

    /// Lets requests without a key pass unprotected. Default: they are answered with 400.
    pub fn key_optional(self) -> Self {
        self.with(|s| s.key_optional = true)
    }

    /// Accepts only keys in quotation marks, as the IETF draft requires. Default: bare keys, too.
    pub fn quoted_keys_only(self) -> Self {
        self.with(|s| s.bare_keys = false)
    }

    /// Sets a check of the keys' form, which your documentation should publish; other keys are
    /// answered with 400. For example, accept only keys that are long enough not to be guessed.
    pub fn accept_keys(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|s| s.accept = Some(Arc::new(accept)))
    }

    /// Sets a function that returns the time when a request was made, from its headers and its key,
    /// or `None` if they do not contain it. See [`Call::created_at`] for its use and for the clocks
    /// that are accurate enough. For keys that are UUIDs of version 7 or ULIDs:
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

    /// Sets a function that returns the part of a body that distinguishes requests. It replaces the
    /// body's bytes, for clients that do not repeat the same bytes, for example JSON with its
    /// members in another order.
    ///
    /// The method, the path and the query always count, as the layer sees them. If axum nests a
    /// router in another one, a layer on the inner router sees the path without the nest's prefix.
    /// Equal requests to `/a/x` and `/b/x` under one key are then one request. To avoid that, put
    /// the layer around the outer router, or add the prefix to the returned part.
    pub fn fingerprint_by(
        self,
        form: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.with(|s| s.body_form = Some(Arc::new(form)))
    }

    /// Sets the probe, which is called if it is unknown whether an earlier request under the key
    /// took effect; see [`Call::probe`]. It can, for example, read the row that the handler wrote
    /// in the transaction of its effect.
    pub fn probe<P, F>(self, probe: P) -> Self
    where
        P: Fn(Context) -> F + Send + Sync + 'static,
        F: Future<Output = Probed<StoredResponse>> + Send + 'static,
    {
        let probe = move |cx: Context| -> BoxFuture<'static, _> { Box::pin(probe(cx)) };
        self.with(|s| s.probe = Some(Arc::new(probe)))
    }

    /// Sets the function that decides by the status how a response is kept. A [`Keep`] in the
    /// response's extensions overrides it. Default: [`Keep::by_status`], except as described at
    /// [`server_errors`](Self::server_errors).
    pub fn keep_by(self, keep: impl Fn(StatusCode) -> Keep + Send + Sync + 'static) -> Self {
        self.with(|s| s.keep = Some(Arc::new(keep)))
    }

    /// Sets how a 5xx response of the handler is kept; other statuses are kept by
    /// [`Keep::by_status`].
    ///
    /// By default the outcome of such a request is unknown ([`Keep::Unknown`]) if there is a
    /// [`probe`](Self::probe), which then decides, or if the namespace has `at_least_once()`, whose
    /// policy is to run again. With `at_most_once()` and no probe the 5xx response is the result
    /// ([`Keep::Response`]): it is replayed, so that a repetition neither runs again nor waits for
    /// a person.
    ///
    /// With `at_most_once()` and no probe, [`Keep::Unknown`] parks the key: repetitions are
    /// answered with 409 `outcome-unknown` until a person has settled it. [`Keep::NoEffect`] is for
    /// handlers that roll everything back before they answer a 5xx. If a handler panics or its
    /// response breaks off, the outcome is always unknown.
    pub fn server_errors(self, keep: Keep) -> Self {
        self.keep_by(move |s| if is_server_error(s) { keep } else { Keep::by_status(s) })
    }

    /// Stores these headers of a response, too. By default only headers that describe the body or
    /// the result's location are stored: `Cache-Control`, `Content-Disposition`,
    /// `Content-Encoding`, `Content-Language`, `Content-Location`, `Content-Type`, `ETag`,
    /// `Last-Modified`, `Link`, `Location` and `Vary`.
    ///
    /// # Errors
    /// A header's value belongs to one caller, one connection or one moment: `Set-Cookie`,
    /// authentication headers, hop-by-hop headers, `Content-Length` and `Date`.
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

    /// Sets the maximum length of a request's body under a key, in bytes. The body is read before
    /// the handler runs; a longer one is answered with 413. Default: 1 MiB.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|s| s.max_body = bytes)
    }

    /// Sets the maximum length of a response that is stored, in bytes. Default: 256 KiB. Of a
    /// longer response only the fact is stored: the caller whose request ran receives it whole,
    /// later ones are answered with 410, and nothing runs again. Encoded in the store, a response
    /// may be twice as long; it must fit in the namespace's `max_result`.
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|s| s.max_response = bytes)
    }

    /// Sets the maximum time that a request waits for the response of a running one under the same
    /// key before it is answered with 409. Zero means no wait. Default: 1 s.
    pub fn in_flight_timeout(self, timeout: Duration) -> Self {
        self.with(|s| s.in_flight_timeout = Some(timeout))
    }

    /// Runs requests without the protection of their key if too few nodes answer or the nodes were
    /// never initialised. Default: such requests are answered with 503 and do not run.
    ///
    /// This is for routes where a second effect costs less than a refusal. The responses then carry
    /// `Idempotent-Stored: false`, and the handler has no [`Claim`](crate::Claim).
    pub fn fail_open(self) -> Self {
        self.with(|s| s.open = true)
    }

    /// Sets the address of your documentation of keys, such as their form and their retention.
    /// Refusals link to this page; their `type` is the page with the problem's code as its anchor.
    pub fn documentation(self, page: impl Into<Arc<str>>) -> Self {
        let page = page.into();
        self.with(|s| s.documentation = Some(page))
    }

    /// Returns the call under this key, for a person who settles it: use [`Call::lookup`], and
    /// [`Call::resolve`] with a [`StoredResponse`].
    ///
    /// # Errors
    /// A part of the scope is empty, or the key is too long together with its scope.
    pub fn call(&self, scope: &Scope, key: &str) -> Result<Call, ConfigError> {
        self.settings.call_of(scope, key).map_err(|_| {
            let rule = "a scope whose parts have names, and with it at most 512 bytes";
            ConfigError::new("key", format!("{key:?} of {scope:?}"), rule)
        })
    }

    /// Waits at most `within` until the handlers whose clients are gone have ended, and returns the
    /// number of those still running. Call it at the end of a program, after the server has
    /// stopped: handlers that run when the runtime ends are stopped midway.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the wait ends. It may be called again.
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
