//! A lease is lost while its command runs. The command must be dead before the next command starts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ground::{Ground, is_alive, signal, text, until};

const SOON: Duration = Duration::from_secs(40);
const TTL: Duration = Duration::from_secs(2);

/// Returns a script that repeatedly writes the time in milliseconds to a file.
fn clock(file: &str) -> String {
    format!("echo $$ >{file}.pid; while :; do date +%s%3N >>{file}; sleep 0.01; done")
}

fn times(ground: &Ground, file: &str) -> Vec<u64> {
    text(&ground.file(file)).lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn a_server_that_dies_ends_the_command_within_the_lease() {
    let mut ground = Ground::new();
    let script = format!("trap 'echo term >got' TERM; {}", clock("ran"));
    let run = ground.spawn(&["lock", "a", "-c", &script]);
    until("it runs", SOON, || !times(&ground, "ran").is_empty());
    let died = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    ground.server.kill();
    let ended = run.end(SOON);
    assert_eq!(ended.code, 200, "{}", ended.err);
    // The last renewal was confirmed before the server died. So the command must end within one ttl
    // after that.
    let last = Duration::from_millis(*times(&ground, "ran").last().unwrap());
    assert!(last < died + TTL, "{last:?} {died:?}");
    assert_eq!(text(&ground.file("got")), "term\n", "it is asked first");
    assert!(ended.err.contains("cannot be renewed"), "{}", ended.err);
    // The output also contains the reason for which the lease was lost. It comes from the library's
    // log.
    assert!(ended.err.contains("palisade: node lost"), "{}", ended.err);
}

#[test]
fn a_frozen_leaders_command_is_dead_before_the_next_leaders_starts() {
    let ground = Ground::new();
    for verb in ["lock", "elect"] {
        let (one, two) = (format!("{verb}-one"), format!("{verb}-two"));
        let first = ground.spawn(&[verb, "a", "-c", &clock(&one)]);
        until("it runs", SOON, || !times(&ground, &one).is_empty());
        let pid: u32 = text(&ground.file(&format!("{one}.pid"))).trim().parse().unwrap();
        let second = ground.spawn(&[verb, "a", "-c", &clock(&two)]);
        std::thread::sleep(Duration::from_millis(300));
        first.signal("STOP");
        until("the next one runs", SOON, || !times(&ground, &two).is_empty());
        assert!(!is_alive(pid), "{verb}: both run");
        let (last, next) = (*times(&ground, &one).last().unwrap(), times(&ground, &two)[0]);
        assert!(last < next, "{verb}: {last} is not before {next}");
        first.signal("CONT");
        if verb == "lock" {
            assert_eq!(first.end(SOON).code, 200);
        } else {
            // The candidate campaigns again. The signal ends it while it waits.
            std::thread::sleep(Duration::from_millis(300));
            first.signal("TERM");
            assert_eq!(first.end(SOON).code, 143);
        }
        second.signal("TERM");
        assert_eq!(second.end(SOON).code, 143);
    }
}

/// Returns the watchdogs of the `palisade` process with this id: the processes that kill the
/// command when its lease ends.
fn watchdogs(of: u32) -> Vec<u32> {
    let children = text(format!("/proc/{of}/task/{of}/children").as_ref());
    let children = children.split_whitespace().map(|pid| pid.parse().expect("a process id"));
    let watches = |pid: &u32| text(format!("/proc/{pid}/cmdline").as_ref()).contains("--watch");
    children.filter(watches).collect()
}

#[test]
fn a_frozen_leaders_command_dies_in_time_although_a_watchdog_was_killed_right_before() {
    let ground = Ground::new();
    for place in 0..2 {
        let (one, two) = (format!("one-{place}"), format!("two-{place}"));
        let first = ground.spawn(&["elect", "a", "-c", &clock(&one)]);
        until("it runs", SOON, || !times(&ground, &one).is_empty());
        let pid: u32 = text(&ground.file(&format!("{one}.pid"))).trim().parse().unwrap();
        let second = ground.spawn(&["elect", "a", "-c", &clock(&two)]);
        std::thread::sleep(Duration::from_millis(300));
        let watchdogs = watchdogs(first.pid());
        // The stopped `palisade` cannot replace the killed watchdog, a process that kills the
        // command when its lease ends.
        first.signal("STOP");
        signal(watchdogs[place.min(watchdogs.len() - 1)], "KILL");
        until("the next one runs", SOON, || !times(&ground, &two).is_empty());
        assert!(!is_alive(pid), "both run");
        let (last, next) = (*times(&ground, &one).last().unwrap(), times(&ground, &two)[0]);
        assert!(last < next, "{last} is not before {next}");
        for run in [first, second] {
            run.signal("CONT");
            run.signal("KILL");
            run.end(SOON);
        }
    }
}

#[test]
fn a_watchdog_that_is_killed_is_replaced_and_the_command_runs_on() {
    let ground = Ground::new();
    let run =
        ground.spawn(&["lock", "a", "-c", "echo $$ >pid; while [ ! -e go ]; do sleep 0.02; done"]);
    until("it runs", SOON, || text(&ground.file("pid")).ends_with('\n'));
    let before = watchdogs(run.pid());
    // The watchdogs kill the command when its lease ends. First one watchdog is killed, then the
    // other one. After the loop both are killed at the same time.
    for killed in [&before[..1], &before[1..]] {
        for pid in killed {
            signal(*pid, "KILL");
        }
        until("there are two again", SOON, || watchdogs(run.pid()).len() == before.len());
    }
    for pid in watchdogs(run.pid()) {
        signal(pid, "KILL");
    }
    until("there are two again", SOON, || watchdogs(run.pid()).len() == 2);
    let pid: u32 = text(&ground.file("pid")).trim().parse().unwrap();
    assert!(is_alive(pid));
    // The new watchdogs (processes that kill the command at a deadline) are in the command's
    // process group, and they kill this group.
    let left = watchdogs(run.pid());
    run.signal("KILL");
    until("all are dead", SOON, || !is_alive(pid) && !left.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn stopped_watchdogs_leave_no_command_without_a_lease() {
    let mut ground = Ground::new();
    let start = |ground: &Ground, name: &str| {
        let run = ground.spawn(&["lock", name, "-c", &clock(name)]);
        until("it runs", SOON, || !times(ground, name).is_empty());
        let pid: u32 = text(&ground.file(&format!("{name}.pid"))).trim().parse().unwrap();
        let both = watchdogs(run.pid());
        for pid in &both {
            signal(*pid, "STOP");
        }
        assert_eq!(both.len(), 2);
        (run, pid, both)
    };
    // First case: the lease is renewed, and the stopped watchdogs continue after the first deadline
    // of the lease.
    let (run, pid, both) = start(&ground, "renewed");
    std::thread::sleep(TTL * 3 / 2);
    assert!(is_alive(pid));
    let seen = ground.run(&["inspect", "renewed", "--json"]);
    assert!(seen.out.contains("\"held\""), "{}", seen.out);
    for pid in &both {
        signal(*pid, "CONT");
    }
    assert_eq!(run.end(SOON).code, 137, "they end the command, and its exit code says so");
    assert!(!is_alive(pid));
    // Second case: the `palisade` process that started the stopped watchdogs is killed.
    let (run, pid, both) = start(&ground, "killed");
    run.signal("KILL");
    until("the command is dead", SOON, || !is_alive(pid));
    for pid in &both {
        signal(*pid, "CONT");
    }
    until("they are, too", SOON, || !both.iter().any(|pid| is_alive(*pid)));
    // Third case: `palisade` and both watchdogs are stopped. The command ends when one watchdog
    // continues.
    let (run, pid, both) = start(&ground, "stopped");
    run.signal("STOP");
    std::thread::sleep(TTL);
    signal(both[1], "CONT");
    until("the command is dead", SOON, || !is_alive(pid));
    run.signal("CONT");
    assert_eq!(run.end(SOON).code, 200);
    // Fourth case: the server is killed, and the lease ends.
    let (run, pid, _) = start(&ground, "lost");
    let died = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    ground.server.kill();
    assert_eq!(run.end(SOON).code, 200);
    assert!(!is_alive(pid));
    let last = Duration::from_millis(*times(&ground, "lost").last().unwrap());
    assert!(last < died + TTL, "{last:?} {died:?}");
}

#[test]
fn force_release_raises_the_fence_and_two_never_hold_it() {
    let ground = Ground::new();
    let script = format!("echo $PALISADE_FENCING_TOKEN >token; {}", clock("old"));
    let old = ground.spawn(&["lock", "a", "-c", &script]);
    until("it runs", SOON, || !times(&ground, "old").is_empty());
    let seen = ground.run(&["inspect", "a", "--json"]);
    let seen = seen.json();
    assert_eq!(seen["state"], "held");
    let ask = ground.run(&["force-release", "a", "--reason", "it hangs"]);
    assert_eq!(ask.code, 64);
    assert!(
        ask.err.contains("--yes") && ask.err.contains(seen["holder"]["owner"].as_str().unwrap())
    );
    let forced = ground.spawn(&["force-release", "a", "--reason", "it hangs", "--yes", "--json"]);
    let next = ground.spawn(&["lock", "a", "-c", "date +%s%3N >new"]);
    assert_eq!(old.end(SOON).code, 200);
    let forced = forced.end(SOON);
    assert_eq!(forced.code, 0, "{}", forced.err);
    let said: serde_json::Value = serde_json::from_str(forced.err.lines().next().unwrap()).unwrap();
    let token: u64 = text(&ground.file("token")).trim().parse().unwrap();
    assert!(said["token"].as_u64().unwrap() > token, "{said}");
    assert_eq!(said["reason"], "it hangs");
    assert_eq!(next.end(SOON).code, 0);
    assert!(*times(&ground, "old").last().unwrap() < times(&ground, "new")[0]);
    let free = ground.run(&["inspect", "a"]);
    assert!(free.out.starts_with("free\n"), "{}", free.out);
    assert_eq!(ground.run(&["force-release", "a", "--reason", "x", "--yes"]).code, 75);
}

#[test]
fn a_lock_that_is_forced_stays_closed_until_then_also_after_ctrl_c() {
    let ground = Ground::new();
    let old = ground.spawn(&["lock", "a", "-c", &clock("old")]);
    until("it runs", SOON, || !times(&ground, "old").is_empty());
    // The stopped holder still relies on the lock until the end of its lease.
    old.signal("STOP");
    let next = ground.spawn(&["lock", "a", "-c", "date +%s%3N >new"]);
    let forced = ground.spawn(&["force-release", "a", "--reason", "it hangs", "--yes", "--json"]);
    until("it is forced", SOON, || ground.run(&["inspect", "a"]).out.contains("it hangs"));
    forced.signal("INT");
    let forced = forced.end(SOON);
    assert_eq!(forced.code, 130, "{}", forced.err);
    let lines: Vec<serde_json::Value> =
        forced.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let closed_until = lines[0]["closed_until_ms"].as_u64().expect("until when it is closed");
    let stopped = lines[1]["text"].as_str().unwrap();
    assert!(lines[1]["event"] == "stopped" && stopped.contains("it stays closed for"), "{stopped}");
    assert_eq!(next.end(SOON).code, 0);
    let had = times(&ground, "new")[0];
    assert!(had >= closed_until, "at {had}, and it was closed until {closed_until}");
    old.signal("CONT");
}

#[test]
fn force_release_is_ended_while_it_waits_and_says_what_may_be_closed() {
    let ground = Ground::new();
    // A client holds the lock with a longer lease than `--max-ttl`.
    let owner = "A".repeat(22);
    assert_eq!(ground.server.cli(&["SET", "a", &owner, "PX", "600000"]), "OK");
    assert_eq!(ground.server.cli(&["SET", "{a}:fence", "7"]), "OK");
    let forced = ground.spawn(&["force-release", "a", "--reason", "it hangs", "--yes"]);
    forced.listens();
    forced.signal("TERM");
    let forced = forced.end(SOON);
    assert_eq!(forced.code, 143, "{}", forced.err);
    assert!(forced.err.contains("at most"), "{}", forced.err);
    // If the client that holds the lock renewed its lease, `force-release` would wait in vain. So
    // the message advises a longer `--max-ttl`.
    assert!(forced.err.contains("--max-ttl"), "{}", forced.err);
    assert_eq!(ground.server.cli(&["GET", "a"]), owner);
}

#[test]
fn a_leader_campaigns_again_while_no_server_is_there_and_leads_when_it_is_back() {
    let mut ground = Ground::new();
    let script = "echo $$ >pid; echo $PALISADE_FENCING_TOKEN >>terms; exec sleep 60";
    let run = ground.spawn(&["elect", "a", "-c", script]);
    let terms = || text(&ground.file("terms")).lines().count();
    until("it leads", SOON, || terms() == 1);
    let pid: u32 = text(&ground.file("pid")).trim().parse().unwrap();
    ground.server.kill();
    until("its command is dead", SOON, || !is_alive(pid));
    // During this wait `palisade` tries to reach the dead server.
    std::thread::sleep(Duration::from_secs(1));
    ground.server.restart();
    let terms = || text(&ground.file("terms")).lines().count();
    until("it leads again", 3 * SOON, || terms() == 2 || !is_alive(run.pid()));
    run.signal("TERM");
    let run = run.end(SOON);
    assert_eq!((run.code, terms()), (143, 2), "{}", run.err);
}

#[test]
fn off_a_terminal_a_waiting_lock_says_for_whom_and_trouble_is_logged_to_its_end() {
    let mut ground = Ground::new();
    let holder = ground.holding(&["lock", "a"]);
    let seen = ground.run(&["inspect", "a", "--json"]).json();
    let owner = seen["holder"]["owner"].as_str().expect("a holder").to_owned();
    let waiting = ground.logged(&mut ground.command(&["lock", "a", "--", "true"]));
    let errors = ground.file("err");
    let said = |words: &str| text(&errors).contains(words);
    until("it says for whom", SOON, || said(&format!("held by {owner}")));
    ground.server.kill();
    until("it says that the node is lost", SOON, || said("node lost"));
    assert!(!said("node connected"), "{}", text(&errors));
    ground.server.restart();
    until("it says that the node is back", SOON, || said("node connected"));
    drop((holder, waiting));
}

#[test]
fn on_a_server_that_nobody_initialised_a_lock_says_at_once_how_long_it_waits_and_why() {
    let ground = Ground::new();
    ground.server.cli(&["FLUSHALL"]);
    let mut command = ground.command(&["lock", "a", "--", "true"]);
    command.env("PALISADE_TTL", "30s").env("PALISADE_MAX_TTL", "30s");
    let waiting = ground.logged(&mut command);
    let errors = ground.file("err");
    until("it says why", SOON, || text(&errors).contains("waiting"));
    let said = text(&errors);
    for words in ["lock \"a\": no quorum", "never initialised", "grants begin in", "palisade init"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("trust_fresh"), "{said}");
    assert!(is_alive(waiting.pid()), "it waits: {said}");
}

#[test]
fn a_different_ttl_in_two_processes_is_reported() {
    let ground = Ground::new();
    let long = ground.holding(&["lock", "a", "--max-ttl", "6s"]);
    let short = ground.run(&["lock", "b", "--", "sleep", "0.3"]);
    assert_eq!(short.code, 0, "{}", short.err);
    assert!(short.err.contains("clients differ in max_ttl"), "{}", short.err);
    drop(long);
}
