//! The consumers: what a message handler looks like with the library, and how it is made to fail.
//!
//! Each consumer acts as a process: a thread with a runtime, a handle and a keeper of its own. So a
//! stall is a real one (the thread sleeps, nothing renews the lease), and it hits whatever else the
//! consumer had in hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use palisade::idempotency::Context;
use palisade::{Advice, Failed, Idempotency, Outcome, Probed, Redlock, RunError};
use tokio::sync::Notify;

use crate::ledger::{Audit, Ledger, Verdict};
use crate::report::Pulse;
use crate::stream::{Fate, Level, Order, Stream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long an answer of the ledger takes.
const LEDGER: Duration = Duration::from_millis(1);

/// A number that several consumers count up.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the consumers of a level met.
#[derive(Debug, Default)]
pub struct Counts {
    pub executed: Count,
    pub replayed: Count,
    pub refused: Count,
    pub in_flight: Count,
    pub crashed_before: Count,
    pub crashed_after: Count,
    pub stalled: Count,
    pub trouble: Count,
    /// Answers that the ledger does not bear out.
    pub broken: Count,
}

/// One level: its stream, its ledger, and what was counted.
#[derive(Debug)]
pub struct Shift {
    pub stream: Stream,
    pub ledger: Ledger,
    pub counts: Counts,
    pub lease: Duration,
    /// The probe answers "not found" without asking.
    pub blind: bool,
}

/// What became of a delivery.
enum Delivered {
    /// The invoice with this number took effect as this order, now or before.
    Settled(Arc<str>),
    /// It has to come again.
    Again(Duration),
}

impl Shift {
    pub fn new(stream: Stream, lease: Duration, blind: bool) -> Self {
        Self { stream, ledger: Ledger::default(), counts: Counts::default(), lease, blind }
    }

    /// What the ledger says of all orders of the stream.
    pub fn audit(&self) -> Audit {
        let mut keys: Vec<_> = self.stream.orders.iter().map(|o| &o.key).collect();
        keys.sort_unstable();
        keys.dedup();
        self.ledger.audit(keys.into_iter())
    }

    /// Invoices that are in nobody's books, because another one took effect as the same order.
    pub fn refused(&self) -> usize {
        let is_other =
            |o: &&Order| self.ledger.booked(&o.key).is_some_and(|b| b != o.invoice.number);
        self.stream.orders.iter().filter(is_other).count()
    }

    /// Takes deliveries until all are settled.
    pub async fn serve(
        &self,
        redlock: &Redlock,
        pulse: &Pulse,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let orders = redlock
            .idempotency(self.stream.level.name())
            .lease(self.lease)
            .retention(Duration::from_secs(600))
            // What is not known of an order the probe asks the ledger.
            .at_most_once()
            .build()?;
        while let Some(index) = self.stream.next().await {
            let order = &self.stream.orders[index];
            match self.deliver(&orders, index, order).await? {
                Delivered::Again(after) => self.stream.put_back(index, after),
                Delivered::Settled(by) => {
                    self.check(order, &by);
                    self.stream.acknowledge();
                    pulse.beat();
                    bar.set_position(self.stream.acknowledged());
                }
            }
        }
        Ok(())
    }

    /// One delivery. The library's part is the call; the rest is what it came to.
    async fn deliver(
        &self,
        orders: &Idempotency,
        index: usize,
        order: &Order,
    ) -> Result<Delivered, Failure> {
        let died = Notify::new();
        let call = match self.stream.level {
            Level::Request => orders.key(&*order.key).fingerprint(&order.invoice),
            Level::Business => orders.key(&*order.key),
        };
        let call = call.created_at(self.stream.created);
        let run = call
            .probe(async |cx: Context| self.ask_ledger(&cx, order).await)
            .run(async |cx: Context| self.book(&cx, index, order, &died).await);
        let outcome = tokio::select! {
            biased;
            outcome = run => outcome,
            // The consumer dies: the call is dropped at its current await, nothing is cleaned up.
            () = died.notified() => return Ok(Delivered::Again(self.lease)),
        };
        let counts = &self.counts;
        Ok(match outcome {
            Ok(Outcome::Executed { value, .. }) => {
                counts.executed.add();
                Delivered::Settled(value)
            }
            Ok(Outcome::Replayed(value)) if value == order.invoice.number => {
                counts.replayed.add();
                Delivered::Settled(value)
            }
            Ok(Outcome::Replayed(other)) => {
                counts.refused.add();
                Delivered::Settled(other)
            }
            Ok(Outcome::InFlight { retry_after }) => {
                counts.in_flight.add();
                Delivered::Again(retry_after)
            }
            Ok(other) => return Err(format!("order {}: {other:?}", order.key).into()),
            Err(RunError::Handler { .. }) => {
                counts.trouble.add();
                Delivered::Again(Duration::ZERO)
            }
            Err(e) => match e.advice() {
                Advice::RetryAfter(after) => {
                    counts.trouble.add();
                    Delivered::Again(after)
                }
                _ => return Err(format!("order {}: {e}", order.key).into()),
            },
        })
    }

    /// The handler: books the order with the claim's token. Fate may strike, once per order.
    async fn book(
        &self,
        cx: &Context,
        index: usize,
        order: &Order,
        died: &Notify,
    ) -> Result<Arc<str>, Failed> {
        let fate = order.fate();
        tokio::time::sleep(LEDGER).await;
        if fate == Fate::CrashBefore {
            self.counts.crashed_before.add();
            die(died).await;
        }
        if fate == Fate::Stall {
            self.counts.stalled.add();
            // The broker gets no answer and gives the message to another consumer as well.
            self.stream.deliver_again(index, self.lease);
            std::thread::sleep(self.lease + Duration::from_millis(200));
        }
        let verdict = self.ledger.book(&order.key, cx.fencing_token(), &order.invoice.number);
        if fate == Fate::CrashAfter {
            self.counts.crashed_after.add();
            die(died).await;
        }
        match verdict {
            Verdict::Booked | Verdict::Twice => Ok(Arc::clone(&order.invoice.number)),
            Verdict::OldToken => {
                Err(Failed::no_effect("the ledger has seen a larger token for this order"))
            }
        }
    }

    /// The probe: an earlier attempt left no result, or too few nodes remember.
    async fn ask_ledger(&self, cx: &Context, order: &Order) -> Probed<Arc<str>> {
        if self.blind {
            return Probed::NotFound;
        }
        tokio::time::sleep(LEDGER).await;
        match self.ledger.probe(&order.key, cx.fencing_token()) {
            Some(invoice) => Probed::Found(invoice),
            None => Probed::NotFound,
        }
    }

    /// An invoice that was reported as effective must be in the books.
    fn check(&self, order: &Order, by: &Arc<str>) {
        if self.ledger.booked(&order.key).as_ref() != Some(by) {
            self.counts.broken.add();
        }
    }
}

async fn die(died: &Notify) {
    died.notify_one();
    std::future::pending::<()>().await;
}
