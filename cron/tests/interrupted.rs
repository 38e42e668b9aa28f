//! Tests of runs that are interrupted: whoever finds them, and whenever.

use std::time::{Duration, UNIX_EPOCH};

use palisade::Failed;
use palisade_cron::{End, Interrupted, Job, Overlap, Skipped, Tick, TickState};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::SECOND;
use crate::logs::Log;
use crate::world::{Process, World, every_second};

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than a tick is on time, and than the leases.
const RUN: Duration = Duration::from_secs(150);

fn hourly() -> Job {
    Job::new("job", "0 * * * *")
}

/// Returns a world that begins a minute before a full hour.
async fn patient() -> World {
    let world = World::with_ttl(20 * SECOND);
    let into_hour = world.now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 3_600;
    sleep(Duration::from_secs(2 * 3_600 - 60 - into_hour)).await;
    world
}

/// Starts a process whose runs take `RUN`.
fn start(world: &World, job: Job) -> Process {
    world.process_with(job, |_: Tick| async {
        sleep(RUN).await;
        Ok(())
    })
}

/// Sleeps until this time after a full hour, and returns that hour.
async fn until(world: &World, after: Duration) -> i64 {
    until_tick(world, 3_600, after).await
}

/// Sleeps until this time after the next tick, and returns the tick.
async fn until_tick(world: &World, every: u64, after: Duration) -> i64 {
    let now = world.now().duration_since(UNIX_EPOCH).unwrap();
    let tick = (now.as_secs() / every + 1) * every;
    sleep((Duration::from_secs(tick) + after).saturating_sub(now)).await;
    tick.cast_signed()
}

/// Returns a schedule without a tick in the next hours.
fn far(world: &World) -> String {
    let hours = world.now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    format!("30 {} * * *", (hours + 12) % 24)
}

fn attempts(world: &World, tick: i64) -> Vec<u32> {
    world.runs().iter().filter(|run| run.at == tick).map(|run| run.attempt).collect()
}

#[tokio::test(start_paused = true)]
async fn a_run_is_run_again_whenever_its_process_died() {
    for (dies_after, late) in
        [(SECOND / 2, None), (90 * SECOND, Some(SECOND)), (149 * SECOND, Some(7 * MINUTE))]
    {
        let world = patient().await;
        let job = || if let Some(late) = late { hourly().late(late) } else { hourly() };
        let mut three: Vec<_> = (0..3).map(|_| start(&world, job())).collect();
        let tick = until(&world, dies_after).await;
        let by = world.runs()[0].by;
        drop(three.remove(by as usize));
        sleep(RUN + MINUTE).await;
        assert_eq!(attempts(&world, tick), [1, 2], "after {dies_after:?}, {late:?}");
        assert_eq!(world.completed(), [tick]);
        drop(three);
    }
}

