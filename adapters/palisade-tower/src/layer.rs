//! The tower layer, and the methods that change its settings.

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

/// The response header `Idempotent-Replayed`. Its value is `true` if a stored response is sent
/// again.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The response header `Idempotent-Stored`. Its value is `false` if the handler's response was not
/// stored, so that a repetition of the request does not get this response again.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// A tower layer that runs the handler of a request once per `Idempotency-Key`, and answers
/// repetitions of the request with the stored response.
///
/// Cloning is cheap. Clones share their settings until a setting of one clone is changed. Calling
/// [`finish`](Self::finish) on one clone waits for the handlers of all clones.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    tasks: TaskTracker,
}

impl IdempotencyLayer {
    /// Creates a layer that keeps the records of its keys in the namespace of `idempotency`.
    /// `scope` returns the owner of a request's key, which it takes from the data that
    /// authenticated the request. A request is answered with 403 if `scope` returns `None` or an
    /// empty name for it.
    ///
    /// By default the layer applies to POST and PATCH, requires a key, accepts request bodies up to
    /// 1 MiB, stores responses up to 256 KiB, lets a request wait 1 s for a running request with
    /// the same key, refuses requests while keys cannot be checked, and decides with
    /// [`Keep::by_status`] which responses are stored.
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

    /// Sets the HTTP methods to which the layer applies. Requests with other methods pass
    /// unprotected. Default: POST and PATCH, because GET, HEAD, OPTIONS, PUT and DELETE are
    /// idempotent by definition.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|s| s.methods = methods.into_iter().collect())
    }

    /// Sets the name of the header that contains the key, for clients that already send it in a
    /// header other than `Idempotency-Key`.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|s| s.header = name)
    }

    /// Lets requests without a key pass unprotected. Default: they are answered with 400.
    pub fn key_optional(self) -> Self {
        self.with(|s| s.key_optional = true)
    }

    /// Accepts only keys in quotation marks, as the IETF draft requires. By default keys without
    /// quotation marks are accepted, too.
    pub fn quoted_keys_only(self) -> Self {
        self.with(|s| s.bare_keys = false)
    }

    /// Sets a function that checks the form of a key. If it returns false, the request is answered
    /// with 400. So you can, for example, accept only keys that are too long to be guessed.
    /// Describe the accepted form in the documentation of your API.
    pub fn accept_keys(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|s| s.accept = Some(Arc::new(accept)))
    }

    /// Sets a function that returns the time when a request was made, from its headers and its key,
    /// or `None` if they do not contain it. See [`Call::created_at`] for the use of this time, and
    /// for how accurate the clock of its source must be. Keys that are version 7 UUIDs or ULIDs
    /// contain the time:
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

    /// Sets a function that returns the bytes by which the bodies of two requests are compared, in
    /// place of the bodies themselves. It is for clients that do not repeat a body byte by byte,
    /// for example if they send JSON whose members are in another order each time.
    ///
    /// The method, the path and the query are always compared as well, as the layer sees them. If
    /// axum nests a router in another one, a layer on the inner router sees the path without the
    /// prefix of the nesting. Requests to `/a/x` and `/b/x` with the same key and body then count
    /// as one request. To avoid that, put the layer around the outer router, or add the prefix to
    /// the returned bytes.
    pub fn fingerprint_by(
        self,
        form: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.with(|s| s.body_form = Some(Arc::new(form)))
    }

    /// Sets the probe, a function that finds out whether an earlier request with the key took
    /// effect. It is called only if the key's record does not tell; see [`Call::probe`]. It can,
    /// for example, look for a row that the handler writes in the same transaction as its effect.
    pub fn probe<P, F>(self, probe: P) -> Self
    where
        P: Fn(Context) -> F + Send + Sync + 'static,
        F: Future<Output = Probed<StoredResponse>> + Send + 'static,
    {
        let probe = move |cx: Context| -> BoxFuture<'static, _> { Box::pin(probe(cx)) };
        self.with(|s| s.probe = Some(Arc::new(probe)))
    }

    /// Sets the function that decides by the status of a response what it means for the next
    /// request with the key. A [`Keep`] in the response's extensions overrides it. Default:
    /// [`Keep::by_status`], except as described at [`server_errors`](Self::server_errors).
    pub fn keep_by(self, keep: impl Fn(StatusCode) -> Keep + Send + Sync + 'static) -> Self {
        self.with(|s| s.keep = Some(Arc::new(keep)))
    }

    /// Sets what a 5xx response of the handler means for the next request with the key. For other
    /// statuses [`Keep::by_status`] decides.
    ///
    /// By default a 5xx response means [`Keep::Unknown`] if there is a [`probe`](Self::probe),
    /// which then decides about the next request, or if the namespace has the policy
    /// `at_least_once()`, by which the next request runs. With `at_most_once()` and no probe it
    /// means [`Keep::Response`]. The 5xx response is then stored and replayed, so that a repetition
    /// neither runs nor waits for a person's decision.
    ///
    /// With `at_most_once()` and no probe, [`Keep::Unknown`] makes a 5xx response park its key, so
    /// that repetitions are answered with 409 `outcome-unknown` until a person has resolved the
    /// key. [`Keep::NoEffect`] is for handlers that roll everything back before they answer a 5xx.
    /// If a handler panics or its response breaks off, the outcome is always unknown, whatever is
    /// set here.
    pub fn server_errors(self, keep: Keep) -> Self {
        self.keep_by(move |s| if is_server_error(s) { keep } else { Keep::by_status(s) })
    }

    /// Stores these headers of a response, too. By default only headers that describe the body or
    /// the result's location are stored: `Cache-Control`, `Content-Disposition`,
    /// `Content-Encoding`, `Content-Language`, `Content-Location`, `Content-Type`, `ETag`,
    /// `Last-Modified`, `Link`, `Location` and `Vary`.
    ///
    /// # Errors
    /// One of the headers must not be stored, because its value belongs to one caller, one
    /// connection or one moment: `Set-Cookie`, authentication headers, hop-by-hop headers,
    /// `Content-Length` and `Date`.
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

    /// Sets the maximum length, in bytes, of the body of a request with a key. The layer reads the
    /// whole body before it runs the handler, and answers a request with a longer body with 413.
    /// Default: 1 MiB.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|s| s.max_body = bytes)
    }

    /// Sets the maximum length of a response that is stored, in bytes. Default: 256 KiB. Of a
    /// longer response only the status is stored. The client whose request ran gets the whole
    /// response, but repetitions are answered with 410 and do not run. Encoded on the nodes, a
    /// response may be twice as long, and this length must fit in the namespace's `max_result`.
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|s| s.max_response = bytes)
    }

    /// Sets how long a request may wait while another request with the same key runs, before it is
    /// answered with 409. Zero means that it does not wait. Default: 1 s.
    pub fn in_flight_timeout(self, timeout: Duration) -> Self {
        self.with(|s| s.in_flight_timeout = Some(timeout))
    }

    /// Runs requests without the protection of their key while keys cannot be checked, because too
    /// few nodes answer or because `palisade init` has not been run on them. By default such
    /// requests are answered with 503 and do not run.
    ///
    /// Use it for routes where a repeated effect costs less than a refused request. The responses
    /// to unprotected requests have the header `Idempotent-Stored: false`, and their handlers have
    /// no [`Claim`](crate::Claim).
    pub fn fail_open(self) -> Self {
        self.with(|s| s.open = true)
    }

    /// Sets the address of the page that documents idempotency keys for your clients, for example
    /// their form and how long they are kept. The layer's own error responses link to this page,
    /// and their `type` is its address with the error's code as the anchor.
    pub fn documentation(self, page: impl Into<Arc<str>>) -> Self {
        let page = page.into();
        self.with(|s| s.documentation = Some(page))
    }

    /// Returns the [`Call`] of a key, by which an operator can read the key's record
    /// ([`Call::lookup`]) and store a result for a parked key ([`Call::resolve`] with a
    /// [`StoredResponse`]).
    ///
    /// # Errors
    /// A part of the scope is empty, or the scope and the key together are longer than 512 bytes.
    pub fn call(&self, scope: &Scope, key: &str) -> Result<Call, ConfigError> {
        self.settings.call_of(scope, key).map_err(|_| {
            let rule = "a scope whose parts have names, and with it at most 512 bytes";
            ConfigError::new("key", format!("{key:?} of {scope:?}"), rule)
        })
    }

    /// Waits until all running handlers have ended, at most for `within`, and returns the number of
    /// handlers that still run then. Call it at the end of a program, after the server has stopped.
    /// Handlers whose clients hung up may still run at that time, and they are stopped midway when
    /// the tokio runtime ends.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the wait ends. `finish` may be called again.
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
