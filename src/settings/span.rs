//! Parses durations in the form of settings: `250ms`, `15s`, `1m 30s`, `1h`.

use std::time::Duration;

/// Rule in the error for a text that is not a duration.
pub(super) const FORM: &str = "write a duration with its unit, as 250ms, 15s, 1m 30s, 1h or 1d";

/// Parses one or more whole numbers with units, in any order, and returns their sum. Returns `None`
/// if the text is not a duration.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        sum = sum.checked_add(span(number, &rest[..letters])?)?;
        rest = rest[letters..].trim_start();
    }
    Some(sum)
}

fn span(number: u64, unit: &str) -> Option<Duration> {
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit {
        "us" | "µs" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_its_unit() {
        for (text, is) in [
            ("250ms", Some(Duration::from_millis(250))),
            ("15s", Some(Duration::from_secs(15))),
            ("1m 30s", Some(Duration::from_secs(90))),
            ("1h30m", Some(Duration::from_secs(5_400))),
            (" 2d ", Some(Duration::from_secs(172_800))),
            ("0s", Some(Duration::ZERO)),
            ("15", None),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("1S", None),
            ("1month", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse(text), is, "{text:?}");
        }
    }
}
