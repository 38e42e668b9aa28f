//! The commands `palisade step-down`, `candidates` and `list`.

use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, Run, is_alive, palisade, text, until};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(40);

#[test]
fn a_leader_steps_down_its_command_is_dead_first_and_others_come_first() {
    let ground = Ground::new();
    let script = |me: &str| {
        format!(
            "trap 'date +%s%3N >{me}.term; exit 0' TERM; echo $$ >{me}.pid; \
             echo $PALISADE_FENCING_TOKEN >{me}.token; date +%s%3N >{me}.began; \
             while :; do sleep 0.02; done"
        )
    };
    let one = ground.spawn(&["elect", "a", "--value", "one", "-v", "-c", &script("one")]);
    until("it leads", SOON, || ground.file("one.began").exists());
    let pid: u32 = text(&ground.file("one.pid")).trim().parse().unwrap();
    let two = ground.spawn(&["elect", "a", "--value", "two", "-c", &script("two")]);
    std::thread::sleep(Duration::from_millis(500));
    let down = ground.run(&["step-down", "a", "--reason", "kernel update", "--json"]);
    assert_eq!(down.code, 0, "{}", down.err);
    let said = down.json();
    assert_eq!((&said["outcome"], &said["leader"]["value"]), (&"resigned".into(), &"one".into()));
    assert!(said["leader"]["boot"].as_str().is_some_and(|boot| boot.len() > 4), "{said}");
    assert!(!is_alive(pid), "the answer comes when it has resigned");
    until("the next one leads", SOON, || ground.file("two.began").exists());
    let number = |file: &str| -> u64 { text(&ground.file(file)).trim().parse().unwrap() };
    until("a number", SOON, || !text(&ground.file("two.began")).is_empty());
    assert!(number("one.term") <= number("two.began"), "two at work");
    assert!(number("one.token") < number("two.token"));

    // The first candidate campaigns again one lease (2 s) after it resigned. So it leads when the
    // second candidate has ended.
    std::thread::sleep(Duration::from_secs(3));
    two.signal("TERM");
    assert_eq!(two.end(SOON).code, 0, "the command's own code");
    until("one leads again", SOON, || text(&ground.file("one.pid")).trim() != pid.to_string());
    one.signal("TERM");
    let one = one.end(SOON);
    assert!(one.err.contains("asks to step down (kernel update)"), "{}", one.err);
    assert!(one.err.contains("campaigns again"), "{}", one.err);
}

#[test]
fn what_another_says_cannot_write_to_the_terminal_or_look_like_a_message() {
    let ground = Ground::new();
    let leader = ground.holding(&["elect", "a", "--once"]);
    let reason = "\x1b]0;title\x07 \u{9b}2J\npalisade: all is well";
    ground.run(&["step-down", "a", "--reason", reason]);
    let ended = leader.end(SOON);
    assert!(ended.err.contains("asks to step down"), "{}", ended.err);
    let raw = |c: char| c.is_control() && c != '\n';
    assert!(!ended.err.contains(raw), "{:?}", ended.err);
    assert!(!ended.err.lines().any(|line| line == "palisade: all is well"), "{}", ended.err);
}

