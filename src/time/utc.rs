//! Formats wall-clock times and durations for people, always in UTC.

use std::fmt;
use std::time::Duration;

pub(crate) fn utc(ms: u64) -> String {
    let (date, time) = date_and_time(ms);
    format!("{date}T{time}Z")
}

/// Formats milliseconds since 1970 for people: `2026-11-23 14:03:21.4 UTC`. The time is rounded up
/// to a tenth of a second.
pub fn until_utc(ms: u64) -> String {
    let (date, time) = tenths(ms.div_ceil(100).saturating_mul(100));
    format!("{date} {time} UTC")
}

/// In ms since 1970: `2026-11-23 14:03:20.1–14:03:21.4 UTC`. The first time is rounded down, the
/// second up.
pub(crate) fn span_utc(from: u64, to: u64) -> String {
    let ((day, begin), (last_day, end)) = (tenths(from), tenths(to.div_ceil(100) * 100));
    if day == last_day {
        format!("{day} {begin}–{end} UTC")
    } else {
        format!("{day} {begin} – {last_day} {end} UTC")
    }
}

/// A duration in at most two units: `1.3 s`, `2 min 5 s`, `3 h 12 min`, `2 d 4 h`. The duration is
/// rounded up, so that the phrase "at most …" stays true.
pub struct AtMost(pub Duration);

impl fmt::Display for AtMost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.as_millis().div_ceil(100);
        if tenths < 600 {
            return match tenths % 10 {
                0 => write!(f, "{} s", tenths / 10),
                tenth => write!(f, "{}.{tenth} s", tenths / 10),
            };
        }
        let seconds = tenths.div_ceil(10);
        let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
        let (large, unit, small, part) = match seconds {
            ..3_600 => (seconds / 60, "min", seconds % 60, "s"),
            3_600..=86_340 => (minutes / 60, "h", minutes % 60, "min"),
            _ => (hours / 24, "d", hours % 24, "h"),
        };
        write!(f, "{large} {unit}")?;
        if small > 0 { write!(f, " {small} {part}") } else { Ok(()) }
    }
}

fn tenths(ms: u64) -> (String, String) {
    let (date, mut time) = date_and_time(ms);
    time.truncate("00:00:00.0".len());
    (date, time)
}

fn date_and_time(ms: u64) -> (String, String) {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    // So that the leap day is the last of a year; eras have 400 years, because all such are equally
    // long.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1_000 % 60);
    let date = format!("{year:04}-{month:02}-{day:02}");
    (date, format!("{hour:02}:{minute:02}:{second:02}.{:03}", ms % 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(951_868_799_999), "2000-02-29T23:59:59.999Z");
        assert_eq!(utc(1_767_225_599_001), "2025-12-31T23:59:59.001Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn spans_are_rounded_outwards_and_name_a_second_day_only_if_there_is_one() {
        let noon = 1_763_906_600_000;
        assert_eq!(span_utc(noon + 123, noon + 1_301), "2025-11-23 14:03:20.1–14:03:21.4 UTC");
        assert_eq!(
            span_utc(noon, noon + 43_200_000),
            "2025-11-23 14:03:20.0 – 2025-11-24 02:03:20.0 UTC"
        );
        assert_eq!(until_utc(noon + 1), "2025-11-23 14:03:20.1 UTC");
    }

    #[test]
    fn a_duration_is_never_shown_shorter_than_it_is() {
        let shown = |ms| AtMost(Duration::from_millis(ms)).to_string();
        for (ms, text) in [
            (1, "0.1 s"),
            (1_300, "1.3 s"),
            (1_301, "1.4 s"),
            (2_000, "2 s"),
            (59_901, "1 min"),
            (125_000, "2 min 5 s"),
            (3_599_001, "1 h"),
            (11_461_000, "3 h 12 min"),
            (86_399_000, "1 d"),
            (187_200_000, "2 d 4 h"),
        ] {
            assert_eq!(shown(ms), text, "{ms}");
        }
    }
}
