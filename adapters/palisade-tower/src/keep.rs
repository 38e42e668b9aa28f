//! What is kept of a response.

use http::StatusCode;
use palisade::Failed;

/// What a response means for the next request under its key.
///
/// The layer decides by the status ([`Keep::by_status`], or
/// [`keep_by`](crate::IdempotencyLayer::keep_by)). A handler that knows more puts one into the
/// response's extensions, and that counts:
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
    /// It is the result of the request: stored, and replayed.
    Response,
    /// Nothing happened that anyone could see: the key is free, and the next request under it
    /// runs, also one with another body. After a step that was finished
    /// ([`Context::step`](palisade::idempotency::Context::step)) it has to be the same request.
    NoEffect,
    /// Something may have happened, and running again does no harm: the next request runs.
    Repeatable,
    /// Nobody knows what happened: the next request is answered by the namespace's policy or its
    /// probe. With `at_most_once()` it is not run.
    Unknown,
}

impl Keep {
    /// Returns what is kept unless it is said otherwise, as Stripe's interface has it:
    ///
    /// - 400, 401, 403, 404, 405, 407, 408, 413, 415, 422, 425 and 429:
    ///   [`NoEffect`](Self::NoEffect). The request was refused before anything was done; a
    ///   corrected one may have the same key. A handler that answers one of these *after* an
    ///   effect has to put [`Response`](Self::Response) into the response.
    /// - All else: [`Response`](Self::Response). That a card was declined is a result, too, and so
    ///   is a 5xx that the handler answered
    ///   ([`server_errors`](crate::IdempotencyLayer::server_errors) changes that).
    pub fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 401 | 403 | 404 | 405 | 407 | 408 | 413 | 415 | 422 | 425 | 429 => Self::NoEffect,
            _ => Self::Response,
        }
    }

    /// What a handler with this response returns to the library.
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
