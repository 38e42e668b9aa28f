//! Parses a span of time with the library's parser, so that all options have one form.

use std::time::Duration;

use palisade::internal::{SPAN_FORM, parse_span};

/// A span of time: `2.5s`, `250ms`, `1m 30s`, `1h`, `1d`, or a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = or_zero(text)?;
        if span.0.is_zero() { Err("must be more than zero".to_owned()) } else { Ok(span) }
    }
}

/// Parses the longest time of a wait. Zero is one attempt.
pub(crate) fn or_zero(text: &str) -> Result<Span, String> {
    let refuse = || format!("{text:?} is not a span of time; {SPAN_FORM}");
    parse_span(text).map(Span).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_forms_of_the_library_and_only_a_wait_may_be_zero() {
        let span = |text: &str| text.parse::<Span>().map(|s| s.0);
        assert_eq!(span("2.5s"), Ok(Duration::from_millis(2_500)));
        assert_eq!(span("3"), Ok(Duration::from_secs(3)));
        assert_eq!(span("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(span("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(span("1min"), Ok(Duration::from_secs(60)));
        for bad in ["", "s", "0", "0ms", "-1s", "1 s", "1w", "1e400"] {
            assert!(span(bad).is_err(), "{bad:?}");
        }
        assert_eq!(or_zero("0s"), Ok(Span(Duration::ZERO)));
        assert_eq!(or_zero("0"), Ok(Span(Duration::ZERO)));
        assert!(or_zero("never").is_err());
    }
}
