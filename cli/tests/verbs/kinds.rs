//! Permits of semaphores, locks of several names, and locks that are held for reading: the commands
//! `lock`, `list`, `inspect` and `force-release`.

use std::time::Duration;

use serde_json::Value;

use crate::ground::{Ground, Running, text, until};

const SOON: Duration = Duration::from_secs(40);

/// Starts a process that holds a permit of the semaphore `gpu` and writes the slot to a file.
fn holder(ground: &Ground, file: &str) -> Running {
    let script = format!("echo $PALISADE_SLOT $PALISADE_FENCING_TOKEN >{file}; sleep 60");
    let holder = ground.spawn(&["lock", "gpu", "--permits", "2", "-c", &script]);
    until("it holds a permit", SOON, || text(&ground.file(file)).ends_with('\n'));
    holder
}

#[test]
fn each_permit_has_a_slot_of_its_own_and_the_next_one_waits() {
    let ground = Ground::new();
    let (first, _second) = (holder(&ground, "a"), holder(&ground, "b"));
    let pair = |file| {
        let text = text(&ground.file(file));
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };
    let mut slots = [pair("a").0, pair("b").0];
    slots.sort_unstable();
    assert_eq!(slots, [0, 1]);
    assert!(pair("a").1 > 0 && pair("b").1 > 0);
    let taken = ground.run(&["lock", "gpu", "--permits", "2", "-n", "--", "true"]);
    let words = "semaphore \"gpu\": other owners hold all 2 permits";
    assert!(taken.code == 75 && taken.err.contains(words), "{taken:?}");
    let late = ground.run(&["lock", "gpu", "--permits", "2", "-w", "100ms", "--", "true"]);
    assert!(late.code == 75 && late.err.contains("slot 1 by "), "{late:?}");
    // A mutex of the same name is independent of the semaphore.
    assert_eq!(ground.run(&["lock", "gpu", "-n", "--", "true"]).code, 0);
    let waits = ground.spawn(&["lock", "gpu", "--permits", "2", "--json", "--", "true"]);
    until("it waits", SOON, || !ground.server.cli(&["GET", "{permits:gpu}:queue"]).is_empty());
    let freed = pair("a").0;
    first.signal("TERM");
    let waited = waits.end(SOON);
    assert_eq!(waited.code, 0, "{}", waited.err);
    let last: Value = serde_json::from_str(waited.err.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], last["slot"].as_u64()), (&"acquired".into(), Some(freed)));
}