#[test]
fn who_takes_part_is_listed_and_the_preferred_one_leads_next() {
    // Other candidates delay their attempts for a sixteenth of this time. The delay is longer than
    // an attempt of the preferred candidate.
    const TTL: &str = "90s";
    let ground = Ground::new();
    until("it says that nobody leads", SOON, || {
        let none = ground.run(&["candidates", "a"]);
        (none.code, &*none.out) == (2, "there is no leader\n")
    });
    let elect = |value: &str, priority: &str| {
        let script = format!("echo >{value}.leads; sleep 60");
        let line =
            ["elect", "a", "--value", value, "--priority", priority, "--ttl", TTL, "-c", &script];
        ground.spawn(&line)
    };
    let shown = || {
        let run = ground.run(&["candidates", "a", "--json", "--ttl", TTL]);
        let all = run.json()["candidates"].as_array().cloned().unwrap_or_default();
        all.iter().map(|c| c["value"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = elect("first", "1");
    until("it leads", SOON, || ground.file("first.leads").exists());
    let low = elect("low", "0");
    until("it waits", SOON, || shown() == ["first", "low"]);
    let high = elect("high", "7");
    until("it waits", SOON, || shown() == ["first", "high", "low"]);
    let lines = ground.run(&["candidates", "a", "--ttl", TTL]);
    let words = ["\"first\" leads, term ", "\"high\" waits (priority 7, host", "\"low\" waits"];
    for (line, word) in lines.out.lines().zip(words) {
        assert!(line.contains(word), "{}", lines.out);
    }
    assert_eq!((lines.code, lines.out.lines().count()), (0, 3));
    first.signal("TERM");
    until("the preferred one leads", SOON, || ground.file("high.leads").exists());
    assert!(!ground.file("low.leads").exists());
    until("who has ended is gone", SOON, || shown() == ["high", "low"]);
    drop((first.end(SOON), high, low));
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    assert_eq!(
        Run::of(&palisade().args(["candidates", "a", "--node", &nobody]).output().unwrap()).code,
        69
    );
}

#[test]
fn the_leader_of_a_cron_steps_down_between_its_runs() {
    let ground = Ground::new();
    let script = "echo begins >>ran; sleep 0.5; echo ends >>ran";
    let line = ["cron", "* * * * * *", "job", "--ttl", "6s", "-c", script];
    let two = [ground.spawn(&line), ground.spawn(&line)];
    let leader = || {
        let run = ground.run(&["candidates", "cron:job:lead", "--json", "--ttl", "6s"]);
        let all = run.json()["candidates"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["leads"] == true).map(|c| c["pid"].clone())
    };
    until("one leads", SOON, || leader().is_some());
    let before = leader();
    until("it runs", SOON, || text(&ground.file("ran")).contains("begins"));
    let line = ["step-down", "cron:job:lead", "--reason", "maintenance", "--ttl", "6s"];
    let down = ground.run(&line);
    assert_eq!(down.code, 0, "{}", down.err);
    until("the other one leads", SOON, || leader().is_some_and(|now| Some(now) != before));
    let seen = text(&ground.file("ran")).len();
    until("ticks go on", SOON, || text(&ground.file("ran")).len() > seen);
    let ran = text(&ground.file("ran"));
    let lines: Vec<_> = ran.lines().collect();
    assert!(lines.windows(2).all(|w| w[0] != w[1]), "no run was cut short: {ran}");
    drop(two);
}

#[test]
fn each_answer_of_step_down_has_its_code() {
    let ground = Ground::new();
    // Exit code 2: there is no leader.
    let down = ground.run(&["step-down", "a"]);
    let vacant = "election \"a\": there is no leader, so no process was asked\n";
    assert_eq!((down.code, &*down.out), (2, vacant));
    assert_eq!(ground.run(&["step-down", "a", "--json"]).json()["outcome"], "vacant");
    // Exit code 0: the leader resigns even if its command ignores TERM, because the command gets
    // KILL after the grace. `elect` then ends with 200.
    let deaf = ground.spawn(&["elect", "a", "--once", "-c", "trap '' TERM; touch on; sleep 60"]);
    until("it leads", SOON, || ground.file("on").exists());
    let down = ground.run(&["step-down", "a"]);
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.out.contains("its term is over"), "{}", down.out);
    assert_eq!(deaf.end(SOON).code, 200);
    // Exit code 75: the frozen leader gets the request, and leads until its lease ends.
    let frozen = ground.holding(&["elect", "b", "--ttl", "6s"]);
    frozen.signal("STOP");
    let down = ground.run(&["step-down", "b", "-w", "1s", "--max-ttl", "6s", "--json"]);
    assert_eq!(down.code, 75, "{}", down.err);
    assert_eq!(down.json()["outcome"], "still_leads");
    // Exit code 69: no server can be reached. Exit code 64: no name is given.
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let run = |args: &[&str]| Run::of(&palisade().args(args).output().unwrap());
    assert_eq!(run(&["step-down", "a", "--node", &nobody]).code, 69);
    assert_eq!(run(&["step-down", "", "--node", &nobody]).code, 64);
    assert_eq!(run(&["step-down", "--node", &nobody]).code, 64);
}

#[test]
fn what_is_held_is_listed_and_nothing_else() {
    let ground = Ground::new();
    assert_eq!(ground.run(&["list"]).out, "nothing is held\n");
    assert_eq!(ground.run(&["lock", "gone", "--", "true"]).code, 0);
    assert_eq!(ground.run(&["once", "key", "--", "true"]).code, 0);
    let holds = [
        ground.spawn(&["lock", "deploy", "-c", "touch l; sleep 60"]),
        ground.spawn(&["lock", "other", "--prefix", "app:", "-c", "touch o; sleep 60"]),
        ground.spawn(&["elect", "boss", "--value", "10.0.0.7", "-c", "touch e; sleep 60"]),
        ground.spawn(&["elect", "b2", "--prefix", "app:", "-c", "touch f; sleep 60"]),
        // This `palisade` process waits for the lock and does not hold it.
        ground.spawn(&["lock", "deploy", "--", "true"]),
    ];
    for file in ["l", "o", "e", "f"] {
        until("it is held", SOON, || ground.file(file).exists());
    }
    let list = ground.run(&["list", "--json"]).json();
    let names = |list: &Value| -> Vec<String> {
        let held = list["held"].as_array().expect("a list").iter();
        held.map(|h| format!("{} {}", h["kind"], h["name"]).replace('"', "")).collect()
    };
    let all = ["lock app:other", "election app:election:b2", "lock deploy", "election boss"];
    let mut found = names(&list);
    found.sort();
    let mut all = all.map(str::to_owned).to_vec();
    all.sort();
    assert_eq!(found, all, "{list}");
    let boss = list["held"].as_array().unwrap().iter().find(|h| h["name"] == "boss").unwrap();
    assert_eq!((&boss["leader"]["value"], &boss["on"]), (&"10.0.0.7".into(), &1.into()));
    assert!(boss["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 2_000), "{boss}");
    let seen = ground.run(&["inspect", "boss"]).out;
    assert!(seen.starts_with("free as a lock; \"boss\" is an election: term "), "{seen}");
    assert!(seen.contains("\"10.0.0.7\" leads"), "{seen}");
    let seen = ground.run(&["inspect", "boss", "--json"]).json();
    assert_eq!((&seen["state"], &seen["election"]["value"]), (&"free".into(), &"10.0.0.7".into()));
    let seen = ground.run(&["inspect", "deploy", "--json"]).json();
    let deploy = list["held"].as_array().unwrap().iter().find(|h| h["name"] == "deploy").unwrap();
    assert_eq!(deploy["owner"], seen["holder"]["owner"], "as `inspect` names it");
    let app = ground.run(&["list", "--prefix", "app:", "--json"]).json();
    assert_eq!(names(&app).len(), 2, "{app}");
    assert!(names(&app).contains(&"election b2".to_owned()), "{app}");
    let table = ground.run(&["list"]);
    assert_eq!(table.out.lines().count(), 4, "{}", table.out);
    assert!(table.out.contains("lock \"deploy\": held by"), "{}", table.out);
    for held in holds {
        held.signal("TERM");
        held.end(SOON);
    }
    assert_eq!(ground.run(&["list"]).out, "nothing is held\n");
    // `palisade` reports servers that cannot be read, and returns a different exit code.
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let run = |args: &[&str]| Run::of(&palisade().args(args).output().unwrap());
    let away = run(&["list", "--node", &nobody]);
    assert_eq!((away.code, away.out.starts_with("not read: ")), (69, true), "{}", away.out);
    assert_eq!(run(&["list"]).code, 64);
    assert_eq!(run(&["list", "--prefix", "idem:", "--node", &nobody]).code, 64);
}

#[test]
fn what_another_process_wrote_commands_no_terminal_in_tables_or_json() {
    let ground = Ground::new();
    let value = "a\u{9b}31m\u{202e}b\u{7f}";
    let leader = ground.spawn(&["elect", "a", "--value", value, "--", "sleep", "60"]);
    let who = |json: &[&str]| ground.run(&[&["candidates", "a"], json].concat());
    until("it leads", SOON, || who(&[]).code == 0);
    let (table, json) = (who(&[]), who(&["--json"]));
    for shown in [&table.out, &json.out, &ground.run(&["list", "--json"]).out] {
        assert!(!shown.contains(['\u{9b}', '\u{202e}', '\u{7f}']), "{shown:?}");
    }
    assert_eq!(json.json()["candidates"][0]["value"], value, "the value is the same");
    drop(leader);
}

#[test]
fn off_a_terminal_a_candidate_says_that_it_waits_and_for_whom_and_that_it_leads() {
    let ground = Ground::new();
    let first = ground.holding(&["elect", "a", "--value", "one"]);
    let second = ground.spawn(&["elect", "a", "--value", "two", "--", "sleep", "60"]);
    // The candidate prints nothing until it has found the leader.
    until("it waits", SOON, || ground.run(&["candidates", "a"]).out.lines().count() == 2);
    first.signal("TERM");
    let led = first.end(SOON);
    until("it leads", SOON, || ground.run(&["candidates", "a"]).out.contains("\"two\" leads"));
    second.signal("TERM");
    let waited = second.end(SOON).err;
    assert!(led.err.starts_with("palisade: leads \"a\""), "{}", led.err);
    let (waits, leads) = (waited.find("\"one\" leads"), waited.find("palisade: leads \"a\""));
    assert!(waits.is_some() && waits < leads, "{waited}");
}
