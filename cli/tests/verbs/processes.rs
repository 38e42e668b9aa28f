//! Tests of signals, of process groups, and of processes that a command of `palisade lock` leaves
//! behind.

use std::time::Duration;

use crate::ground::{Ground, is_alive, text, until};

const SOON: Duration = Duration::from_secs(40);

/// Returns the process id that a script wrote to a file.
fn pid(ground: &Ground, file: &str) -> u32 {
    let file = ground.file(file);
    until("a process id", SOON, || text(&file).ends_with('\n'));
    text(&file).trim().parse().expect("a number")
}

#[test]
fn signals_reach_the_command() {
    let ground = Ground::new();
    let script = "trap 'echo usr1 >>got' USR1; trap 'echo term >>got; exit 3' TERM; \
                  echo $$ >pid; while :; do sleep 0.02; done";
    let run = ground.spawn(&["lock", "a", "-c", script]);
    pid(&ground, "pid");
    run.signal("USR1");
    until("USR1", SOON, || text(&ground.file("got")).contains("usr1"));
    run.signal("TERM");
    assert_eq!(run.end(SOON).code, 3);
    assert_eq!(text(&ground.file("got")), "usr1\nterm\n");
    // The command ignores the first SIGINT. The second SIGINT kills it.
    let deaf = ground.spawn(&["lock", "a", "-c", "trap '' INT; echo $$ >deaf; sleep 30; sleep 30"]);
    pid(&ground, "deaf");
    // If two signals arrive before `palisade` handles the first one, they count as one signal. On a
    // busy machine more signals are needed.
    for _ in 0..10 {
        deaf.signal("INT");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(deaf.end(SOON).code, 137);
}

#[test]
fn what_a_command_leaves_behind_is_ended_before_the_lock_is_free() {
    let ground = Ground::new();
    let run = ground.run(&["lock", "a", "-c", "sleep 60 & echo $! >left"]);
    assert_eq!(run.code, 0);
    assert!(!is_alive(pid(&ground, "left")));
}

#[test]
fn the_whole_group_dies_with_the_program() {
    let ground = Ground::new();
    let script = "echo $$ >child; sleep 60 & echo $! >grandchild; wait";
    let run = ground.spawn(&["lock", "a", "-c", script]);
    let family = [pid(&ground, "child"), pid(&ground, "grandchild")];
    run.signal("KILL");
    until("its family is dead", Duration::from_secs(1), || !family.iter().any(|p| is_alive(*p)));
    // The killed program did not release the lock. So the lock is free at the end of its lease.
    assert_eq!(ground.run(&["lock", "-w", "5s", "a", "--", "true"]).code, 0);
}

#[test]
fn a_command_that_signals_its_own_group_does_not_take_the_guard_down() {
    let ground = Ground::new();
    let run = ground.run(&["lock", "a", "-c", "trap '' TERM; kill -TERM 0; echo on; exit 5"]);
    assert_eq!((run.code, run.out.as_str()), (5, "on\n"), "{}", run.err);
}

#[test]
fn a_thousand_lines_come_through() {
    let ground = Ground::new();
    let run = ground.run(&["lock", "a", "-c", "seq 1000"]);
    assert_eq!(run.out.lines().count(), 1_000);
}
