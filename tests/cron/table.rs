//! Each policy for missed and overlapping ticks, in processes that stay up, that restart, and that
//! die beside others, over outages and runs of many lengths. What has to run is computed here, from
//! the sentences about `Missed`, `Overlap`, `Interrupted` and `Job::late`.

use std::time::{Duration, UNIX_EPOCH};

use palisade::Failed;
use palisade::cron::{Job, Missed, Overlap, Tick};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::sleep;

use crate::world::{Process, World};

/// Seconds between two ticks.
const EVERY: i64 = 600;
/// The longer the leases, the fewer renewals a test of hours has to compute.
const TTL: Duration = Duration::from_secs(20);
/// Seconds after a death at which another process may first find a run interrupted: the lease is
/// renewed each quarter of the ttl.
const LAPSE: i64 = 15;
/// A cell in which a number is closer to a limit than this, in seconds, is left out. The rest of a
/// dead process's lease is not known better.
const CLOSE: i64 = 6;
/// Seconds that the scheduler has for one decision, over all of them in a cell.
const DRIFT: i64 = 12;
/// Seconds after the outage for which the job is watched.
const WATCHED: i64 = 1_400;
/// Cells that a test runs, out of hundreds.
const DRAWN: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The process stays up, and reaches no node during the outage.
    Stays,
    /// The process dies when the outage begins, and the next one starts at its end.
    Restarts,
    /// The process dies, and another one is there.
    Dies,
}

/// All times in seconds since the first tick.
#[derive(Clone, Copy, Debug)]
struct Cell {
    who: Who,
    missed: Missed,
    overlap: Overlap,
    late: Option<i64>,
    outage: (i64, i64),
    run: i64,
}

#[derive(Clone, Copy, Debug)]
struct Ran {
    at: i64,
    attempt: u32,
    late: bool,
    from: i64,
    to: i64,
}

/// What the sentences say. `close` is true if a number is too close to a limit to be judged.
struct Oracle {
    cell: Cell,
    ran: Vec<Ran>,
    waiting: Vec<i64>,
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

    /// Which of the waiting ticks are missed, and which of these are run.
    fn decide(&mut self, now: i64) {
        let (mut is_one_on_time, mut left) = (false, Vec::new());
        self.chosen.clear();
        for tick in self.waiting.clone().into_iter().rev() {
            let may_be_buffered =
                self.cell.overlap == Overlap::BufferOne && self.interrupted == Some(tick - EVERY);
            if may_be_buffered || self.during(tick).is_some() {
                left.push(tick);
            } else if self.is_on_time(tick, now) {
                is_one_on_time = true;
                left.push(tick);
            } else {
                let is_run = match self.cell.missed {
                    // "The latest missed tick is run, unless a later tick is on time."
                    Missed::RunLatest => !is_one_on_time && self.chosen.is_empty(),
                    // "Missed ticks that are at most `window` old are run in order. If there are
                    // more than `max`, only the latest `max` ticks are run."
                    Missed::CatchUp { window, max } => {
                        let window = window.as_secs().cast_signed();
                        self.chosen.len() < max && self.within(now - tick, window)
                    }
                    _ => false,
                };
                if is_run {
                    self.chosen.push(tick);
                    left.push(tick);
                }
            }
        }
        left.reverse();
        self.waiting = left;
    }

    fn run(&mut self, at: i64, (attempt, late): (u32, bool), now: &mut i64) {
        let (from, to) = (*now, *now + self.cell.run);
        self.ran.push(Ran { at, attempt, late, from, to });
        *now = to;
    }

    /// Decides about the earliest waiting tick.
    fn turn(&mut self, tick: i64, now: &mut i64) {
        if let Some(is_run) = self.during(tick) {
            self.waiting.remove(0);
            if is_run {
                self.run(tick, (1, false), now);
            }
            return;
        }
        if self.is_on_time(tick, *now) {
            self.waiting.remove(0);
            return self.run(tick, (1, false), now);
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
            self.run(tick, (1, true), now);
        }
    }

    /// Returns the runs that begin before `end`, in their order; `None` if it is too close.
    fn of(cell: Cell, end: i64) -> Option<Vec<Ran>> {
        let (waiting, chosen) = (Vec::new(), Vec::new());
        let mut one =
            Self { cell, ran: Vec::new(), waiting, interrupted: None, chosen, close: false };
        let (begins, ends) = cell.outage;
        let (mut next, mut free) = (0, i64::MIN);
        while next < begins {
            if free > next {
                one.waiting.push(next);
            } else {
                free = next + cell.run;
                let to = if free > begins { i64::MAX } else { free };
                one.interrupted = (free > begins).then_some(next);
                one.ran.push(Ran { at: next, attempt: 1, late: false, from: next, to });
            }
            next += EVERY;
        }
        let mut now = ends;
        let mut is_decided = false;
        while now < end {
            while next <= now {
                one.waiting.push(next);
                next += EVERY;
            }
            if !std::mem::replace(&mut is_decided, true) {
                one.decide(now);
            }
            let first = one.waiting.first().copied();
            match (one.interrupted, first) {
                // "The tick is run again, and `Tick::attempt` is one higher."
                (Some(tick), first) if first.is_none_or(|first| tick < first) => {
                    one.interrupted = None;
                    one.run(tick, (2, false), &mut now);
                }
                (_, Some(tick)) => one.turn(tick, &mut now),
                _ => now = next,
            }
        }
        (!one.close).then_some(one.ran)
    }
}

