//! Tests of cron jobs on memory nodes and in virtual time. Several processes run the same job, and
//! an independent ledger records the runs.

mod clocks;
mod interrupted;
#[path = "../../tests/support/logs.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod logs;
mod oracle;
mod overtaken;
mod policies;
mod refused;
mod requests;
#[path = "../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod server;
mod table;
mod world;

use std::time::Duration;

use palisade::Failed;
use palisade::election::StepDown;
use palisade_cron::{End, Interrupted, Job, Missed, Overlap, Run, Tick, TickReport, TickState};
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use logs::Log;
use world::{World, every_second};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn each_tick_is_run_once_by_one_of_three_processes() {
    let world = World::new();
    let three: Vec<_> = (0..3).map(|_| world.process(every_second("job"))).collect();
    world.sleep(60 * SECOND).await;
    drop(three);
    let runs = world.runs();
    assert!((58..=60).contains(&runs.len()), "{}", runs.len());
    assert!(runs.windows(2).all(|w| w[1].at == w[0].at + 1), "each once, in order: {runs:?}");
    assert!(runs.windows(2).all(|w| w[1].token > w[0].token), "tokens rise");
    assert!(runs.iter().all(|run| run.attempt == 1));
    // One process led the election, and it ran all later ticks.
    let by: std::collections::BTreeSet<_> = runs[3..].iter().map(|run| run.by).collect();
    assert_eq!(by.len(), 1, "{by:?}");
}

#[tokio::test(start_paused = true)]
async fn no_tick_is_lost_or_doubled_while_leaders_come_and_go() {
    let world = World::new();
    let job = || every_second("job").overlap(Overlap::Allow);
    let mut three: Vec<_> = (0..3).map(|_| world.process(job())).collect();
    for n in 0..30 {
        sleep(Duration::from_millis(2_300)).await;
        let leader = three.iter().position(world::Process::leads).unwrap_or(n % 3);
        match n % 3 {
            0 => three[leader].cron.step_down(),
            // The leader dies, and another process takes its place.
            _ => three[leader] = world.process(job()),
        }
    }
    sleep(5 * SECOND).await;
    drop(three);
    let mut runs = world.runs();
    runs.sort_unstable_by_key(|run| (run.at, run.attempt));
    let completed = world.completed();
    let (first, last) = (runs[0].at, completed.last().copied().unwrap());
    assert_eq!(completed, (first..=last).collect::<Vec<_>>(), "each tick once");
    assert!(last - first > 65);
}

