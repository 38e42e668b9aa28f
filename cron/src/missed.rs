//! Rules for ticks that no process has begun: which are on time, which are missed, and which missed
//! ones are run late. And for ticks that were due during an earlier run. The functions are pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::{Job, Missed};
use super::schedule::Schedule;
use super::tick::{End, Run};

pub(crate) const LATE: Duration = Duration::from_secs(60);
pub(crate) const LOOK_BACK: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    OnTime,
    Late,
    Missed,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ran(BTreeMap<i64, Fate>);

impl Ran {
    pub(crate) fn add(&mut self, missed: Missed, tick: i64, fate: Fate) {
        let kept = match (missed, fate) {
            (Missed::RunLatest, _) => 1,
            (Missed::CatchUp { max, .. }, Fate::Late) => max.min(LOOK_BACK),
            _ => return,
        };
        self.0.insert(tick, fate);
        while self.0.len() > kept {
            self.0.pop_first();
        }
    }

    pub(crate) fn is_after(&self, tick: i64) -> bool {
        self.0.last_key_value().is_some_and(|(last, _)| *last > tick)
    }
}

/// If the run began again after an interruption, its record does not say how it first began.
pub(crate) fn fate_of(run: &Run) -> Fate {
    if run.backfilled || run.attempt > 1 { Fate::Late } else { Fate::OnTime }
}

#[derive(Clone, Copy, Debug, Default)]
struct Later {
    is_one_on_time: bool,
    late: usize,
}

impl Later {
    fn add(&mut self, fate: Fate) {
        self.is_one_on_time |= fate == Fate::OnTime;
        self.late += usize::from(fate == Fate::Late);
    }
}

/// Decides about ticks that no process has begun (cron 4), from the last one back to the first.
/// `absent` is in the order of time; `now` is in milliseconds since 1970.
pub(crate) fn fates(
    job: &Job,
    schedule: &Schedule,
    absent: &[i64],
    ran: &Ran,
    now: u64,
) -> Vec<(i64, Fate)> {
    let (mut later, mut fates) = (Later::default(), Vec::new());
    let mut ran = ran.0.iter().rev().peekable();
    for tick in absent.iter().rev() {
        while let Some((_, fate)) = ran.next_if(|(at, _)| *at > tick) {
            later.add(*fate);
        }
        let fate = fate(job, schedule, *tick, later, now);
        // A tick that its jitter delays is not due, and supersedes none.
        if job.due(*tick) <= now {
            later.add(fate);
        }
        fates.push((*tick, fate));
    }
    fates
}

fn fate(job: &Job, schedule: &Schedule, tick: i64, later: Later, now: u64) -> Fate {
    if is_on_time(job, schedule, tick, now) {
        return Fate::OnTime;
    }
    let is_run = match job.missed {
        Missed::Skip => false,
        Missed::RunLatest => !later.is_one_on_time && later.late == 0,
        Missed::CatchUp { max, .. } => later.late < max && is_in_window(job, tick, now),
    };
    if is_run { Fate::Late } else { Fate::Missed }
}

/// By default, until the next one is due, at most for a minute.
pub(crate) fn is_on_time(job: &Job, schedule: &Schedule, tick: i64, now: u64) -> bool {
    let is_due = |next: i64| job.due(next) <= now;
    let is_newest = || schedule.after(tick).is_none_or(|next| !is_due(next));
    now.saturating_sub(job.due(tick)) <= millis_of(job.latest())
        && (job.late.is_some() || is_newest())
}

pub(crate) fn is_in_window(job: &Job, tick: i64, now: u64) -> bool {
    match job.missed {
        Missed::CatchUp { window, .. } => now.saturating_sub(job.due(tick)) <= millis_of(window),
        Missed::Skip | Missed::RunLatest => true,
    }
}

/// (cron 5).
pub(crate) fn first_during(schedule: &Schedule, own: i64, run: &Run) -> Option<i64> {
    if matches!(run.end, End::Skipped(_)) {
        return None;
    }
    // Of a run that was interrupted and begun again, the record has the last beginning only.
    let began = if run.attempt > 1 { millis(own) } else { run.started };
    let first = schedule.after(whole(began.div_ceil(1_000)) - 1)?;
    let first = if first == own { schedule.after(own)? } else { first };
    (millis(first) < run.ended).then_some(first)
}

pub(crate) fn was_due_during(run: &Run, tick: i64) -> bool {
    let due = millis(tick);
    !matches!(run.end, End::Skipped(_)) && run.started <= due && due < run.ended
}

pub(crate) fn millis(tick: i64) -> u64 {
    tick.unsigned_abs().saturating_mul(1_000)
}

