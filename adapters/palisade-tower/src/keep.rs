//! The decision whether a response is stored.

use http::StatusCode;
use palisade::Failed;

/// The effect of a response on the next request under its key.
///
/// The layer decides by the status ([`Keep::by_status`], or
/// [`keep_by`](crate::IdempotencyLayer::keep_by)). A handler that knows more puts a `Keep` into the
/// response's extensions, which overrides the layer's decision:
///
/// ```
/// use http::{Response, StatusCode};
/// use palisade_tower::Keep;
/// let mut busy = Response::new("try again");
/// *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
/// busy.extensions_mut().insert(Keep::NoEffect); // nothing was booked: run the next one
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// The response is the result of the request: it is stored and replayed.
    Response,
    /// The request had no visible effect: the key is free, and the next request under it runs, even
    /// if its body differs. After a finished step
    /// ([`Context::step`](palisade::idempotency::Context::step)) it must be the same request.
    NoEffect,
    /// The request may have had an effect, and running it again does no harm: the next request
    /// runs.
    Repeatable,
    /// It is unknown whether the request had an effect: the namespace's policy or its probe answers
    /// the next request. With `at_most_once()` that request does not run.
    Unknown,
}

impl Keep {
    /// Returns the default decision for a status, as Stripe's interface makes it:
    ///
    /// - 400, 401, 403, 404, 405, 407, 408, 413, 415, 422, 425 and 429:
    ///   [`NoEffect`](Self::NoEffect). The request was refused before anything was done; a
    ///   corrected one may have the same key. A handler that answers one of these *after* an
    ///   effect has to put [`Response`](Self::Response) into the response.
    /// - All other statuses: [`Response`](Self::Response). A declined card is a result, too, and so
    ///   is a 5xx that the handler answered
    ///   ([`server_errors`](crate::IdempotencyLayer::server_errors) changes that).
    ///   ([`server_errors`](crate::IdempotencyLayer::server_errors) changes that).
    pub fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 401 | 403 | 404 | 405 | 407 | 408 | 413 | 415 | 422 | 425 | 429 => Self::NoEffect,
            _ => Self::Response,
        }
    }

    /// Converts a response to the result that its handler returns to the library.
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
