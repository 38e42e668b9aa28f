//! What becomes of a tick: which missed ones are looked at, and which overlap an earlier run. Pure.

use super::job::{Missed, Overlap};
use super::schedule::Schedule;
use super::tick::{End, Run};

/// Most ticks that are looked at at once, whatever a policy says.
const BACKLOG: usize = 10_000;

/// What is to be looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// In the order of time; each with whether it is run belatedly on purpose.
    pub(crate) ticks: Vec<(i64, bool)>,
    /// The policy leaves out something between these two ticks, both included.
    pub(crate) left_out: Option<(i64, i64)>,
}

/// Limits of a tick that is on time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnTime {
    /// Largest age in seconds.
    pub(crate) late: i64,
    /// Of these the newest alone.
    pub(crate) newest_alone: bool,
}

/// The ticks after `from` up to `now`. Those that are not on time are missed, and the policy says
/// what becomes of them.
pub(crate) fn plan(
    schedule: &Schedule,
    (from, now): (i64, i64),
    OnTime { late, newest_alone }: OnTime,
    missed: Missed,
) -> Plan {
    let on_time = from.max(now - late - 1);
    let most = if newest_alone { 1 } else { BACKLOG };
    let mut ticks = Vec::new();
    let mut at = now;
    while let Some(tick) = schedule.until(at).filter(|t| *t > on_time && ticks.len() < most) {
        ticks.push((tick, false));
        at = tick - 1;
    }
    // From here on back everything is missed.
    let newest = schedule.until(at).filter(|tick| *tick > from);
    let (oldest, most) = match missed {
        Missed::Skip => (now, 0),
        // The latest of all, if it is not there already.
        Missed::RunLatest => (from, usize::from(ticks.is_empty())),
        Missed::CatchUp { window, max } => {
            (from.max(now - i64::try_from(window.as_secs()).unwrap_or(i64::MAX / 2)), max)
        }
    };
    let (mut next, mut taken) = (newest, 0);
    while let Some(tick) = next.filter(|t| *t > oldest && taken < most && ticks.len() < BACKLOG) {
        ticks.push((tick, true));
        taken += 1;
        next = schedule.until(tick - 1).filter(|tick| *tick > from);
    }
    let first = schedule.after(from);
    let left_out = next.and_then(|last| Some((first?, last)));
    ticks.reverse();
    Plan { ticks, left_out }
}

/// Whether a tick that was due during `run` is run after it. `before` is the tick before it.
pub(crate) fn runs_after(overlap: Overlap, run: &Run, before: Option<i64>) -> bool {
    match overlap {
        Overlap::Skip => false,
        // The first that was due while it ran.
        Overlap::BufferOne => before.is_none_or(|tick| millis(tick) < run.started),
        Overlap::Allow | Overlap::CancelPrevious => true,
    }
}

/// A tick as runs have it.
pub(crate) fn millis(tick: i64) -> u64 {
    tick.unsigned_abs() * 1_000
}

/// Whether the tick was due while this ran.
pub(crate) fn was_due_during(run: &Run, tick: i64) -> bool {
    let due = millis(tick);
    !matches!(run.end, End::Skipped(_)) && run.started <= due && due < run.ended
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn every_minute() -> Schedule {
        Schedule::parse("* * * * *", "UTC").unwrap()
    }

    #[test]
    fn missed_ticks_follow_the_policy() {
        let minute = |n: i64| 1_800_000_000 + 60 * n;
        let catch_up =
            |window: u64, max| Missed::CatchUp { window: Duration::from_secs(window), max };
        let of = |from, late, missed| {
            let (late, newest_alone) = if late == 0 { (600, true) } else { (late, false) };
            let on_time = OnTime { late, newest_alone };
            let plan = plan(&every_minute(), (minute(from), minute(10) + 5), on_time, missed);
            let place = |t: i64| (t - minute(0)) / 60;
            let ticks: Vec<_> = plan.ticks.iter().map(|(t, b)| (place(*t), *b)).collect();
            (ticks, plan.left_out.map(|(a, b)| (place(a), place(b))))
        };
        // Nothing was missed.
        assert_eq!(of(9, 60, Missed::Skip), (vec![(10, false)], None));
        assert_eq!(of(10, 60, Missed::RunLatest), (vec![], None));
        // Late is not missed.
        assert_eq!(of(7, 130, Missed::Skip), (vec![(8, false), (9, false), (10, false)], None));
        // Skip: what is on time, and nothing else.
        assert_eq!(of(3, 60, Missed::Skip), (vec![(10, false)], Some((4, 9))));
        assert_eq!(of(3, 1, Missed::Skip), (vec![], Some((4, 10))));
        // Zero: the newest alone is on time, however late.
        assert_eq!(of(3, 0, Missed::Skip), (vec![(10, false)], Some((4, 9))));
        assert_eq!(of(3, 0, Missed::RunLatest), (vec![(10, false)], Some((4, 9))));
        let two = vec![(8, true), (9, true), (10, false)];
        assert_eq!(of(3, 0, catch_up(3_600, 2)), (two, Some((4, 7))));
        // The latest, unless one is on time.
        assert_eq!(of(3, 1, Missed::RunLatest), (vec![(10, true)], Some((4, 9))));
        assert_eq!(of(3, 60, Missed::RunLatest), (vec![(10, false)], Some((4, 9))));
        // All in the window, the newest of them.
        let all = vec![(8, true), (9, true), (10, false)];
        assert_eq!(of(7, 60, catch_up(3_600, 10)), (all.clone(), None));
        assert_eq!(of(3, 60, catch_up(3_600, 2)), (all.clone(), Some((4, 7))));
        assert_eq!(of(3, 60, catch_up(170, 10)), (all, Some((4, 7))));
    }

    #[test]
    fn a_tick_that_was_due_during_a_run_follows_the_policy() {
        let run = |started, ended| Run {
            by: String::new(),
            started,
            ended,
            attempt: 1,
            token: 1,
            backfilled: false,
            end: End::Done,
        };
        let long = run(10_500, 13_500);
        let due: Vec<_> = (9..16).filter(|t| was_due_during(&long, *t)).collect();
        assert_eq!(due, [11, 12, 13]);
        let runs = |overlap| -> Vec<i64> {
            let runs = |t: &i64| runs_after(overlap, &long, Some(t - 1));
            due.iter().copied().filter(runs).collect()
        };
        assert_eq!(runs(Overlap::Skip), Vec::<i64>::new());
        assert_eq!(runs(Overlap::BufferOne), [11]);
        assert_eq!(runs(Overlap::Allow), [11, 12, 13]);
    }
}
