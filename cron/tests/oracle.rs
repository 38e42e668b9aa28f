//! What has to run, computed from the sentences about `Missed`, `Overlap`, `Interrupted` and
//! `Job::late` alone. One run at a time, and no time between two runs.

use std::collections::BTreeMap;

use palisade_cron::{Interrupted, Missed, Overlap};

/// Seconds between two ticks.
pub(crate) const EVERY: i64 = 600;
/// A cell in which a number is closer to a limit than this, in seconds, is left out. The rest of a
/// dead process's lease is not known better.
const CLOSE: i64 = 6;
/// Seconds after the outage for which the job is watched.
const WATCHED: i64 = 1_400;
/// Seconds from the end of the outage to the start of a second process.
pub(crate) const BESIDE: i64 = 47;
/// A second outage, in seconds from the end of the first.
const AGAIN: (i64, i64) = (917, 917 + 1_350);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The process stays up, and reaches no node during the outage.
    Stays,
    /// The process dies when the outage begins, and the next one starts at its end.
    Restarts,
    /// The process dies, and another one is there.
    Dies,
    /// As `Restarts`, and another one starts some time after the next one.
    StartsBeside,
    /// As `Restarts`, twice.
    RestartsTwice,
}

/// All times in seconds since the first tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) who: Who,
    pub(crate) missed: Missed,
    pub(crate) overlap: Overlap,
    pub(crate) interrupted: Interrupted,
    pub(crate) late: Option<i64>,
    pub(crate) outage: (i64, i64),
    pub(crate) run: i64,
}

impl Cell {
    pub(crate) fn second_outage(self) -> (i64, i64) {
        (self.outage.1 + AGAIN.0, self.outage.1 + AGAIN.1)
    }

    pub(crate) fn end(self) -> i64 {
        let twice = self.who == Who::RestartsTwice;
        WATCHED + if twice { self.second_outage().1 } else { self.outage.1 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) at: i64,
    pub(crate) attempt: u32,
    pub(crate) late: bool,
    pub(crate) from: i64,
    /// `i64::MAX` for a run that was interrupted.
    pub(crate) to: i64,
}

/// `close` is true if a number is too close to a limit to be judged.
struct Oracle {
    cell: Cell,
    ran: Vec<Ran>,
    /// The first tick that is not due yet.
    next: i64,
    waiting: Vec<i64>,
    /// Ticks that are missed and not run.
    left: Vec<i64>,
    /// A tick that has to be run again.
    interrupted: Option<i64>,
    chosen: Vec<i64>,
    close: bool,
}

impl Oracle {
    fn within(&mut self, value: i64, limit: i64) -> bool {
        self.close |= value > 0 && (value - limit).abs() <= CLOSE;
        value <= limit
    }

    /// "By default a tick is on time until the next tick is due, at most for a minute."
    fn is_on_time(&mut self, tick: i64, now: i64) -> bool {
        match self.cell.late {
            Some(late) => self.within(now - tick, late),
            None => self.within(now - tick, 60) && self.within(now - tick, EVERY),
        }
    }

    /// Whether an earlier run decides about the tick, and whether the tick is then run: "the first
    /// tick that is due during a run of the job is run after that run".
    fn during(&mut self, tick: i64) -> Option<bool> {
        let mut found = None;
        for run in self.ran.clone().into_iter().filter(|run| run.to < i64::MAX && run.at < tick) {
            let is_due = |tick: i64| run.from <= tick && tick < run.to;
            let ends = [run.from, run.to];
            self.close |= run.to > run.from && ends.iter().any(|end| (tick - end).abs() <= CLOSE);
            let first = if run.attempt > 1 {
                Some(run.at + EVERY).filter(|first| *first < run.to)
            } else {
                let after = run.from.div_euclid(EVERY) * EVERY + EVERY;
                Some(after).filter(|first| is_due(*first))
            };
            match self.cell.overlap {
                Overlap::BufferOne if first == Some(tick) => found = Some(true),
                _ if is_due(tick) => found = Some(false),
                _ => {}
            }
        }
        found
    }

    /// The ticks that began after this one: whether they were late.
    fn began_after(&mut self, tick: i64, now: i64) -> BTreeMap<i64, bool> {
        let mut began = BTreeMap::new();
        for run in self.ran.clone().into_iter().filter(|run| run.at > tick) {
            let is_late = match (run.to, self.cell.interrupted) {
                (i64::MAX, Interrupted::Leave) => true,
                // "One whose run has begun counts by its age."
                (to, _) if to > now => !self.is_on_time(run.at, now),
                _ => run.late || run.attempt > 1,
            };
            began.insert(run.at, is_late);
        }
        began
    }

    /// Whether the tick may have to be run after the one before it, whose run has begun.
    fn may_be_buffered(&self, tick: i64, now: i64) -> bool {
        let goes_on = |run: &Ran| run.at == tick - EVERY && run.to > now && run.to < i64::MAX;
        self.cell.overlap == Overlap::BufferOne
            && (self.interrupted == Some(tick - EVERY) || self.ran.iter().any(goes_on))
    }

