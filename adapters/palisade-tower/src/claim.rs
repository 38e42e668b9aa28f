//! [`Claim`]: the current attempt at a request with an idempotency key, for the request's handler.

use std::ops::Deref;

use palisade::idempotency::Context;

/// The current attempt at a request with an idempotency key, for the handler of the request. The
/// claim contains the attempt's fencing token and number. It makes idempotency keys for requests to
/// downstream systems. It also shows if the lease is lost. The layer puts the claim into the
/// extensions of the request. With the feature `axum` a handler can have an argument of the type
/// `Claim` or `Option<Claim>`.
///
/// A request without an idempotency key has no claim. With
/// [`fail_open`](crate::IdempotencyLayer::fail_open), a request also has no claim if its key could
/// not be checked.
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
