//! For any bytes from a server, the connection does not panic, does not hang, and returns no more
//! than the limits allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use proptest::prelude::*;
use redis::{PushInfo, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::*;
use crate::fuzzing::{any_bytes, any_number, config};

const LIMITS: Limits = Limits { bytes: 4_000, items: 200, pushes: 100, answers: u64::MAX };

/// So that the code after the login is tested, too.
const LOGIN: &[u8] = b"%1\r\n+proto\r\n:3\r\n";

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("it runs");
}

fn size(value: &Value) -> (usize, usize) {
    let sum = |sizes: &mut dyn Iterator<Item = (usize, usize)>| {
        sizes.fold((0, 1), |(a, b), (c, d)| (a + c, b + d))
    };
    match value {
        Value::BulkString(bytes) => (bytes.len(), 1),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => (text.len(), 1),
        Value::Array(items) | Value::Set(items) => sum(&mut items.iter().map(size)),
        Value::Push { data, .. } => sum(&mut data.iter().map(size)),
        Value::Map(pairs) => sum(&mut pairs.iter().flat_map(|(k, v)| [size(k), size(v)])),
        Value::Attribute { data, attributes } => {
            let pairs = attributes.iter().flat_map(|(k, v)| [size(k), size(v)]);
            sum(&mut pairs.chain([size(data)]))
        }
        _ => (0, 1),
    }
}

/// An error if the connection did not end.
async fn drive(stream: Vec<u8>, cut: usize) -> Result<Vec<(usize, usize)>, &'static str> {
    let (ours, theirs) = duplex(1 << 10);
    let pushed = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&pushed);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(move |push: PushInfo| {
            for one in &push.data {
                let (bytes, values) = size(one);
                seen[0].fetch_max(bytes, Relaxed);
                seen[1].fetch_max(values, Relaxed);
            }
            Ok::<(), redis::aio::SendError>(())
        });
    let (mut from, mut to) = tokio::io::split(theirs);
    let server = async move {
        for piece in stream.chunks(cut) {
            if to.write_all(piece).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    let client = async move {
        let login = RedisConnectionInfo::default();
        let login = login.set_protocol(redis::ProtocolVersion::RESP3).set_skip_set_lib_name();
        let stream = Limited::new(Box::new(ours), LIMITS);
        let made = MultiplexedConnection::new_with_config(&login, stream, config).await;
        let Ok((mut line, work)) = made else { return Vec::new() };
        let ask = async {
            let mut got = Vec::new();
            for _ in 0..4 {
                match line.send_packed_command(&redis::cmd("PING")).await {
                    Ok(value) => got.push(size(&value)),
                    Err(_) => break,
                }
            }
            got
        };
        tokio::pin!(ask);
        tokio::select! {
            biased;
            got = &mut ask => got,
            () = work => ask.await,
        }
    };
    let drain = async move {
        let mut sink = [0; 256];
        while matches!(from.read(&mut sink).await, Ok(1..)) {}
    };
    let all = async { tokio::join!(client, server, drain).0 };
    let mut got = timeout(Duration::from_secs(20), all).await.map_err(|_| "it hangs")?;
    got.push((pushed[0].load(Relaxed), pushed[1].load(Relaxed)));
    Ok(got)
}

async fn drive_wire(stream: Vec<u8>, cut: usize) -> Result<Vec<(usize, usize)>, &'static str> {
    let (ours, theirs) = duplex(1 << 10);
    let wire = Wire::new(Box::new(ours), LIMITS, || b"*1\r\n$4\r\nLOAD\r\n".to_vec());
    let (mut from, mut to) = tokio::io::split(theirs);
    let server = async move {
        for piece in stream.chunks(cut) {
            if to.write_all(piece).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    let client = async move {
        let mut got = Vec::new();
        let ask = || wire.ask(&[redis::cmd("PING")]);
        let (a, b) = (ask(), ask());
        for answer in [a.await, b.await, ask().await] {
            got.extend(answer.iter().flatten().map(size));
        }
        wire.over().await;
        got
    };
    let drain = async move {
        let mut sink = [0; 256];
        while matches!(from.read(&mut sink).await, Ok(1..)) {}
    };
    let all = async { tokio::join!(client, server, drain).0 };
    timeout(Duration::from_secs(20), all).await.map_err(|_| "it hangs")
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let part =
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..20),
            (proptest::sample::select(b"*%~>|$=!:+,(#_-"), any_number())
                .prop_map(|(kind, n)| format!("{}{n}\r\n", char::from(kind)).into_bytes()),
            (proptest::sample::select(b"*~>|%"), 0..9_u8).prop_map(|(kind, n)| format!(
                "{}{n}\r\n",
                char::from(kind)
            )
            .into_bytes()),
            any_bytes()
                .prop_map(|b| { [format!("${}\r\n", b.len()).as_bytes(), &b, b"\r\n"].concat() }),
            Just(b"+OK\r\n".to_vec()),
            Just(b">3\r\n+message\r\n+c\r\n$1\r\nk\r\n".to_vec()),
        ];
    (any::<bool>(), proptest::collection::vec(part, 0..12)).prop_map(|(login, parts)| {
        let begin = if login { LOGIN } else { b"" };
        [begin, &parts.concat()].concat()
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_a_connection_ends_within_its_limits(stream in any_stream(), cut in 1_usize..64) {
        let got = RUNTIME.with(|r| r.block_on(drive(stream.clone(), cut)));
        let got = got.map_err(|e| TestCaseError::fail(format!("{e}: {stream:?}")))?;
        let wire = RUNTIME.with(|r| r.block_on(drive_wire(stream.clone(), cut)));
        let wire = wire.map_err(|e| TestCaseError::fail(format!("{e}: {stream:?}")))?;
        for (bytes, values) in [got, wire].concat() {
            prop_assert!(bytes as u64 <= LIMITS.bytes && values as u64 <= LIMITS.items);
        }
    }
}
