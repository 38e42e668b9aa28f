//! Helpers for the tests of consumers, which are the same for all brokers: a namespace of
//! idempotency keys, a ledger that counts effects, and a function that runs a consumer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Redlock};
use palisade_consumer::{Broker, ConsumerBuilder, ConsumerReport};
use tokio::time::{sleep, timeout};

pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// Time limit for a whole run. Only a run that hangs exceeds it.
pub(crate) const HANG: Duration = Duration::from_secs(120);

pub(crate) fn handle(node: &MemoryNode) -> Redlock {
    Redlock::builder().node(node.clone()).ttl(LEASE).build().unwrap()
}

/// Returns a namespace of idempotency keys whose handlers may run twice for one message.
pub(crate) fn repeatable(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_least_once().build().unwrap()
}

/// The number of effects of each key.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, u32>>>);

impl Ledger {
    pub(crate) fn book(&self, cx: &Context) {
        *self.0.lock().unwrap().entry(cx.key().to_owned()).or_default() += 1;
    }

    pub(crate) fn effects(&self) -> Vec<u32> {
        self.0.lock().unwrap().values().copied().collect()
    }

    /// Waits until this number of keys have an effect.
    pub(crate) async fn has(&self, keys: usize) {
        while self.effects().len() < keys {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs a consumer that counts each message in `ledger`, until `stop` resolves. The handler needs
/// the time `takes` for each message.
pub(crate) async fn run<B: Broker>(
    consumer: ConsumerBuilder<B>,
    ledger: &Ledger,
    takes: Duration,
    stop: impl Future<Output = ()>,
) -> ConsumerReport {
    let books = ledger.clone();
    let book = move |cx: Context, _: Arc<B::Delivery>| {
        let books = books.clone();
        async move {
            sleep(takes).await;
            books.book(&cx);
            Ok::<_, Failed>(())
        }
    };
    let consumer = consumer.build().unwrap();
    timeout(HANG, consumer.run(book, stop)).await.expect("it ends").expect("it was asked to")
}

/// Returns the result of a handler for this key: a permanent error for "refused", a temporary error
/// for "fails", and success for all other keys. `tries` counts the temporary errors.
pub(crate) fn judge(key: &str, tries: &AtomicU32) -> Result<(), Failed> {
    match key {
        "refused" => Err(Failed::permanent("no such\ncustomer")),
        "fails" => {
            tries.fetch_add(1, SeqCst);
            Err(Failed::no_effect("the bank is closed"))
        }
        _ => Ok(()),
    }
}
