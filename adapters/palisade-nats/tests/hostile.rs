//! Tests of NATS consumers that receive malformed messages, on a real server. No message has a
//! header with bytes that are not UTF-8, because async-nats neither sends nor reads such a header
//! (see the README).

#[path = "../../../tests/support/hostile.rs"]
mod hostile;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::sync::Arc;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use hostile::{Letter, consume, consumer, letters, promised};
use palisade_consumer::headers::{CREATED, LEFT_OUT, ORIGIN, REASON};
use palisade_nats::Message;
use server::{Nats, STREAM};

/// Header that contains the idempotency key. With the key in the header `Nats-Msg-Id`, the stream
/// would drop the second of two equal messages.
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
    let key = |message: &Message| message.header(ORDER).map(str::to_owned);
    let consumer = consumer(nats.durable()).key(key);
    let mut became = consume(consumer, &Arc::default(), nats.drained()).await;
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
