//! Malformed messages, the same set for all brokers. Each message either takes effect once or
//! becomes a dead letter. No message blocks another one.
//!
//! The test of a broker leaves out the messages that the broker or its client cannot send.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::{Broker, Consumer, ConsumerBuilder, Rules};
use tokio::time::timeout;

/// Time limit for a whole run. Only a run that hangs exceeds it.
const HANG: Duration = Duration::from_secs(90);

/// One message of the set of malformed messages, or a valid message before or after them.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    /// Name of the case that this message tests.
    pub(crate) case: &'static str,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) created: Option<&'static str>,
    /// Additional header or field.
    pub(crate) header: Option<(&'static [u8], &'static [u8])>,
    pub(crate) body: Vec<u8>,
}

/// Results after all malformed messages have been consumed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Became {
    /// Number of effects of each key.
    pub(crate) effects: BTreeMap<String, u32>,
    /// Number of dead letters for each reason.
    pub(crate) dead: BTreeMap<String, u32>,
}

/// Returns a builder of a consumer that handles the malformed messages from this broker.
pub(crate) fn consumer<B: Broker>(from: B) -> ConsumerBuilder<B> {
    let node = MemoryNode::new();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(2)).build().unwrap();
    Consumer::builder(from, redlock.idempotency("orders").at_least_once().build().unwrap())
}

/// Consumes the malformed messages until `stop` resolves. Returns the results in `became`, and
/// leaves it empty.
pub(crate) async fn consume<B: Broker>(
    consumer: ConsumerBuilder<B>,
    became: &Arc<Mutex<Became>>,
    stop: impl Future<Output = ()>,
) -> Became {
    let ours = Arc::clone(became);
    let handler = move |cx: Context, _: Arc<B::Delivery>| {
        let handled = handle(&ours, cx.key());
        async move { handled.map_err(Failed::permanent) }
    };
    let consumer = consumer.rules(Rules::default().max_failures(2)).build().unwrap();
    timeout(HANG, consumer.run(handler, stop)).await.expect("nothing is stopped").unwrap();
    std::mem::take(&mut *became.lock().unwrap())
}

/// Counts the effect of a message with this key, or returns the reason why the message is refused.
/// Panics for the key `PANICS`, as a faulty handler does.
fn handle(became: &Mutex<Became>, key: &str) -> Result<(), &'static str> {
    assert_ne!(key, PANICS, "as it is meant to");
    if key == LARGEST {
        return Err("too much");
    }
    *became.lock().unwrap().effects.entry(key.to_owned()).or_default() += 1;
    Ok(())
}

/// Key of two messages with different bodies. Only the message that is delivered first takes
/// effect.
pub(crate) const TWICE: &str = "twice";
/// Key of the message with the largest body that the broker allows. Its handler refuses it.
pub(crate) const LARGEST: &str = "largest";
/// Key of the message whose handler panics each time.
pub(crate) const PANICS: &str = "panics";

/// Returns the malformed messages, and a valid message before and after them. `largest` is the
/// length of the largest body in bytes.
pub(crate) fn letters(largest: usize) -> Vec<Letter> {
    let letter = |case, key: &[u8], body: &[u8]| Letter {
        case,
        key: Some(key.to_vec()),
        created: None,
        header: None,
        body: body.to_vec(),
    };
    let plain = letter("well", b"first", b"1");
    vec![
        plain.clone(),
        letter("a body that is not text", b"bytes", b"caf\xe9\0\xff"),
        letter("no body", b"empty", b""),
        letter("the largest body", LARGEST.as_bytes(), &vec![b'x'; largest]),
        Letter { key: None, ..letter("no key", b"", b"1") },
        letter("an empty key", b"", b"1"),
        letter("a key that is not text", b"caf\xe9", b"1"),
        letter("a key that is too long", &[b'k'; 2_000], b"1"),
        Letter { created: Some("soon"), ..letter("a time that is none", b"soon", b"1") },
        Letter {
            created: Some("18446744073709551615"),
            ..letter("a time far ahead", b"ahead", b"1")
        },
        letter("equal keys", TWICE.as_bytes(), b"1"),
        letter("equal keys", TWICE.as_bytes(), b"2"),
        Letter {
            header: Some((b"caf\xe9", b"1")),
            ..letter("a header whose name is not text", b"named", b"1")
        },
        Letter {
            header: Some((b"x-palisade-failures", b"\xffmany")),
            ..letter("a count that is none", b"count", b"1")
        },
        letter("a handler that panics", PANICS.as_bytes(), b"1"),
        Letter { key: Some(b"last".to_vec()), ..plain },
    ]
}

/// Returns the results that the malformed messages must have with any broker.
pub(crate) fn promised(letters: &[Letter]) -> Became {
    let mut became = Became::default();
    let mut seen = BTreeSet::new();
    for letter in letters {
        let key = letter.key.clone().and_then(|key| String::from_utf8(key).ok());
        let key = key.filter(|key| (1..=512).contains(&key.len()));
        let dead = match &key {
            _ if letter.case == "a time far ahead" => Some("unreadable"),
            None => Some("unreadable"),
            Some(key) if !seen.insert(key.clone()) => Some("mismatch"),
            Some(key) if key == LARGEST => Some("refused"),
            Some(key) if key == PANICS => Some("exhausted"),
            Some(_) => None,
        };
        match (dead, key) {
            (Some(reason), _) => *became.dead.entry(reason.to_owned()).or_default() += 1,
            (None, key) => *became.effects.entry(key.unwrap_or_default()).or_default() += 1,
        }
    }
    became
}
