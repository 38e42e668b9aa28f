//! `palisade cron` on several hosts, which are processes here.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, text, until};

const SOON: Duration = Duration::from_secs(10);
const EACH: &str = "* * * * * *";

/// The runs that began: tick and attempt.
fn runs(ground: &Ground) -> Vec<(u64, u32)> {
    let text = text(&ground.file("ran"));
    let number = |word: Option<&str>| word.expect("two words").parse().expect("a number");
    let one = |line: &str| {
        let mut words = line.split(' ');
        (number(words.next()), number(words.next()) as u32)
    };
    // The last line may be under way.
    text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')).map(one).collect()
}

#[test]
fn each_tick_is_run_once_while_hosts_come_and_go() {
    let ground = Ground::new();
    let script = "echo $PALISADE_TICK $PALISADE_ATTEMPT >>ran";
    // A lease that no busy machine outlasts: what is run again was killed, and by this test.
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
        // Mostly between two ticks.
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
    assert!(again <= 2, "more was run again than was killed: {all:?}");
    let (first, last) = (all[0].0, all[all.len() - 1].0);
    let history = ground.run(&["cron", EACH, "job", "--ttl", "15s", "--history", "600", "--json"]);
    let reports = history.out.lines().map(|l| serde_json::from_str(l).expect("JSON"));
    let ends: BTreeMap<u64, Value> = reports
        .map(|report: Value| (report["tick"].as_u64().unwrap(), report["run"]["end"].clone()))
        .collect();
    let (mut done, mut ended) = (0, 0);
    for tick in first..=last {
        match &ends[&tick] {
            end if *end == "done" => done += 1,
            // It was due while the one before it still ran.
            end if end["skipped"] == "overlap" => {}
            // TERM reached its command.
            end if end["failed"] == "ended by signal 15" => ended += 1,
            other => panic!("tick {tick} was not run to its end: {other}"),
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
