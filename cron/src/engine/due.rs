//! The ticks that are due and not over: when each is checked, and which are left out because they
//! are missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::look_back::{LookedBack, Ticks};
use super::{AGAIN, CheckResult, Engine, is_ahead};
use crate::job::{Interrupted, Missed, Overlap};
use crate::locked;
use crate::missed::{
    Fate, LATE, LOOK_BACK, Ran, fate_of, fates, first_during, is_in_window, is_on_time, millis,
    millis_of, was_due_during, whole,
};
use crate::schedule::Schedule;
use crate::tick::{End, Run};

const HOLD_BACK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Of two, the last one decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DecidedBy {
    /// Its age (cron 4).
    #[default]
    Age,
    /// The record of an earlier run, during which it was due (cron 5).
    EarlierRun,
    /// Its own record: its run has begun (cron 11).
    OwnRun,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    pub(super) backfilled: bool,
    /// The tick is then the time of the operator's request.
    pub(super) requested: bool,
    pub(super) by: DecidedBy,
    pub(super) retried: bool,
    /// In milliseconds since 1970.
    check_at: u64,
}

impl Due {
    pub(super) fn requested(now: u64) -> Self {
        Self { requested: true, check_at: now, ..Self::default() }
    }
}

/// The key is the time of the tick in seconds since 1970, and true if an operator requested it.
pub(super) type DueTicks = BTreeMap<(i64, bool), Due>;

/// A missed tick waits for the missed ones before it.
fn in_turn(due: &DueTicks) -> impl Iterator<Item = (i64, Due)> + '_ {
    let first = due.iter().find(|(_, d)| d.backfilled).map(|(key, _)| *key);
    let in_turn = due.iter().filter(move |(key, d)| !d.backfilled || first == Some(**key));
    in_turn.map(|((tick, _), d)| (*tick, *d))
}

pub(super) fn ready(due: &DueTicks, now: u64) -> Option<(i64, Due)> {
    in_turn(due).find(|(_, d)| d.check_at <= now)
}

/// In milliseconds since 1970.
pub(super) fn next_check(due: &DueTicks) -> Option<u64> {
    in_turn(due).map(|(_, d)| d.check_at).min()
}

/// The first tick after an instant. The loop asks for it at least twice a second, and a search
/// through the days until a rare tick is long.
#[derive(Debug, Default)]
pub(super) struct NextTick(Option<(i64, i64)>);

impl NextTick {
    pub(super) fn after(&mut self, schedule: &Schedule, instant: i64) -> Option<i64> {
        let found = self.0.filter(|(from, tick)| (*from..*tick).contains(&instant));
        if found.is_none() {
            self.0 = schedule.after(instant).map(|tick| (instant, tick));
        }
        self.0.map(|(_, tick)| tick)
    }
}

/// Returns the ticks from the last one back to the first, at most as many as one look back reads.
pub(super) fn ticks_of(schedule: &Schedule, (first, last): (i64, i64)) -> Vec<i64> {
    let before = |tick: &i64| schedule.until(tick - 1);
    let ticks = std::iter::successors(schedule.until(last), before);
    ticks.take_while(|tick| *tick >= first).take(LOOK_BACK).collect()
}

