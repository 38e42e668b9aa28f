//! Limits hold whatever comes and however it is cut, and what an honest server sends passes.

use proptest::prelude::*;
use redis::Value;

use super::*;
use crate::fuzzing::{any_value, config};

const SMALL: Limits = Limits { bytes: 1_000, items: 50 };

fn all(limits: Limits, data: &[u8]) -> Result<Frames, Excess> {
    let mut frames = Frames::new(limits);
    frames.take(data).map(|()| frames)
}

/// At the beginning of an answer.
fn is_between(frames: &Frames) -> bool {
    frames.open.is_empty() && matches!(frames.at, At::Kind) && frames.bytes == 0
}

#[test]
fn answers_of_every_kind_pass() {
    for answer in [
        "+OK\r\n",
        "-ERR no\r\n",
        ":12\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "$3\r\na\nb\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
        "%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n",
        ">3\r\n+message\r\n+c\r\n$1\r\nk\r\n",
        "|1\r\n+ttl\r\n:3\r\n+what it is about\r\n",
        "=5\r\ntxt:x\r\n",
        "!5\r\nERR x\r\n",
    ] {
        let frames =
            all(SMALL, answer.repeat(500).as_bytes()).unwrap_or_else(|e| panic!("{answer:?}: {e}"));
        assert!(is_between(&frames), "{answer:?}: {frames:?}");
    }
}

#[test]
fn more_than_allowed_is_refused_before_it_comes() {
    let most = Excess::Bytes(SMALL.bytes);
    let items = Excess::Items(SMALL.items);
    for (answer, why) in [
        ("*9223372036854775807\r\n", most),
        ("*99999999999999999\r\n", items),
        ("%999999999999999999\r\n", items),
        ("|999999999999999999\r\n", items),
        (">51\r\n", items),
        ("$1000\r\n", most),
        ("=999999999999999999\r\n", most),
        ("$12345678901234567890123\r\n", most),
        ("*1x\r\n", Excess::Garbled),
        ("*\r\n", Excess::Garbled),
        ("*-2\r\n", Excess::Garbled),
        ("$?\r\n", Excess::Garbled),
        ("HTTP/1.1 400 Bad Request\r\n", Excess::Garbled),
        ("\r\n", Excess::Garbled),
    ] {
        assert_eq!(all(SMALL, answer.as_bytes()).unwrap_err(), why, "{answer:?}");
    }
    assert_eq!(all(SMALL, "*1\r\n".repeat(17).as_bytes()).unwrap_err(), Excess::Depth);
    let wide = format!("*25\r\n{}", "*1\r\n:1\r\n".repeat(25));
    assert_eq!(all(SMALL, wide.as_bytes()).unwrap_err(), items, "all levels count");
    let long = Limits { bytes: 1 << 30, items: 10 };
    assert_eq!(all(long, format!("+{}", "x".repeat(70_000)).as_bytes()).unwrap_err(), Excess::Line);
    assert_eq!(all(SMALL, format!("+{}", "x".repeat(2_000)).as_bytes()).unwrap_err(), most);
}

/// As a server would send it.
fn encoded(value: &Value, out: &mut Vec<u8>) {
    let mut text = |kind: u8, bytes: &[u8]| {
        out.push(kind);
        out.extend(format!("{}\r\n", bytes.len()).bytes());
        out.extend(bytes);
        out.extend(b"\r\n");
    };
    match value {
        Value::BulkString(bytes) => text(b'$', bytes),
        Value::Int(n) => out.extend(format!(":{n}\r\n").bytes()),
        Value::Array(items) => {
            out.extend(format!("*{}\r\n", items.len()).bytes());
            for item in items {
                encoded(item, out);
            }
        }
        Value::Boolean(yes) => out.extend(if *yes { "#t\r\n" } else { "#f\r\n" }.bytes()),
        _ => out.extend(b"_\r\n"),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_no_stream_goes_beyond_its_limits(
        parts in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..40),
                "[*%~>|$=!:+,(#_-]([0-9]{1,19}|-1)\r\n".prop_map(String::into_bytes),
                "[*$>]([0-9]{1,2})\r\n(:1\r\n){0,5}".prop_map(String::into_bytes),
            ],
            0..40,
        ),
    ) {
        let mut frames = Frames::new(SMALL);
        for part in &parts {
            if frames.take(part).is_err() {
                return Ok(());
            }
            prop_assert!(frames.bytes <= SMALL.bytes && frames.items <= SMALL.items);
            prop_assert!(frames.open.len() <= DEPTH_MAX);
            prop_assert!(frames.open.iter().all(|n| *n <= SMALL.items), "{frames:?}");
        }
    }

    #[test]
    fn fuzz_whole_answers_pass_however_they_are_cut(
        values in proptest::collection::vec(any_value(), 1..6),
        cut in 1_usize..9,
    ) {
        let mut stream = Vec::new();
        for value in &values {
            encoded(value, &mut stream);
        }
        let mut frames = Frames::new(Limits { bytes: 1 << 20, items: 1 << 16 });
        for part in stream.chunks(cut) {
            prop_assert!(frames.take(part).is_ok());
        }
        prop_assert!(is_between(&frames), "{frames:?}");
    }
}
