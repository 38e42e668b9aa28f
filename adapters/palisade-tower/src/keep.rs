//! Decides if a handler's response is stored, and if the next request with the same idempotency key
//! runs.

use http::StatusCode;
use palisade::Failed;

/// Effect of a handler's response on the next request with the same idempotency key.
///
/// The layer decides by the status of the response. It uses [`Keep::by_status`], or the function
/// that was set with [`keep_by`](crate::IdempotencyLayer::keep_by). If the status is not enough for
/// the decision, the handler can put a `Keep` into the response's extensions. This `Keep` overrides
/// the layer's decision:
///
/// ```
/// use http::{Response, StatusCode};
/// use palisade_tower::Keep;
/// let mut busy = Response::new("try again");
/// *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
/// busy.extensions_mut().insert(Keep::NoEffect); // nothing was booked: the next request runs
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// The response is the result of the request. The response is stored. Later requests with the
    /// same key get the stored response.
    Response,
    /// The request had no visible effect. The key is free. So the next request with this key runs,
    /// even if its body is different. There is one exception: the handler has finished a step
    /// ([`Context::step`](palisade::idempotency::Context::step)). The step's result is kept, and
    /// the next request with the key must have the same content as this request.
    NoEffect,
    /// The request may have had an effect, but running the request again does no harm. So the next
    /// request with the same key runs.
    Repeatable,
    /// It is unknown if the request had an effect. The probe decides if the next request with the
    /// key runs. Without a probe, the namespace's policy decides. With the policy `at_most_once()`
    /// and no probe, the next request does not run.
    Unknown,
}

impl Keep {
    /// Returns the default decision for a response with this status. It follows Stripe's API:
    ///
    /// - 400, 401, 403, 404, 405, 407, 413, 415, 422, 425 and 429: [`NoEffect`](Self::NoEffect).
    ///   These statuses mean that the request was refused before any effect, and a corrected
    ///   request may have the same key. If a handler returns one of these statuses *after* an
    ///   effect, it must put [`Response`](Self::Response) into the response's extensions.
    /// - 408 and 499: [`Unknown`](Self::Unknown). A layer that limits the time of a handler answers
    ///   so after it has dropped the handler in the middle of its work.
    /// - All other statuses: [`Response`](Self::Response). A declined card, for example, is a
    ///   result, too. A 5xx response of the handler is also a result, unless
    ///   [`server_errors`](crate::IdempotencyLayer::server_errors) changes this.
    pub fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 401 | 403 | 404 | 405 | 407 | 413 | 415 | 422 | 425 | 429 => Self::NoEffect,
            408 | 499 => Self::Unknown,
            _ => Self::Response,
        }
    }

    /// Returns the result that the handler's call returns to palisade. For [`Keep::Response`] this
    /// is the `value` to store. For the other decisions this is an error.
    pub(crate) fn or_failed<T>(self, value: T, status: StatusCode) -> Result<T, Failed> {
        let answered = || format!("it answered {status}");
        match self {
            Self::Response => Ok(value),
            Self::NoEffect => Err(Failed::no_effect(answered())),
            Self::Repeatable => Err(Failed::retry(answered())),
            Self::Unknown => Err(Failed::unknown(answered())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_kept_by_one_rule() {
        for code in 100..1_000 {
            let status = StatusCode::from_u16(code).expect("a status");
            let want = match code {
                400 | 401 | 403..=405 | 407 | 413 | 415 | 422 | 425 | 429 => Keep::NoEffect,
                408 | 499 => Keep::Unknown,
                _ => Keep::Response,
            };
            assert_eq!(Keep::by_status(status), want, "{code}");
        }
    }
}
