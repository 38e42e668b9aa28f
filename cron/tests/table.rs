//! Each policy for missed and overlapping ticks, in processes that stay up, that restart once and
//! twice, that die beside others and that start beside others. The outages and the runs have many
//! lengths.

use std::time::{Duration, UNIX_EPOCH};

use palisade::Failed;
use palisade_cron::{Interrupted, Job, Missed, Overlap, Tick};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::sleep;

use crate::oracle::{self, BESIDE, Cell, EVERY, Who};
use crate::world::{Process, World};

/// The longer the leases, the fewer renewals a test of hours has to compute.
const TTL: Duration = Duration::from_secs(20);
/// Seconds after a death at which another process may first find a run interrupted: the lease is
/// renewed each quarter of the ttl.
const LAPSE: i64 = 15;
/// Seconds that the scheduler has for one decision, over all of them in a cell.
const DRIFT: i64 = 12;
/// Cells that a test runs, out of hundreds.
const DRAWN: usize = 2;

fn seconds(world: &World) -> i64 {
    world.now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

fn start(world: &World, cell: Cell) -> Process {
    let job = Job::new("job", "*/10 * * * *").missed(cell.missed).overlap(cell.overlap);
    let job = job.interrupted(cell.interrupted);
    let span = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let job = if let Some(late) = cell.late { job.late(span(late)) } else { job };
    let run = span(cell.run);
    world.process_with(job, move |_: Tick| async move {
        sleep(run).await;
        Ok::<_, Failed>(())
    })
}

/// Returns what ran in this cell: tick, attempt, whether it was caught up, and when it began.
async fn ran(cell: Cell) -> Vec<(i64, u32, bool, i64)> {
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
        Who::Restarts | Who::StartsBeside | Who::RestartsTwice => all.clear(),
        Who::Dies => {
            let by = world.runs().last().map_or(0, |run| run.by);
            drop(all.remove(by as usize));
        }
    }
    until(first + ends).await;
    match cell.who {
        Who::Stays => world.cut(false),
        Who::Restarts | Who::StartsBeside | Who::RestartsTwice => all.push(start(&world, cell)),
        Who::Dies => {}
    }
    if cell.who == Who::StartsBeside {
        until(first + ends + BESIDE).await;
        all.push(start(&world, cell));
    } else if cell.who == Who::RestartsTwice {
        let (begins, ends) = cell.second_outage();
        until(first + begins).await;
        all.clear();
        until(first + ends).await;
        all.push(start(&world, cell));
    }
    until(first + cell.end()).await;
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
                        for interrupted in [Interrupted::Rerun, Interrupted::Leave] {
                            let outage = (begins, begins + length);
                            cells.push(Cell {
                                who,
                                missed,
                                overlap,
                                interrupted,
                                late,
                                outage,
                                run,
                            });
                        }
                    }
                }
            }
        }
    }
    cells.shuffle(&mut StdRng::seed_from_u64(seed));
    cells
}

/// Runs `DRAWN` cells, or as many as `PALISADE_CELLS` says. `PALISADE_SEED` draws others.
async fn table(who: Who, overlap: Overlap) {
    let seed = std::env::var("PALISADE_SEED")
        .map_or(7, |seed| seed.parse().expect("PALISADE_SEED is a number"));
    let drawn = match std::env::var("PALISADE_CELLS").as_deref() {
        Ok("all") => usize::MAX,
        Ok(other) => other.parse().expect("PALISADE_CELLS is `all` or a number"),
        Err(_) => DRAWN,
    };
    let all = shuffled(who, overlap, seed);
    let judge = |cell: &Cell| Some((*cell, oracle::runs(*cell)?));
    let mut judged: Vec<_> = all.iter().filter_map(judge).collect();
    let close = all.len() - judged.len();
    // A tick that stops being on time while two processes wait for the lock (cron 4).
    let is_open = |cell: &Cell| cell.late.is_some() && cell.run > 0;
    judged.retain(|(cell, _)| who != Who::StartsBeside || !is_open(cell));
    // Without an interrupted run, the policy for it makes no difference.
    judged.retain(|(cell, ran)| {
        cell.interrupted == Interrupted::Rerun || ran.iter().any(|run| run.to == i64::MAX)
    });
    assert!(judged.len() > 2 * close, "{} of {}", judged.len(), all.len());

    let (mut cells, mut wrong) = (0, Vec::new());
    for (cell, mut expected) in judged.into_iter().take(drawn) {
        cells += 1;
        let end = cell.end();
        let mut ran = ran(cell).await;
        // What begins in the last moments may be seen or not.
        expected.retain(|run| run.from < end - DRIFT);
        ran.retain(|run| run.3 < end - DRIFT);
        // Which of several processes runs a missed tick first is open.
        let any_order = who == Who::StartsBeside;
        let as_ran = ran.clone();
        if any_order {
            ran.sort_unstable();
            expected.sort_unstable_by_key(|run| (run.at, run.attempt));
        }
        let is_same = ran.len() == expected.len()
            && ran.iter().zip(&expected).all(|(a, b)| {
                (a.0, a.1, a.2) == (b.at, b.attempt, b.late)
                    && (any_order || (b.from - 1..b.from + DRIFT).contains(&a.3))
            });
        if !is_same {
            wrong.push(format!("{cell:?}\n  ran {as_ran:?}\n  not {expected:?}"));
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

#[tokio::test(start_paused = true)]
async fn processes_that_start_beside_each_other_run_what_their_policies_say() {
    table(Who::StartsBeside, Overlap::Skip).await;
}

#[tokio::test(start_paused = true)]
async fn processes_that_start_beside_each_other_run_the_buffered_tick() {
    table(Who::StartsBeside, Overlap::BufferOne).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarts_twice_runs_what_its_policies_say() {
    table(Who::RestartsTwice, Overlap::Skip).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_restarts_twice_runs_the_buffered_tick() {
    table(Who::RestartsTwice, Overlap::BufferOne).await;
}
