//! What a handler learns of its own attempt.

use std::ops::Deref;

use palisade::idempotency::Context;

/// The attempt under which a handler runs, in the extensions of its request: its fencing token, its
/// number, keys for downstream systems, and whether it was lost. With the feature `axum` it is an
/// extractor, as `Claim` or `Option<Claim>`.
///
/// It is not there for requests without a key, and where
/// [`fail_open`](crate::IdempotencyLayer::fail_open) let a request run without one.
///
/// ```
/// use palisade_tower::Claim;
/// async fn charge(request: http::Request<String>) -> String {
///     let claim = request.extensions().get::<Claim>().expect("the layer is there");
///     // The bank recognises a repeat by this key, also when this process died in between.
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
