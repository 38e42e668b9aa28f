//! `step-down` and `list`.

use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, Run, is_alive, palisade, text, until};
use crate::support::server::free_port;

const SOON: Duration = Duration::from_secs(10);

fn object(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"))
}

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
    let said = object(&down);
    assert_eq!((&said["outcome"], &said["leader"]["value"]), (&"resigned".into(), &"one".into()));
    assert!(said["leader"]["boot"].as_str().is_some_and(|boot| boot.len() > 4), "{said}");
    assert!(!is_alive(pid), "the answer comes when it has resigned");
    until("the next one leads", SOON, || ground.file("two.began").exists());
    let number = |file: &str| -> u64 { text(&ground.file(file)).trim().parse().unwrap() };
    until("a number", SOON, || !text(&ground.file("two.began")).is_empty());
    assert!(number("one.term") <= number("two.began"), "two at work");
    assert!(number("one.token") < number("two.token"));

    // The other way: a table for people, and a command that does not listen to TERM.
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
fn each_answer_of_step_down_has_its_code() {
    let ground = Ground::new();
    // 2: nobody leads.
    let down = ground.run(&["step-down", "a"]);
    assert_eq!((down.code, &*down.out), (2, "election \"a\": nobody leads, so nobody was asked\n"));
    assert_eq!(object(&ground.run(&["step-down", "a", "--json"]))["outcome"], "vacant");
    // 0, also where TERM is ignored: KILL comes after the grace. 200 says why the command ended.
    let deaf = ground.spawn(&["elect", "a", "--once", "-c", "trap '' TERM; touch on; sleep 60"]);
    until("it leads", SOON, || ground.file("on").exists());
    let down = ground.run(&["step-down", "a"]);
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.out.contains("its term is over"), "{}", down.out);
    assert_eq!(deaf.end(SOON).code, 200);
    // 75: a leader that is frozen is asked, and leads until its lease is over.
    let frozen = ground.spawn(&["elect", "b", "--ttl", "6s", "-c", "touch b; sleep 60"]);
    until("it leads", SOON, || ground.file("b").exists());
    frozen.signal("STOP");
    let down = ground.run(&["step-down", "b", "-w", "1s", "--max-ttl", "6s", "--json"]);
    assert_eq!(down.code, 75, "{}", down.err);
    assert_eq!(object(&down)["outcome"], "still_leads");
    // 69: nobody there; 64: no name.
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
        // It waits, and holds nothing.
        ground.spawn(&["lock", "deploy", "--", "true"]),
    ];
    for file in ["l", "o", "e", "f"] {
        until("it is held", SOON, || ground.file(file).exists());
    }
    let list = object(&ground.run(&["list", "--json"]));
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
    let seen = object(&ground.run(&["inspect", "deploy", "--json"]));
    let deploy = list["held"].as_array().unwrap().iter().find(|h| h["name"] == "deploy").unwrap();
    assert_eq!(deploy["owner"], seen["holder"]["owner"], "as `inspect` names it");
    let app = object(&ground.run(&["list", "--prefix", "app:", "--json"]));
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
    // What cannot be read is said, with a code of its own.
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let run = |args: &[&str]| Run::of(&palisade().args(args).output().unwrap());
    let away = run(&["list", "--node", &nobody]);
    assert_eq!((away.code, away.out.starts_with("not read: ")), (69, true), "{}", away.out);
    assert_eq!(run(&["list"]).code, 64);
    assert_eq!(run(&["list", "--prefix", "idem:", "--node", &nobody]).code, 64);
}