fn seconds(world: &World) -> i64 {
    world.now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

fn start(world: &World, cell: Cell) -> Process {
    let job = Job::new("job", "*/10 * * * *").missed(cell.missed).overlap(cell.overlap);
    let span = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let job = if let Some(late) = cell.late { job.late(span(late)) } else { job };
    let run = span(cell.run);
    world.process_with(job, move |_: Tick| async move {
        sleep(run).await;
        Ok::<_, Failed>(())
    })
}

/// Returns what ran in this cell: tick, attempt, whether it was caught up, and when it began.
async fn ran(cell: Cell, end: i64) -> Vec<(i64, u32, bool, i64)> {
    let world = World::with_ttl(TTL);
    let (begins, ends) = cell.outage;
    let until = async |at: i64| {
        let now = world.now().duration_since(UNIX_EPOCH).unwrap();
        sleep(Duration::from_secs(at.unsigned_abs()).saturating_sub(now)).await;
    };
    let first = (seconds(&world) / EVERY + 2) * EVERY;
    until(first - 60).await;
    let mut all = vec![start(&world, cell)];
    if cell.who == Who::Dies {
        all.push(start(&world, cell));
    }
    until(first + begins).await;
    match cell.who {
        Who::Stays => world.cut(true),
        Who::Restarts => all.clear(),
        Who::Dies => {
            let by = world.runs().last().map_or(0, |run| run.by);
            drop(all.remove(by as usize));
        }
    }
    until(first + ends).await;
    match cell.who {
        Who::Stays => world.cut(false),
        Who::Restarts => all.push(start(&world, cell)),
        Who::Dies => {}
    }
    until(first + end).await;
    drop(all);
    let began = |run: &crate::world::Run| run.began.cast_signed() / 1_000 - first;
    world.runs().iter().map(|r| (r.at - first, r.attempt, r.backfilled, began(r))).collect()
}

/// Returns all cells of the table, in an order that depends on the seed alone.
fn shuffled(who: Who, overlap: Overlap, seed: u64) -> Vec<Cell> {
    let span = Duration::from_secs;
    let missed = [
        Missed::Skip,
        Missed::RunLatest,
        Missed::CatchUp { window: span(2_020), max: 2 },
        Missed::CatchUp { window: span(6_050), max: 100 },
    ];
    // Each outage is longer than the ttl, and a run that it meets longer than what is left of it.
    let lengths: &[i64] = if who == Who::Dies { &[LAPSE] } else { &[27, 250, 1_570, 4_930] };
    let mut cells = Vec::new();
    for missed in missed {
        for late in [None, Some(1), Some(130), Some(1_300)] {
            for begins in [-40, 20, 90, 640] {
                for run in [0, 117, 730] {
                    for length in lengths {
                        let outage = (begins, begins + length);
                        cells.push(Cell { who, missed, overlap, late, outage, run });
                    }
                }
            }
        }
    }
    cells.shuffle(&mut StdRng::seed_from_u64(seed));
    cells
}

/// Runs `DRAWN` cells, or all of them with `PALISADE_CELLS=all`. `PALISADE_SEED` repeats a draw.
async fn table(who: Who, overlap: Overlap) {
    let seed = std::env::var("PALISADE_SEED").map_or_else(
        |_| u64::from(rand::random::<u32>()),
        |seed| seed.parse().expect("PALISADE_SEED is a number"),
    );
    let drawn = match std::env::var("PALISADE_CELLS").as_deref() {
        Ok("all") => usize::MAX,
        Ok(other) => panic!("PALISADE_CELLS is `all` or not set: {other}"),
        Err(_) => DRAWN,
    };
    let all = shuffled(who, overlap, seed);
    let judge = |cell: &Cell| Some((*cell, Oracle::of(*cell, cell.outage.1 + WATCHED)?));
    let judged: Vec<_> = all.iter().filter_map(judge).collect();
    let close = all.len() - judged.len();
    assert!(judged.len() > 3 * close, "{} of {}", judged.len(), all.len());

    let (mut cells, mut wrong) = (0, Vec::new());
    for (cell, mut expected) in judged.into_iter().take(drawn) {
        cells += 1;
        let end = cell.outage.1 + WATCHED;
        let mut ran = ran(cell, end).await;
        // What begins in the last moments may be seen or not.
        expected.retain(|run| run.from < end - DRIFT);
        ran.retain(|run| run.3 < end - DRIFT);
        let is_same = ran.len() == expected.len()
            && ran.iter().zip(&expected).all(|(a, b)| {
                (a.0, a.1, a.2) == (b.at, b.attempt, b.late)
                    && (b.from - 1..b.from + DRIFT).contains(&a.3)
            });
        if !is_same {
            wrong.push(format!("{cell:?}\n  ran {ran:?}\n  not {expected:?}"));
        }
    }
    let text =
        format!("{who:?} {overlap:?}, PALISADE_SEED={seed}: {} wrong of {cells}", wrong.len());
    println!("{text}, {close} of {} are too close", all.len());
    assert!(wrong.is_empty(), "{text}, the first: {}", wrong[0]);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stays_up_runs_what_its_policies_say() {
    table(Who::Stays, Overlap::Skip).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarts_runs_what_its_policies_say() {
    table(Who::Restarts, Overlap::Skip).await;
}

#[tokio::test(start_paused = true)]
async fn the_process_beside_one_that_died_runs_what_its_policies_say() {
    table(Who::Dies, Overlap::Skip).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stays_up_runs_the_buffered_tick() {
    table(Who::Stays, Overlap::BufferOne).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarts_runs_the_buffered_tick() {
    table(Who::Restarts, Overlap::BufferOne).await;
}

#[tokio::test(start_paused = true)]
async fn the_process_beside_one_that_died_runs_the_buffered_tick() {
    table(Who::Dies, Overlap::BufferOne).await;
}
