//! The form in which a handler's response is stored under its idempotency key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};

/// The result that [`IdempotencyLayer`](crate::IdempotencyLayer) stores under a key: the status,
/// the stored headers and the body of a response. A probe returns such a result. For a parked key,
/// which waits for a person's decision, an operator can store such a result:
///
/// ```
/// # async fn settle(layer: palisade_tower::IdempotencyLayer)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use http::{StatusCode, header};
/// use palisade_tower::{Scope, StoredResponse};
/// let booked = StoredResponse::new(StatusCode::CREATED, "{\"order\":7}")
///     .header(&header::CONTENT_TYPE, &"application/json".parse()?);
/// let resolved = layer.call(&Scope::of("alice"), "order-7")?.resolve(&booked).await?;
/// # let _ = resolved;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    status: u16,
    /// Names and values of the stored headers. Each byte of a value is stored as one character. So
    /// any value can be written as JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(flatten)]
    body: StoredBody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredBody {
    Text(String),
    Base64(String),
    /// Neither the body nor the headers are stored, because together they were longer than this
    /// number of bytes. Zero means that the response was not complete (status 1xx or 206).
    LongerThan(usize),
}

impl StoredResponse {
    /// Creates the stored form of a response without headers.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        let body = StoredBody::of(&body.into());
        Self { status: status.as_u16(), headers: Vec::new(), body }
    }

    /// Adds a header to the stored response.
    #[must_use]
    pub fn header(mut self, name: &HeaderName, value: &HeaderValue) -> Self {
        let value = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
        self.headers.push((name.as_str().to_owned(), value));
        self
    }

    /// Creates the stored form of a handler's response, with the headers that are in `kept`. Leaves
    /// out the body and the headers if together they are longer than `limit` bytes, or if the
    /// response is not complete (status 1xx or 206).
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        kept: &[HeaderName],
        body: Option<&Bytes>,
        limit: usize,
    ) -> Self {
        let without = |limit| Self {
            status: status.as_u16(),
            headers: Vec::new(),
            body: StoredBody::LongerThan(limit),
        };
        if status.is_informational() || status == StatusCode::PARTIAL_CONTENT {
            return without(0);
        }
        let kept = || headers.iter().filter(|(name, _)| kept.contains(name));
        let lengths = kept().map(|(name, value)| name.as_str().len() + value.len());
        let Some(body) = body.filter(|body| body.len() + lengths.sum::<usize>() <= limit) else {
            return without(limit);
        };
        let empty =
            Self { status: status.as_u16(), headers: Vec::new(), body: StoredBody::of(body) };
        kept().fold(empty, |stored, (name, value)| stored.header(name, value))
    }

    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.body, StoredBody::LongerThan(_))
    }

    /// Rebuilds the stored response. Returns `None` if the response cannot be rebuilt, for example
    /// because its body was too long to be stored.
    pub(crate) fn response(&self) -> Option<Response<Bytes>> {
        let mut response = Response::new(self.body.bytes()?);
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        *response.headers_mut() = self.headers()?;
        Some(response)
    }

    /// Returns the stored headers, or `None` if one of them is not a valid header.
    fn headers(&self) -> Option<HeaderMap> {
        let one = |(name, value): &(String, String)| {
            let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
            let value = HeaderValue::from_bytes(&bytes?).ok()?;
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        };
        let mut headers = HeaderMap::new();
        for each in &self.headers {
            let (name, value) = one(each)?;
            headers.append(name, value);
        }
        Some(headers)
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }
}

impl StoredBody {
    /// In base64 if the body is not UTF-8, or if JSON escapes would make it more than twice as
    /// long.
    fn of(bytes: &Bytes) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if escaped(text) <= 2 * text.len() => Self::Text(text.to_owned()),
            _ => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Text(text) => Some(Bytes::from(text.clone())),
            Self::Base64(text) => STANDARD.decode(text).ok().map(Bytes::from),
            Self::LongerThan(_) => None,
        }
    }
}