#[test]
fn permits_and_readers_are_listed_and_cannot_be_taken_from_their_holders() {
    let ground = Ground::new();
    let none = ground.run(&["inspect", "gpu", "--permits", "2"]);
    let words = "2 of 2 permits are free; held: none";
    assert!(none.code == 0 && none.out.starts_with(words), "{none:?}");
    let force = ["force-release", "gpu", "--permits", "2", "--reason", "it hangs", "--yes"];
    assert_eq!(ground.run(&force).code, 75);
    let _holders = (holder(&ground, "a"), holder(&ground, "b"));
    let read = ["lock", "doc", "--read", "-c"];
    let _readers = ["r1", "r2"]
        .map(|file| ground.spawn(&[&read[..], &[&format!("touch {file}; sleep 60")]].concat()));
    until("they read", SOON, || ground.file("r1").exists() && ground.file("r2").exists());

    let seen = ground.run(&["inspect", "gpu", "--permits", "2", "--json"]).json();
    assert_eq!((seen["permits"].as_u64(), seen["available"].as_u64()), (Some(2), Some(0)));
    let held = seen["held"].as_array().unwrap();
    let slots = |held: &[Value]| -> Vec<_> { held.iter().map(|h| h["slot"].as_u64()).collect() };
    assert_eq!(slots(held), [Some(0), Some(1)], "{seen}");
    assert_eq!(slots(seen["nodes"][0]["held"].as_array().unwrap()), slots(held));
    let text = ground.run(&["inspect", "gpu", "--permits", "2"]).out;
    assert!(text.starts_with("0 of 2 permits are free; held: slot 0 by "), "{text}");
    let forced = ground.run(&force);
    assert_eq!(forced.code, 2, "{}", forced.err);
    for words in ["a permit cannot be taken", "end the process", "within its ttl", "slot 1 by "] {
        assert!(forced.err.contains(words), "{words}: {}", forced.err);
    }

    let list = ground.run(&["list", "--json"]).json();
    let listed = list["held"].as_array().unwrap();
    let of = |kind: &str| -> Vec<_> { listed.iter().filter(|h| h["kind"] == kind).collect() };
    let permits = of("semaphore");
    assert!(permits.iter().all(|permit| permit["name"] == "gpu" && permit["held"] == true));
    for (permit, held) in permits.iter().zip(held) {
        assert_eq!((&permit["slot"], &permit["owner"]), (&held["slot"], &held["owner"]));
        assert_eq!(permit["fence"], held["fence"]);
        let left = permit["remaining_ms"].as_u64().unwrap();
        assert!(left > 0 && left <= 2_000, "{permit}");
    }
    assert_eq!(permits.len(), 2, "{list}");
    let locks = of("lock");
    assert_eq!((locks.len(), &locks[0]["name"]), (1, &"doc".into()), "{list}");
    assert_eq!((locks[0]["readers"].as_u64(), &locks[0]["held"]), (Some(2), &true.into()));
    let table = ground.run(&["list"]).out;
    for words in ["semaphore \"gpu\" slot 1: held by ", "lock \"doc\": held by 2 readers, "] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn several_names_are_held_together_or_not_at_all() {
    let ground = Ground::new();
    let both = ["lock", "b", "--also", "a", "--also", "c"];
    let script = "echo $PALISADE_NAME $PALISADE_FENCING_TOKEN >held; sleep 60";
    let holder = ground.spawn(&[&both[..], &["-c", script]].concat());
    until("they are held", SOON, || text(&ground.file("held")).ends_with('\n'));
    let held = text(&ground.file("held"));
    let token: u64 = held.trim().strip_prefix("b ").expect("the name").parse().unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(ground.run(&["lock", name, "-n", "--", "true"]).code, 75, "{name}");
        let seen = ground.run(&["inspect", name, "--json"]).json();
        assert_eq!(seen["holder"]["fence"].as_u64(), Some(token), "{name}");
    }
    let refused = ground.run(&["lock", "d", "--also", "c", "-w", "100ms", "--", "true"]);
    assert_eq!(refused.code, 75, "{}", refused.err);
    for words in ["locks \"c\", \"d\"", "\"c\" by "] {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    assert!(!refused.err.contains("\"d\" by "), "{}", refused.err);
    // The refused call does not keep the lock `d`, which was free before.
    assert_eq!(ground.run(&["lock", "d", "-n", "--", "true"]).code, 0);
    let now = ground.run(&["lock", "d", "--also", "c", "-n", "--", "true"]);
    assert!(now.code == 75 && now.err.contains("another owner holds one of them"), "{now:?}");
    holder.signal("TERM");
    holder.end(SOON);
    assert_eq!(ground.run(&[&both[..], &["-n", "--", "true"]].concat()).code, 0);
}

#[test]
fn options_that_contradict_each_other_are_refused_with_the_reason() {
    let ground = Ground::new();
    for (options, words) in [
        (&["--permits", "2", "--read"][..], "'--permits <K>' cannot be used with '--read'"),
        (&["--also", "b", "--read"], "'--also <NAME>' cannot be used with '--read'"),
        (&["--also", "b", "--permits", "2"], "cannot be used with"),
        (&["--permits", "0"], "between 1 and 256"),
        (&["--permits", "257"], "between 1 and 256"),
        (&["--also", "a"], "each name once"),
    ] {
        let run = ground.run(&[&["lock", "a"], options, &["--", "true"]].concat());
        assert!(run.code == 64 && run.err.contains(words), "{options:?}: {run:?}");
    }
    let run = ground.run(&["inspect", "a", "--permits", "0"]);
    assert!(run.code == 64 && run.err.contains("between 1 and 256"), "{run:?}");
}
