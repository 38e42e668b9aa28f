//! Extractors for axum. With them a handler can have a claim or an idempotency key as an argument.

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::Response;
use http::request::Parts;

use crate::claim::Claim;
use crate::key::IdempotencyKey;
use crate::problem::Problem;

fn refusal(problem: &Problem) -> Response {
    problem.response(None).map(Body::from)
}

/// Extracts the claim that [`IdempotencyLayer`](crate::IdempotencyLayer) put into the request.
/// There is no claim if no such layer is around the handler, or if the request runs without a key.
/// Then the response has the status 500. A handler that may run without a key needs an
/// `Option<Claim>`.
impl<S: Sync> FromRequestParts<S> for Claim {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!(
                target: "palisade::tower",
                "a handler takes a `Claim`, and its request has none: put an `IdempotencyLayer` \
                 around it, or take an `Option<Claim>` where keys are optional or may fail open"
            );
            refusal(&Problem::Internal)
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Claim {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// Extracts the key from the `Idempotency-Key` header. Use it in a handler that calls palisade
/// itself, without the layer. A request without a valid key gets a response with the status 400.
impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        match Self::in_headers(&parts.headers) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(refusal(&Problem::KeyMissing)),
            Err(why) => Err(refusal(&Problem::KeyInvalid(why))),
        }
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Response> {
        Self::in_headers(&parts.headers).map_err(|why| refusal(&Problem::KeyInvalid(why)))
    }
}