    /// Which of the waiting ticks are missed, and which of these are run.
    fn decide(&mut self, now: i64) {
        let (mut is_one_on_time, mut undecided, mut kept) = (false, 0, Vec::new());
        self.chosen.clear();
        for tick in std::mem::take(&mut self.waiting).into_iter().rev() {
            if self.during(tick).is_some() {
                kept.push(tick);
                continue;
            }
            if self.may_be_buffered(tick, now) {
                undecided += usize::from(!self.is_on_time(tick, now));
                kept.push(tick);
                continue;
            }
            if self.is_on_time(tick, now) {
                is_one_on_time = true;
                kept.push(tick);
                continue;
            }
            let is_run = match self.cell.missed {
                // "The latest missed tick is run, unless a later tick is on time or has run."
                Missed::RunLatest => {
                    let is_latest = !is_one_on_time && self.chosen.is_empty();
                    is_latest && self.began_after(tick, now).is_empty()
                }
                // "Missed ticks that are at most `window` old are run in order, unless `max` later
                // ones are run, or were."
                Missed::CatchUp { window, max } => {
                    let window = window.as_secs().cast_signed();
                    let began = self.began_after(tick, now);
                    let late = undecided + began.values().filter(|late| **late).count();
                    self.chosen.len() + late < max && self.within(now - tick, window)
                }
                _ => false,
            };
            if is_run {
                self.chosen.push(tick);
                kept.push(tick);
            } else {
                self.left.push(tick);
            }
        }
        kept.reverse();
        self.waiting = kept;
    }

    fn run(&mut self, at: i64, late: bool, now: &mut i64) {
        let attempt = 1 + self.ran.iter().map(|run| u32::from(run.at == at)).sum::<u32>();
        let (from, to) = (*now, *now + self.cell.run);
        self.ran.push(Ran { at, attempt, late, from, to });
        *now = to;
    }

    /// Decides about the earliest waiting tick.
    fn turn(&mut self, tick: i64, now: &mut i64) {
        if let Some(is_run) = self.during(tick) {
            self.waiting.remove(0);
            if is_run {
                self.run(tick, false, now);
            }
            return;
        }
        if self.is_on_time(tick, *now) {
            self.waiting.remove(0);
            return self.run(tick, false, now);
        }
        if !self.chosen.contains(&tick) {
            self.decide(*now);
        }
        if self.waiting.first() != Some(&tick) {
            return;
        }
        self.waiting.remove(0);
        let is_young = match self.cell.missed {
            Missed::CatchUp { window, .. } => {
                self.within(*now - tick, window.as_secs().cast_signed())
            }
            _ => true,
        };
        if is_young {
            self.run(tick, true, now);
        } else {
            self.left.push(tick);
        }
    }

    fn add_due(&mut self, now: i64) {
        while self.next <= now {
            self.waiting.push(self.next);
            self.next += EVERY;
        }
    }

    /// A process starts, or reaches the nodes again.
    fn start(&mut self, now: i64) {
        self.add_due(now);
        self.waiting.append(&mut self.left);
        self.waiting.sort_unstable();
        self.decide(now);
    }

    /// A process starts beside another one, which keeps to what it has decided.
    fn start_beside(&mut self, now: i64) {
        self.close |= self.ran.iter().any(|r| r.to > r.from && is_at_end_of(r, now));
        self.add_due(now);
        let (waiting, chosen) = (self.waiting.clone(), self.chosen.clone());
        self.start(now);
        self.left.retain(|tick| !waiting.contains(tick));
        self.waiting.extend(waiting);
        self.chosen.extend(chosen);
        self.waiting.sort_unstable();
        self.waiting.dedup();
    }

    /// The process dies. A tick whose run is interrupted "is run again, and `Tick::attempt` is one
    /// higher", or "is not run again".
    fn die(&mut self, now: i64) {
        let Some(last) = self.ran.last_mut() else { return };
        self.close |= last.to > last.from && is_at_end_of(last, now);
        if last.to > now {
            last.to = i64::MAX;
            let is_left = self.cell.interrupted == Interrupted::Leave;
            self.interrupted = Some(last.at).filter(|_| !is_left);
        }
    }

    fn go_on(&mut self, now: &mut i64, until: i64) {
        while *now < until {
            self.add_due(*now);
            match (self.interrupted, self.waiting.first().copied()) {
                (Some(tick), first) if first.is_none_or(|first| tick < first) => {
                    self.interrupted = None;
                    self.run(tick, false, now);
                }
                (_, Some(tick)) => self.turn(tick, now),
                _ => *now = self.next.min(until),
            }
        }
    }

    fn of(cell: Cell) -> Option<Vec<Ran>> {
        let (waiting, left, chosen) = (Vec::new(), Vec::new(), Vec::new());
        let (ran, interrupted, close) = (Vec::new(), None, false);
        let mut one = Self { cell, ran, next: 0, waiting, left, interrupted, chosen, close };
        let mut now = 0;
        one.go_on(&mut now, cell.outage.0);
        one.die(cell.outage.0);
        now = cell.outage.1;
        one.start(now);
        match cell.who {
            Who::StartsBeside => {
                let start = now + BESIDE;
                one.go_on(&mut now, start);
                one.start_beside(start);
            }
            Who::RestartsTwice => {
                let (begins, ends) = cell.second_outage();
                one.go_on(&mut now, begins);
                one.die(begins);
                now = ends;
                one.start(now);
            }
            Who::Stays | Who::Restarts | Who::Dies => {}
        }
        one.go_on(&mut now, cell.end());
        (!one.close).then_some(one.ran)
    }
}

/// Returns the runs of a cell, in their order; `None` if it is too close.
pub(crate) fn runs(cell: Cell) -> Option<Vec<Ran>> {
    Oracle::of(cell)
}

fn is_at_end_of(run: &Ran, now: i64) -> bool {
    [run.from, run.to].iter().any(|end| (now - end).abs() <= CLOSE)
}
