//! `palisade cron` on several hosts. In this test each host is a process.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, is_alive, text, until};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(40);
const EACH: &str = "* * * * * *";

/// Returns the tick and the attempt of each run that has begun.
fn runs(ground: &Ground) -> Vec<(u64, u32)> {
    let text = text(&ground.file("ran"));
    let number = |word: Option<&str>| word.expect("two words").parse().expect("a number");
    let one = |line: &str| {
        let mut words = line.split(' ');
        (number(words.next()), number(words.next()) as u32)
    };
    // The script may still be writing the last line, so a line without its end is left out.
    text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')).map(one).collect()
}

#[test]
fn each_tick_is_run_once_while_hosts_come_and_go() {
    let ground = Ground::new();
    let script = "echo $PALISADE_TICK $PALISADE_ATTEMPT >>ran";
    // The lease is so long that it does not end even on a busy machine. So a run is repeated only
    // if this test has killed it.
    let line = ["cron", EACH, "job", "--ttl", "15s", "--late", "5m", "-c", script];
    let mut three: Vec<_> = (0..3).map(|_| ground.spawn(&line)).collect();
    let more = |n: usize| {
        let seen = runs(&ground).len();
        until("ticks", 6 * SOON, || runs(&ground).len() >= seen + n);
    };
    more(2);
    for (n, how) in ["KILL", "TERM", "KILL"].into_iter().enumerate() {
        more(2);
        let gone = std::mem::replace(&mut three[n], ground.spawn(&line));
        // The test waits, so that the signal usually arrives between two ticks.
        let into = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let rest = 1_600 - u64::from(into.subsec_millis());
        std::thread::sleep(Duration::from_millis(rest % 1_000));
        gone.signal(how);
        let _ = gone.end(6 * SOON);
    }
    more(3);
    for host in &three {
        host.signal("TERM");
    }
    for host in three {
        host.end(6 * SOON);
    }

    let mut all = runs(&ground);
    all.sort_unstable();
    assert!(all.windows(2).all(|w| w[0] != w[1]), "an attempt was made twice: {all:?}");
    let again = all.iter().filter(|(_, attempt)| *attempt > 1).count();
    assert!(again <= 3, "more was run again than was ended: {all:?}");
    let (first, last) = (all[0].0, all[all.len() - 1].0);
    let history = ground.run(&["cron", EACH, "job", "--ttl", "15s", "--history", "600", "--json"]);
    assert_eq!(history.code, 0, "{}", history.err);
    let reports = history.out.lines().map(|l| serde_json::from_str(l).expect("JSON"));
    let ends: BTreeMap<u64, Value> =
        reports.map(|report: Value| (report["tick"].as_u64().unwrap(), report)).collect();
    let (mut done, mut ended) = (0, 0);
    for tick in first..=last {
        match &ends[&tick]["run"]["end"] {
            end if *end == "done" => done += 1,
            // The tick came while the command of the previous tick still ran.
            end if end["skipped"] == "overlap" => {}
            // The command of the tick received TERM.
            end if end["failed"] == "ended by signal 15" => ended += 1,
            _ => panic!("tick {tick} was not run to its end: {}", ends[&tick]),
        }
    }
    assert!(done >= 8 && ended <= 4, "{ends:?}");
}

#[test]
fn a_signal_reaches_the_command_and_then_ends_the_program() {
    let ground = Ground::new();
    let script = "trap 'echo term >got; exit 0' TERM; echo up >up; while :; do sleep 0.02; done";
    let run = ground.spawn(&["cron", EACH, "job", "-c", script]);
    until("it runs", SOON, || ground.file("up").exists());
    run.signal("TERM");
    assert_eq!(run.end(SOON).code, 143);
    assert_eq!(text(&ground.file("got")), "term\n");
    let history = ground.run(&["cron", EACH, "job", "--history", "60", "--json"]);
    assert!(history.out.contains("\"end\":\"done\""), "{}", history.out);
}

#[test]
fn a_program_that_a_signal_ends_leaves_the_jobs_lock_to_the_others() {
    let ground = Ground::new();
    let line = ["cron", EACH, "job", "--at-least", "10m", "-c", "echo $PALISADE_TICK 1 >>ran"];
    let run = ground.spawn(&line);
    until("a run", SOON, || !runs(&ground).is_empty());
    run.signal("TERM");
    let ended = run.end(SOON);
    assert_eq!(ended.code, 143);
    assert!(!ended.err.contains("still held"), "{}", ended.err);
    let free = ground.run(&["lock", "cron:cron:job/job", "-n", "--", "true"]);
    assert_eq!(free.code, 0, "{}", free.err);
}

#[test]
fn what_a_cancelled_command_leaves_behind_does_not_outlive_its_grace() {
    let ground = Ground::new();
    // The command uses most of its grace time. The process that it leaves behind would use the same
    // time again.
    let script = "sh -c 'trap \"\" TERM; echo $$ >>left; exec sleep 60' & \
                  trap 'sleep 0.8; exit 0' TERM; while :; do sleep 0.02; done";
    let line = ["--overlap", "cancel-previous", "--ttl", "12s", "--grace", "1s", "-c", script];
    let run = ground.spawn(&[&["cron", EACH, "job"], &line[..]].concat());
    let left = || text(&ground.file("left"));
    until("the next run", SOON, || left().lines().count() > 1);
    let first = left().lines().next().and_then(|pid| pid.parse().ok()).expect("a process id");
    until("what the first one left is gone", SOON / 4, || !is_alive(first));
    run.signal("TERM");
    assert_eq!(run.end(SOON).code, 143);
}

