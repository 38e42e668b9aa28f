//! The consumers: a message handler that uses the library, and the faults injected into it.
//!
//! Each consumer is a thread with its own runtime and its own handle (`Redlock`), so it behaves
//! like a process of its own. A stall is a simulated pause: it makes the whole thread sleep. During
//! a stall the consumer handles no other message and renews no lease.

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

/// Simulated duration of a request to the ledger.
const LEDGER: Duration = Duration::from_millis(1);

/// A counter that several consumers increment.
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

/// Numbers of deliveries by outcome. All consumers of one [`Level`] (the rule that decides if two
/// deliveries are of the same order) add to the same numbers.
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
    /// Number of orders for which the library reported an invoice that the ledger has not booked.
    pub broken: Count,
}

/// A run of the demo at one [`Level`] (the rule that decides if two deliveries are of the same
/// order): the stream of orders, the ledger, and the counts of outcomes.
#[derive(Debug)]
pub struct Shift {
    pub stream: Stream,
    pub ledger: Ledger,
    pub counts: Counts,
    pub lease: Duration,
    /// If true, the probe (the check for an effect) returns `NotFound` and does not ask the ledger.
    /// The ledger's audit must then find orders that were booked twice.
    pub blind: bool,
}

/// The outcome of a delivery.
enum Delivered {
    /// The order is booked, with this invoice number, by this delivery or an earlier one.
    Settled(Arc<str>),
    /// The order is not settled. It must be delivered again after this time.
    Again(Duration),
}

impl Shift {
    pub fn new(stream: Stream, lease: Duration, blind: bool) -> Self {
        Self { stream, ledger: Ledger::default(), counts: Counts::default(), lease, blind }
    }

    /// Audits the ledger over all orders of the stream.
    pub fn audit(&self) -> Audit {
        let mut keys: Vec<_> = self.stream.orders.iter().map(|o| &o.key).collect();
        keys.sort_unstable();
        keys.dedup();
        self.ledger.audit(keys.into_iter())
    }

    /// Returns the number of invoices that are not booked, because another invoice was booked for
    /// the same order.
    pub fn refused(&self) -> usize {
        let is_other =
            |o: &&Order| self.ledger.booked(&o.key).is_some_and(|b| b != o.invoice.number);
        self.stream.orders.iter().filter(is_other).count()
    }

    /// Handles deliveries until all orders are settled.
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
            // With `at_most_once`, an order with an unknown outcome is not simply run again. The
            // library first calls the probe, which asks the ledger.
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

    /// Handles one delivery of an order under the order's idempotency key.
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
            // Simulates the death of the consumer: drops the call at its current await, without a
            // cleanup.
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
            Ok(other) => return Err(format!("order {}: {other}", order.key).into()),
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

    /// Books an order with the fencing token of the claim (the right to run this handler). The
    /// first call for an order also injects the order's fault, if the order has one.
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
            // During the stall (a pause longer than the lease) a real broker gets no
            // acknowledgement, so it delivers the message to another consumer too. The stream
            // simulates this.
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

    /// Asks the ledger if an order is booked. The library calls this probe if an earlier attempt
    /// left no result, or if the nodes cannot decide if there was an attempt.
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

    /// Adds one to `broken` if the ledger has not booked the order as invoice `by`.
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
