//! The current attempt at a request, as its handler sees it.

use std::ops::Deref;

use palisade::idempotency::Context;

/// The current attempt at a request with an idempotency key, for the handler that runs it. It gives
/// the attempt's fencing token and number, idempotency keys for requests to downstream systems, and
/// whether the lease is lost. The layer puts it into the extensions of the request. With the
/// feature `axum` a handler can take it as an argument, as `Claim` or `Option<Claim>`.
///
/// A request without an idempotency key has no claim. Neither has a request that
/// [`fail_open`](crate::IdempotencyLayer::fail_open) lets run although its key could not be
/// checked.
///
/// ```
/// use palisade_tower::Claim;
/// async fn charge(request: http::Request<String>) -> String {
///     let claim = request.extensions().get::<Claim>().expect("the layer is there");
///     // Each attempt at the request sends this key, so the bank recognises a repeated charge.
///     claim.child_key("charge")
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Claim(pub(crate) Context);

impl Deref for Claim {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}
