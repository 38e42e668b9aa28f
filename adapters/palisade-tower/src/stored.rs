//! A response as it is stored under its key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};

/// The result under a key of [`IdempotencyLayer`](crate::IdempotencyLayer): a status, the headers
/// that are kept, and the body. A person who settles a parked key by hand stores one, and a probe
/// returns one:
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
    /// Values as they are on the wire, a character for each byte.
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
    /// It was longer than what is kept: so many bytes are.
    LongerThan(usize),
}

impl StoredResponse {
    /// A response without headers.
    pub fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        let body = StoredBody::of(&body.into());
        Self { status: status.as_u16(), headers: Vec::new(), body }
    }

    /// With this header.
    #[must_use]
    pub fn header(mut self, name: &HeaderName, value: &HeaderValue) -> Self {
        let value = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
        self.headers.push((name.as_str().to_owned(), value));
        self
    }

    /// What is kept of a response: of its body nothing if it is longer than `limit`.
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        kept: &[HeaderName],
        body: Option<&Bytes>,
        limit: usize,
    ) -> Self {
        let body = body.map_or(StoredBody::LongerThan(limit), StoredBody::of);
        let empty = Self { status: status.as_u16(), headers: Vec::new(), body };
        let headers = headers.iter().filter(|(name, _)| kept.contains(name));
        headers.fold(empty, |stored, (name, value)| stored.header(name, value))
    }

    /// Whether the body was kept.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.body, StoredBody::LongerThan(_))
    }

    /// The response that was stored; `None` if it cannot be made, as when its body was not kept.
    pub(crate) fn response(&self) -> Option<Response<Bytes>> {
        let mut response = Response::new(self.body.bytes()?);
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        *response.headers_mut() = self.headers()?;
        Some(response)
    }

    /// The headers that were stored.
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

    /// The status that was stored.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }
}

impl StoredBody {
    /// Text as it is, so that a person can read it, unless escaping makes it twice as long;
    /// anything else in base64.
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

/// How long a text is within JSON.
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
        let stored = StoredResponse::of(StatusCode::OK, &headers, &kept, Some(&body), 9);
        let response = there_and_back(&stored);
        headers.remove(header::SET_COOKIE);
        assert_eq!(response.headers(), &headers);
    }

    #[test]
    fn of_a_long_body_its_length_is_no_secret_and_its_bytes_are_gone() {
        let stored = StoredResponse::of(StatusCode::OK, &HeaderMap::new(), &[], None, 9);
        let text = serde_json::to_string(&stored).expect("it has a form");
        assert_eq!(text, r#"{"status":200,"longer_than":9}"#);
        assert!(!stored.is_whole() && stored.response().is_none());
    }

    #[test]
    fn what_somebody_else_stored_is_no_response() {
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
