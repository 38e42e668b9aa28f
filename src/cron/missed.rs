//! Rules for ticks (the due times of a job): the ticks that are missed, the missed ticks that are
//! run later, and the ticks that overlap an earlier run. The functions are pure.

use std::time::Duration;

use super::job::{Job, Missed, Overlap};
use super::schedule::Schedule;
use super::tick::{End, Run};

/// Largest number of ticks in one [`Plan`], under any policy for missed ticks.
const BACKLOG: usize = 10_000;

/// The ticks (due times of a job) that have to be checked now, and the range of ticks that are not
/// run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Ticks in the order of time, in seconds since 1970. The flag is true for a missed tick that
    /// is run late because of the job's policy for missed ticks.
    pub(crate) ticks: Vec<(i64, bool)>,
    /// First and last tick of the range of ticks that are not run.
    pub(crate) left_out: Option<(i64, i64)>,
}

/// The conditions under which a tick (a due time of a job) is on time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnTime {
    /// Largest age of a tick that is on time, in seconds.
    pub(crate) late: i64,
    /// True if only the newest tick (due time of the job) is on time.
    pub(crate) newest_alone: bool,
}

/// Plans the ticks after `from` and up to `now`, in seconds since 1970. A tick that is not on time
/// is missed. The policy `missed` decides which missed ticks are run.
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
    // The newest tick up to `at` and all ticks before it are missed.
    let newest = schedule.until(at).filter(|tick| *tick > from);
    let (oldest, most) = match missed {
        Missed::Skip => (now, 0),
        // The latest missed tick is run, unless a tick is on time.
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

/// Returns true if a tick that was planned as on time is missed at `now` (in milliseconds since
/// 1970), because it is too late or because a later tick is due. `tried` is true if a run of the
/// tick began or the tick waited for an earlier run. Such a tick is not missed because of a later
/// tick.
pub(crate) fn is_missed(
    (job, schedule): (&Job, &Schedule),
    (tick, tried): (i64, bool),
    now: u64,
) -> bool {
    let of = |span: Duration| span.as_millis() as u64;
    let too_late = now.saturating_sub(millis(tick)) > of(job.latest());
    let follows = |next: i64| millis(next) + of(job.jitter) <= now;
    let is_newest_alone = job.late.is_none() && !tried;
    let superseded = || is_newest_alone && schedule.after(tick).is_some_and(follows);
    match job.missed {
        Missed::Skip => too_late || superseded(),
        Missed::RunLatest => superseded(),
        Missed::CatchUp { .. } => false,
    }
}

/// Returns true if a tick that was due during `run` is run after the end of `run`. `before` is the
/// previous tick of the schedule.
pub(crate) fn runs_after(overlap: Overlap, run: &Run, before: Option<i64>) -> bool {
    match overlap {
        Overlap::Skip => false,
        // Only the first tick that was due during `run` is run after the end of `run`.
        Overlap::BufferOne => before.is_none_or(|tick| millis(tick) < run.started),
        Overlap::Allow | Overlap::CancelPrevious => true,
    }
}

/// Converts a tick to milliseconds since 1970, the unit of the records of runs.
pub(crate) fn millis(tick: i64) -> u64 {
    tick.unsigned_abs() * 1_000
}

/// Returns true if the tick was due during this run. Returns false if `run` is the record of a
/// skipped tick.
pub(crate) fn was_due_during(run: &Run, tick: i64) -> bool {
    let due = millis(tick);
    !matches!(run.end, End::Skipped(_)) && run.started <= due && due < run.ended
}

#[cfg(test)]
mod tests {
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
        // Here no tick was missed: the policy has nothing to do.
        assert_eq!(of(9, 60, Missed::Skip), (vec![(10, false)], None));
        assert_eq!(of(10, 60, Missed::RunLatest), (vec![], None));
        // A tick with a delay of less than `late` is not missed.
        assert_eq!(of(7, 130, Missed::Skip), (vec![(8, false), (9, false), (10, false)], None));
        // Skip: no missed tick is run, only the ticks that are not later than `late`.
        assert_eq!(of(3, 60, Missed::Skip), (vec![(10, false)], Some((4, 9))));
        assert_eq!(of(3, 1, Missed::Skip), (vec![], Some((4, 10))));
        // A `late` of 0 means a job without the setting [`Job::late`]: only the newest tick is on
        // time, with any delay.
        assert_eq!(of(3, 0, Missed::Skip), (vec![(10, false)], Some((4, 9))));
        assert_eq!(of(3, 0, Missed::RunLatest), (vec![(10, false)], Some((4, 9))));
        let two = vec![(8, true), (9, true), (10, false)];
        assert_eq!(of(3, 0, catch_up(3_600, 2)), (two, Some((4, 7))));
        // RunLatest: the latest tick is run, unless a tick is on time.
        assert_eq!(of(3, 1, Missed::RunLatest), (vec![(10, true)], Some((4, 9))));
        assert_eq!(of(3, 60, Missed::RunLatest), (vec![(10, false)], Some((4, 9))));
        // CatchUp: the ticks in the window are run, at most the latest `max`.
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
            requested: false,
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
