//! `palisade console`: its access rules, and its audit.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::ground::{Ground, text, until};

/// Sends a request over the console's unix socket, and returns the whole answer.
fn ask(ground: &Ground, head: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(ground.file("console.sock")).expect("it listens");
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Palisade-Console: 1\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn an_operator_acts_on_the_console_and_the_audit_has_it() {
    let ground = Ground::new();
    let holder = ground.spawn(&["lock", "deploy", "-c", "sleep 60"]);
    let socket = format!("unix:{}", ground.file("console.sock").display());
    let options = ["--allow-actions", "--audit", "audit.jsonl", "--json"];
    let console = ground.spawn(&[&["console", "--listen", &socket], &options[..]].concat());
    let path = ground.file("console.sock");
    until("it listens", Duration::from_secs(20), || UnixStream::connect(&path).is_ok());
    until("the lock shows", Duration::from_secs(20), || {
        ask(&ground, "GET /api/v1/locks", "").contains("\"name\":\"deploy\"")
    });
    let body = r#"{"action":"force-release","name":"deploy","confirm":"deploy","reason":"hangs"}"#;
    let answer = ask(&ground, "POST /api/v1/actions", body);
    assert!(answer.contains("\"result\":\"done\""), "{answer}");
    let audit = text(&ground.file("audit.jsonl"));
    let (begun, line) = audit.trim_end().split_once('\n').expect("two lines");
    assert!(begun.contains("\"result\":\"begun\""), "{begun}");
    for part in
        ["\"action\":\"force-release\"", "\"reason\":\"hangs\"", "\"result\":\"done\"", "uid "]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    drop(holder);
    console.signal("TERM");
    let ended = console.end(Duration::from_secs(10));
    assert_eq!(ended.code, 128 + 15, "{}", ended.err);
    assert!(ended.err.contains("\"event\":\"console\""), "{}", ended.err);
}

#[test]
fn a_console_on_tcp_that_acts_has_a_login() {
    let ground = Ground::new();
    std::fs::write(ground.file("token"), "0123456789abcdef\n").expect("a file");
    for (options, makes_token) in [
        (&["--allow-actions"][..], true),
        (&["--allow-actions", "--act-token-file", "token"], false),
        (&[], false),
    ] {
        let listen = ["console", "--json", "--listen", "127.0.0.1:0"];
        let console = ground.spawn(&[&listen, options].concat());
        console.listens();
        console.signal("TERM");
        let ended = console.end(Duration::from_secs(10));
        let made = ended.err.contains("\"event\":\"token\"");
        assert_eq!(made, makes_token, "{options:?}: {}", ended.err);
    }
}

#[test]
fn a_console_that_others_could_reach_does_not_start() {
    let ground = Ground::new();
    std::fs::write(ground.file("token"), "0123456789abcdef\n").expect("a file");
    std::fs::write(ground.file("none"), "\n").expect("a file");
    for (options, why) in [
        (&["--listen", "0.0.0.0:0"][..], "encryption"),
        (&["--listen", "0.0.0.0:0", "--act-token-file", "token"], "encryption"),
        (&["--listen", "127.0.0.1:0", "--act-token-file", "none"], "empty"),
        (&["--listen", "127.0.0.1:0", "--act-token-file", "missing"], "missing"),
        (&["--listen", "nowhere"], "127.0.0.1:7420"),
    ] {
        let run = ground.run(&[&["console"], options].concat());
        assert_eq!(run.code, 64, "{options:?}: {}", run.err);
        assert!(run.err.contains(why), "{options:?}: {}", run.err);
    }
}
