//! The error responses of the idempotency layer itself, in the format of RFC 9457 (problem
//! details).

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use palisade::idempotency::ParkedReason;
use palisade::{Outcome, Parked};
use serde::Serialize;

use crate::key::InvalidKey;
use crate::stored::StoredResponse;

/// Value of `Retry-After` for a key whose requests do not run after a loss of data, because no
/// operator has decided about the loss yet.
const UNDECIDED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    KeyMissing,
    KeyInvalid(InvalidKey),
    /// The program's own check of idempotency keys (`accept_keys`) does not accept the key.
    KeyRefused,
    /// The key has no quotation marks, and the layer accepts only keys in quotation marks.
    KeyBare,
    /// The key and its scope together are longer than the maximum length of a record's name.
    KeyTooLong,
    CallerUnknown,
    BodyTooLarge(usize),
    BodyUnreadable,
    /// The request contains the time at which it was made, and this time is in the future.
    CreatedLater,
    InProgress(Duration),
    KeyReused,
    /// The key is parked, because an earlier attempt left no result and may have taken effect.
    OutcomeUnknown,
    /// The key is parked after a loss of data. It is unknown if the key was used before. Contains
    /// the time until the nodes can exclude an earlier use again.
    PastUnknown(Duration),
    /// The key is parked after a loss of data, as for [`PastUnknown`](Self::PastUnknown). But no
    /// operator has decided yet if the requests of such keys run. So the client can try the request
    /// again later.
    PastUndecided,
    /// The request ran before, and its response could not be stored. Contains the status of this
    /// response, if the status was stored.
    ResponseNotKept(Option<u16>),
    TooOld,
    /// Too few nodes replied, so the handler did not run. Contains the value of `Retry-After`.
    Unavailable(Duration),
    /// `palisade init` was not run on the nodes. So the nodes may be new, or they may have lost
    /// their data. Contains the value of `Retry-After`.
    NotInitialised(Duration),
    NotRecorded(Duration),
    HandlerFailed,
    /// The program or the key's record has a fault. The log contains the cause.
    Internal,
}

/// The members of the JSON object in the body of an error response. Programs compare `code`.
#[derive(Serialize)]
struct Details<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_status: Option<u16>,
}

impl Problem {
    /// Returns the words for the error response: the status, the code, the title, and a text.
    /// Programs compare the code, and the code is also the anchor in the documentation. The text
    /// describes the problem with the request and a remedy for the sender.
    #[expect(clippy::too_many_lines, reason = "a table with a row for each problem")]
    fn words(&self) -> (StatusCode, &'static str, &'static str, Cow<'static, str>) {
        const INVALID: &str = "Idempotency-Key is not valid";
        let (status, code, title, detail) = match self {
            Self::KeyMissing => (
                StatusCode::BAD_REQUEST,
                "key-missing",
                "Idempotency-Key is missing",
                "This operation needs an Idempotency-Key header: a random value, for example a \
                 UUID, that is the same in every repetition of this request and in no other \
                 request. Nothing was run.",
            ),
            Self::KeyInvalid(why) => {
                let detail = format!("{why}. Nothing was run.");
                return (StatusCode::BAD_REQUEST, "key-invalid", INVALID, detail.into());
            }
            Self::KeyRefused => (
                StatusCode::BAD_REQUEST,
                "key-invalid",
                INVALID,
                "The Idempotency-Key does not have the form that is published for this operation. \
                 Nothing was run.",
            ),
            Self::KeyBare => (
                StatusCode::BAD_REQUEST,
                "key-invalid",
                INVALID,
                "The Idempotency-Key must be a string with quotation marks (RFC 8941, section \
                 3.3.3). Nothing was run.",
            ),
            Self::KeyTooLong => (
                StatusCode::BAD_REQUEST,
                "key-invalid",
                INVALID,
                "The Idempotency-Key is too long. Nothing was run.",
            ),
            Self::CallerUnknown => (
                StatusCode::FORBIDDEN,
                "caller-unknown",
                "Caller is not known",
                "The request does not say whose Idempotency-Key this is. Nothing was run.",
            ),
            Self::BodyTooLarge(limit) => {
                let detail = format!(
                    "The body is longer than {limit} bytes, which is the most that a request with \
                     an idempotency key may have. Nothing was run."
                );
                let (code, title) = ("body-too-large", "Body is too long");
                return (StatusCode::PAYLOAD_TOO_LARGE, code, title, detail.into());
            }
            Self::BodyUnreadable => (
                StatusCode::BAD_REQUEST,
                "body-unreadable",
                "Body did not arrive",
                "The body did not arrive whole. Nothing was run.",
            ),
            Self::CreatedLater => (
                StatusCode::BAD_REQUEST,
                "created-later",
                "Request comes from the future",
                "By its own account the request was made in the future. Set the clock of the \
                 machine that made it. Nothing was run.",
            ),
            Self::InProgress(_) => (
                StatusCode::CONFLICT,
                "in-progress",
                "A request is outstanding for this Idempotency-Key",
                "A request with this Idempotency-Key is being processed. Send this one again \
                 later, with the same key.",
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "Idempotency-Key is already used",
                "This Idempotency-Key was used for another request. Use a new key for a new \
                 request. Nothing was run.",
            ),
            Self::OutcomeUnknown => (
                StatusCode::CONFLICT,
                "outcome-unknown",
                "Outcome is not known",
                "An earlier request with this Idempotency-Key was begun, and it is not known \
                 whether it took effect. It is not run again before an operator of the service has \
                 decided about it. Nothing was run.",
            ),
            Self::PastUnknown(_) => (
                StatusCode::CONFLICT,
                "past-unknown",
                "Past of this Idempotency-Key is not known",
                "It is not known whether this Idempotency-Key was used before. The request is not \
                 run before that is known. Nothing was run.",
            ),
            Self::PastUndecided => (
                StatusCode::SERVICE_UNAVAILABLE,
                "past-undecided",
                "Past of this Idempotency-Key is not decided",
                "It is not known whether this Idempotency-Key was used before, and it is being \
                 looked into. Send the request again with the same key. Nothing was run.",
            ),
            Self::ResponseNotKept(_) => (
                StatusCode::GONE,
                "response-not-kept",
                "Response is not kept",
                "The request with this Idempotency-Key was processed, and its response could not \
                 be kept: it was too long, or no whole answer. It is not run again.",
            ),
            Self::TooOld => (
                StatusCode::GONE,
                "too-old",
                "Request is too old",
                "The request was made so long ago that a record of it may be gone. Look whether \
                 it took effect, and use a new key if it did not. Nothing was run.",
            ),
            Self::Unavailable(_) | Self::NotInitialised(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                match self {
                    Self::NotInitialised(_) => "not-initialised",
                    _ => "unavailable",
                },
                "Idempotency keys cannot be checked",
                "Idempotency keys cannot be checked at the moment. Nothing was run. Send the \
                 request again, with the same key.",
            ),
            Self::NotRecorded(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not-recorded",
                "Outcome is not recorded",
                "The request was processed, but its outcome could not be recorded. Send it again \
                 with the same key to learn the outcome.",
            ),
            Self::HandlerFailed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "handler-failed",
                "Request failed",
                "The request failed. Send it again with the same key to learn whether it took \
                 effect.",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "Idempotency-Key was not processed",
                "The server could not process the Idempotency-Key.",
            ),
        };
        (status, code, title, detail.into())
    }

    /// Returns the value of `Retry-After`. After this time the same request may get another
    /// response. Returns `None` for an error without this header.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InProgress(wait)
            | Self::PastUnknown(wait)
            | Self::Unavailable(wait)
            | Self::NotInitialised(wait)
            | Self::NotRecorded(wait) => Some(*wait),
            Self::PastUndecided => Some(UNDECIDED),
            _ => None,
        }
    }

    /// Returns the HTTP response for this error. `documentation` is the address of the page about
    /// idempotency keys.
    pub(crate) fn response(&self, documentation: Option<&str>) -> Response<Bytes> {
        let (status, code, title, detail) = self.words();
        let reason = status.canonical_reason().unwrap_or("Error");
        let kind = documentation.map(|page| format!("{page}#{code}"));
        let details = Details {
            r#type: kind.as_deref().unwrap_or("about:blank"),
            // If a problem has no type of its own, its title is the name of its HTTP status (RFC
            // 9457).
            title: if kind.is_some() { title } else { reason },
            status: status.as_u16(),
            code,
            detail: &detail,
            original_status: match self {
                Self::ResponseNotKept(status) => *status,
                _ => None,
            },
        };
        let body = serde_json::to_vec(&details).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        // A proxy may cache a 410 without this header. But the next request with the key may get
        // another response.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(wait)));
        }
        let link = documentation.map(|page| format!("<{page}>; rel=\"describedby\""));
        if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
            headers.insert(header::LINK, link);
        }
        response
    }
}