#[test]
fn what_cannot_be_is_wrong_use() {
    let ground = Ground::new();
    for wrong in [
        &["cron", "61 * * * *", "job", "--", "true"][..],
        &["cron", EACH, "job", "--zone", "Zurich", "--", "true"],
        &["cron", EACH, "job"],
    ] {
        let run = ground.run(wrong);
        assert_eq!(run.code, 64, "{wrong:?}: {}", run.err);
    }
}

#[test]
fn a_job_whose_server_is_not_there_or_refuses_the_login_says_so() {
    let ground = Ground::new();
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    // No server can be reached. `palisade cron` waits for its nodes and reports this.
    let line = ["cron", EACH, "job", "--node", &nobody, "--", "true"];
    let waiting = ground.logged(&mut ground.command(&line));
    until("it says that it waits", SOON, || {
        text(&ground.file("err")).contains("waits for its nodes")
    });
    assert!(is_alive(waiting.pid()));
    // The history cannot be read. `palisade cron` must not print an empty history.
    let run = ground.run(&["cron", EACH, "job", "--node", &nobody, "--history", "3"]);
    assert_eq!((run.code, run.out.as_str()), (69, ""), "{}", run.err);
    assert!(run.err.contains("redis-server"), "{}", run.err);
    // `palisade cron` does not wait if the server refuses the login.
    ground.server.cli(&["config", "set", "requirepass", "right"]);
    for more in [&["--", "true"][..], &["--history", "3"]] {
        let run = ground.spawn(&[&["cron", EACH, "job"], more].concat()).end(SOON);
        assert_eq!((run.code, run.out.as_str()), (69, ""), "{}", run.err);
        assert!(run.err.contains("NOAUTH"), "{}", run.err);
    }
}

#[test]
fn warnings_of_a_job_are_lines_or_objects_of_the_program() {
    let ground = Ground::new();
    // A run with the first schedule stores this schedule on the server. So the second schedule
    // counts as edited.
    let first = ground.spawn(&["cron", EACH, "job", "-c", "echo 1 1 >>ran"]);
    until("a run", SOON, || !runs(&ground).is_empty());
    drop(first);
    let mut command = ground.command(&["cron", "0 0 2 1 *", "job", "--json", "--", "true"]);
    let second = ground.logged(&mut command);
    let err = || text(&ground.file("err"));
    until("it says so", SOON, || {
        err().lines().any(|line| line.contains("the schedule was edited") && line.ends_with('}'))
    });
    drop(second);
    let err = err();
    let line = err.lines().find(|line| line.contains("the schedule was edited"));
    let line: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("{err}"))).unwrap();
    assert_eq!((line["event"].as_str(), line["job"].as_str()), (Some("warning"), Some("job")));
}

#[test]
fn a_job_goes_on_after_its_program_was_replaced() {
    let ground = Ground::new();
    let program = ground.file("palisade");
    std::fs::copy(env!("CARGO_BIN_EXE_palisade"), &program).expect("a copy");
    let plain = ground.command(&["cron", EACH, "job", "-c", "echo $PALISADE_TICK 1 >>ran"]);
    let mut command = Command::new(&program);
    command.args(plain.get_args()).current_dir(&ground.dir);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _run = ground.logged(&mut command);
    until("a run", SOON, || !runs(&ground).is_empty());
    // The test replaces the file of `palisade` as a package manager does: it puts another file at
    // the same path.
    std::fs::write(ground.file("new"), "#!/bin/sh\nexit 1\n").expect("a file");
    std::fs::rename(ground.file("new"), &program).expect("a new program");
    let before = runs(&ground).len();
    until("more runs", 2 * SOON, || runs(&ground).len() >= before + 3);
}

#[test]
fn a_command_that_the_next_tick_ends_is_asked_first() {
    let ground = Ground::new();
    let script = "trap 'sleep 0.1; echo $PALISADE_TICK >>asked; exit 0' TERM; \
                  echo $PALISADE_TICK >>began; while :; do sleep 0.02; done";
    let args = ["cron", "--overlap", "cancel-previous", "*/2 * * * * *", "job", "-c", script];
    let run = ground.spawn(&args);
    let ticks = |file: &str| -> Vec<u64> {
        text(&ground.file(file)).lines().filter_map(|line| line.parse().ok()).collect()
    };
    until("three are asked", 3 * SOON, || ticks("asked").len() >= 3);
    // Each command had enough time for its reaction to TERM. The next command began only after
    // that.
    let (began, asked) = (ticks("began"), ticks("asked"));
    assert_eq!(asked[..3], began[..3], "none was killed before it had ended");
    let history = ground.run(&["cron", "*/2 * * * * *", "job", "--history", "8"]);
    assert!(history.out.contains(&format!("{} cancelled: nexttick", asked[0])), "{}", history.out);
    drop(run);
}

#[test]
fn an_operator_runs_a_job_now_if_it_allows_that() {
    let ground = Ground::new();
    let rare = |name: &str, more: &[&str]| {
        let line = ["cron", "0 0 29 2 *", name, "-c", "echo $PALISADE_REQUESTED >>ran"];
        ground.spawn(&[&line[..], more].concat())
    };
    let jobs = [rare("job", &["--on-request"]), rare("silent", &[])];
    let now = |name: &str| ground.run(&["run-now", name, "--reason", "late file", "--json"]);
    // The process of the job stores on the server that the job allows requests. Until then the
    // command is refused.
    until("it is run", SOON, || now("job").code == 0);
    until("the command ran", SOON, || text(&ground.file("ran")).starts_with('1'));
    let silent = now("silent");
    assert_eq!(
        (silent.code, &silent.json()["outcome"]),
        (2, &"not_allowed".into()),
        "{}",
        silent.err
    );
    assert_eq!(ground.run(&["run-now", "job"]).code, 64, "a reason is needed");
    drop(jobs);
}
