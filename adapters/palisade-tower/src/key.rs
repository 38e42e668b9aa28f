//! The value of the `Idempotency-Key` header, with or without quotation marks.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The request header `Idempotency-Key`.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Maximum length of a key in bytes, the same as in Stripe's API.
const KEY_MAX: usize = 255;

/// The value of an `Idempotency-Key` header.
///
/// The IETF draft of this header requires a string in quotation marks (RFC 8941), such as
/// `"8e03978e-40d5"`. Many clients send the key without quotation marks. Both forms are accepted
/// and mean the same key.
///
/// ```
/// use palisade_tower::IdempotencyKey;
/// let quoted = IdempotencyKey::parse(&"\"order-7\"".parse()?)?;
/// let bare = IdempotencyKey::parse(&"order-7".parse()?)?;
/// assert_eq!(quoted, bare);
/// assert_eq!(quoted.as_str(), "order-7");
/// assert!(!quoted.is_bare() && bare.is_bare());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    key: String,
    bare: bool,
}

// Two keys are equal even if only one of the two was sent in quotation marks.
impl PartialEq for IdempotencyKey {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for IdempotencyKey {}

impl IdempotencyKey {
    /// Returns the key in the `Idempotency-Key` header, or `None` if there is no such header.
    ///
    /// # Errors
    /// The headers contain `Idempotency-Key` more than once, or its value is not a valid key.
    pub fn in_headers(headers: &HeaderMap) -> Result<Option<Self>, InvalidKey> {
        Self::in_header(headers, &IDEMPOTENCY_KEY)
    }

    /// Returns the key in the header `name`, or `None` if there is no such header. Returns the same
    /// errors as [`in_headers`](Self::in_headers).
    pub(crate) fn in_header(
        headers: &HeaderMap,
        name: &HeaderName,
    ) -> Result<Option<Self>, InvalidKey> {
        let mut all = headers.get_all(name).iter();
        match (all.next(), all.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Self::parse(value).map(Some),
            (Some(_), Some(_)) => Err(InvalidKey("the header is there more than once")),
        }
    }

    /// Parses the value of an `Idempotency-Key` header.
    ///
    /// # Errors
    /// The key is empty or blank, or it is longer than 255 bytes, or the value has neither of the
    /// two accepted forms. The first form is a string in quotation marks (RFC 8941, 3.3.3). The
    /// second form is a bare key: printable ASCII without spaces, quotation marks, backslashes,
    /// commas and semicolons.
    pub fn parse(value: &HeaderValue) -> Result<Self, InvalidKey> {
        let text = value.to_str().map_err(|_| InvalidKey("only printable ASCII is allowed"))?;
        let text = text.trim_matches([' ', '\t']);
        let (key, bare) = match text.strip_prefix('"') {
            Some(rest) => (string(rest)?, false),
            None => (token(text)?.to_owned(), true),
        };
        match key.len() {
            _ if key.trim().is_empty() => Err(InvalidKey("it is empty")),
            1..=KEY_MAX => Ok(Self { key, bare }),
            _ => Err(InvalidKey("it is longer than 255 bytes")),
        }
    }

    /// Returns the key without quotation marks.
    pub fn as_str(&self) -> &str {
        &self.key
    }

    /// Returns true if the key was sent without quotation marks.
    pub fn is_bare(&self) -> bool {
        self.bare
    }
}

/// Parses the rest of a quoted string, after the opening quotation mark. Returns the content of the
/// string without escapes. Parameters after the closing quotation mark, such as `;v=1`, are checked
/// and ignored.
fn string(rest: &str) -> Result<String, InvalidKey> {
    let mut key = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(c @ ('"' | '\\')) => key.push(c),
                _ => return Err(InvalidKey("a backslash comes before `\"` or `\\` only")),
            },
            Some(c @ ' '..='~') => key.push(c),
            Some(_) => return Err(InvalidKey("only printable ASCII is allowed")),
            None => return Err(InvalidKey("the closing quotation mark is missing")),
        }
    }
    parameters(chars.as_str())?;
    Ok(key)
}

