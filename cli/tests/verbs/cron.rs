//! `palisade cron` on several hosts, which are processes here.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ground::{Ground, text, until};

const SOON: Duration = Duration::from_secs(10);
const EACH: &str = "* * * * * *";

/// How often each tick was run.
fn ticks(ground: &Ground) -> BTreeMap<u64, u32> {
    let mut all = BTreeMap::new();
    for line in text(&ground.file("ran")).lines() {
        *all.entry(line.parse().expect("a tick")).or_default() += 1;
    }
    all
}

#[test]
fn each_tick_is_run_once_while_hosts_come_and_go() {
    let ground = Ground::new();
    let line = ["cron", EACH, "job", "--late", "30s", "-c", "echo $PALISADE_TICK >>ran"];
    let mut three: Vec<_> = (0..3).map(|_| ground.spawn(&line)).collect();
    until("ticks", SOON, || ticks(&ground).len() >= 2);
    for n in 0..3 {
        std::thread::sleep(Duration::from_millis(1_700));
        let gone = std::mem::replace(&mut three[n], ground.spawn(&line));
        // Between two ticks: what is killed in the middle of a command is run again.
        let into = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let rest = 1_600 - u64::from(into.subsec_millis());
        std::thread::sleep(Duration::from_millis(rest % 1_000));
        gone.signal(["KILL", "TERM", "KILL"][n]);
        let _ = gone.end(SOON);
    }
    std::thread::sleep(Duration::from_secs(3));
    drop(three);
    let all = ticks(&ground);
    let (first, last) = (*all.keys().next().unwrap(), *all.keys().last().unwrap());
    assert!(all.values().all(|n| *n == 1), "{all:?}");
    assert_eq!(all.len() as u64, last - first + 1, "{all:?}");
    assert!(all.len() > 7, "{all:?}");
    let history = ground.run(&["cron", EACH, "job", "--late", "30s", "--history", "20"]);
    assert_eq!(history.out.lines().filter(|l| l.contains(" done (")).count(), all.len());
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