pub(crate) fn millis_of(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn whole(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
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
        let seconds = Duration::from_secs;
        let catch_up = |window, max| Missed::CatchUp { window: seconds(window), max };
        // Five seconds after the tenth of ten ticks that wait: which ones are run, and which of
        // these are late.
        let of = |first, late: Option<u64>, missed| -> Vec<(i64, bool)> {
            let job = Job::new("job", "* * * * *").missed(missed);
            let job = if let Some(late) = late { job.late(seconds(late)) } else { job };
            let now = millis(minute(10) + 5);
            let absent: Vec<_> = (first..=10).map(minute).collect();
            let fates = fates(&job, &every_minute(), &absent, &Ran::default(), now);
            let run = fates.into_iter().rev().filter(|(_, fate)| *fate != Fate::Missed);
            run.map(|(tick, fate)| ((tick - minute(0)) / 60, fate == Fate::Late)).collect()
        };
        // Here no tick was missed: the policy has nothing to do.
        assert_eq!(of(10, Some(60), Missed::Skip), [(10, false)]);
        // A tick with a delay of less than `late` is not missed.
        assert_eq!(of(8, Some(130), Missed::Skip), [(8, false), (9, false), (10, false)]);
        // Skip: no missed tick is run, only the ticks that are not later than `late`.
        assert_eq!(of(4, Some(60), Missed::Skip), [(10, false)]);
        assert!(of(4, Some(1), Missed::Skip).is_empty());
        // Without the setting [`Job::late`] only the newest tick is on time.
        assert_eq!(of(4, None, Missed::Skip), [(10, false)]);
        assert_eq!(of(4, None, Missed::RunLatest), [(10, false)]);
        assert_eq!(of(4, None, catch_up(3_600, 2)), [(8, true), (9, true), (10, false)]);
        // RunLatest: the latest tick is run, unless a tick is on time.
        assert_eq!(of(4, Some(1), Missed::RunLatest), [(10, true)]);
        assert_eq!(of(4, Some(60), Missed::RunLatest), [(10, false)]);
        // CatchUp: the ticks in the window are run, at most the latest `max`.
        let all = [(8, true), (9, true), (10, false)];
        assert_eq!(of(8, Some(60), catch_up(3_600, 10)), all);
        assert_eq!(of(4, Some(60), catch_up(3_600, 2)), all);
        assert_eq!(of(4, Some(60), catch_up(170, 10)), all);
    }

    #[test]
    fn ticks_that_have_run_decide_about_earlier_ones() {
        use Fate::{Late, OnTime};
        let minute = |n: i64| 1_800_000_000 + 60 * n;
        // Five seconds after the last of ten ticks, which are late after one second: which of those
        // that have not run are run.
        let of = |missed, had: &[(i64, Fate)]| -> Vec<i64> {
            let job = Job::new("job", "* * * * *").missed(missed).late(Duration::from_secs(1));
            let mut ran = Ran::default();
            for (n, fate) in had {
                ran.add(missed, minute(*n), *fate);
            }
            let absent = (1..=10).filter(|n| had.iter().all(|(had, _)| had != n)).map(minute);
            let absent: Vec<_> = absent.collect();
            let now = millis(minute(10) + 5);
            let fates = fates(&job, &every_minute(), &absent, &ran, now);
            let run = fates.into_iter().rev().filter(|(_, fate)| *fate == Late);
            run.map(|(tick, _)| (tick - minute(0)) / 60).collect()
        };
        let latest = Missed::RunLatest;
        for fate in [Late, OnTime] {
            assert!(of(latest, &[(10, fate)]).is_empty());
            assert!(of(latest, &[(10, fate), (3, Late)]).is_empty());
            assert_eq!(of(latest, &[(9, fate)]), [10]);
        }
        let three = Missed::CatchUp { window: Duration::from_secs(3_600), max: 3 };
        assert!(of(three, &[(10, Late), (9, Late), (8, Late)]).is_empty());
        assert_eq!(of(three, &[(9, Late), (2, Late)]), [8, 10]);
        assert_eq!(of(three, &[(10, OnTime), (9, Late)]), [7, 8]);
        assert_eq!(of(three, &[(1, Late), (2, Late), (3, Late), (4, Late)]), [8, 9, 10]);
        assert!(of(Missed::Skip, &[(10, OnTime)]).is_empty());
    }

    #[test]
    fn the_delay_of_a_tick_counts_from_the_end_of_its_jitter() {
        let (jitter, late) = (Duration::from_secs(50), Duration::from_secs(1));
        let job = Job::new("job", "* * * * *").jitter(jitter).late(late);
        let tick = (0..1_000).map(|n| 1_800_000_000 + 60 * n).find(|t| job.jitter_of(*t) > 30_000);
        let tick = tick.unwrap();
        let fate =
            |after: u64| fate(&job, &every_minute(), tick, Later::default(), job.due(tick) + after);
        assert_eq!((fate(900), fate(1_100)), (Fate::OnTime, Fate::Missed));
    }

    #[test]
    fn the_first_tick_that_was_due_during_a_run_is_found() {
        let seconds = Schedule::parse("* * * * * *", "UTC").unwrap();
        let run = |attempt, started, ended| Run {
            by: String::new(),
            started,
            ended,
            attempt,
            token: 1,
            backfilled: false,
            requested: false,
            end: End::Done,
        };
        let during = |own, run: &Run| -> (Vec<i64>, Option<i64>) {
            let due = (9..16).filter(|t| was_due_during(run, *t)).collect();
            (due, first_during(&seconds, own, run))
        };
        assert_eq!(during(10, &run(1, 10_500, 13_500)), (vec![11, 12, 13], Some(11)));
        // It began in the millisecond in which its own tick was due.
        assert_eq!(during(10, &run(1, 10_000, 13_500)).1, Some(11));
        assert_eq!(during(10, &run(1, 10_000, 11_000)).1, None);
        // It began late, and in the millisecond in which a later tick was due.
        assert_eq!(during(10, &run(1, 12_000, 13_500)), (vec![12, 13], Some(12)));
        // Its first beginning, before the interruption, was at its tick.
        assert_eq!(during(10, &run(2, 12_500, 13_500)), (vec![13], Some(11)));
    }
}
