//! Tests of the policies of cron jobs for ticks (due times) that are missed, for ticks that
//! overlap, and for runs that take too long.

use std::collections::BTreeSet;
use std::time::Duration;

use palisade::Failed;
use palisade_cron::{Cancelled, End, Job, Missed, Overlap, Skipped, Tick, TickReport, TickState};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::logs::Log;
use crate::world::{Process, World, at, every_second};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn ends(report: &[TickReport]) -> Vec<Option<End>> {
    let end = |r: &TickReport| match &r.state {
        TickState::Over(run) => Some(run.end.clone()),
        _ => None,
    };
    report.iter().rev().map(end).collect()
}

#[tokio::test(start_paused = true)]
async fn missed_ticks_are_skipped_or_caught_up_as_the_job_says() {
    let all = Missed::CatchUp { window: Duration::from_secs(3_600), max: 100 };
    let three = Missed::CatchUp { window: Duration::from_secs(3_600), max: 3 };
    let window = Missed::CatchUp { window: 5 * MINUTE, max: 100 };
    for (policy, caught_up) in
        [(Missed::Skip, 0), (Missed::RunLatest, 0), (all, 8), (three, 3), (window, 4)]
    {
        let world = World::new();
        let job = || Job::new("job", "* * * * *").missed(policy);
        // The test begins shortly after a full minute, so that the times of the ticks are known.
        let into = world.now().duration_since(at(0)).unwrap().as_secs() % 60;
        sleep(SECOND * (65 - into as u32)).await;
        let first = world.process(job());
        world.sleep(2 * MINUTE).await;
        first.end().await;
        assert_eq!(world.runs().len(), 2);
        // The process is down for nine ticks. The last of these ticks is still on time, so its run
        // does not count as backfilled.
        world.sleep(9 * MINUTE).await;
        let second = world.process(job());
        world.sleep(10 * SECOND).await;
        let runs = &world.runs()[2..];
        let backfilled = runs.iter().filter(|run| run.backfilled).count();
        assert_eq!((backfilled, runs.len() - backfilled), (caught_up, 1), "{policy:?} {runs:?}");
        assert!(runs.windows(2).all(|w| w[0].at < w[1].at));
        drop(second);
    }
    // If no tick is on time, `RunLatest` makes the latest tick run late.
    let world = World::new();
    let job = || Job::new("job", "0 * * * *").missed(Missed::RunLatest);
    let into = world.now().duration_since(at(0)).unwrap().as_secs() % 3_600;
    sleep(SECOND * (3_600 + 600 - into as u32)).await;
    let first = world.process(job());
    world.sleep(SECOND).await;
    first.end().await;
    world.sleep(5 * 60 * MINUTE).await;
    let second = world.process(job());
    world.sleep(10 * SECOND).await;
    let runs = world.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].backfilled && runs[0].began / 1_000 - runs[0].at.unsigned_abs() > 590);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn processes_that_start_one_after_another_run_no_more_missed_ticks_than_one() {
    let three = Missed::CatchUp { window: 24 * 60 * MINUTE, max: 3 };
    for (policy, overlap, caught_up) in [
        (Missed::RunLatest, Overlap::Skip, 1),
        (three, Overlap::Skip, 3),
        (three, Overlap::BufferOne, 3),
    ] {
        let world = World::with_ttl(20 * SECOND);
        let job = || Job::new("job", "0 * * * *").missed(policy).overlap(overlap);
        let slow = |_: Tick| async {
            sleep(20 * SECOND).await;
            Ok(())
        };
        let into = world.now().duration_since(at(0)).unwrap().as_secs() % 3_600;
        sleep(SECOND * (3_600 + 600 - into as u32)).await;
        let first = world.process(job());
        world.sleep(SECOND).await;
        first.end().await;
        world.sleep(7 * 60 * MINUTE).await;
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(world.process_with(job(), slow));
            sleep(5 * SECOND).await;
        }
        sleep(2 * MINUTE).await;
        drop(all);
        // One more, after all of them.
        let last = world.process_with(job(), slow);
        sleep(MINUTE).await;
        drop(last);
        let runs = world.runs();
        assert_eq!(runs.len(), caught_up, "{policy:?}, {overlap:?}: {runs:?}");
        assert!(runs.iter().all(|run| run.backfilled), "{policy:?}, {overlap:?}: {runs:?}");
        let newest = (runs[0].began / 3_600_000 * 3_600).cast_signed();
        let last = match overlap {
            // The tick that may be buffered can come after later ones.
            Overlap::BufferOne => runs.iter().map(|run| run.at).max(),
            _ => runs.last().map(|run| run.at),
        };
        assert_eq!(last, Some(newest), "{policy:?}, {overlap:?}: {runs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_missed_tick_is_run_after_an_outage_where_runs_may_overlap() {
    let world = World::with_ttl(20 * SECOND);
    let job = Job::new("job", "*/10 * * * *").missed(Missed::RunLatest).overlap(Overlap::Allow);
    let process = world.process(job);
    let into = world.now().duration_since(at(0)).unwrap().as_secs() % 600;
    sleep(SECOND * (600 + 300 - into as u32)).await;
    let before = world.runs().len();
    world.cut(true);
    sleep(30 * MINUTE).await;
    world.cut(false);
    sleep(MINUTE).await;
    let runs = &world.runs()[before..];
    let newest = (world.now().duration_since(at(0)).unwrap().as_secs() / 600 * 600).cast_signed();
    assert_eq!(runs.iter().map(|run| run.at).collect::<Vec<_>>(), [newest], "{runs:?}");
    assert!(runs[0].backfilled, "{runs:?}");
    drop(process);
}

/// Runs a job on two processes, with runs of 2.5 s at ticks of one second.
async fn overlapping(overlap: Overlap) -> (World, Vec<TickReport>) {
    let world = World::new();
    let job = || every_second("job").overlap(overlap);
    let slow = |_: Tick| async {
        sleep(Duration::from_millis(2_500)).await;
        Ok(())
    };
    let two: Vec<Process> = (0..2).map(|_| world.process_with(job(), slow)).collect();
    sleep(20 * SECOND).await;
    let report = two[0].cron.history(&job(), 16).await.unwrap();
    (world, report[4..].to_vec())
}

#[tokio::test(start_paused = true)]
async fn ticks_that_are_due_during_a_run_follow_the_policy() {
    let skipped = Some(End::Skipped(Skipped::Overlap));
    let (world, report) = overlapping(Overlap::Skip).await;
    let all = ends(&report);
    let done = all.iter().filter(|end| **end == Some(End::Done)).count();
    // One of three ticks runs. The other two are due during its run and are skipped.
    assert!((3..=5).contains(&done), "{all:?}");
    assert!(all.windows(2).all(|w| w[0] == skipped || w[1] == skipped), "{all:?}");
    let runs = world.runs();
    assert!(runs.windows(2).all(|w| w[1].began >= w[0].began + 2_500), "{runs:?}");

    let (world, report) = overlapping(Overlap::BufferOne).await;
    let done = ends(&report).iter().filter(|end| **end == Some(End::Done)).count();
    let runs = world.runs();
    assert!(done >= 4, "{report:?}");
    assert!(runs.windows(2).all(|w| w[1].began >= w[0].began + 2_500), "one at a time");
    assert!(runs.windows(2).all(|w| w[1].began < w[0].began + 3_400), "without a pause: {runs:?}");

    let (world, report) = overlapping(Overlap::Allow).await;
    assert!(ends(&report).iter().all(|end| *end == Some(End::Done)), "{report:?}");
    assert!(world.runs().windows(2).all(|w| w[1].at == w[0].at + 1));

    let (world, report) = overlapping(Overlap::CancelPrevious).await;
    let cancelled = Some(End::Cancelled(Cancelled::NextTick));
    assert!(ends(&report).iter().all(|end| *end == cancelled), "{report:?}");
    assert!(world.completed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_for_at_least_and_is_cancelled_at_most() {
    let world = World::new();
    let job = || every_second("job").at_least(Duration::from_millis(2_500));
    let process = world.process(job());
    sleep(12 * SECOND).await;
    drop(process);
    let runs = world.runs();
    assert!(runs.windows(2).all(|w| w[1].at >= w[0].at + 3), "{runs:?}");

    let job = || Job::new("long", "* * * * *").at_most(10 * SECOND);
    let process = world.process_with(job(), |_| std::future::pending());
    sleep(2 * MINUTE).await;
    // Read two ticks from the history, because the run of the last tick may have begun just now and
    // has no end yet.
    let report = process.cron.history(&job(), 2).await.unwrap();
    let over =
        |r: &TickReport| if let TickState::Over(run) = &r.state { Some(run.clone()) } else { None };
    let run = report.iter().find_map(over).unwrap_or_else(|| panic!("{report:?}"));
    assert_eq!(run.end, End::Cancelled(Cancelled::TooLong));
    assert!((10_000..10_500).contains(&(run.ended - run.started)), "{run:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_is_told_and_has_its_grace() {
    let world = World::new();
    let grace = Duration::from_millis(400);
    let job = || Job::new("job", "*/5 * * * * *").overlap(Overlap::CancelPrevious).grace(grace);
    // There are three kinds of runs, by the second of the tick modulo 3. Kind 0 ignores the
    // cancellation, kind 1 ends well after it, and kind 2 fails after it with "stopped".
    let process = world.process_with(job(), |tick: Tick| async move {
        if tick.unix_seconds() % 3 == 0 {
            std::future::pending::<()>().await;
        }
        assert_eq!(tick.cancelled().await, Cancelled::NextTick);
        sleep(Duration::from_millis(100)).await;
        if tick.unix_seconds() % 3 == 1 { Ok(()) } else { Err(Failed::unknown("stopped")) }
    });
    world.sleep(MINUTE + 15 * SECOND).await;
    let report = process.cron.history(&job(), 11).await.unwrap();
    let mut seen = [0; 3];
    // Leave out the last two runs, because they may not have ended: one of them may be in its grace
    // time.
    for tick in &report[2..] {
        let TickState::Over(run) = &tick.state else { panic!("{tick:?}") };
        let at = tick.at.duration_since(at(0)).unwrap().as_millis() as u64;
        let kind = (at / 1_000 % 3) as usize;
        let (end, last) = match kind {
            0 => (End::Cancelled(Cancelled::NextTick), 5_400),
            1 => (End::Done, 5_100),
            _ => (End::Cancelled(Cancelled::NextTick), 5_100),
        };
        assert_eq!(run.end, end, "{run:?}");
        assert!((last..last + 60).contains(&(run.ended - at)), "{run:?}");
        seen[kind] += 1;
    }
    assert_eq!(seen, [3; 3]);
    let began: Vec<_> = world.runs().iter().map(|run| (run.at, run.began)).collect();
    let over = |at: i64| {
        let found = report.iter().find(|t| t.at == crate::world::at(at))?;
        if let TickState::Over(run) = &found.state { Some(run.ended) } else { None }
    };
    let after = |(at, began): &(i64, u64)| over(at - 5).is_none_or(|ended| *began >= ended);
    assert!(began.iter().all(after), "never two at a time");
}

#[tokio::test(start_paused = true)]
async fn jitter_is_the_same_for_all_processes_and_within_bounds() {
    let world = World::with_ttl(20 * SECOND);
    let job = || Job::new("job", "* * * * *").jitter(30 * SECOND);
    let two = [world.process(job()), world.process(job())];
    sleep(20 * MINUTE).await;
    drop(two);
    let late = |run: &crate::world::Run| run.began - run.at.unsigned_abs() * 1_000;
    let all: Vec<_> = world.runs().iter().map(late).collect();
    assert!(all.len() >= 18 && all.iter().all(|late| *late < 31_000), "{all:?}");
    let spread: BTreeSet<_> = all.iter().map(|late| late / 5_000).collect();
    assert!(spread.len() > 2, "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn an_edited_schedule_runs_nothing_belatedly_and_says_what_it_leaves_out() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = World::with_ttl(20 * SECOND);
    let missed = Missed::CatchUp { window: Duration::from_secs(7_200), max: 100 };
    let old = || Job::new("job", "*/5 * * * *").missed(missed);
    let new = || Job::new("job", "*/7 * * * *").missed(missed);
    let process = world.process(old());
    sleep(21 * MINUTE).await;
    let before = world.runs();
    assert!(before.len() >= 4);
    process.end().await;
    sleep(30 * MINUTE).await;
    let at_edit = i64::try_from(world.now().duration_since(at(0)).unwrap().as_secs()).unwrap();
    let process = world.process(new());
    sleep(2 * SECOND).await;
    let edited: Vec<_> = log.lines(&["the schedule was edited", "*/5", "*/7"]);
    assert_eq!(edited.len(), 1, "{}", log.text());
    assert!(edited[0].contains(&format!("last_run=Some({})", before.last().unwrap().at)));
    sleep(15 * MINUTE).await;
    process.end().await;
    // The job gets the old schedule again. Ticks of the old schedule from before this change do not
    // count as missed, so none of them is backfilled.
    let process = world.process(old());
    sleep(6 * MINUTE).await;
    drop(process);
    let after = &world.runs()[before.len()..];
    assert!(after.len() >= 3 && after.iter().all(|run| run.at >= at_edit), "{after:?}");
    assert!(after.iter().all(|run| !run.backfilled), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn ticks_that_were_due_while_nothing_ran_are_a_warning_of_the_next_process() {
    let world = World::with_ttl(20 * SECOND);
    let job = || Job::new("job", "0 * * * *");
    let clock = world.now().duration_since(at(0)).unwrap();
    let half_past = (90 * 60 - clock.as_secs() % 3_600) % 3_600;
    sleep(Duration::from_secs(half_past)).await;
    let first = world.process(job());
    sleep(61 * MINUTE).await;
    assert_eq!(world.runs().len(), 1);
    first.end().await;
    sleep(5 * 60 * MINUTE).await;
    let log = Log::of_this_thread(LevelFilter::WARN);
    let said = || log.lines(&["ticks of before this process began have no run", "job=job"]);
    let second = world.process(job());
    sleep(70 * MINUTE).await;
    let lines = said();
    assert_eq!(lines.len(), 1, "{}", log.text());
    assert!(lines[0].contains("ticks=5"), "{}", lines[0]);
    assert_eq!(world.runs().len(), 2);
    second.end().await;
    let third = world.process(job());
    sleep(MINUTE).await;
    assert_eq!(said().len(), 1, "{}", log.text());
    drop(third);
}

#[tokio::test(start_paused = true)]
async fn all_ticks_of_a_long_run_are_skipped() {
    let world = World::new();
    let job = || every_second("job");
    let first = std::sync::atomic::AtomicBool::new(true);
    let process = world.process_with(job(), move |_| {
        let long = first.swap(false, std::sync::atomic::Ordering::Relaxed);
        async move {
            sleep(if long { 40 * SECOND } else { Duration::ZERO }).await;
            Ok(())
        }
    });
    sleep(60 * SECOND).await;
    drop(process);
    let runs = world.runs();
    let ended = runs[0].began + 40_000;
    assert!(runs.len() > 10, "{runs:?}");
    let early: Vec<_> =
        runs[1..].iter().filter(|run| run.at.unsigned_abs() * 1_000 < ended).collect();
    assert!(early.is_empty(), "due while the first ran: {early:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_not_run_again_by_a_frozen_process_with_the_schedule_of_before() {
    let world = World::with_ttl(MINUTE);
    let job = |schedule| Job::new("job", schedule).missed(Missed::RunLatest).jitter(50 * SECOND);
    let into_hour = || world.now().duration_since(at(0)).unwrap().as_millis() as u64 % 3_600_000;
    sleep(Duration::from_millis(3_600_000 + 3_500_000 - into_hour())).await;
    let old = world.process(job("0 * * * *"));
    sleep(SECOND).await;
    let new = world.process(job("*/5 * * * *"));
    // The hourly tick is due on both processes, which wait for the jitter of the tick.
    sleep(Duration::from_millis(3_600_000 - into_hour() + 200)).await;
    old.freeze(true);
    sleep(125 * MINUTE).await;
    old.freeze(false);
    sleep(MINUTE).await;
    let mut ticks: Vec<_> = world.runs().iter().map(|run| run.at).collect();
    ticks.sort_unstable();
    assert!(ticks.len() > 24, "{ticks:?}");
    assert!(ticks.windows(2).all(|w| w[0] < w[1]), "a tick twice: {ticks:?}");
    drop((old, new));
}

#[tokio::test]
async fn a_span_without_bounds_is_refused_by_the_name_of_its_setting() {
    let cron = palisade_cron::Cron::new(&World::new().redlock());
    let year = Duration::from_secs(366 * 24 * 3_600);
    let longest = [Duration::MAX, Duration::from_millis(u64::MAX), year + SECOND];
    let hourly = || Job::new("job", "0 * * * *").retention(year);
    for span in longest {
        let window = Missed::CatchUp { window: span, max: 1 };
        for (job, field) in [
            (hourly().late(span), "late"),
            (hourly().jitter(span), "jitter"),
            (hourly().at_least(span), "at_least"),
            (hourly().at_most(span), "at_most"),
            (hourly().grace(span), "grace"),
            (hourly().missed(window), "missed"),
            (hourly().retention(span), "retention"),
        ] {
            let why = cron.upcoming(&job, 1).unwrap_err().to_string();
            assert!(why.contains(&format!("`{field}`")), "{field} {span:?}: {why}");
        }
    }
    for (job, field) in [
        (hourly().at_most(Duration::ZERO), "at_most"),
        (Job::new("job", "* * * * * *").jitter(20 * SECOND).late(SECOND), "jitter"),
        (Job::new("job", "*/7 * * * *").jitter(5 * MINUTE), "jitter"),
        (Job::new("job", "* * * * *").jitter(MINUTE), "jitter"),
        // The retention is the default, so it is not what was set.
        (Job::new("job", "0 * * * *").late(5 * 24 * 60 * MINUTE), "late"),
        (hourly().retention(8 * 60 * MINUTE).late(5 * 60 * MINUTE), "retention"),
    ] {
        let why = cron.upcoming(&job, 1).unwrap_err().to_string();
        assert!(why.contains(&format!("`{field}` ")), "{field}: {why}");
    }
    for job in [
        hourly().late(year / 2).at_most(year).grace(year).at_least(year.saturating_sub(SECOND)),
        hourly().jitter(59 * MINUTE),
        Job::new("job", "*/7 * * * *").jitter(3 * MINUTE),
    ] {
        cron.upcoming(&job, 1).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_delay_of_a_tick_counts_from_the_end_of_its_jitter() {
    let world = World::with_ttl(20 * SECOND);
    let process = world.process(Job::new("job", "* * * * *").jitter(50 * SECOND).late(SECOND));
    sleep(31 * MINUTE).await;
    drop(process);
    assert!((29..=31).contains(&world.runs().len()), "{:?}", world.runs());
}

#[tokio::test(start_paused = true)]
async fn jobs_of_one_name_are_apart_if_the_names_of_their_crons_are() {
    let names = ["billing", "reports", "a/b", "a%2Fb", "cron"];
    let world = World::with_ttl(MINUTE);
    let ran = std::sync::Arc::new(std::sync::Mutex::new([0; 5]));
    let slow = |n: usize| {
        let ran = std::sync::Arc::clone(&ran);
        move |_: Tick| {
            ran.lock().unwrap()[n] += 1;
            // Longer than half of the interval: with one lock, they would be in each other's way.
            async {
                sleep(SECOND * 40).await;
                Ok(())
            }
        }
    };
    let job = || Job::new("cleanup", "* * * * *");
    let all: Vec<_> =
        (0..5).map(|n| world.process_of(names[n], &world.host(), job(), slow(n))).collect();
    sleep(12 * MINUTE).await;
    let ran = *ran.lock().unwrap();
    assert!(ran.iter().all(|ran| (11..=13).contains(ran)), "{ran:?}");
    for process in all {
        let report = process.cron.history(&job(), 10).await.unwrap();
        let done = |tick: &TickReport| matches!(&tick.state, TickState::Over(_));
        assert!(report[1..].iter().all(done), "{report:?}");
    }
}

#[tokio::test]
async fn a_retention_that_is_too_short_for_the_policy_is_refused() {
    let refused = async |job: Job| {
        let cron = palisade_cron::Cron::new(&World::new().redlock());
        cron.upcoming(&job, 1).err().map(|e| e.to_string())
    };
    let hourly = || Job::new("job", "0 * * * *");
    assert_eq!(refused(hourly()).await, None);
    let short = refused(hourly().retention(59 * MINUTE)).await.unwrap();
    assert!(short.contains("`retention`") && short.contains("at least an hour"), "{short}");
    let week = Missed::CatchUp { window: 7 * 24 * 60 * MINUTE, max: 10 };
    let short = refused(hourly().missed(week)).await.unwrap();
    assert!(short.contains("twice the time"), "{short}");
    assert_eq!(refused(hourly().missed(week).retention(14 * 24 * 60 * MINUTE)).await, None);
    let monthly = || Job::new("job", "0 0 1 * *");
    assert_eq!(refused(monthly()).await, None);
    let short = refused(monthly().missed(Missed::RunLatest)).await.unwrap();
    assert!(short.contains("at least 31 days"), "{short}");
    let year = 366 * 24 * 60 * MINUTE;
    assert_eq!(refused(monthly().missed(Missed::RunLatest).retention(year)).await, None);
    assert_eq!(
        refused(Job::new("job", "@yearly").missed(Missed::RunLatest).retention(year)).await,
        None
    );
}
