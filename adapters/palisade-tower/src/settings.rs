//! The settings of an [`IdempotencyLayer`](crate::IdempotencyLayer), and the decisions about a
//! request by these settings.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Response, StatusCode, header};
use palisade::idempotency::{Call, Context};
use palisade::{Idempotency, Lapsed, Probed};

use crate::body::ResponseBody;
use crate::keep::Keep;
use crate::key::{IDEMPOTENCY_KEY, IdempotencyKey};
use crate::problem::Problem;
use crate::scope::Scope;
use crate::stored::StoredResponse;

pub(crate) type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;
pub(crate) type Accept = dyn Fn(&str) -> bool + Send + Sync;
pub(crate) type CreatedAt = dyn Fn(&Parts, &str) -> Option<SystemTime> + Send + Sync;
pub(crate) type BodyForm = dyn Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync;
pub(crate) type Probe = dyn Fn(Context) -> BoxFuture<'static, Probed<StoredResponse>> + Send + Sync;
pub(crate) type KeepBy = dyn Fn(StatusCode) -> Keep + Send + Sync;

/// Response headers that are never stored. Their value belongs to one caller, one connection or one
/// moment.
const NEVER_KEPT: &[HeaderName] = &[
    header::SET_COOKIE,
    header::AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::WWW_AUTHENTICATE,
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::DATE,
];

/// Response headers that are stored by default. They describe the body or the location of the
/// result.
const KEPT: &[HeaderName] = &[
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::VARY,
];

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) idempotency: Idempotency,
    pub(crate) scope: Arc<ScopeOf>,
    pub(crate) methods: Vec<Method>,
    pub(crate) header: HeaderName,
    pub(crate) key_optional: bool,
    pub(crate) bare_keys: bool,
    pub(crate) accept: Option<Arc<Accept>>,
    pub(crate) created: Option<Arc<CreatedAt>>,
    pub(crate) body_form: Option<Arc<BodyForm>>,
    pub(crate) probe: Option<Arc<Probe>>,
    /// The function that decides by the status of a response if the next request with the key runs;
    /// `None` for the default decision.
    pub(crate) keep: Option<Arc<KeepBy>>,
    pub(crate) kept_headers: Vec<HeaderName>,
    pub(crate) max_body: usize,
    pub(crate) max_response: usize,
    pub(crate) in_flight_timeout: Option<Duration>,
    /// If true, requests run without the protection of their keys while keys cannot be checked.
    pub(crate) open: bool,
    pub(crate) documentation: Option<Arc<str>>,
}

pub(crate) fn is_server_error(status: StatusCode) -> bool {
    status.as_u16() >= 500
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("namespace", &self.idempotency.namespace())
            .field("methods", &self.methods)
            .field("header", &self.header)
            .field("key_optional", &self.key_optional)
            .field("max_body", &self.max_body)
            .field("max_response", &self.max_response)
            .field("in_flight_timeout", &self.in_flight_timeout)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub(crate) fn new(idempotency: Idempotency, scope: Arc<ScopeOf>) -> Self {
        Self {
            idempotency,
            scope,
            methods: vec![Method::POST, Method::PATCH],
            header: IDEMPOTENCY_KEY,
            key_optional: false,
            bare_keys: true,
            accept: None,
            created: None,
            body_form: None,
            probe: None,
            keep: None,
            kept_headers: KEPT.to_vec(),
            max_body: 1 << 20,
            max_response: 256 << 10,
            in_flight_timeout: None,
            open: false,
            documentation: None,
        }
    }

    pub(crate) fn covers(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    /// Returns the decision to store or not to store a response with this status. By default the
    /// decision about a 5xx response is `Unknown` if there is a probe, or if the namespace's policy
    /// is to run the request again. Otherwise the 5xx response is stored as the result.
    pub(crate) fn keep_of(&self, status: StatusCode) -> Keep {
        if let Some(keep) = &self.keep {
            return keep(status);
        }
        let asks = self.probe.is_some() || self.idempotency.lapsed() == Lapsed::Rerun;
        if asks && is_server_error(status) { Keep::Unknown } else { Keep::by_status(status) }
    }

    /// Returns the idempotency key of a request. Returns `None` if the request has no key header.
    /// Fails if the settings do not accept the key.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
        let key = IdempotencyKey::in_header(headers, &self.header).map_err(Problem::KeyInvalid)?;
        let Some(key) = key else { return Ok(None) };
        if key.is_bare() && !self.bare_keys {
            return Err(Problem::KeyBare);
        }
        if self.accept.as_ref().is_some_and(|accept| !accept(key.as_str())) {
            return Err(Problem::KeyRefused);
        }
        Ok(Some(key))
    }

    /// Returns the [`Call`] of this key in the scope of the request's sender. The call has the
    /// settings of the layer.
    pub(crate) fn call(&self, parts: &Parts, key: &IdempotencyKey) -> Result<Call, Problem> {
        let scope = (self.scope)(parts).ok_or(Problem::CallerUnknown)?;
        let mut call = self.call_of(&scope, key.as_str())?;
        if let Some(wait) = self.in_flight_timeout {
            call = call.in_flight_timeout(wait);
        }
        let created = self.created.as_ref().and_then(|created| created(parts, key.as_str()));
        Ok(match created {
            Some(created) => call.created_at(created),
            None => call,
        })
    }

    /// Returns the [`Call`] of this key in the scope `scope`, without the settings of the layer.
    pub(crate) fn call_of(&self, scope: &Scope, key: &str) -> Result<Call, Problem> {
        if scope.has_empty_part() {
            return Err(Problem::CallerUnknown);
        }
        Ok(self.idempotency.key(scope.name(key).ok_or(Problem::KeyTooLong)?))
    }

    /// Returns the bytes for the fingerprint of a request: its method, its path with the query, and
    /// its body. The length of each part precedes the part. The fingerprint is the hash of these
    /// bytes.
    pub(crate) fn fingerprint(&self, parts: &Parts, body: &Bytes) -> Vec<u8> {
        let form = self.body_form.as_ref().map(|form| form(parts, body));
        let body = form.as_deref().unwrap_or(body);
        let path = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
        let mut all = Vec::with_capacity(body.len() + path.len() + 40);
        for part in [parts.method.as_str().as_bytes(), path.as_bytes(), body] {
            // Without the lengths, the parts ("a", "bc") and ("ab", "c") would give the same bytes.
            all.extend_from_slice(&(part.len() as u64).to_be_bytes());
            all.extend_from_slice(part);
        }
        all
    }

    /// Returns the error response for a request whose handler does not run because of `problem`.
    pub(crate) fn refusal<B>(&self, problem: &Problem) -> Response<ResponseBody<B>> {
        problem.response(self.documentation.as_deref()).map(ResponseBody::from)
    }

    /// Adds headers to the list of stored headers. Fails with the first header that must never be
    /// stored.
    pub(crate) fn keep_headers(
        &mut self,
        names: impl IntoIterator<Item = HeaderName>,
    ) -> Result<(), HeaderName> {
        for name in names {
            // The crate `http` has no constants for `keep-alive`, `proxy-connection` and
            // `set-cookie2`. So these headers are compared by name.
            let never = NEVER_KEPT.contains(&name)
                || ["keep-alive", "proxy-connection", "set-cookie2"].contains(&name.as_str());
            if never {
                return Err(name);
            }
            if !self.kept_headers.contains(&name) {
                self.kept_headers.push(name);
            }
        }
        Ok(())
    }
}
