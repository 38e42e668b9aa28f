//! Tests of cron jobs on hosts with wrong wall clocks, and on hosts whose clock changes during a
//! run.

use std::time::Duration;

use palisade_cron::{Job, Missed, Tick};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use crate::logs::Log;
use crate::world::{World, every_second};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

async fn quick(_: Tick) -> Result<(), palisade::Failed> {
    Ok(())
}

/// Returns the time of a correct clock, in seconds since 1970.
fn seconds(world: &World) -> i64 {
    let since = world.now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Asserts that each tick from `from` until now ran exactly once.
fn each_ran_once(world: &World, from: i64) {
    let now = seconds(world);
    let mut ran: Vec<_> = world.runs().iter().map(|run| run.at).collect();
    ran.sort_unstable();
    assert!(ran.windows(2).all(|w| w[0] < w[1]), "twice: {ran:?}");
    ran.retain(|at| (from..now).contains(at));
    assert_eq!(ran, (from..now).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_a_fast_clock_saw_first_runs_on_the_other_hosts() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = World::new();
    let fast = world.host();
    fast.set_ahead(10 * DAY);
    let first = world.process_on(&fast, every_second("job"), quick);
    sleep(3 * SECOND).await;
    first.end().await;
    let right = world.process(every_second("job"));
    sleep(2 * SECOND).await;
    let from = seconds(&world);
    sleep(20 * SECOND).await;
    drop(right);
    each_ran_once(&world, from);
    assert_eq!(log.lines(&["clock", "was ahead", "job"]).len(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_is_followed() {
    for missed in [Missed::Skip, Missed::RunLatest] {
        let log = Log::of_this_thread(LevelFilter::WARN);
        let world = World::new();
        let host = world.host();
        let process = world.process_on(&host, every_second("job").missed(missed), quick);
        sleep(5 * SECOND).await;
        host.set_ahead(HOUR);
        sleep(2 * SECOND).await;
        host.set_ahead(0);
        sleep(2 * SECOND).await;
        let from = seconds(&world);
        sleep(30 * SECOND).await;
        drop(process);
        each_ran_once(&world, from);
        assert_eq!(log.lines(&["the clock went back", "job"]).len(), 1, "{}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_during_a_run_does_not_make_the_job_count_as_running() {
    for (first, then) in [(0, HOUR), (HOUR, 0), (0, -HOUR)] {
        let world = World::new();
        let host = world.host();
        let slow = |_: Tick| async {
            sleep(Duration::from_millis(300)).await;
            Ok(())
        };
        let process = world.process_on(&host, every_second("job"), slow);
        sleep(3 * SECOND).await;
        host.set_ahead(first);
        sleep(Duration::from_millis(500)).await;
        // The clock must be set during a run, so wait until a run is under way.
        let begun = world.runs().len();
        for _ in 0..1_000 {
            if world.runs().len() > begun {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(world.runs().len() > begun);
        sleep(Duration::from_millis(100)).await;
        host.set_ahead(then);
        sleep(SECOND).await;
        host.set_ahead(0);
        sleep(3 * SECOND).await;
        let from = seconds(&world);
        sleep(30 * SECOND).await;
        drop(process);
        each_ran_once(&world, from);
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_clock_goes_back_while_it_waits_runs_the_job_later() {
    let world = World::new();
    let slow = |_: Tick| async {
        sleep(Duration::from_millis(2_500)).await;
        Ok(())
    };
    let first = world.process_with(every_second("job"), slow);
    sleep(3 * SECOND).await;
    let host = world.host();
    let second = world.process_on(&host, every_second("job"), slow);
    // The delays differ, so that the clock changes at different phases of the scheduler's loop.
    for n in 0..40 {
        sleep(Duration::from_millis(1_300 + 17 * n)).await;
        // If the clock is 20 s behind, the time of a tick is too far ahead for this host to be the
        // birth (time of creation) of the tick's idempotency key. If the clock is 2 s behind, this
        // host still accepts the nodes' fencing tokens, although they are ahead of its clock.
        host.set_ahead(if n % 2 == 0 { -20 } else { -2 });
        sleep(3 * SECOND).await;
        host.set_ahead(0);
    }
    drop(first);
    sleep(10 * SECOND).await;
    let before = world.completed().len();
    sleep(20 * SECOND).await;
    // Only every third tick runs, because the other ticks are due during a run.
    assert!(world.completed().len() >= before + 5, "{:?}", world.runs());
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_at_any_moment_does_not_end_the_job() {
    let world = World::new();
    let host = world.host();
    let process = world.process_on(&host, every_second("job"), quick);
    sleep(2 * SECOND).await;
    for reads in 1..60 {
        host.flick_after(reads);
        sleep(Duration::from_millis(1_300)).await;
    }
    sleep(3 * SECOND).await;
    let from = seconds(&world);
    sleep(10 * SECOND).await;
    drop(process);
    each_ran_once(&world, from);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_was_run_is_not_missed_when_the_clock_is_set() {
    let field = |line: &str, name: &str| -> i64 {
        let value = line.split(&format!(" {name}=")).nth(1).unwrap();
        value.split_whitespace().next().unwrap().parse().unwrap()
    };
    for steps in [[-HOUR, 0, 0], [-90, -90, 0], [-40, 0, -40], [HOUR, 0, 0]] {
        let log = Log::of_this_thread(LevelFilter::WARN);
        let world = World::new();
        let host = world.host();
        let process = world.process_on(&host, every_second("job"), quick);
        sleep(40 * SECOND).await;
        for ahead in steps {
            host.set_ahead(ahead);
            sleep(20 * SECOND).await;
        }
        host.set_ahead(0);
        sleep(20 * SECOND).await;
        drop(process);
        let ran: Vec<_> = world.runs().iter().map(|run| run.at).collect();
        assert!(ran.len() > 60, "{steps:?}: {}", ran.len());
        let said = log.lines(&["ticks were missed", "job"]);
        assert!(!said.is_empty(), "{steps:?}: {}", log.text());
        for line in &said {
            let (first, last) = (field(line, "first"), field(line, "last"));
            let run = ran.iter().filter(|at| (first..=last).contains(at)).count();
            // After the warning about a clock that was ahead, its ticks come again, and are run.
            let is_future = steps[0] > 0 && last > seconds(&world) - 60;
            let most = last - first + 1 - if is_future { 0 } else { i64::try_from(run).unwrap() };
            assert!(field(line, "ticks") <= most, "{steps:?}: {run} of these ran: {line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_ran_ahead_of_the_clock_supersedes_no_missed_tick() {
    let world = World::with_ttl(20 * SECOND);
    let host = world.host();
    let job = Job::new("job", "* * * * *").missed(Missed::RunLatest).late(SECOND);
    let process = world.process_on(&host, job, quick);
    sleep(5 * SECOND).await;
    host.set_ahead(HOUR);
    sleep(120 * SECOND).await;
    let ahead = world.runs().last().map(|run| run.at);
    assert!(ahead > Some(seconds(&world)), "{:?}", world.runs());
    host.set_ahead(0);
    sleep(60 * SECOND).await;
    // The outage begins and ends in the middle of a minute.
    sleep(Duration::from_secs((90 - seconds(&world) % 60).unsigned_abs())).await;
    let before = world.runs().len();
    world.cut(true);
    sleep(120 * SECOND).await;
    world.cut(false);
    sleep(10 * SECOND).await;
    let newest = seconds(&world) / 60 * 60;
    let ran: Vec<_> = world.runs()[before..].iter().map(|run| (run.at, run.backfilled)).collect();
    assert_eq!(ran, [(newest, true)]);
    drop(process);
}