impl<F> Engine<'_, F> {
    /// Looks again at the ticks that are on time by a clock that was set back. The records show
    /// which were run.
    pub(super) fn follow(&self, due: &mut DueTicks, seen: &mut i64) {
        let since = self.since();
        *seen = since.map_or(*seen, |since| since.max(*seen));
        if !is_ahead(self.cron, *seen) {
            return;
        }
        let now = self.cron.now();
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, before = *seen, now,
            "the clock went back; ticks that have run already are not run again"
        );
        // What ran by the time of before may be ahead, and supersedes nothing.
        *locked(&self.ran) = Ran::default();
        let on_time = now.saturating_sub(whole(self.job.latest().as_secs()));
        *seen = since.map_or(now, |since| since.max(on_time));
        for ((tick, requested), d) in due {
            // After a long jitter a requested run would be too late to begin.
            d.check_at = if *requested { millis(*tick) } else { self.first_check(*tick) };
        }
    }

    /// In milliseconds since 1970.
    fn first_check(&self, tick: i64) -> u64 {
        let leads = self.cron.lead.term.borrow().is_some();
        let ttl = self.cron.redlock.config().ttl;
        let hold_back = (ttl / 8).clamp(HOLD_BACK.0, HOLD_BACK.1);
        self.job.due(tick).saturating_add(if leads { 0 } else { millis_of(hold_back) })
    }

    pub(super) fn add_due(
        &self,
        due: &mut DueTicks,
        seen: &mut i64,
        next: &mut NextTick,
        now: u64,
    ) -> Vec<i64> {
        let to = whole(now / 1_000);
        let first = next.after(self.schedule, *seen).filter(|first| *first <= to);
        let Some(first) = first else { return Vec::new() };
        *seen = to;
        if self.schedule.after(first).is_some_and(|next| next <= to) {
            return self.ticks_of(self.schedule, (first, to));
        }
        self.add(due, first, DecidedBy::Age);
        Vec::new()
    }

    fn add(&self, due: &mut DueTicks, tick: i64, by: DecidedBy) {
        let check_at = self.first_check(tick);
        let d = due.entry((tick, false)).or_insert(Due { check_at, ..Due::default() });
        d.by = d.by.max(by);
    }

    /// From the last one back to the first, as far as their records are kept, and at most as many
    /// as one look back reads.
    pub(super) fn ticks_of(&self, schedule: &Schedule, (first, last): (i64, i64)) -> Vec<i64> {
        ticks_of(schedule, (first.max(self.kept()), last))
    }

    /// Returns the time since which records are kept, in seconds since 1970.
    pub(super) fn kept(&self) -> i64 {
        self.cron.now().saturating_sub(whole(self.job.retention.as_secs()))
    }

    pub(super) fn checked(
        &self,
        due: &mut DueTicks,
        (tick, mut d): (i64, Due),
        result: CheckResult,
    ) -> Vec<i64> {
        if !d.requested {
            locked(&self.checking).remove(&tick);
        }
        let is_answer = !matches!(result, CheckResult::Wait(_));
        let is_back = is_answer && self.waits.swap(false, Ordering::Relaxed);
        let is_judged = is_back || matches!(result, CheckResult::Judge { .. });
        let pause = match result {
            CheckResult::Over(run) if !d.requested => {
                match run {
                    Some(run) => self.has_run(due, (tick, &run), true),
                    None => locked(&self.ran).add(self.job.missed, tick, Fate::Late),
                }
                None
            }
            CheckResult::Over(_) => None,
            CheckResult::Again(pause) => Some(pause),
            CheckResult::Begun(pause) => {
                d.by = DecidedBy::OwnRun;
                Some(pause)
            }
            CheckResult::Retry(pause) => {
                (d.retried, d.by) = (true, DecidedBy::Age);
                Some(pause)
            }
            // When the nodes answer again, it is decided anew which missed ticks are run.
            CheckResult::Wait(pause) => {
                d.backfilled = false;
                Some(pause)
            }
            CheckResult::Judge { by } => {
                d.by = by;
                Some(AGAIN / 10)
            }
        };
        if let Some(pause) = pause {
            // If the clock was set back, the time could be before the tick is due.
            d.check_at = self.now().saturating_add(millis_of(pause)).max(millis(tick));
            due.insert((tick, d.requested), d);
        }
        if is_back {
            self.check_again(due);
        }
        if is_judged { self.judge(due) } else { Vec::new() }
    }

    fn check_again(&self, due: &mut DueTicks) {
        let now = self.now();
        for ((tick, _), d) in due.iter_mut().filter(|(_, d)| !d.retried && !d.requested) {
            d.check_at = d.check_at.min(now.max(self.job.due(*tick)));
        }
    }

    /// Decides about all ticks that wait and that no process has begun, as far as is known (cron
    /// 4). Removes and returns those that are missed and not run.
    fn judge(&self, due: &mut DueTicks) -> Vec<i64> {
        let now = self.now();
        let (mut absent, mut left, mut retried) = (Vec::new(), Vec::new(), Vec::new());
        let mut ran = locked(&self.ran).clone();
        let buffered = self.may_be_buffered(due);
        for ((tick, _), d) in due.iter().filter(|(_, d)| !d.requested) {
            let may_be_run = d.by == DecidedBy::Age && buffered.contains(tick);
            if d.by == DecidedBy::OwnRun || may_be_run || self.is_retried_in_time(*tick, *d, now) {
                let is_on_time = is_on_time(self.job, self.schedule, *tick, now);
                let fate = if is_on_time { Fate::OnTime } else { Fate::Late };
                ran.add(self.job.missed, *tick, fate);
            } else if d.by == DecidedBy::Age {
                absent.push(*tick);
            }
        }
        // Where runs may overlap, ticks that waited together are checked together.
        let checking = locked(&self.checking).clone();
        absent.extend(checking.into_iter().filter(|tick| !due.contains_key(&(*tick, false))));
        absent.sort_unstable();
        for (tick, fate) in fates(self.job, self.schedule, &absent, &ran, now) {
            let Some(d) = due.get_mut(&(tick, false)) else { continue };
            d.backfilled = fate == Fate::Late;
            match fate {
                Fate::OnTime => {}
                Fate::Late => d.check_at = d.check_at.min(now),
                Fate::Missed if d.retried => retried.push(tick),
                Fate::Missed => left.push(tick),
            }
        }
        for tick in left.iter().chain(&retried) {
            due.remove(&(*tick, false));
        }
        self.report_missed(&retried);
        left
    }

    fn may_be_buffered(&self, due: &DueTicks) -> BTreeSet<i64> {
        if self.job.overlap != Overlap::BufferOne {
            return BTreeSet::new();
        }
        let begun = due.iter().filter(|(_, d)| d.by != DecidedBy::Age && !d.requested);
        begun.filter_map(|((tick, _), _)| self.schedule.after(*tick)).collect()
    }

    /// A handler that asks for another run is asked again for at least a minute.
    fn is_retried_in_time(&self, tick: i64, d: Due, now: u64) -> bool {
        let span = self.job.latest().max(LATE);
        d.retried && now.saturating_sub(self.job.due(tick)) <= millis_of(span)
    }

    /// `None` if it is missed, unless [`judge`](Self::judge) decides otherwise.
    pub(super) fn is_late(&self, tick: i64, d: Due) -> Option<bool> {
        let now = self.now();
        if is_on_time(self.job, self.schedule, tick, now) {
            return Some(false);
        }
        let is_overtaken = self.job.missed == Missed::RunLatest && locked(&self.ran).is_after(tick);
        let is_run = d.backfilled && !is_overtaken && is_in_window(self.job, tick, now);
        (is_run || self.is_retried_in_time(tick, d, now)).then_some(d.backfilled)
    }

    fn has_run(&self, due: &mut DueTicks, (own, run): (i64, &Run), is_recent: bool) {
        if !matches!(run.end, End::Skipped(_)) {
            locked(&self.ran).add(self.job.missed, own, fate_of(run));
        }
        for ((tick, requested), d) in due.iter_mut() {
            if !requested && was_due_during(run, *tick) {
                d.by = d.by.max(DecidedBy::EarlierRun);
            }
        }
        if is_recent
            && self.job.overlap == Overlap::BufferOne
            && let Some(first) = first_during(self.schedule, own, run)
        {
            self.add(due, first, DecidedBy::EarlierRun);
        }
    }

    pub(super) fn found(&self, due: &mut DueTicks, found: LookedBack) -> Vec<i64> {
        let of = found.of;
        let ran = found.runs.iter().map(|(tick, _)| tick);
        let newest = ran.chain(&found.begun).chain(&found.lapsed).max().copied();
        // Its process decides about the ticks after it, if it lives.
        let runs_on = newest.is_some_and(|tick| found.begun.contains(&tick));
        let is_left = self.job.interrupted == Interrupted::Leave;
        let checking = locked(&self.checking).clone();
        for tick in found.begun.into_iter().filter(|tick| !checking.contains(tick)) {
            self.add(due, tick, DecidedBy::OwnRun);
        }
        // The check of a tick that is not run again says so.
        let (left, lapsed): (Vec<_>, Vec<_>) = found
            .lapsed
            .into_iter()
            .partition(|tick| is_left && of != Ticks::Missed && *tick <= self.began);
        for tick in lapsed {
            self.add(due, tick, DecidedBy::OwnRun);
        }
        for tick in left.iter().chain(&found.unclear) {
            locked(&self.ran).add(self.job.missed, *tick, Fate::Late);
        }
        self.report_left(&left);
        if of == Ticks::Missed {
            self.report_missed(&found.absent);
        }
        if of != Ticks::New {
            return found.unread;
        }
        for tick in found.absent.iter().chain(&found.unread) {
            self.add(due, *tick, DecidedBy::Age);
        }
        let recent = self.now().saturating_sub(millis_of(self.job.latest().max(LATE)));
        for (tick, run) in &found.runs {
            self.has_run(due, (*tick, run), run.ended >= recent);
        }
        let absent: BTreeSet<_> = found.absent.into_iter().collect();
        let (missed, rest): (Vec<_>, _) =
            self.judge(due).into_iter().partition(|tick| absent.contains(tick));
        let (missed, of_before): (Vec<_>, Vec<_>) =
            missed.into_iter().partition(|tick| *tick > self.began);
        self.report_missed(&missed);
        self.report_down(of_before.into_iter().filter(|tick| Some(*tick) > newest), runs_on);
        rest
    }

    /// Ticks of before the start of this process, and after the newest run. They are not counted,
    /// because each process that starts would count them.
    fn report_down(&self, ticks: impl Iterator<Item = i64>, runs_on: bool) {
        let ticks: Vec<_> = ticks.collect();
        let (Some(first), Some(last)) = (ticks.iter().min(), ticks.iter().max()) else { return };
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, first, last, ticks = ticks.len(), policy = ?self.job.missed,
            runs_on,
            "ticks of before this process began have no run, and are left out here; if an earlier \
             run goes on, its process decides about them"
        );
    }

    /// Logs the ticks that were interrupted before this process began to run the job.
    fn report_left(&self, ticks: &[i64]) {
        let Some(newest) = ticks.iter().max() else { return };
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, newest, ticks = ticks.len(), policy = ?self.job.interrupted,
            "ticks were interrupted and are left as they are"
        );
    }

    fn report_missed(&self, ticks: &[i64]) {
        let (Some(first), Some(last)) = (ticks.iter().min(), ticks.iter().max()) else { return };
        self.meters.missed(ticks.len() as u64);
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, first, last, ticks = ticks.len(), policy = ?self.job.missed,
            "ticks were missed and are left out"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_is_that_of_the_schedule_also_after_a_step_back() {
        let schedule = Schedule::parse("*/7 * * * *", "UTC").unwrap();
        let mut next = NextTick::default();
        let forth = (0..10_000).step_by(37);
        for instant in forth.chain((0..10_000).rev().step_by(113)) {
            let instant = 1_795_932_000 + instant;
            assert_eq!(next.after(&schedule, instant), schedule.after(instant), "{instant}");
        }
    }
}
