//! Tests of runs of a cron job that an operator requests, outside of the schedule.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use palisade::Failed;
use palisade::idempotency::Resolved;
use palisade_cron::{Cron, CronError, Job, Requested, RunRequest, Tick};
use tokio::time::sleep;

use crate::SECOND;
use crate::world::{Process, World};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a job whose schedule has no tick during these tests.
fn rare() -> Job {
    Job::new("job", "0 0 29 2 *").on_request()
}

/// Requests a run, and waits up to five seconds for the beginning of the run.
async fn ask(cron: &Cron) -> Requested {
    cron.request_run("job", "ann", "the file is there", 5 * SECOND).await.unwrap()
}

/// Sleeps until the next time at which the clock's seconds are a multiple of ten. All requests of
/// the same ten seconds count as one request.
async fn next_ten(world: &World) {
    let now = world.now().duration_since(UNIX_EPOCH).unwrap().as_millis() % 10_000;
    sleep(Duration::from_millis(10_000 - u64::try_from(now).unwrap())).await;
}

fn stored(requested: Requested) -> (RunRequest, bool) {
    match requested {
        Requested::Begun { request, is_new, .. } | Requested::Waits { request, is_new } => {
            (request, is_new)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_runs_each_request_once() {
    let world = World::new();
    let three: Vec<_> = (0..3).map(|_| world.process(rare())).collect();
    let operator = Cron::new(&world.redlock());
    sleep(5 * SECOND).await;
    let mut numbers = Vec::new();
    for n in 1..=3 {
        next_ten(&world).await;
        let first = ask(&operator).await;
        let Requested::Begun { request, is_new: true, run: Some(run) } = first else {
            panic!("{first:?}")
        };
        assert!(run.requested && request.by == "ann" && !run.backfilled, "{run:?}");
        // A second call within the same ten seconds returns the same request.
        let again = ask(&operator).await;
        assert_eq!(stored(again), (request.clone(), false));
        numbers.push(request.number);
        sleep(20 * SECOND).await;
        assert_eq!(world.runs().len(), n, "{:?}", world.runs());
    }
    sleep(2 * MINUTE).await;
    let runs = world.runs();
    assert_eq!(runs.len(), 3, "{runs:?}");
    assert!(runs.iter().all(|run| run.requested && run.attempt == 1));
    assert!(runs.windows(2).all(|w| w[1].token > w[0].token), "tokens rise");
    assert!(numbers.windows(2).all(|w| w[1] > w[0]), "{numbers:?}");
    drop(three);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_run_once_although_leaders_come_and_go() {
    let world = World::new();
    let mut three: Vec<_> = (0..3).map(|_| world.process(rare())).collect();
    let operator = Cron::new(&world.redlock());
    sleep(5 * SECOND).await;
    let mut requests = Vec::new();
    for n in 0..20_u32 {
        let asked = operator.request_run("job", "ann", "", Duration::ZERO).await.unwrap();
        requests.push(stored(asked).0.at);
        // The time from the request to the leader's end differs in each round. So some leaders end
        // before they have read the request, and some after they have run the job.
        sleep(Duration::from_millis(190) * n).await;
        let leader = three.iter().position(Process::leads).unwrap_or(0);
        match n % 3 {
            0 => three[leader].cron.step_down(),
            1 => three[leader] = world.process(rare()),
            _ => std::mem::replace(&mut three[leader], world.process(rare())).end().await,
        }
        sleep(12 * SECOND).await;
    }
    sleep(MINUTE).await;
    drop(three);
    assert_eq!(world.completed(), requests, "each request once");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_does_not_allow_requests_says_so() {
    let world = World::new();
    let process = world.process(Job::new("job", "0 0 29 2 *"));
    sleep(5 * SECOND).await;
    let operator = Cron::new(&world.redlock());
    assert_eq!(ask(&operator).await, Requested::NotAllowed);
    let unheard = operator.request_run("other", "ann", "", SECOND).await.unwrap();
    assert_eq!(unheard, Requested::NotAllowed);
    assert!(operator.request_run("", "ann", "", SECOND).await.is_err());
    sleep(MINUTE).await;
    assert!(world.runs().is_empty());
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_request_older_than_a_minute_is_not_run() {
    for (pause, runs) in [(40, 1), (70, 0)] {
        let world = World::new();
        let process = world.process(rare());
        sleep(5 * SECOND).await;
        process.end().await;
        let operator = Cron::new(&world.redlock());
        let asked = ask(&operator).await;
        assert!(matches!(asked, Requested::Waits { is_new: true, .. }), "{asked:?}");
        sleep(pause * SECOND).await;
        let process = world.process(rare());
        sleep(MINUTE).await;
        assert_eq!(world.runs().len(), runs, "after {pause} s");
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_the_run_under_way_and_not_for_ever() {
    for (takes, runs) in [(20, 2), (90, 1)] {
        let world = World::new();
        let process = world.process_with(rare(), move |_: Tick| async move {
            sleep(takes * SECOND).await;
            Ok(())
        });
        let operator = Cron::new(&world.redlock());
        sleep(5 * SECOND).await;
        let first = ask(&operator).await;
        assert!(matches!(first, Requested::Begun { run: None, .. }), "{first:?}");
        sleep(10 * SECOND).await;
        let second = ask(&operator).await;
        assert!(matches!(second, Requested::Waits { is_new: true, .. }), "{second:?}");
        sleep(3 * MINUTE).await;
        let all = world.runs();
        assert_eq!(all.len(), runs, "{takes} s: {all:?}");
        let apart = |w: &[crate::world::Run]| w[1].began >= w[0].began + 20_000;
        assert!(all.windows(2).all(apart), "one after the other: {all:?}");
        drop(process);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stored_request_waits_although_no_node_answers_any_more() {
    let world = World::new();
    let process = world.process(rare());
    sleep(5 * SECOND).await;
    process.end().await;
    let operator = Cron::new(&world.redlock());
    let outage = async {
        sleep(SECOND).await;
        world.cut(true);
    };
    let (asked, ()) = tokio::join!(ask(&operator), outage);
    assert!(matches!(asked, Requested::Waits { is_new: true, .. }), "{asked:?}");
    world.cut(false);
    let process = world.process(rare());
    sleep(MINUTE).await;
    assert_eq!(world.runs().len(), 1);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_requested_run_that_ends_without_a_result_after_a_minute_is_run_again() {
    for dies in [false, true] {
        let world = World::new();
        let is_first = AtomicBool::new(true);
        let long = move |_: Tick| {
            let is_first = is_first.swap(false, Ordering::Relaxed);
            async move {
                if is_first {
                    sleep(90 * SECOND).await;
                    return Err(Failed::no_effect("not yet"));
                }
                Ok(())
            }
        };
        let first = world.process_with(rare(), long);
        sleep(5 * SECOND).await;
        let operator = Cron::new(&world.redlock());
        let asked = ask(&operator).await;
        assert!(matches!(asked, Requested::Begun { run: None, .. }), "{asked:?}");
        let second = world.process(rare());
        sleep(80 * SECOND).await;
        let first = (!dies).then_some(first);
        sleep(MINUTE).await;
        let runs = world.runs();
        assert_eq!(runs.len(), 2, "dies: {dies}: {runs:?}");
        assert_eq!(runs[1].attempt, if dies { 2 } else { 1 });
        assert_eq!(world.completed().len(), 1);
        drop((first, second));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_on_one_node_of_three_is_completed_and_run() {
    let world = World::new();
    let process = world.process(rare());
    sleep(5 * SECOND).await;
    process.end().await;
    // The request is stored on the first two nodes, because the third is cut off. Later the second
    // node is cut off, so only one node that answers has the request.
    world.cut_only(2);
    let operator = Cron::new(&world.redlock());
    let asked = ask(&operator).await;
    assert!(matches!(asked, Requested::Waits { is_new: true, .. }), "{asked:?}");
    world.cut_only(1);
    let process = world.process(rare());
    sleep(MINUTE).await;
    assert_eq!(world.runs().len(), 1);
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_sign_on_one_node_of_three_still_allows_requests() {
    let world = World::new();
    // A process stores a sign that its job allows requests. The sign is on the first two nodes,
    // because the third is cut off. Later the second node is cut off, so only one node that answers
    // has the sign.
    world.cut_only(2);
    let process = world.process(rare());
    sleep(5 * SECOND).await;
    process.end().await;
    world.cut_only(1);
    let operator = Cron::new(&world.redlock());
    let asked = ask(&operator).await;
    assert!(matches!(asked, Requested::Waits { is_new: true, .. }), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_no_request_leaves_the_other_requests_alone() {
    let world = World::new();
    let process = world.process(rare());
    sleep(5 * SECOND).await;
    next_ten(&world).await;
    let number = world.now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 10;
    let records = world.redlock().idempotency("cron").at_least_once().build().unwrap();
    let stored = records.key(format!("cron/job/request/{number}")).resolve(&7).await.unwrap();
    assert_eq!(stored, Resolved::Stored);
    next_ten(&world).await;
    let asked = ask(&Cron::new(&world.redlock())).await;
    assert!(matches!(asked, Requested::Begun { run: Some(_), .. }), "{asked:?}");
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_late_by_the_jitter_after_a_backward_step_of_the_clock() {
    let world = World::new();
    let host = world.host();
    host.set_ahead(5);
    let job = rare().jitter(300 * 24 * 60 * MINUTE);
    let process = world.process_on(&host, job, |_| async {
        sleep(15 * SECOND).await;
        Ok(())
    });
    sleep(5 * SECOND).await;
    let operator = Cron::new(&world.redlock());
    next_ten(&world).await;
    let first = ask(&operator).await;
    assert!(matches!(first, Requested::Begun { run: None, .. }), "{first:?}");
    next_ten(&world).await;
    let second = ask(&operator).await;
    assert!(matches!(second, Requested::Waits { is_new: true, .. }), "{second:?}");
    host.set_ahead(0);
    sleep(MINUTE).await;
    assert_eq!(world.completed().len(), 2, "{:?}", world.runs());
    drop(process);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_reported_as_one_that_may_be_run() {
    let mut not_confirmed = 0;
    for requests in 0..8 {
        let world = World::new();
        let process = world.process(rare());
        sleep(5 * SECOND).await;
        process.end().await;
        next_ten(&world).await;
        let operator = Cron::new(&world.redlock());
        world.lose_replies_after(requests);
        let before = world.now();
        let asked = operator.request_run("job", "ann", "", Duration::ZERO).await;
        world.lose_no_replies();
        let process = world.process(rare());
        sleep(MINUTE).await;
        let runs = world.runs().len();
        match asked {
            Ok(Requested::Waits { .. }) => assert_eq!(runs, 1),
            Err(e @ CronError::NotConfirmed { until, .. }) => {
                let text = e.to_string();
                assert!(text.contains("may begin until 20") && text.contains("twice"), "{text}");
                assert!(until >= before + 59 * SECOND && until <= before + 61 * SECOND);
                not_confirmed += runs;
            }
            Err(CronError::Record(_)) => assert_eq!(runs, 0, "after {requests} requests"),
            other => panic!("{other:?}"),
        }
        drop(process);
    }
    assert!(not_confirmed > 0, "one of these was stored and run");
}
