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
    /// Nothing happened that anyone could see: the key is given back, and the next request runs.
    NoEffect,
    /// Something may have happened, and running again does no harm: the next request runs.
    Repeatable,
    /// Nobody knows what happened: the next request is answered by the namespace's policy or its
    /// probe. With `at_most_once()` it is not run.
    Unknown,
}

impl Keep {
    /// What is kept unless it is said otherwise. Safe as long as these statuses mean what RFC 9110
    /// says:
    ///
    /// - 5xx: [`Unknown`](Self::Unknown). The handler may have acted before it failed.
    /// - 401, 403, 407, 408, 425 and 429: [`NoEffect`](Self::NoEffect). The request was turned away
    ///   before anything was done, and may be sent again as it is.
    /// - All else: [`Response`](Self::Response). That a card was declined is a result, too.
    pub fn by_status(status: StatusCode) -> Self {
        match status.as_u16() {
            401 | 403 | 407 | 408 | 425 | 429 => Self::NoEffect,
            500.. => Self::Unknown,
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
                401 | 403 | 407 | 408 | 425 | 429 => Keep::NoEffect,
                100..500 => Keep::Response,
                _ => Keep::Unknown,
            };
            assert_eq!(Keep::by_status(status), want, "{code}");
        }
    }
}
