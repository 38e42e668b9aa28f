//! Tests of Redis Streams with malformed entries, and with a server that sends malformed replies.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Redlock};
use palisade_streams::{Consumer, Message, Publisher, Stream};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

use crate::fake::{self, Fake};
use crate::letters::{self, Became, LARGEST, Letter, letters, promised};
use crate::server::Server;
use crate::{ask, drained, stream};

const LEASE: Duration = Duration::from_secs(2);
const ENTRY_MAX: usize = 16 << 20;
/// Timeout that only a hang exceeds.
const HANG: Duration = Duration::from_secs(60);

fn orders() -> Idempotency {
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(LEASE).build().unwrap();
    redlock.idempotency("orders").at_least_once().build().unwrap()
}

fn send(server: &Server, words: &[&[u8]]) {
    let mut to = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend(format!("${}\r\n", word.len()).into_bytes());
        command.extend([word, &b"\r\n"[..]].concat());
    }
    to.write_all(&command).unwrap();
    let mut answer = [0; 1];
    to.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"$", "the entry was added");
}

fn add(server: &Server, letter: &Letter) {
    let mut words: Vec<&[u8]> = vec![b"XADD", b"orders", b"*"];
    if let Some(key) = &letter.key {
        words.extend([b"key", &key[..]]);
    }
    if let Some(created) = letter.created {
        words.extend([b"created", created.as_bytes()]);
    }
    if let Some((name, value)) = letter.header {
        words.extend([name, value]);
    }
    words.extend([b"body", &letter.body[..]]);
    send(server, &words);
}

/// Consumes until no entry is left. Returns the outcome of each entry.
async fn consume(server: &Server, entries: usize) -> Became {
    let stop = drained(server, entries);
    let mut became =
        letters::consume(letters::consumer(stream(server)), &Arc::default(), stop).await;
    let letters = ask(server, &["XRANGE", "{orders}:dead", "-", "+"]);
    let lines: Vec<_> = letters.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[0] == "reason") {
        *became.dead.entry(pair[1].to_owned()).or_default() += 1;
    }
    became
}

#[tokio::test]
async fn no_entry_stops_another_one() {
    let server = Server::start(&[]);
    let letters = letters(ENTRY_MAX - 1_024);
    for letter in &letters {
        add(&server, letter);
    }
    assert_eq!(consume(&server, letters.len()).await, promised(&letters));
}

#[tokio::test]
async fn an_entry_that_is_too_large_becomes_a_dead_letter_without_its_body() {
    let server = Server::start(&[]);
    let publisher = Publisher::new(&server.url(), "orders");
    let now = std::time::SystemTime::now();
    publisher.publish("first", now, b"1").await.unwrap();
    // The consumer reads and refuses "large". It does not read "giant". The third entry has too
    // many fields for a full copy.
    publisher.publish("large", now, &vec![b'x'; ENTRY_MAX]).await.unwrap();
    publisher.publish("giant", now, &vec![b'x'; 5 * ENTRY_MAX]).await.unwrap();
    let names: Vec<_> = (0..9_000).map(|n| n.to_string()).collect();
    let mut many: Vec<&[u8]> = vec![b"XADD", b"orders", b"*", b"key", LARGEST.as_bytes()];
    for name in &names {
        many.extend([name.as_bytes(), b"1"]);
    }
    send(&server, &many);
    publisher.publish("last", now, b"1").await.unwrap();
    let became = consume(&server, 5).await;
    assert_eq!(became.effects.keys().collect::<Vec<_>>(), ["first", "last"]);
    let dead: Vec<_> = became.dead.into_iter().collect();
    assert_eq!(dead, [("refused".to_owned(), 1), ("unreadable".to_owned(), 2)]);
    let letters = ask(&server, &["XRANGE", "{orders}:dead", "-", "+"]);
    assert!(letters.len() < 10_000, "{} bytes", letters.len());
    for part in ["large", "giant", LARGEST, "left_out", "store the body elsewhere", "id\n"] {
        assert!(letters.contains(part), "{part} is not in {letters}");
    }
}

#[tokio::test]
async fn a_login_that_the_server_repeats_is_not_shown() {
    const PASSWORD: &str = "S3cretHunter2X";
    for answers in ["HELLO", "XGROUP"] {
        let server = Fake::start(move |words| match words {
            [name, ..] if *name == answers => {
                format!("-NOPERM no {PASSWORD} for you\x1b[31m\x1b]0;owned\x07\r\n").into_bytes()
            }
            _ => fake::ok(),
        });
        let url = format!("redis://:{PASSWORD}@{}", server.at);
        let consumer = Consumer::builder(Stream::new(&url, "orders\x1b", "billing"), orders())
            .build()
            .unwrap();
        let run = consumer.run(
            |_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) },
            std::future::pending(),
        );
        let e = timeout(HANG, run).await.expect("it ends").unwrap_err();
        let publisher = Publisher::new(&url, "orders\x1b");
        let added = publisher.publish("key", std::time::SystemTime::now(), b"").await;
        let other = added.err().map(|e| format!("{e} {e:?}")).unwrap_or_default();
        let shown = format!("{e} {e:?} {other} {consumer:?}");
        assert!(!shown.contains("Hunter") && !shown.contains('\x1b'), "{answers}: {shown:?}");
        assert!(e.to_string().contains("NOPERM") || answers == "HELLO", "{e}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let sent = Arc::new(AtomicUsize::new(0));
    for begin in ["$9223372036854775807\r\n", "*2147483647\r\n", "*1000000\r\n"] {
        sent.store(0, SeqCst);
        let count = Arc::clone(&sent);
        let server = Fake::serve(move |mut socket| {
            let count = Arc::clone(&count);
            async move {
                // The server replies to every command with data that never ends.
                socket.write_all(begin.as_bytes()).await.ok()?;
                let piece = b"$1\r\na\r\n".repeat(10_000);
                loop {
                    socket.write_all(&piece).await.ok()?;
                    count.fetch_add(piece.len(), SeqCst);
                }
            }
        });
        let url = format!("redis://{}", server.at);
        let consumer =
            Consumer::builder(Stream::new(&url, "orders", "billing"), orders()).build().unwrap();
        let run =
            consumer.run(|_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) }, sleep(LEASE));
        timeout(HANG, run).await.expect("it ends").unwrap();
        let (sent, connections) = (sent.load(SeqCst), server.connections());
        assert!(connections >= 1 && sent / connections < 80 << 20, "{sent} in {connections}");
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_used_is_reported_without_its_password() {
    let from = Stream::new("redis://joe:s3cret@h:99999", "orders", "billing");
    let consumer = Consumer::builder(from, orders()).build().unwrap_err().to_string();
    let publisher = Publisher::new("redis://joe:s3cret@h:99999", "orders");
    let e = publisher.publish("key", std::time::SystemTime::now(), b"").await.unwrap_err();
    assert!(!e.is_passing());
    for text in [consumer, e.to_string()] {
        assert!(text.contains("url") && !text.contains("s3cret"), "{text}");
    }
}