/// Checks the form of the parameters after a string in a structured field (RFC 8941). A parameter
/// is `;name` or `;name=value`. The IETF draft of this header defines no parameters. So valid
/// parameters have no effect.
fn parameters(mut rest: &str) -> Result<(), InvalidKey> {
    const WRONG: InvalidKey = InvalidKey("something follows the closing quotation mark");
    while !rest.is_empty() {
        rest = rest.strip_prefix(';').ok_or(WRONG)?.trim_start_matches(' ');
        let part = |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.' | '*')
        };
        let name = rest.len() - rest.trim_start_matches(part).len();
        if !rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '*') {
            return Err(WRONG);
        }
        rest = &rest[name..];
        if let Some(value) = rest.strip_prefix('=') {
            rest = after_value(value).ok_or(WRONG)?;
        }
    }
    Ok(())
}

/// Skips the value of a parameter and returns the text after the value. Returns `None` if the value
/// is malformed. A value is a string in quotation marks, or any other text up to the next `;`.
fn after_value(value: &str) -> Option<&str> {
    let Some(inside) = value.strip_prefix('"') else {
        let end = value.find(';').unwrap_or(value.len());
        let plain = !value[..end].contains([' ', ',', '"', '\\']);
        return (end > 0 && plain).then(|| &value[end..]);
    };
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(&inside[at + 1..]),
            _ => {}
        }
    }
    None
}

fn token(text: &str) -> Result<&str, InvalidKey> {
    if text.contains([' ', '\t', '"', '\\', ',', ';']) {
        let rule = "a key without quotation marks has no space, `\"`, `\\`, `,` or `;` in it";
        return Err(InvalidKey(rule));
    }
    Ok(text)
}

/// The error of an invalid `Idempotency-Key` header. It contains the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKey(pub(crate) &'static str);

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Idempotency-Key header is not valid: {}", self.0)
    }
}

impl std::error::Error for InvalidKey {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<String, &'static str> {
        let value = HeaderValue::from_bytes(text).expect("a header value");
        IdempotencyKey::parse(&value).map(|k| k.key).map_err(|e| e.0)
    }

    #[test]
    fn strings_of_structured_fields_are_read() {
        for (text, want) in [
            (r#""8e03978e-40d5-43e8-bc93-6894a57f9324""#, "8e03978e-40d5-43e8-bc93-6894a57f9324"),
            (r#"  "a b"  "#, "a b"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""a, b; c""#, "a, b; c"),
            (r#""k";v=1"#, "k"),
            (r#""k"; v=1;w;x="a;b\"c";*y=?1"#, "k"),
        ] {
            assert_eq!(parse(text.as_bytes()).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn bare_keys_are_read() {
        for text in ["k", "order-7", "a:b/c_d.e=~", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "%41"] {
            assert_eq!(parse(text.as_bytes()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "  ",
            "\"\"",
            "\" \"",
            "\"   \";v=1",
            "\"a",
            "a\"",
            "\"a\\x\"",
            "\"a\\",
            "\"a\"b",
            "\"a\" b",
            "\"a\";",
            "\"a\";V=1",
            "\"a\";v=",
            "\"a\";v=\"x",
            "\"a\", \"b\"",
            "a b",
            "a,b",
            "a;b",
            "a\\b",
            "\"a\tb\"",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(parse(b"caf\xe9").is_err());
        assert!(parse("\"größe\"".as_bytes()).is_err());
    }

    #[test]
    fn the_length_of_the_key_counts_and_not_of_the_header() {
        assert!(parse("k".repeat(255).as_bytes()).is_ok());
        assert_eq!(parse("k".repeat(256).as_bytes()), Err("it is longer than 255 bytes"));
        assert!(parse(format!("\"{}\"", "\\\"".repeat(255)).as_bytes()).is_ok());
    }

    #[test]
    fn two_headers_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(IdempotencyKey::in_headers(&headers), Ok(None));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        let one = IdempotencyKey::in_headers(&headers).expect("one").expect("a key");
        assert_eq!(one.as_str(), "a");
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        let error = IdempotencyKey::in_headers(&headers).expect_err("two");
        assert!(error.to_string().contains("more than once"), "{error}");
    }
}
