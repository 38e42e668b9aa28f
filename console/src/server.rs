//! The HTTP routes of the console, and the checks of all requests.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

use crate::access::Access;
use crate::actions;
use crate::assets;
use crate::audit::AuditLine;
use crate::events::{self, IsAllowed, Topic};
use crate::history::now_ms;
use crate::listen::Connection;
use crate::pages::{self, Params};
use crate::refusal::Refusal;
use crate::start::Shared;
use crate::visitor::{Peer, Role, Visitor};

/// Maximum size of a request's body in bytes.
const BODY: usize = 64 << 10;
/// Maximum time for a request, including the reading of its body. It is long, because an action
/// waits for nodes.
const REQUEST: Duration = Duration::from_secs(40);
/// Maximum time for a request of a visitor who is not signed in, the reading of its body included.
const STRANGER: Duration = Duration::from_secs(5);
/// Pause after a wrong token, which slows guesses down.
const WRONG: Duration = Duration::from_millis(250);

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'";

type Of = State<Arc<Shared>>;

pub(crate) fn router(shared: &Arc<Shared>) -> Router {
    let api = Router::new()
        .route("/session", get(session).post(sign_in).delete(sign_out))
        .route("/events", get(stream))
        .route("/actions", post(act))
        .route("/audit", get(audit))
        .route("/doctor", post(examine))
        .route("/{page}", get(page))
        .fallback(async || not_found())
        .method_not_allowed_fallback(async || {
            Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "this address has another method",
            )
        })
        .layer(from_fn_with_state(Arc::clone(shared), guard))
        .with_state(Arc::clone(shared));
    let header = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    Router::new()
        .nest("/api/v1", api)
        .fallback(asset)
        .layer(from_fn_with_state(Arc::clone(shared), host))
        .layer(RequestBodyLimitLayer::new(BODY))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, REQUEST))
        .layer(header(CONTENT_SECURITY_POLICY, POLICY))
        .layer(header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(header(X_FRAME_OPTIONS, "DENY"))
        .layer(header(REFERRER_POLICY, "no-referrer"))
        .layer(header(HeaderName::from_static("cross-origin-opener-policy"), "same-origin"))
        .layer(header(HeaderName::from_static("cross-origin-resource-policy"), "same-origin"))
}

fn not_found() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such page")
}

/// Checks the Host header of a request, so that a foreign host name cannot be used for the console.
async fn host(State(shared): Of, request: Request, next: Next) -> Response {
    if let Err(refusal) = shared.access.check_host(request.headers(), request.uri().host()) {
        return refusal.into_response();
    }
    next.run(request).await
}

fn audit_refused(shared: &Shared, visitor: Option<&Visitor>, from: String, refusal: &Refusal) {
    shared.audits.refused(AuditLine {
        at: now_ms(),
        by: visitor.map_or("unknown", |visitor| &*visitor.user).to_owned(),
        role: visitor.map_or("none", |visitor| visitor.role.word()),
        from,
        action: "unknown".to_owned(),
        text: pages::clean(refusal.text()),
        ..AuditLine::default()
    });
}

async fn guard(
    State(shared): Of,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &shared.access;
    let is_action = request.uri().path() == "/actions" && request.method() == Method::POST;
    let origin = access.origin(&connection.peer, request.headers());
    if let Err(refusal) = Access::check_origin(request.method(), request.headers()) {
        if is_action {
            audit_refused(&shared, None, origin, &refusal);
        }
        return refusal.into_response();
    }
    let visitor = access.visitor(&connection.peer, request.headers());
    // A stranger's connection counts as idle, so it is closed first if there are too many.
    let busy = visitor.is_ok().then(|| connection.busy());
    // A visitor who is not signed in may use only `/session`: it reports that a login is needed,
    // and signs the visitor in.
    let is_session = request.uri().path() == "/session";
    match visitor {
        Ok(visitor) => drop(request.extensions_mut().insert(Ok::<_, Refusal>(visitor))),
        Err(refusal) => {
            if refusal.code() == "bad_token" {
                tokio::time::sleep(WRONG).await;
            }
            if is_action {
                audit_refused(&shared, None, origin, &refusal);
            }
            if !is_session {
                return refusal.into_response();
            }
            request.extensions_mut().insert(Err::<Visitor, _>(refusal));
        }
    }
    let mut response = if busy.is_some() {
        next.run(request).await
    } else {
        // A visitor who is not signed in has only a token to send, so a short time is enough.
        let why = "the request took too long";
        let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "late", why).into_response();
        timeout(STRANGER, next.run(request)).await.unwrap_or_else(late)
    };
    drop(busy);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

type Who = Extension<Result<Visitor, Refusal>>;

