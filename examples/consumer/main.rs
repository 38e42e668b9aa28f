//! Message consumers that may see everything twice, and do it once.
//!
//! The order of things is always: effect, complete, acknowledge. A message whose key is at work
//! elsewhere is never acknowledged; it comes again. What nobody can decide is parked for a person.
//!
//! ```text
//! cargo run -p examples --bin consumer                                all in memory
//! cargo run -p examples --bin consumer -- --node redis://127.0.0.1    a stream and a node on Redis
//! ```

// Nothing in a program can be reached from outside.
#![allow(unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod queue;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use clap::Parser as _;
use palisade::idempotency::Context;
use palisade::{Advice, Failed, Idempotency, Outcome, Redlock};
use queue::{Message, Queue};
use tokio::time::{Instant, sleep};

type Failure = Box<dyn Error + Send + Sync>;
const LEASE: Duration = Duration::from_millis(500);
const MESSAGES: usize = 100;

/// What was charged, by order: the foreign effect.
type Charges = Mutex<BTreeMap<String, u32>>;

struct Billing {
    queue: Queue,
    payments: Idempotency,
    charges: Charges,
    lease: Duration,
}

impl Billing {
    /// One consumer, until there is nothing left to do.
    async fn consume(self: Arc<Self>, name: String) -> Result<(), Failure> {
        // A message is given to somebody else only when its claim can have lapsed.
        let idle = self.lease + self.lease / 2;
        let mut last = Instant::now();
        while last.elapsed() < 3 * idle {
            let Some(message) = self.queue.next(&name, idle).await? else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            last = Instant::now();
            let call = self.payments.key(&*message.key);
            let call = call.fingerprint(&message.body).created_at(message.created);
            match call.run(async |cx: Context| self.charge(&cx, &message).await).await {
                // Stored on a majority: the next consumer of the message will see it.
                Ok(Outcome::Executed { .. } | Outcome::Replayed(_)) => {
                    self.queue.ack(&message).await?;
                }
                // Not ours to acknowledge: should the other one die, somebody has to take over.
                Ok(Outcome::InFlight { .. }) => {}
                Ok(Outcome::Parked(why)) => {
                    println!("{name}: parked: {why}");
                    self.queue.park(&message).await?;
                }
                Ok(Outcome::Mismatch) => {
                    println!("{name}: {} says something else than before: parked", message.key);
                    self.queue.park(&message).await?;
                }
                Ok(Outcome::TooOld) => {
                    println!("{name}: {} is older than what is remembered: parked", message.key);
                    self.queue.park(&message).await?;
                }
                Ok(other) => return Err(format!("{}: {other:?}", message.key).into()),
                Err(e) => match e.advice() {
                    // Left pending: it comes again.
                    Advice::RetryAfter(_) => println!("{name}: {e}"),
                    _ => return Err(e.to_string().into()),
                },
            }
        }
        Ok(())
    }

    /// The effect. This one recognises nothing, so a failure in the middle of it cannot be repeated
    /// blindly: that is what `at_most_once` is for.
    async fn charge(&self, cx: &Context, message: &Message) -> Result<String, Failed> {
        if message.body.is_empty() {
            // Nothing was done, and saying so gives the claim back: the next one may try.
            return Err(Failed::no_effect("empty message"));
        }
        sleep(Duration::from_millis(5)).await;
        *self.charges.lock().expect("no one panics").entry(message.key.clone()).or_default() += 1;
        if message.body == "poison" {
            return Err("connection to the bank lost after the charge was sent".into());
        }
        Ok(format!("receipt-{}", cx.child_key("charge")))
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let connect = common::Connect::parse();
    let run = format!("consumer-example-{:08x}", rand::random::<u32>());
    let lease = connect.ttl(LEASE);
    let redlock: Redlock = connect.builder(lease)?.prefix(format!("{run}:")).build()?;
    common::ready(&redlock).await?;
    let payments = redlock
        .idempotency("payments")
        // Longer than any redelivery takes, replays by hand included.
        .retention(Duration::from_secs(3_600))
        .at_most_once()
        .build()?;
    let queue = Queue::open(connect.node.first().map(String::as_str), &run).await?;

    // Producers send twice: half of the messages, right after the first or much later. Each copy
    // says when the order was made.
    let made = SystemTime::now();
    let send = async |n: usize| {
        let body = if n == 42 { "poison".to_owned() } else { format!("{n}.00 GBP") };
        queue.send(&format!("order-{n}"), &body, made).await
    };
    for n in 0..MESSAGES {
        send(n).await?;
        if n % 4 == 0 {
            send(n).await?;
        }
    }
    for n in (0..MESSAGES).filter(|n| n % 4 == 1) {
        send(n).await?;
    }
    queue.send("order-7", "7000.00 GBP", made).await?;

    let billing = Arc::new(Billing { queue, payments, charges: Charges::default(), lease });
    let consumers: Vec<_> = (0..4)
        .map(|n| tokio::spawn(Arc::clone(&billing).consume(format!("consumer {n}"))))
        .collect();
    for consumer in consumers {
        consumer.await??;
    }
    println!("{}", redlock.close(LEASE * 5).await);
    let parked = billing.queue.parked().await?;
    billing.queue.clear().await?;
    let charges = billing.charges.lock().expect("no one panics");
    assert!(charges.values().all(|n| *n == 1), "an order was charged twice");
    // The poisoned order and the changed one, if no server lost data on the way.
    if charges.len() < MESSAGES || parked != 2 {
        let done = charges.len();
        return Err(format!(
            "{done} of {MESSAGES} orders charged once each, {parked} messages parked for a \
             person: see the lines above for why"
        )
        .into());
    }
    println!("{MESSAGES} orders charged once each, {parked} messages parked for a person");
    Ok(())
}
