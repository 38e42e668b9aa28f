//! Consumers of malformed messages, on a real server. No message has a header with bytes that are
//! not UTF-8, because async-nats neither sends nor reads such a header (see the README).

#[path = "../../../tests/support/hostile.rs"]
mod hostile;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use hostile::{Became, Letter, letters, promised};
use palisade::idempotency::Context;
use palisade::idempotency::consumer::Rules;
use palisade::idempotency::consumer::headers::{CREATED, LEFT_OUT, ORIGIN, REASON};
use palisade::{Failed, MemoryNode, Redlock};
use palisade_nats::{Consumer, Message};
use server::{Nats, STREAM};
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(2);
/// Timeout that only a hang exceeds.
const HANG: Duration = Duration::from_secs(60);
/// Header with the key. With the header `Nats-Msg-Id` the stream would drop the second of two equal
/// messages.
const ORDER: &str = "order";
/// Maximum size of a body in bytes: the server limits headers and body together to a mebibyte.
const LARGEST_BODY: usize = (1 << 20) - 64;

fn text(bytes: &[u8]) -> Option<HeaderValue> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Returns the headers of the test message, or `None` if async-nats cannot send them.
fn headers(letter: &Letter) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &letter.key {
        headers.insert(ORDER, text(key)?);
    }
    if let Some(created) = letter.created {
        headers.insert(CREATED, created);
    }
    if let Some((name, value)) = letter.header {
        let name: HeaderName = std::str::from_utf8(name).ok()?.parse().ok()?;
        headers.insert(name, text(value)?);
    }
    Some(headers)
}

#[tokio::test]
async fn no_message_stops_another_one() {
    let nats = Nats::start().await;
    let mut sent = letters(LARGEST_BODY);
    sent.retain(|letter| headers(letter).is_some());
    assert!(sent.len() >= 12, "most of them can be sent");
    for letter in &sent {
        let (headers, body) = (headers(letter).expect("just looked"), letter.body.clone().into());
        let sent = nats.context.publish_with_headers(STREAM, headers, body).await.unwrap();
        sent.await.unwrap();
    }
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(LEASE).build().unwrap();
    let of = redlock.idempotency("orders").at_least_once().build().unwrap();
    let key = |message: &Message| message.header(ORDER).map(str::to_owned);
    let rules = Rules::default().max_failures(2);
    let consumer = Consumer::builder(nats.durable(), of).key(key);
    let consumer = consumer.rules(rules).build().unwrap();
    let became = Arc::new(Mutex::new(Became::default()));
    let ours = Arc::clone(&became);
    let handler = move |cx: Context, _: Arc<Message>| {
        let became = Arc::clone(&ours);
        async move { hostile::handle(&became, cx.key()).map_err(Failed::permanent) }
    };
    let run = consumer.run(handler, nats.drained());
    timeout(HANG, run).await.expect("nothing is stopped").unwrap();
    let mut became = std::mem::take(&mut *became.lock().unwrap());
    for letter in nats.dead().await {
        let text = |name| letter.headers.get(name).map(|v| v.as_str().to_owned());
        let reason = text(REASON).expect("each has one");
        if reason == "refused" {
            assert!(letter.payload.is_empty(), "the body has no room");
            let left_out = text(LEFT_OUT).expect("it says so");
            assert!(left_out.contains(&LARGEST_BODY.to_string()), "{left_out}");
        }
        assert!(text(ORIGIN).is_some_and(|origin| origin.starts_with("orders:")));
        *became.dead.entry(reason).or_default() += 1;
    }
    assert_eq!(became, promised(&sent));
}
