//! Parses a span of time in the form that people write.

use std::time::Duration;

use serde::Deserialize;

/// A span of time: `2.5s`, `250ms`, `2m`, `1h`, `1d`, or a number of seconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "Written")]
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

/// A span of time in a settings file: a text, or a number of seconds.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Seconds(f64),
}

impl TryFrom<Written> for Span {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Text(text) => text.parse(),
            Written::Seconds(seconds) => seconds.to_string().parse(),
        }
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
