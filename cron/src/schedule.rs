//! Schedules: the instants of a cron expression. The functions are pure and read no clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use palisade::error::ConfigError;

/// 2026-01-01, in seconds since 1970. Constant, so that the examination has the same result in all
/// processes.
const EXAMINED: i64 = 1_767_225_600;
/// In seconds. Weekdays and leap years repeat every 28 years.
const CYCLE: i64 = 28 * 366 * DAY;
const DAY: i64 = 24 * 3_600;
const EXAMINED_TICKS: usize = 1_000;
/// In the search for the longest pause. A step is at least the job's retention: with an hour, the
/// steps cover more than a year.
const STEPS: usize = 10_000;

/// Ticks are instants, in whole seconds since 1970.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    text: String,
    zone: Tz,
    cron: croner::Cron,
}

impl Schedule {
    pub(crate) fn parse(text: &str, zone: &str) -> Result<Self, ConfigError> {
        let refuse =
            |field, text: &str, rule: String| ConfigError::new(field, format!("{text:?}"), rule);
        let tz: Tz = zone.parse().map_err(|_| {
            refuse("zone", zone, "must be a name as `Europe/Zurich` or `UTC`".to_owned())
        })?;
        let cron: croner::Cron = text.parse().map_err(|e| {
            let rule = format!("must be `[seconds] minutes hours day month weekday`: {e}");
            refuse("schedule", text, rule)
        })?;
        let schedule =
            Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), zone: tz, cron };
        if schedule.after(EXAMINED).is_none() {
            return Err(refuse("schedule", text, "there is no such day".to_owned()));
        }
        Ok(schedule)
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.text, self.zone.name())
    }

    pub(crate) fn after(&self, instant: i64) -> Option<i64> {
        let from = self.at(instant)?;
        let next = self.cron.iter_after(from).next()?.timestamp();
        // Two wall clock times in a gap of the zone's clock can be the same instant. They are one
        // tick.
        (next > instant).then_some(next).or_else(|| self.after(instant + 1))
    }

    pub(crate) fn until(&self, instant: i64) -> Option<i64> {
        let from = self.at(instant + 1)?;
        let before = self.cron.iter_before(from).next()?.timestamp();
        (before <= instant).then_some(before)
    }

    pub(crate) fn shortest_pause(&self) -> Option<Duration> {
        let ticks = std::iter::successors(self.after(EXAMINED), |tick| self.after(*tick));
        let pauses = ticks.take(EXAMINED_TICKS).map_while(|tick| Some(self.after(tick)? - tick));
        pauses.min().map(|pause| Duration::from_secs(pause.unsigned_abs()))
    }

    /// In days, rounded up; only a pause that is longer than `span`.
    pub(crate) fn pause_longer_than(&self, span: Duration) -> Option<i64> {
        let (span, mut at) = (i64::try_from(span.as_secs()).ok()?, self.after(EXAMINED)?);
        let mut longest = None;
        for _ in 0..STEPS {
            // Goes on at the last tick within `span`. Without one, the pause after `at` is longer
            // than `span`.
            let last = self.until(at + span)?;
            let next = if last > at { Some(last) } else { self.after(at) };
            // An expression may contain years.
            let Some(next) = next else { break };
            if last <= at {
                longest = longest.max(Some((next - at + DAY - 1) / DAY));
            }
            at = next;
            if at > EXAMINED + CYCLE {
                break;
            }
        }
        longest
    }

    fn at(&self, instant: i64) -> Option<DateTime<Tz>> {
        Some(DateTime::<Utc>::from_timestamp(instant, 0)?.with_timezone(&self.zone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(text: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
        let schedule = Schedule::parse(text, zone).unwrap();
        let mut at = DateTime::parse_from_rfc3339(from).unwrap().timestamp() - 1;
        let mut all = Vec::new();
        for _ in 0..n {
            let next = schedule.after(at).unwrap();
            assert!(next > at);
            assert_eq!(schedule.until(next), Some(next), "{text}");
            assert_eq!(schedule.until(next - 1).filter(|t| *t > at), None, "{text}");
            all.push(schedule.at(next).unwrap().to_rfc3339());
            at = next;
        }
        all
    }

    #[test]
    fn a_fixed_time_that_a_clock_skips_runs_once_right_after_the_gap() {
        // On 2026-03-29 in Zurich, the clock goes from 02:00 to 03:00.
        let seen = ticks("30 2 * * *", "Europe/Zurich", "2026-03-28T00:00:00+01:00", 3);
        let want =
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"];
        assert_eq!(seen, want);
        // Two wall clock times in the gap are the same instant. They are one tick.
        let seen = ticks("0,30 2,3 * * *", "Europe/Zurich", "2026-03-29T00:00:00+01:00", 3);
        let want =
            ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:00:00+02:00"];
        assert_eq!(seen, want);
    }

    #[test]
    fn a_fixed_time_that_a_clock_shows_twice_runs_once_at_the_first() {
        // On 2026-10-25 in Zurich, the clock goes back from 03:00 to 02:00.
        let seen = ticks("30 2 * * *", "Europe/Zurich", "2026-10-24T00:00:00+02:00", 3);
        let want =
            ["2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"];
        assert_eq!(seen, want);
    }

    #[test]
    fn intervals_go_on_over_both_changes() {
        let seen = ticks("*/30 * * * *", "Europe/Zurich", "2026-03-29T01:00:00+01:00", 4);
        let want = [
            "2026-03-29T01:00:00+01:00",
            "2026-03-29T01:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T03:30:00+02:00",
        ];
        assert_eq!(seen, want);
        let seen = ticks("*/30 * * * *", "Europe/Zurich", "2026-10-25T02:00:00+02:00", 5);
        let want = [
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T02:30:00+01:00",
            "2026-10-25T03:00:00+01:00",
        ];
        assert_eq!(seen, want);
        assert_eq!(
            ticks("* * * * * *", "UTC", "2026-01-01T00:00:00Z", 2)[1],
            "2026-01-01T00:00:01+00:00"
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let refused = |text, zone| Schedule::parse(text, zone).unwrap_err().to_string();
        assert!(refused("* * *", "UTC").contains("`schedule`"));
        assert!(refused("0 0 30 2 *", "UTC").contains("no such day"));
        assert!(refused("* * * * *", "Mars/Olympus").contains("`zone`"));
    }

    #[test]
    fn the_longest_pause_of_a_schedule_is_found_wherever_it_is() {
        let days = |n| Duration::from_secs(n * DAY.unsigned_abs());
        let pause = |text, span| Schedule::parse(text, "UTC").unwrap().pause_longer_than(span);
        assert_eq!(pause("* * * * * *", Duration::from_secs(3_600)), None);
        assert_eq!(pause("0 0 * * 1", days(7)), None);
        assert_eq!(pause("0 0 * * 1", days(6)), Some(7));
        assert_eq!(pause("0 0 1 * *", days(31)), None);
        assert_eq!(pause("0 0 1 * *", days(30)), Some(31));
        // The schedule has a tick each minute, except from November to March. The examination
        // begins in that pause, months before the next tick.
        assert_eq!(pause("* * * 4-10 *", days(100)), Some(153));
        assert_eq!(pause("0 0 29 2 *", days(365)), Some(1_461));
        assert_eq!(pause("0 0 0 1 1 * 2020-2040", days(365)), Some(366), "it has a last tick");
    }

    #[test]
    fn the_shortest_pause_of_a_schedule_is_found_wherever_it_is() {
        let pause = |text| Schedule::parse(text, "UTC").unwrap().shortest_pause();
        assert_eq!(pause("* * * * * *"), Some(Duration::from_secs(1)));
        assert_eq!(pause("*/7 * * * *"), Some(Duration::from_secs(4 * 60)));
        assert_eq!(pause("0 0 1,31 1,12 *"), Some(Duration::from_secs(24 * 3_600)));
    }
}
