//! The decision whether a handler's response is stored, and what the next request with its key
//! does.

use http::StatusCode;
use palisade::Failed;

/// Effect of a handler's response on the next request with the same idempotency key.
///
/// The layer decides by the status of the response, with [`Keep::by_status`] or a function set by
/// [`keep_by`](crate::IdempotencyLayer::keep_by). A handler that knows more than the status says
/// puts a `Keep` into the response's extensions, which overrides the layer's decision:
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
    /// The response is the result of the request. It is stored, and later requests with the key are
    /// answered with it.
    Response,
    /// The request had no visible effect. The key is free, so the next request with it runs, even
    /// if its body differs. But if the handler has finished a step
    /// ([`Context::step`](palisade::idempotency::Context::step)), whose result is kept, the next
    /// request with the key must have the same content as this one.
    NoEffect,
    /// The request may have had an effect, and running it again does no harm, so the next request
    /// with the key runs.
    Repeatable,
    /// It is unknown whether the request had an effect. Whether the next request with the key runs
    /// is decided by the probe or, without a probe, by the namespace's policy. With the policy
    /// `at_most_once()` it does not run.
    Unknown,
}

impl Keep {
    /// Returns the default decision for a response with this status. It follows Stripe's API:
    ///
    /// - 400, 401, 403, 404, 405, 407, 408, 413, 415, 422, 425 and 429:
    ///   [`NoEffect`](Self::NoEffect). These statuses mean that the request was refused before
    ///   anything was done, and a corrected request may have the same key. A handler that answers
    ///   one of them *after* an effect has to put [`Response`](Self::Response) into the response's
    ///   extensions.
    /// - All other statuses: [`Response`](Self::Response). A declined card, for example, is a
    ///   result, too. So is a 5xx that the handler answered, unless
    ///   [`server_errors`](crate::IdempotencyLayer::server_errors) changes that.
    pub fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 401 | 403 | 404 | 405 | 407 | 408 | 413 | 415 | 422 | 425 | 429 => Self::NoEffect,
            _ => Self::Response,
        }
    }

    /// Returns what the handler's call reports to palisade: for [`Keep::Response`] the `value` to
    /// store, otherwise the error that has the effect of this decision.
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
                400 | 401 | 403..=405 | 407 | 408 | 413 | 415 | 422 | 425 | 429 => Keep::NoEffect,
                _ => Keep::Response,
            };
            assert_eq!(Keep::by_status(status), want, "{code}");
        }
    }
}