/// Returns the length of a text as a JSON string in bytes, without the quotation marks.
fn escaped(text: &str) -> usize {
    let one = |byte: u8| match byte {
        b'"' | b'\\' | 0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(one).sum()
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    fn there_and_back(stored: &StoredResponse) -> Response<Bytes> {
        let text = serde_json::to_string(stored).expect("it has a form");
        let read: StoredResponse = serde_json::from_str(&text).expect("it is read");
        assert_eq!(&read, stored, "{text}");
        read.response().expect("whole")
    }

    #[test]
    fn every_body_comes_back_byte_by_byte() {
        let all: Vec<u8> = (0..=255).collect();
        let bodies = [&b""[..], b"{\"a\":\"b\"}", "größe".as_bytes(), &[0; 40], b"\xff\xfe", &all];
        for body in bodies {
            let stored = StoredResponse::new(StatusCode::CREATED, body.to_vec());
            let json = serde_json::to_vec(&stored).expect("it has a form");
            assert!(json.len() <= 2 * body.len() + 60, "{} of {}", json.len(), body.len());
            let response = there_and_back(&stored);
            assert_eq!((response.status(), &response.body()[..]), (StatusCode::CREATED, body));
        }
    }

    #[test]
    fn only_the_headers_that_are_kept_are_stored_with_each_of_their_values() {
        let mut headers = HeaderMap::new();
        headers.append(header::LINK, HeaderValue::from_static("<a>"));
        headers.append(header::LINK, HeaderValue::from_static("<b>"));
        headers.append(header::ETAG, HeaderValue::from_bytes(b"\"\xe9\"").expect("bytes"));
        headers.append(header::SET_COOKIE, HeaderValue::from_static("session=1"));
        let kept = [header::LINK, header::ETAG];
        let body = Bytes::from_static(b"x");
        let stored = StoredResponse::of(StatusCode::OK, &headers, &kept, Some(&body), 99);
        let response = there_and_back(&stored);
        headers.remove(header::SET_COOKIE);
        assert_eq!(response.headers(), &headers);
    }

    #[test]
    fn a_part_of_an_answer_and_long_headers_are_not_kept() {
        let (body, kept) = (Bytes::from_static(b"part"), [header::LINK]);
        for status in [StatusCode::SWITCHING_PROTOCOLS, StatusCode::PARTIAL_CONTENT] {
            let stored = StoredResponse::of(status, &HeaderMap::new(), &kept, Some(&body), 99);
            assert!(stored.response().is_none(), "{status}");
            assert_eq!(stored.status(), status.as_u16());
        }
        let mut headers = HeaderMap::new();
        for _ in 0..12 {
            headers.append(header::LINK, HeaderValue::from_static("<abcd>"));
        }
        let of = |limit| StoredResponse::of(StatusCode::OK, &headers, &kept, Some(&body), limit);
        // Each of the twelve headers has ten bytes (name and value), and the body has four: 124 in
        // all.
        assert!(of(124).response().is_some());
        let stored = of(123);
        assert!(stored.response().is_none());
        assert!(serde_json::to_string(&stored).expect("it has a form").len() < 50);
    }

    #[test]
    fn of_a_long_body_its_length_is_no_secret_and_its_bytes_are_gone() {
        let stored = StoredResponse::of(StatusCode::OK, &HeaderMap::new(), &[], None, 9);
        let text = serde_json::to_string(&stored).expect("it has a form");
        assert_eq!(text, r#"{"status":200,"longer_than":9}"#);
        assert!(!stored.is_whole() && stored.response().is_none());
    }

    #[test]
    fn a_malformed_stored_value_is_no_response() {
        for (text, readable) in [
            (r#"{"status":200,"text":"a"}"#, true),
            (r#"{"status":20000,"text":"a"}"#, false),
            (r#"{"status":200,"base64":"?"}"#, false),
            (r#"{"status":200,"headers":[["a b","c"]],"text":"a"}"#, false),
            (r#"{"status":200,"headers":[["a","\n"]],"text":"a"}"#, false),
            (r#"{"status":200,"headers":[["a","€"]],"text":"a"}"#, false),
        ] {
            let stored: StoredResponse = serde_json::from_str(text).expect("of this form");
            assert_eq!(stored.response().is_some(), readable, "{text}");
        }
        assert!(serde_json::from_str::<StoredResponse>("7").is_err());
        assert!(serde_json::from_str::<StoredResponse>(r#"{"status":200}"#).is_err());
    }
}