async fn asset(State(shared): State<()>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let () = shared;
    if ![Method::GET, Method::HEAD].contains(&method) {
        return Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", "only GET and HEAD")
            .into_response();
    }
    assets::file(uri.path(), &headers).unwrap_or_else(|| not_found().into_response())
}

fn hello(shared: &Shared, who: &Result<Visitor, Refusal>) -> Value {
    let visitor = who.as_ref().ok();
    let role = visitor.map(|visitor| visitor.role);
    let why = actions::refused(shared, role).map(|refusal| refusal.text().to_owned());
    // If the console needs a login, a visitor who is not signed in learns only how to sign in.
    let mut all = json!({
        "now_ms": now_ms(), "version": env!("CARGO_PKG_VERSION"), "login": shared.access.login(),
        "signed_in": visitor.is_some(), "role": role.map(Role::word),
        "user": visitor.map(|visitor| &visitor.user), "actions": why.is_none(),
        "why_no_actions": why,
    });
    if visitor.is_some() {
        let model = shared.model();
        all["prefix"] = shared.prefix().into();
        all["demo"] = shared.is_demo.into();
        all["results"] = shared.show_results.into();
        all["since_ms"] = shared.since.into();
        all["nodes"] = shared.redlock.metrics().len().into();
        all["needed"] = model.needed.into();
    }
    all
}

async fn session(State(shared): Of, Extension(who): Who) -> Json<Value> {
    Json(hello(&shared, &who))
}

#[derive(Deserialize)]
struct SignIn {
    token: String,
}

async fn sign_in(State(shared): Of, headers: HeaderMap, body: Bytes) -> Response {
    let SignIn { token } = match parse(&headers, &body) {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    match shared.access.sign_in(&token) {
        Ok(cookie) => (StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response(),
        Err(refusal) => {
            tokio::time::sleep(WRONG).await;
            refusal.into_response()
        }
    }
}

async fn sign_out(State(shared): Of, headers: HeaderMap) -> Response {
    let cookie = shared.access.sign_out(&headers);
    (StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response()
}

/// Parses the body of a change, which must be JSON.
pub(crate) fn parse<'a, T: Deserialize<'a>>(
    headers: &HeaderMap,
    body: &'a [u8],
) -> Result<T, Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_none_or(|kind| kind.trim() != "application/json") {
        let why = "send application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request", why));
    }
    serde_json::from_slice(body).map_err(|e| Refusal::bad_request(format!("the body: {e}")))
}

#[derive(Deserialize)]
struct Topics {
    #[serde(default)]
    topics: String,
}

async fn stream(
    State(shared): Of,
    Extension(who): Who,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    Query(Topics { topics }): Query<Topics>,
) -> Response {
    let mut named = Vec::new();
    for word in topics.split(',').filter(|word| !word.is_empty()) {
        let Some(topic) = Topic::named(word) else {
            return Refusal::bad_request("an unknown topic").into_response();
        };
        if !named.contains(&topic) {
            named.push(topic);
        }
    }
    let hello = hello(&shared, &who);
    let (access, peer) = (Arc::clone(&shared.access), connection.peer.clone());
    let is_allowed = Box::new(move || access.visitor(&peer, &headers).is_ok());
    let of: (IsAllowed, _) = (is_allowed, Some(connection.busy()));
    let user = who.as_ref().map(|visitor| visitor.user.clone()).unwrap_or_default();
    let one = match &connection.peer {
        Peer::Tcp(at) => format!("{user} {}", at.ip()),
        Peer::Unix(_) => user,
    };
    let stream = events::stream(&shared.hub, one, named, &hello, of);
    stream.unwrap_or_else(|| {
        let why = "too many pages are open; close one";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", why).into_response()
    })
}

async fn page(
    State(shared): Of,
    axum::extract::Path(name): axum::extract::Path<String>,
    Query(params): Query<Params>,
) -> Result<Json<Value>, Refusal> {
    pages::answer(&shared, &name, &params).await.map(Json)
}

async fn audit(State(shared): Of) -> Json<Value> {
    Json(json!({ "now_ms": now_ms(), "since_ms": shared.since, "lines": shared.audits.latest() }))
}

async fn examine(State(shared): Of) -> Result<(StatusCode, Json<Value>), Refusal> {
    pages::nodes::examine(&shared)?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "now_ms": now_ms(), "state": "running" }))))
}

async fn act(
    State(shared): Of,
    Extension(who): Who,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let visitor = who?;
    let from = shared.access.origin(&connection.peer, &headers);
    let request = match parse(&headers, &body) {
        Ok(request) => request,
        Err(refusal) => {
            audit_refused(&shared, Some(&visitor), from, &refusal);
            return Err(refusal);
        }
    };
    actions::act(&shared, &visitor, from, request).await.map(Json)
}
