//! Parses durations in the form of settings: `250ms`, `2.5s`, `15` (seconds), `1m 30s`, `1h`. It is
//! the one parser of addresses, variables, files and the command line.

use std::time::Duration;

/// Rule in the error for a text that is not a duration.
pub const FORM: &str = "write a duration as 250ms, 2.5s, 15 (seconds), 1m 30s, 1h or 1d";

/// Parses one number of seconds, or one or more numbers with units, in any order, and returns their
/// sum. Returns `None` if the text is not a duration.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    if number_of(rest).len() == rest.len() {
        return span(rest, "s");
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let number = number_of(rest);
        rest = &rest[number.len()..];
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        sum = sum.checked_add(span(number, &rest[..letters])?)?;
        rest = rest[letters..].trim_start();
    }
    Some(sum)
}

fn number_of(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    &text[..end]
}

fn span(number: &str, unit: &str) -> Option<Duration> {
    let micros = match unit {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000_u64,
        _ => return None,
    };
    let Some((whole, part)) = number.split_once('.') else {
        let number: u64 = number.parse().ok()?;
        return match unit {
            "us" | "µs" => Some(Duration::from_micros(number)),
            "ms" => Some(Duration::from_millis(number)),
            _ => number.checked_mul(micros / 1_000_000).map(Duration::from_secs),
        };
    };
    if whole.is_empty() || part.is_empty() || part.contains('.') {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * Duration::from_micros(micros).as_secs_f64()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_people_write_is_one_duration() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, is) in [
            ("250ms", ms(250)),
            ("15s", ms(15_000)),
            ("15", ms(15_000)),
            ("2.5", ms(2_500)),
            ("2.5s", ms(2_500)),
            ("0.5m", ms(30_000)),
            ("0.25ms", Some(Duration::from_micros(250))),
            ("500us", Some(Duration::from_micros(500))),
            ("1min", ms(60_000)),
            ("1m 30s", ms(90_000)),
            ("1h30m", ms(5_400_000)),
            ("1.5h 0.5m", ms(5_430_000)),
            (" 2d ", ms(172_800_000)),
            ("0s", Some(Duration::ZERO)),
            ("0", Some(Duration::ZERO)),
            ("5000000000ms", ms(5_000_000_000)),
            ("", None),
            ("s", None),
            (".", None),
            (".5s", None),
            ("5.s", None),
            ("1.2.3s", None),
            ("1m 30", None),
            ("30 1m", None),
            ("1 s", None),
            ("-1s", None),
            ("+1s", None),
            ("1S", None),
            ("1w", None),
            ("1month", None),
            ("1e400", None),
            ("NaN", None),
            ("inf", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
            ("18446744073709551615.5d", None),
        ] {
            assert_eq!(parse(text), is, "{text:?}");
        }
    }
}
