//! Messages whose keys a node has lost together with its data. For each broker: the consumer holds
//! these messages back at the broker, and handles other messages. After an operator's decision,
//! each of the held messages takes effect once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use palisade::idempotency::{Context, Decision};
use palisade::{Failed, Idempotency, MemoryNode, Redlock};
use palisade_consumer::{Broker, ConsumerBuilder, ConsumerReport, Rules};
use palisade_ops::{Audit, incidents};
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
/// Time limit for one step, even on a busy machine.
const LONG: Duration = Duration::from_secs(100);
/// Number of messages that are published before the node loses its data.
const OLD: usize = 20;
const NEW: usize = 5;

/// A namespace of idempotency keys whose node loses its data, and the number of effects of each
/// key.
#[derive(Clone, Debug)]
pub struct Held {
    pub of: Idempotency,
    node: MemoryNode,
    books: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Held {
    /// Creates the namespace and runs a first call in it, so that the node has data that it can
    /// lose.
    pub async fn new() -> Self {
        let node = MemoryNode::new();
        let redlock = Redlock::builder().node(node.clone()).ttl(LEASE).max_ttl(LEASE);
        let redlock = redlock.clock_error(LEASE / 40).build().unwrap();
        let of = redlock.idempotency("orders").at_most_once().build().unwrap();
        let first = of.key("first").run(|_| async { Ok::<_, Failed>(()) }).await.unwrap();
        assert!(first.is_executed());
        Self { of, node, books: Arc::default() }
    }

    /// Publishes messages, deletes the node's data, and then runs a consumer until all messages
    /// have been handled and `drained` resolves.
    pub async fn consume<B: Broker>(
        &self,
        consumer: ConsumerBuilder<B>,
        publish: impl AsyncFn(&str, SystemTime),
        drained: impl Future<Output = ()>,
    ) -> ConsumerReport {
        self.lose(&publish).await;
        let books = Arc::clone(&self.books);
        let book = move |cx: Context, _: Arc<B::Delivery>| {
            *books.lock().unwrap().entry(cx.key().to_owned()).or_default() += 1;
            async { Ok::<_, Failed>(()) }
        };
        let stop = async {
            self.judge(&publish).await;
            drained.await;
        };
        let consumer = consumer.rules(Rules::default().concurrency(64)).build().unwrap();
        consumer.run(book, stop).await.unwrap()
    }

    /// Publishes messages, deletes the node's data, and waits until the node's quarantine has
    /// ended, in which it grants nothing.
    async fn lose(&self, publish: &impl AsyncFn(&str, SystemTime)) {
        for n in 0..OLD {
            publish(&format!("old-{n}"), SystemTime::now()).await;
        }
        self.node.restart_empty();
        while !self.of.health().await.is_ready() {
            sleep(LEASE / 20).await;
        }
    }

    /// Publishes more messages while the consumer runs. Then decides, as an operator, that the held
    /// messages are run. Returns after all messages have been handled.
    async fn judge(&self, publish: &impl AsyncFn(&str, SystemTime)) {
        self.until("all are held", || self.of.metrics().held == OLD as u64).await;
        for n in 0..NEW {
            publish(&format!("new-{n}"), SystemTime::now()).await;
        }
        self.until("the new ones go on", || self.books.lock().unwrap().len() == NEW).await;
        assert_eq!(self.of.metrics().held, OLD as u64, "nobody has decided");
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let seen = incidents(&self.of).await.incidents;
        let [incident] = &seen[..] else { panic!("{seen:?}") };
        incident.decide(&self.of, Decision::Run, false, &audit).await.unwrap();
        self.until("all are booked", || self.books.lock().unwrap().len() == OLD + NEW).await;
        self.until("none is held", || self.of.metrics().held == 0).await;
        assert!(self.books.lock().unwrap().values().all(|times| *times == 1), "{self:?}");
    }

    async fn until(&self, what: &str, is: impl Fn() -> bool) {
        let waits = async {
            while !is() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let held = || (self.of.metrics(), self.books.lock().unwrap().clone());
        assert!(timeout(LONG, waits).await.is_ok(), "not yet: {what}: {:?}", held());
    }
}
