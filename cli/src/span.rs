//! Parses spans of time as people write them.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A span of time: `2.5s`, `250ms`, `2m`, `1h`, `1d`, or a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let bad = || format!("{text:?} is not a span of time; write 2.5s, 250ms, 2m, 1h or 1d");
        let factor = match unit {
            "" | "s" => 1.0,
            "ms" => 1e-3,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let span = Duration::try_from_secs_f64(number * factor).map_err(|_| bad())?;
        if span.is_zero() { Err("must be more than zero".to_owned()) } else { Ok(Self(span)) }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Reads;
        impl Visitor<'_> for Reads {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a span of time, as \"2.5s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                seconds.to_string().parse().map_err(E::custom)
            }
        }
        de.deserialize_any(Reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        let span = |text: &str| text.parse::<Span>().map(|s| s.0);
        assert_eq!(span("2.5s"), Ok(Duration::from_millis(2_500)));
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("3"), Ok(Duration::from_secs(3)));
        assert_eq!(span("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "0", "0ms", "-1s", "1 s", "1w", "1e400"] {
            assert!(span(bad).is_err(), "{bad:?}");
        }
    }
}
