//! For any bytes, in pieces of any size, no answer exceeds the limits.

use proptest::prelude::*;
use redis::Value;

use super::*;
use crate::fuzzing::{any_number, any_value, config, many};

const SMALL: Limits = Limits { bytes: 1_000, items: 50, pushes: 500, answers: u64::MAX };

fn all(limits: Limits, data: &[u8]) -> Result<Frames, Excess> {
    let mut frames = Frames::new(limits);
    frames.take(data).map(|_| frames)
}

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
        // The parser would read each of these lines as an unlimited length.
        ("!-1\r\n", Excess::Garbled),
        ("=-1\r\n", Excess::Garbled),
        ("%-1\r\n", Excess::Garbled),
        ("|-1\r\n", Excess::Garbled),
        ("$?\r\n", Excess::Garbled),
        ("HTTP/1.1 400 Bad Request\r\n", Excess::Garbled),
        ("\r\n", Excess::Garbled),
    ] {
        assert_eq!(all(SMALL, answer.as_bytes()).unwrap_err(), why, "{answer:?}");
    }
    assert_eq!(all(SMALL, "*1\r\n".repeat(17).as_bytes()).unwrap_err(), Excess::Depth);
    let wide = format!("*25\r\n{}", "*1\r\n:1\r\n".repeat(25));
    assert_eq!(all(SMALL, wide.as_bytes()).unwrap_err(), items, "all levels count");
    let announced = "*20\r\n*20\r\n*20\r\n";
    assert_eq!(all(SMALL, announced.as_bytes()).unwrap_err(), items, "as soon as announced");
    let long = Limits { bytes: 1 << 30, ..SMALL };
    assert_eq!(all(long, format!("+{}", "x".repeat(70_000)).as_bytes()).unwrap_err(), Excess::Line);
    let pushes = ">1\r\n+x\r\n".repeat(501);
    assert_eq!(all(SMALL, pushes.as_bytes()).unwrap_err(), Excess::Pushes(500));
    assert_eq!(all(SMALL, format!("+{}", "x".repeat(2_000)).as_bytes()).unwrap_err(), most);
}

#[test]
fn a_line_ends_where_the_parser_ends_it() {
    // If `Frames` ended the line at `
    // `, it would count three small values instead of a huge list.
    let text = "x\r\n*999999999\r\n";
    let hidden = format!("+a\n${}\r\n{text}", text.len() - 2);
    assert_eq!(all(SMALL, hidden.as_bytes()).unwrap_err(), Excess::Garbled);
    assert!(is_between(&all(SMALL, b"+a\nb\rc\r\r\n").unwrap()));
}

fn any_part() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        (proptest::sample::select(b"*%~>|$=!:+,(#_-"), any_number()).prop_map(|(kind, n)| format!(
            "{}{n}\r\n",
            char::from(kind)
        )
        .into_bytes()),
        (proptest::sample::select(b"*$>%~|=!"), 0..12_u8, 0..5_usize).prop_map(
            |(kind, n, rest)| {
                let rest = ":1\r\n+\n\r\n$-1\r\n".repeat(rest);
                format!("{}{n}\r\n{rest}", char::from(kind)).into_bytes()
            }
        ),
    ]
}

/// `None` if the parser finds a fault.
fn parsed(stream: &[u8]) -> Option<usize> {
    let (mut parser, mut from, mut count) = (redis::Parser::new(), stream, 0);
    loop {
        match parser.parse_value(&mut from) {
            Ok(_) => count += 1,
            Err(e) if e.is_io_error() => return Some(count),
            Err(_) => return None,
        }
    }
}

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
    #![proptest_config(many())]

    #[test]
    fn fuzz_no_stream_goes_beyond_its_limits(
        parts in proptest::collection::vec(any_part(), 0..12),
    ) {
        let mut frames = Frames::new(SMALL);
        for part in &parts {
            if frames.take(part).is_err() {
                return Ok(());
            }
            prop_assert!(frames.bytes <= SMALL.bytes && frames.items <= SMALL.items);
            prop_assert!(frames.open.len() <= DEPTH_MAX);
            prop_assert!(frames.open.iter().sum::<u64>() <= SMALL.items, "{frames:?}");
        }
    }

    #[test]
    fn fuzz_answers_end_where_the_parser_ends_them(
        parts in proptest::collection::vec(any_part(), 1..8),
    ) {
        let stream = parts.concat();
        let (mut frames, mut count) = (Frames::new(SMALL), 0);
        for byte in &stream {
            if frames.take(&[*byte]).is_err() {
                return Ok(());
            }
            count += usize::from(is_between(&frames));
        }
        if let Some(parsed) = parsed(&stream) {
            prop_assert_eq!(parsed, count, "{:?}", String::from_utf8_lossy(&stream));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_whole_answers_pass_however_they_are_cut(
        values in proptest::collection::vec(any_value(), 1..6),
        cut in 1_usize..9,
    ) {
        let mut stream = Vec::new();
        for value in &values {
            encoded(value, &mut stream);
        }
        let mut frames = Frames::new(Limits { pushes: 0, ..Limits::WORDS });
        for part in stream.chunks(cut) {
            prop_assert!(frames.take(part).is_ok());
        }
        prop_assert!(is_between(&frames), "{frames:?}");
    }
}