/// The process that ends gives the job's lock back at once, and its claim stays.
#[tokio::test(start_paused = true)]
async fn an_interrupted_run_comes_before_the_ticks_that_were_due_during_it() {
    for overlap in [Overlap::Skip, Overlap::BufferOne] {
        let world = World::with_ttl(MINUTE);
        let job = || Job::new("job", "*/2 * * * *").late(60 * MINUTE).overlap(overlap);
        let mut two: Vec<_> = (0..2).map(|_| start(&world, job())).collect();
        let tick = until_tick(&world, 120, 135 * SECOND).await;
        let by = world.runs()[0].by;
        drop(two.remove(by as usize));
        sleep(4 * MINUTE).await;
        let ran: Vec<_> = world.runs().iter().map(|run| (run.at - tick, run.attempt)).collect();
        assert_eq!(ran[..3], [(0, 1), (0, 2), (120, 1)], "{overlap:?}");
        drop(two);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_lease_is_lost_is_run_again_and_nobody_died() {
    for overlap in [Overlap::Skip, Overlap::Allow] {
        let log = Log::of_this_thread(LevelFilter::WARN);
        let world = patient().await;
        let process = start(&world, hourly().overlap(overlap));
        let tick = until(&world, 90 * SECOND).await;
        world.cut(true);
        sleep(30 * SECOND).await;
        world.cut(false);
        sleep(RUN + MINUTE).await;
        assert_eq!(attempts(&world, tick), [1, 2], "{overlap:?}");
        assert_eq!(world.completed(), [tick]);
        assert_eq!(log.lines(&["a run was interrupted", "job"]).len(), 1, "{}", log.text());
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_finds_a_run_that_was_interrupted_before_and_one_that_will_be() {
    for away in [30 * SECOND, 50 * MINUTE, 30 * 60 * MINUTE] {
        let world = patient().await;
        let process = start(&world, hourly());
        let tick = until(&world, 90 * SECOND).await;
        drop(process);
        sleep(away).await;
        let process = start(&world, hourly());
        sleep(MINUTE).await;
        assert_eq!(attempts(&world, tick), [1, 2], "away {away:?}");
        drop(process);
    }
    // The second process starts during the run, and the first dies later.
    let world = patient().await;
    let first = start(&world, hourly());
    let tick = until(&world, 30 * SECOND).await;
    let second = start(&world, hourly());
    sleep(MINUTE).await;
    drop(first);
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1, 2]);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_tick_older_than_its_retention_is_not_run_again() {
    let world = patient().await;
    let job = || hourly().retention(3 * 60 * MINUTE);
    let process = start(&world, job());
    let tick = until(&world, 90 * SECOND).await;
    drop(process);
    sleep(4 * 60 * MINUTE).await;
    let process = start(&world, job());
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1]);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_the_schedule_does_not_leave_the_run_that_it_interrupts() {
    let world = patient().await;
    let process = start(&world, hourly());
    let tick = until(&world, 90 * SECOND).await;
    drop(process);
    sleep(40 * SECOND).await;
    let process = start(&world, Job::new("job", far(&world)));
    sleep(RUN + MINUTE).await;
    assert_eq!(attempts(&world, tick), [1, 2]);
    assert_eq!(world.completed(), [tick]);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn an_edit_does_not_leave_a_run_that_began_after_it_by_the_old_schedule() {
    let world = patient().await;
    until(&world, 59 * MINUTE).await;
    let old = start(&world, hourly());
    sleep(SECOND).await;
    let new = start(&world, Job::new("job", far(&world)));
    let tick = until(&world, 90 * SECOND).await;
    drop(old);
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1, 2]);
    drop(new);
}

/// It was due during an earlier run.
#[tokio::test(start_paused = true)]
async fn an_edit_does_not_leave_a_run_by_the_old_schedule_that_began_long_after_its_tick() {
    let world = World::with_ttl(MINUTE);
    let long = |_: Tick| async {
        sleep(13 * MINUTE).await;
        Ok(())
    };
    let job = |schedule: &str| Job::new("job", schedule).overlap(Overlap::BufferOne);
    until_tick(&world, 600, 9 * MINUTE).await;
    let old = world.process_with(job("*/10 * * * *"), long);
    sleep(SECOND).await;
    let new = world.process_with(job(&far(&world)), long);
    let tick = 600 + until_tick(&world, 600, 16 * MINUTE).await;
    assert_eq!(attempts(&world, tick), [1]);
    drop(old);
    sleep(3 * MINUTE).await;
    assert_eq!(attempts(&world, tick), [1, 2]);
    drop(new);
}

/// Its process takes the attempt back on two nodes, and never on the third.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_taken_back_is_no_interrupted_run() {
    let world = patient().await;
    let asks = |_: Tick| async {
        sleep(10 * SECOND).await;
        Err(Failed::no_effect("later"))
    };
    let process = world.process_with(hourly(), asks);
    let tick = until(&world, 5 * SECOND).await;
    world.cut_only(0);
    sleep(5 * MINUTE).await;
    let asked = attempts(&world, tick);
    assert!(asked.len() > 2 && asked.iter().all(|attempt| *attempt == 1), "{asked:?}");
    drop(process);
    world.cut(false);
    sleep(4 * 60 * MINUTE).await;
    let process = start(&world, hourly());
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), asked);
    let report = process.cron.history(&hourly(), 6).await.unwrap();
    let tick = UNIX_EPOCH + Duration::from_secs(tick.unsigned_abs());
    let report = report.iter().find(|report| report.at == tick).unwrap();
    assert_eq!(report.state, TickState::Absent);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_run_that_was_due_during_an_earlier_one_is_left_with_that_reason() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = patient().await;
    let job = |overlap| Job::new("job", "*/2 * * * *").overlap(overlap);
    let process = start(&world, job(Overlap::Allow));
    // The run of the first tick has ended, and that of the second one has not.
    let tick = until_tick(&world, 120, 165 * SECOND).await + 120;
    drop(process);
    let process = start(&world, job(Overlap::Skip));
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1]);
    let said = log.lines(&["is not run again", "an earlier run", &format!("tick={tick}")]);
    assert_eq!(said.len(), 1, "{}", log.text());
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_not_run_again_is_said() {
    // The job does not allow it.
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = patient().await;
    let job = || hourly().interrupted(Interrupted::Leave);
    let two = [start(&world, job()), start(&world, job())];
    let tick = until(&world, 90 * SECOND).await;
    world.cut(true);
    sleep(30 * SECOND).await;
    world.cut(false);
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1]);
    let said = log.lines(&["the tick is left as it is", &format!("tick={tick}")]);
    assert!((1..=2).contains(&said.len()), "{}", log.text());
    let report = two[0].cron.history(&job(), 1).await.unwrap();
    assert_eq!(report[0].state, TickState::Interrupted);
    drop(two);
    // A later tick is due, and the job runs only the latest.
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = patient().await;
    let job = || hourly().overlap(Overlap::CancelPrevious);
    let process = start(&world, job());
    let tick = until(&world, 90 * SECOND).await;
    drop(process);
    sleep(70 * MINUTE).await;
    let process = start(&world, job());
    sleep(MINUTE).await;
    assert_eq!(attempts(&world, tick), [1]);
    assert_eq!(
        log.lines(&["is not run again", &format!("tick={tick}")]).len(),
        1,
        "{}",
        log.text()
    );
    let report = process.cron.history(&job(), 2).await.unwrap();
    let skipped = |state: &TickState| match state {
        TickState::Over(run) => run.end == End::Skipped(Skipped::Superseded),
        _ => false,
    };
    assert!(skipped(&report[1].state), "{report:?}");
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn each_run_whose_end_is_not_stored_is_said() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = patient().await;
    let job = every_second("job").overlap(Overlap::Allow);
    let process = world.process_with(job, |_: Tick| async {
        sleep(3 * SECOND).await;
        Ok(())
    });
    sleep(5 * SECOND).await;
    world.cut(true);
    sleep(20 * SECOND).await;
    let said = log.lines(&["the end of a run may not be stored", "policy=Rerun"]);
    assert!(said.len() >= 2, "{}", log.text());
    world.cut(false);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_names_the_interrupted_runs_that_it_leaves() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = patient().await;
    let job = || hourly().interrupted(Interrupted::Leave);
    let mut ticks = Vec::new();
    for _ in 0..2 {
        let process = start(&world, job());
        ticks.push(until(&world, SECOND * 40).await);
        drop(process);
        sleep(MINUTE).await;
    }
    let process = start(&world, job());
    sleep(SECOND).await;
    assert!(ticks.iter().all(|tick| attempts(&world, *tick) == [1]));
    let said = log.lines(&["ticks were interrupted and are left", "job=job"]);
    assert_eq!(said.len(), 2, "{}", log.text());
    for (n, said) in said.iter().enumerate() {
        assert!(said.contains(&format!("newest={}", ticks[n])), "{said}");
        assert!(said.contains(&format!("ticks={}", n + 1)), "{said}");
    }
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_always_asks_for_another_run_is_asked_for_a_minute() {
    let kinds: [fn() -> Failed; 2] = [|| Failed::retry("later"), || Failed::no_effect("later")];
    for failed in kinds {
        let log = Log::of_this_thread(LevelFilter::WARN);
        let world = patient().await;
        let asks = move |_: Tick| async move { Err(failed()) };
        let two = [world.process_with(hourly(), asks), world.process_with(hourly(), asks)];
        let tick = until(&world, 3 * MINUTE).await;
        let last = world.runs().last().unwrap().began.cast_signed() / 1_000 - tick;
        assert!((50..70).contains(&last), "{last} s");
        assert!(!log.lines(&["ticks were missed", "job"]).is_empty(), "{}", log.text());
        drop(two);
        // A process that starts asks once more.
        let runs = world.runs().len();
        let third = world.process_with(hourly(), asks);
        sleep(3 * MINUTE).await;
        assert!(world.runs().len() <= runs + 1, "{:?}", &world.runs()[runs..]);
        drop(third);
    }
}

