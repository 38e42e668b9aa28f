//! Locks that are held for reading: what `inspect` and `force-release` report, and who waits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::ground::{Ground, Running, until};

const SOON: Duration = Duration::from_secs(40);

/// Starts a process that holds the lock `doc` for reading.
fn reader(ground: &Ground, file: &str) -> Running {
    let reader = ground.spawn(&["lock", "doc", "--read", "-c", &format!("touch {file}; sleep 60")]);
    until("it reads", SOON, || ground.file(file).exists());
    reader
}

fn inspect(ground: &Ground) -> (i32, String, Value) {
    let (text, json) =
        (ground.run(&["inspect", "doc"]), ground.run(&["inspect", "doc", "--json"]).out);
    (text.code, text.out, serde_json::from_str(&json).expect("JSON"))
}

#[test]
fn a_lock_that_readers_hold_is_held_and_cannot_be_taken_from_them() {
    let ground = Ground::new();
    let _readers = (reader(&ground, "one"), reader(&ground, "two"));
    let (code, text, json) = inspect(&ground);
    assert!(code == 0 && text.starts_with("held by 2 readers: "), "{code}: {text}");
    assert_eq!((&json["state"], json["reader_count"].as_u64()), (&Value::from("read"), Some(2)));
    let forced = ground.run(&["force-release", "doc", "--reason", "it hangs", "--yes"]);
    assert_eq!(forced.code, 2, "{}", forced.err);
    let owners = json["nodes"][0]["readers"].as_array().expect("readers");
    let owners = owners.iter().map(|reader| reader["owner"].as_str().expect("an owner"));
    for words in owners.chain(["held by 2 readers", "end the processes", "max_hold"]) {
        assert!(forced.err.contains(words), "{words}: {}", forced.err);
        assert!(text.contains(words) || !words.bytes().all(|b| b.is_ascii_hexdigit()), "{text}");
    }
    let waits = ground.run(&["lock", "doc", "-w", "0.1s", "--", "true"]);
    assert!(waits.code == 75 && waits.err.contains("is held by 2 readers"), "{}", waits.err);
}

#[test]
fn more_readers_than_a_node_lists_are_counted() {
    let ground = Ground::new();
    let _reader = reader(&ground, "one");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let others: Vec<_> = (0..99).map(|n| format!("{} {n:022}", now + 60_000)).collect();
    ground.server.session(&format!("zadd doc {}\npexpire doc 60000\n", others.join(" ")));
    let (code, text, json) = inspect(&ground);
    assert!(code == 0 && text.starts_with("held by 100 readers: "), "{code}: {text}");
    assert!(text.contains(", 92 more ("), "{text}");
    assert_eq!(json["reader_count"], 100);
    assert_eq!(json["nodes"][0]["readers"].as_array().map(Vec::len), Some(64));
}

/// A waiting call of the library ends after 30 s by default, and `palisade lock` makes another
/// call. If the new call began to wait anew, readers that came before the new call would be ahead
/// of it.
#[test]
fn a_writer_that_waits_for_longer_than_a_call_keeps_its_place() {
    let ground = Ground::new();
    let reader = reader(&ground, "one");
    let writer = ground.spawn(&["lock", "doc", "--", "true"]);
    // The value of the queue begins with the entry of the first client that waits, and the entry
    // begins with the time at which this client began to wait, in µs.
    let since = || -> u64 {
        let queue = ground.server.cli(&["GET", "{doc}:queue"]);
        queue.get(1..17).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    until("it waits", SOON, || since() > 0);
    let began = since();
    std::thread::sleep(Duration::from_secs(32));
    assert!(since().abs_diff(began) < 2_000_000, "it began to wait at {began}, or {}", since());
    reader.signal("TERM");
    assert_eq!(writer.end(SOON).code, 0);
}