/// Rounds up, because a client must not send its request before the time is over.
fn seconds(wait: Duration) -> u64 {
    let more = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(more).max(1)
}

/// The handler of the request did not run.
pub(crate) fn problem_of(outcome: &Outcome<StoredResponse>) -> Problem {
    match outcome {
        Outcome::InFlight { retry_after } => Problem::InProgress(*retry_after),
        Outcome::Mismatch => Problem::KeyReused,
        Outcome::TooOld => Problem::TooOld,
        Outcome::NotKept => Problem::ResponseNotKept(None),
        Outcome::Parked(parked) => {
            tracing::warn!(target: "palisade::tower", %parked, "a request is parked");
            problem_of_parked(parked)
        }
        _ => Problem::Internal,
    }
}

fn problem_of_parked(parked: &Parked) -> Problem {
    match parked.reason {
        ParkedReason::Forgotten if parked.undecided => Problem::PastUndecided,
        ParkedReason::Forgotten if !parked.forgotten_for.is_zero() => {
            Problem::PastUnknown(parked.forgotten_for)
        }
        _ => Problem::OutcomeUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (ms, want) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (14_999, 15)] {
            assert_eq!(seconds(Duration::from_millis(ms)), want, "{ms}");
        }
    }

    #[test]
    fn details_have_a_type_where_there_is_a_page() {
        let show = |page| {
            let response = Problem::ResponseNotKept(Some(201)).response(page);
            let json: serde_json::Value =
                serde_json::from_slice(response.body()).expect("an object");
            (json, response.headers().get(header::LINK).cloned())
        };
        let (json, link) = show(None);
        assert_eq!((&json["type"], &json["title"]), (&"about:blank".into(), &"Gone".into()));
        assert_eq!((&json["status"], &json["original_status"]), (&410.into(), &201.into()));
        assert_eq!((&json["code"], link), (&"response-not-kept".into(), None));
        let (json, link) = show(Some("https://shop.example/keys"));
        assert_eq!(json["type"], "https://shop.example/keys#response-not-kept");
        assert_eq!(json["title"], "Response is not kept");
        let link = link.expect("a link");
        assert_eq!(link, "<https://shop.example/keys>; rel=\"describedby\"");
    }
}