#[tokio::test(start_paused = true)]
async fn the_tick_that_was_due_during_a_long_run_is_run_after_it() {
    // The run begins with its tick, some time after it, and in the end of its jitter.
    for (jitter, seconds, restarts) in
        [(0, 400, false), (2, 400, true), (22, 390, false), (0, 590, true)]
    {
        let world = patient().await;
        let every = Job::new("job", "*/5 * * * *").overlap(Overlap::BufferOne);
        let job = || every.clone().jitter(SECOND * jitter);
        let long = move |_: Tick| async move {
            sleep(SECOND * seconds).await;
            Ok(())
        };
        let mut two = vec![world.process_with(job(), long), world.process_with(job(), long)];
        let tick = until_tick(&world, 300, SECOND * 310).await;
        if restarts {
            // The one that does not run the tick is replaced after the next tick.
            let by = world.runs()[0].by as usize;
            drop(std::mem::replace(&mut two[1 - by], world.process_with(job(), long)));
        }
        sleep(SECOND * 310).await;
        let runs: Vec<_> = world.runs().iter().map(|run| run.at - tick).collect();
        assert_eq!(runs[..2], [0, 300], "{jitter} s, {seconds} s, {restarts}: {runs:?}");
        drop(two);
    }
}

/// A process is killed in a run, and the next one starts before the run's lease is over.
#[tokio::test(start_paused = true)]
async fn ticks_after_a_run_whose_process_was_killed_are_a_warning() {
    let world = World::with_ttl(20 * SECOND);
    let first = world.process_with(every_second("job"), |_: Tick| async {
        sleep(3_600 * SECOND).await;
        Ok(())
    });
    sleep(5 * SECOND).await;
    drop(first);
    sleep(12 * SECOND).await;
    let log = Log::of_this_thread(LevelFilter::WARN);
    let second = world.process(every_second("job"));
    sleep(120 * SECOND).await;
    let said = log.lines(&["ticks of before this process began have no run", "job=job"]);
    assert_eq!(said.len(), 1, "{}", log.text());
    drop(second);
}
