//! Tests of missed ticks that a later tick has overtaken: another process ran it meanwhile, or its
//! record does not say what became of it.

use std::time::Duration;

use palisade::idempotency::Call;
use palisade_cron::{Job, Missed};
use tokio::time::sleep;

use crate::SECOND;
use crate::world::{World, at};

const MINUTE: u64 = 60;

/// A job whose ticks are on time for `late`.
fn each_minute(late: Duration) -> Job {
    Job::new("job", "* * * * *").missed(Missed::RunLatest).late(late)
}

/// Sleeps until this time after the next full minute, and returns that minute.
async fn until(world: &World, after: Duration) -> i64 {
    let now = world.now().duration_since(at(0)).unwrap();
    let minute = (now.as_secs() / MINUTE + 1) * MINUTE;
    sleep((Duration::from_secs(minute) + after).saturating_sub(now)).await;
    minute.cast_signed()
}

/// Returns a world in which the job has run on some process.
async fn used(job: Job) -> World {
    let world = World::with_ttl(20 * SECOND);
    until(&world, 10 * SECOND).await;
    let first = world.process(job);
    sleep(SECOND).await;
    first.end().await;
    world
}

/// Returns the record of a tick, with results of at most this number of bytes.
fn record(world: &World, tick: i64, most: usize) -> Call {
    let keys = world.redlock().idempotency("cron").at_least_once().max_result(most);
    let keys = keys.retention(Duration::from_secs(8 * 24 * 3_600)).build().unwrap();
    keys.key(format!("cron/job@{tick}")).created_at(at(tick))
}

async fn store(record: Call, value: serde_json::Value) {
    drop(record.run(|_| async move { Ok::<_, String>(value) }).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_record_says_nothing_counts_as_run() {
    // It is the result of something else, and it is too large.
    for most in [1_000, 1] {
        let job = || each_minute(SECOND);
        let world = used(job()).await;
        let tick = until(&world, 150 * SECOND).await + 120;
        store(record(&world, tick, most), "done".into()).await;
        let process = world.process(job());
        sleep(20 * SECOND).await;
        assert!(world.runs().is_empty(), "{most}: {:?}", world.runs());
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_another_process_ran_on_time_comes_before_a_missed_one_that_waits() {
    // The moments differ, so that the process waits for the lock, and rests, at the later tick.
    for n in 0..4 {
        let job = || each_minute(SECOND);
        let world = used(job()).await;
        let redlock = world.redlock();
        let lock = redlock.mutex("cron:cron/job").build().unwrap().acquire().await.unwrap();
        let tick = until(&world, 110 * SECOND + Duration::from_millis(100 * n)).await + 120;
        let process = world.process(job());
        let left = at(tick).duration_since(world.now()).unwrap();
        sleep(left + Duration::from_millis(20)).await;
        let started = tick.unsigned_abs() * 1_000 + 10;
        let run = serde_json::json!({
            "by": "another", "started": started, "ended": started, "attempt": 1, "token": 1,
            "backfilled": false, "end": "done",
        });
        store(record(&world, tick, 1_000), run).await;
        drop(lock.release().await);
        sleep(20 * SECOND).await;
        assert!(world.runs().is_empty(), "{n}: {:?}", world.runs());
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_without_a_result_comes_before_a_missed_one_that_waits() {
    let job = || each_minute(70 * SECOND);
    let world = used(job()).await;
    let redlock = world.redlock();
    let lock = redlock.mutex("cron:cron/job").build().unwrap().acquire().await.unwrap();
    let tick = until(&world, 75 * SECOND).await + 120;
    let process = world.process(job());
    let left = at(tick).duration_since(world.now()).unwrap();
    sleep(left + Duration::from_millis(20)).await;
    store(record(&world, tick, 1), "done".into()).await;
    // The tick before it is no longer on time.
    sleep(15 * SECOND).await;
    drop(lock.release().await);
    sleep(20 * SECOND).await;
    assert!(world.runs().is_empty(), "{:?}", world.runs());
    drop(process);
}
