//! The tower layer that runs the handler of a request once per idempotency key, and the methods for
//! the settings of the layer.

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

/// The response header `Idempotent-Replayed`. Its value is `true` if the response is a stored
/// response.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The response header `Idempotent-Stored`. Its value is `false` if the handler's response was not
/// stored. Then a repetition of the request does not get this response.
pub const IDEMPOTENT_STORED: HeaderName = HeaderName::from_static("idempotent-stored");

/// A tower layer that runs the handler of a request once per `Idempotency-Key`. Repetitions of the
/// request get the stored response.
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
    /// `scope` returns the owner of a request's key. It must derive the owner from the data that
    /// authenticated the request. If `scope` returns `None` or an empty name, the response to the
    /// request is 403.
    ///
    /// By default the layer applies to POST and PATCH and requires a key. It accepts request bodies
    /// up to 1 MiB and stores responses up to 256 KiB. A request waits at most 1 s for a running
    /// request with the same key. While keys cannot be checked, the layer refuses requests.
    /// [`Keep::by_status`] decides if a response is stored.
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

    /// Sets the HTTP methods to which the layer applies. Requests with other methods run without a
    /// check of their keys. Default: POST and PATCH, because GET, HEAD, OPTIONS, PUT and DELETE are
    /// idempotent by definition.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|s| s.methods = methods.into_iter().collect())
    }

    /// Sets the name of the header that contains the key. Use this setting if your clients already
    /// send the key in another header than `Idempotency-Key`.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|s| s.header = name)
    }

    /// Lets requests without an idempotency key run, each as a request of its own. By default the
    /// response to such a request is 400.
    pub fn key_optional(self) -> Self {
        self.with(|s| s.key_optional = true)
    }

    /// Accepts only keys in quotation marks, as the IETF draft requires. By default the layer also
    /// accepts keys without quotation marks.
    pub fn quoted_keys_only(self) -> Self {
        self.with(|s| s.bare_keys = false)
    }

    /// Sets a function that checks the form of a key. If `accept` returns false, the response to
    /// the request is 400. For example, the function can refuse short keys, because another person
    /// can guess them. Describe the accepted form in the documentation of your API.
    pub fn accept_keys(self, accept: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.with(|s| s.accept = Some(Arc::new(accept)))
    }

    /// Sets a function that returns the time at which a request was made. The function reads the
    /// time from the request's headers or key. It returns `None` if they do not contain the time.
    /// See [`Call::created_at`] for the use of this time, and for the required accuracy of the
    /// clock. Keys that are version 7 UUIDs or ULIDs contain the time:
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

    /// Sets a function that returns bytes for the body of a request. The layer compares these bytes
    /// instead of the bodies. Use this function if a repetition of a request may have different
    /// bytes in its body. For example, a client may send JSON with its members in another order
    /// each time.
    ///
    /// The layer also compares the method, the path and the query. If axum nests a router in
    /// another router, a layer on the inner router gets the path without the prefix. Then requests
    /// to `/a/x` and `/b/x` with the same key and body count as one request. To avoid this, put the
    /// layer around the outer router, or add the prefix to the returned bytes.
    pub fn fingerprint_by(
        self,
        form: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.with(|s| s.body_form = Some(Arc::new(form)))
    }

    /// Sets the probe. The probe is a function that finds out if an earlier request with the key
    /// took effect. The layer calls the probe only if the key's record does not contain the answer;
    /// see [`Call::probe`]. For example, the handler writes a row in the transaction of its effect,
    /// and the probe looks for this row.
    pub fn probe<P, F>(self, probe: P) -> Self
    where
        P: Fn(Context) -> F + Send + Sync + 'static,
        F: Future<Output = Probed<StoredResponse>> + Send + 'static,
    {
        let probe = move |cx: Context| -> BoxFuture<'static, _> { Box::pin(probe(cx)) };
        self.with(|s| s.probe = Some(Arc::new(probe)))
    }

    /// Sets the function that decides if the next request with the key runs. The function decides
    /// by the status of a response. A [`Keep`] in the response's extensions overrides the function.
    /// Default: [`Keep::by_status`], with the exception described at
    /// [`server_errors`](Self::server_errors).
    pub fn keep_by(self, keep: impl Fn(StatusCode) -> Keep + Send + Sync + 'static) -> Self {
        self.with(|s| s.keep = Some(Arc::new(keep)))
    }

    /// Sets the decision for a 5xx response of the handler. For other statuses [`Keep::by_status`]
    /// decides.
    ///
    /// The default depends on the probe and on the policy of the namespace:
    ///
    /// - With a [`probe`](Self::probe): [`Keep::Unknown`]. The probe decides if the next request
    ///   runs.
    /// - With `at_least_once()`: [`Keep::Unknown`]. The next request runs.
    /// - With `at_most_once()` and no probe: [`Keep::Response`]. The 5xx response is stored and
    ///   replayed. So a repetition does not run and does not wait for a person's decision.
    ///
    /// With `at_most_once()` and no probe, [`Keep::Unknown`] parks the key after a 5xx response.
    /// Repetitions then get the response 409 `outcome-unknown` until a person has resolved the key.
    /// [`Keep::NoEffect`] is for handlers that roll back all their effects before they return a 5xx
    /// response. If a handler panics or its response breaks off, the outcome is always unknown.
    pub fn server_errors(self, keep: Keep) -> Self {
        self.keep_by(move |s| if is_server_error(s) { keep } else { Keep::by_status(s) })
    }

    /// Adds headers of a response that are stored. By default the layer stores only headers that
    /// describe the body or the result's location: `Cache-Control`, `Content-Disposition`,
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

    /// Sets the maximum length of the body of a request with a key, in bytes. The layer reads the
    /// whole body before it runs the handler. If the body is longer, the response to the request is
    /// 413. Default: 1 MiB.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|s| s.max_body = bytes)
    }

    /// Sets the maximum length of a stored response, in bytes. Default: 256 KiB. If a response is
    /// longer, only its status is stored. The client of this request gets the whole response.
    /// Repetitions of the request get the response 410 and do not run. An encoded response on the
    /// nodes may be twice as long. Its length must fit in the namespace's `max_result`.
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|s| s.max_response = bytes)
    }

    /// Sets the maximum time that a request waits while another request with the same key runs.
    /// After this time the response is 409. With zero the request does not wait. Default: 1 s.
    pub fn in_flight_timeout(self, timeout: Duration) -> Self {
        self.with(|s| s.in_flight_timeout = Some(timeout))
    }

    /// While keys cannot be checked, runs requests without the protection of their key. Keys cannot
    /// be checked if too few nodes reply, or if `palisade init` was not run on the nodes. By
    /// default such a request does not run, and its response is 503.
    ///
    /// Use this setting for routes where a repeated effect costs less than a refused request. The
    /// responses to unprotected requests have the header `Idempotent-Stored: false`, and their
    /// handlers have no [`Claim`](crate::Claim).
    pub fn fail_open(self) -> Self {
        self.with(|s| s.open = true)
    }

    /// Sets the address of a page that documents idempotency keys for your clients. For example,
    /// the page describes the form of the keys and the time for which they are kept. The layer's
    /// own error responses link to this page. Their `type` is the address of the page with the
    /// error's code as the anchor.
    pub fn documentation(self, page: impl Into<Arc<str>>) -> Self {
        let page = page.into();
        self.with(|s| s.documentation = Some(page))
    }

    /// Returns the [`Call`] of a key. With this call an operator can read the key's record
    /// ([`Call::lookup`]). If the key is parked, the operator can store a result for it
    /// ([`Call::resolve`] with a [`StoredResponse`]).
    ///
    /// # Errors
    /// A part of the scope is empty. Or the scope and the key together are longer than 512 bytes.
    pub fn call(&self, scope: &Scope, key: &str) -> Result<Call, ConfigError> {
        self.settings.call_of(scope, key).map_err(|_| {
            let rule = "a scope whose parts have names, and with it at most 512 bytes";
            ConfigError::new("key", format!("{key:?} of {scope:?}"), rule)
        })
    }

    /// Waits until all running handlers have ended, for at most `within`. Returns the number of
    /// handlers that still run. Call this method at the end of a program, after the server has
    /// stopped. A handler continues to run after its client has closed the connection. Such a
    /// handler may still run when the server has stopped. The end of the tokio runtime would stop
    /// the handler in the middle of its work.
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
