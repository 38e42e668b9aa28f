//! The attempt under which a handler runs, as the handler sees it.

use std::ops::Deref;

use palisade::idempotency::Context;

/// The attempt under which a handler runs: its fencing token, its number, keys for downstream
/// systems, and whether its lease is lost. It is in the extensions of the request. With the feature
/// `axum` it is an extractor, as `Claim` or `Option<Claim>`.
///
/// A request without a key has no claim, nor has a request that
/// [`fail_open`](crate::IdempotencyLayer::fail_open) let run without protection.
///
/// ```
/// use palisade_tower::Claim;
/// async fn charge(request: http::Request<String>) -> String {
///     let claim = request.extensions().get::<Claim>().expect("the layer is there");
///     // The bank recognises a repeat by this key, even if this process died in between.
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