#[tokio::test(start_paused = true)]
async fn an_operator_takes_the_lead_from_a_process_and_each_tick_is_still_once() {
    let world = World::new();
    // A run takes most of the time between two ticks.
    let slow = |_: Tick| async {
        sleep(Duration::from_millis(700)).await;
        Ok::<_, Failed>(())
    };
    let three: Vec<_> = (0..3).map(|_| world.process_with(every_second("job"), slow)).collect();
    let operator = world.redlock().election("cron:lead").build().unwrap();
    sleep(5 * SECOND).await;
    for n in 0..4 {
        // Some of these changes of the leader come in the middle of a run.
        sleep(Duration::from_millis(300 * n)).await;
        let before = three.iter().position(world::Process::leads).unwrap();
        let down = operator.step_down("maintenance", 10 * SECOND).await.unwrap();
        assert!(matches!(down, StepDown::Resigned(_)), "{down:?}");
        sleep(Duration::from_millis(100)).await;
        let after = three.iter().position(world::Process::leads).unwrap();
        assert_ne!(before, after, "another one leads");
        sleep(5 * SECOND).await;
    }
    sleep(SECOND).await;
    let (runs, completed) = (world.runs(), world.completed());
    drop(three);
    assert!(runs.iter().all(|run| run.attempt == 1), "nothing was interrupted: {runs:?}");
    let (first, last) = (runs[0].at, *completed.last().unwrap());
    assert_eq!(completed, (first..=last).collect::<Vec<_>>(), "each tick once");
    assert!(last - first > 20);
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_process_died_is_run_again_or_left_as_the_job_says() {
    for policy in [Interrupted::Rerun, Interrupted::Leave] {
        let world = World::new();
        let job = || every_second("job").interrupted(policy).late(60 * SECOND);
        let first = world.process_with(job(), |tick: Tick| async move {
            if tick.unix_seconds() % 4 == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Failed>(())
        });
        world.sleep(5 * SECOND).await;
        let stuck = world.runs().last().unwrap().at;
        assert_eq!(stuck % 4, 0, "{:?}", world.runs());
        drop(first);
        let second = world.process(job());
        world.sleep(10 * SECOND).await;
        let again: Vec<_> =
            world.runs().iter().filter(|r| r.at == stuck).map(|r| r.attempt).collect();
        let report = second.cron.history(&job(), 20).await.unwrap();
        let stuck = report.iter().find(|r| r.at == world::at(stuck)).unwrap();
        if policy == Interrupted::Rerun {
            assert_eq!(again, [1, 2]);
            assert!(matches!(&stuck.state, TickState::Over(run) if run.attempt == 2), "{stuck:?}");
        } else {
            assert_eq!(again, [1]);
            assert_eq!(stuck.state, TickState::Interrupted);
        }
        // A tick that was due while no process could run the job does not count as missed. It is
        // run late, because the job allows 60 s.
        assert!(world.completed().len() >= 12, "{:?}", world.completed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_rare_tick_is_not_lost_when_the_leader_leaves_just_before_it() {
    let world = World::with_ttl(20 * SECOND);
    let job = || Job::new("rare", "*/5 * * * *").zone("Europe/Zurich");
    let three: Vec<_> = (0..3).map(|_| world.process(job())).collect();
    sleep(SECOND).await;
    for _ in 0..3 {
        let next = three[0].cron.upcoming(&job(), 1).unwrap()[0];
        let left = next.duration_since(world.now()).unwrap();
        // The leader steps down just before the tick, and its successor also steps down.
        sleep(left.saturating_sub(Duration::from_millis(200))).await;
        for process in &three {
            process.cron.step_down();
        }
        sleep(Duration::from_millis(150)).await;
        for process in &three {
            process.cron.step_down();
        }
        sleep(5 * SECOND).await;
    }
    assert_eq!(world.runs().len(), 3, "{:?}", world.runs());
}

#[tokio::test(start_paused = true)]
async fn an_error_ends_the_tick_and_a_retry_does_not() {
    let world = World::new();
    let process = world.process_with(every_second("job"), |tick: Tick| async move {
        match (tick.unix_seconds() % 3, tick.attempt()) {
            (0, _) => Err(Failed::unknown("broken")),
            _ => Ok(()),
        }
    });
    world.sleep(9 * SECOND).await;
    let report = process.cron.history(&every_second("job"), 6).await.unwrap();
    let ends: Vec<_> = report
        .iter()
        .filter_map(
            |r| if let TickState::Over(run) = &r.state { Some(run.end.clone()) } else { None },
        )
        .collect();
    assert!(ends.len() >= 5 && ends.contains(&End::Failed("broken".into())), "{report:?}");
    drop(process);

    let tried = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counts = std::sync::Arc::clone(&tried);
    let retry = world.process_with(every_second("other"), move |_| {
        let n = counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move { if n.is_multiple_of(2) { Err(Failed::no_effect("not yet")) } else { Ok(()) } }
    });
    world.sleep(6 * SECOND).await;
    let report = retry.cron.history(&every_second("other"), 4).await.unwrap();
    let is_done = |run: &Run| run.end == End::Done && run.attempt == 1;
    let done = |r: &TickReport| matches!(&r.state, TickState::Over(run) if is_done(run));
    assert!(report[1..].iter().all(done), "{report:?}");
    assert!(tried.load(std::sync::atomic::Ordering::Relaxed) >= 8);
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_ticks_wait_and_are_run_when_it_is_back() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let world = World::new();
    let process = world.process(every_second("job").late(30 * SECOND));
    world.sleep(3 * SECOND).await;
    world.cut(true);
    sleep(6 * SECOND).await;
    world.cut(false);
    sleep(10 * SECOND).await;
    drop(process);
    let completed = world.completed();
    let (first, last) = (completed[0], *completed.last().unwrap());
    assert_eq!(completed, (first..=last).collect::<Vec<_>>());
    assert!(last - first > 14, "{completed:?}");
    assert_eq!(log.lines(&["ticks wait", "job"]).len(), 1, "said once: {}", log.text());
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_or_a_death_the_newest_tick_alone_is_run() {
    for dies in [false, true] {
        let world = World::new();
        let mut process = world.process(every_second("job"));
        world.sleep(5 * SECOND).await;
        let before = world.runs().len();
        if dies {
            drop(process);
            world.sleep(20 * SECOND).await;
            process = world.process(every_second("job"));
        } else {
            world.cut(true);
            sleep(20 * SECOND).await;
            world.cut(false);
        }
        world.sleep(10 * SECOND).await;
        drop(process);
        let runs = world.runs();
        let after = &runs[before..];
        // After the outage one tick ran each second. Of the ticks during the outage, only the
        // newest could run.
        assert!((4..=12).contains(&after.len()), "dies: {dies}: {after:?}");
        let late = |run: &world::Run| run.began.cast_signed() / 1_000 - run.at;
        assert!(after.iter().all(|run| late(run) <= 1), "dies: {dies}: {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused_at_once() {
    let world = World::new();
    let cron = palisade_cron::Cron::new(&world.redlock());
    for (job, field) in [
        (Job::new("", "* * * * *"), "name"),
        (Job::new("job", "61 * * * *"), "schedule"),
        (Job::new("job", "* * * * *").zone("Zurich"), "zone"),
        (Job::new("job", "* * * * *").at_least(SECOND).at_most(SECOND), "at_least"),
    ] {
        let run = cron.run(job, |_| async { Ok::<_, Failed>(()) }).await;
        let why = run.unwrap_err().to_string();
        assert!(why.contains(&format!("`{field}`")), "{why}");
    }
    // Closing the handle ends the cron job without an error.
    let redlock = world.redlock();
    let cron = palisade_cron::Cron::new(&redlock);
    let job = Job::new("job", "* * * * *").missed(Missed::RunLatest);
    let run = cron.run(job, |_| async { Ok::<_, Failed>(()) });
    let (ended, closed) = tokio::join!(run, async {
        sleep(SECOND).await;
        redlock.close(SECOND).await
    });
    ended.unwrap();
    assert!(closed.is_clean(), "{closed}");
}
