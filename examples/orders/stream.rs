//! The order stream: real invoices, delivered at least once, out of order, decided by one seed.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

/// One invoice as published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invoice {
    #[serde(rename = "InvoiceNo")]
    pub number: Arc<str>,
    #[serde(rename = "InvoiceDate")]
    pub day: String,
    #[serde(rename = "CustomerID")]
    pub customer: String,
    /// As printed: two prints of one amount are one amount, a float's last bit is not.
    #[serde(rename = "TotalPrice")]
    pub total: String,
}

/// Reads the first `limit` invoices.
pub fn load(limit: Option<usize>) -> Result<Vec<Invoice>, csv::Error> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/invoices.csv");
    let mut reader = csv::Reader::from_path(path)?;
    reader.deserialize().take(limit.unwrap_or(usize::MAX)).collect()
}

/// When two deliveries are the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The same invoice number.
    Request,
    /// The same customer, day and total.
    Business,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Business => "business",
        }
    }

    /// The idempotency key.
    pub fn key(self, invoice: &Invoice) -> Arc<str> {
        match self {
            Self::Request => Arc::clone(&invoice.number),
            Self::Business => {
                format!("{}/{}/{}", invoice.customer, invoice.day, invoice.total).into()
            }
        }
    }
}

/// What happens to the first consumer that works on an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// Nothing.
    Well = 0,
    /// It dies before the effect.
    CrashBefore = 1,
    /// It dies between the effect and its record.
    CrashAfter = 2,
    /// It freezes until its lease is over, wakes, and books with its old token.
    Stall = 3,
}

/// An order: an invoice and its key.
#[derive(Debug)]
pub struct Order {
    pub invoice: Invoice,
    pub key: Arc<str>,
    fate: AtomicU8,
}

impl Order {
    /// What happens to who asks; only the first one to ask meets it.
    pub fn fate(&self) -> Fate {
        match self.fate.swap(Fate::Well as u8, Ordering::Relaxed) {
            1 => Fate::CrashBefore,
            2 => Fate::CrashAfter,
            3 => Fate::Stall,
            _ => Fate::Well,
        }
    }
}

/// The stream of one level. Whatever was taken and neither settled nor put back is still under way.
#[derive(Debug)]
pub struct Stream {
    pub level: Level,
    pub orders: Vec<Order>,
    /// When the orders were made, for each of their deliveries.
    pub created: SystemTime,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    fresh: VecDeque<usize>,
    put_back: BTreeMap<(Instant, u64), usize>,
    put_backs: u64,
    under_way: usize,
    taken: u64,
    acknowledged: u64,
    /// Not before this, and then that much later again.
    pace: Option<(Instant, Duration)>,
}

impl Stream {
    /// The stream that `seed` decides: each invoice one to four times, half of the repeats at the
    /// heels of the first, the others anywhere later; one order in 200 meets a crash after the
    /// effect, one in 200 a stall, one in 400 a crash before the effect.
    pub fn new(level: Level, invoices: &[Invoice], seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed ^ level as u64);
        let mut places: Vec<(usize, usize)> = Vec::new();
        for i in 0..invoices.len() {
            let first = i + dice.random_range(0..64);
            places.push((first, i));
            for _ in 0..dice.random_range(0..4) {
                let later = if dice.random_bool(0.5) { 0..8 } else { 0..5_000 };
                places.push((first + dice.random_range(later), i));
            }
        }
        places.sort_unstable();
        let mut fate = || match dice.random_range(0..400) {
            0 => Fate::CrashBefore,
            1 | 2 => Fate::CrashAfter,
            3 | 4 => Fate::Stall,
            _ => Fate::Well,
        };
        let order = |invoice: &Invoice| Order {
            key: level.key(invoice),
            invoice: invoice.clone(),
            fate: AtomicU8::new(fate() as u8),
        };
        let orders = invoices.iter().map(order).collect();
        let fresh = places.into_iter().map(|(_, i)| i).collect();
        let state = Mutex::new(State { fresh, ..State::default() });
        let created = SystemTime::now();
        Self { level, orders, created, state, changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many deliveries are still to come, not counting what will be put back.
    pub fn remaining(&self) -> usize {
        self.state().fresh.len()
    }

    /// Deliveries so far.
    pub fn delivered(&self) -> u64 {
        self.state().taken
    }

    /// Deliveries that never come again.
    pub fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Spreads what is still to come over `span`; `None`: as fast as the consumers can.
    pub fn spread(&self, span: Option<Duration>) {
        let mut state = self.state();
        let n = u32::try_from(state.fresh.len().max(1)).unwrap_or(u32::MAX);
        state.pace = span.map(|s| (Instant::now(), s / n));
        drop(state);
        self.changed.notify_waiters();
    }

    /// The next delivery; `None` when everything is settled.
    pub async fn next(&self) -> Option<usize> {
        loop {
            let changed = self.changed.notified();
            let wait = match self.take() {
                Take::Order(order) => return Some(order),
                Take::Over => return None,
                Take::Wait(wait) => wait,
            };
            // A second at most, for a wake-up between the look and the wait.
            let _ = tokio::time::timeout(wait.min(Duration::from_secs(1)), changed).await;
        }
    }

    fn take(&self) -> Take {
        let mut state = self.state();
        let now = Instant::now();
        let due = state.put_back.first_key_value().map(|(at, _)| at.0);
        let fresh_at = match (&state.pace, state.fresh.is_empty()) {
            (_, true) => None,
            (None, false) => Some(now),
            (Some((at, _)), false) => Some(*at),
        };
        let order = if due.is_some_and(|at| at <= now) {
            state.put_back.pop_first().map(|(_, order)| order)
        } else if fresh_at.is_some_and(|at| at <= now) {
            if let Some((at, step)) = &mut state.pace {
                *at += *step;
            }
            state.fresh.pop_front()
        } else {
            None
        };
        if let Some(order) = order {
            state.taken += 1;
            state.under_way += 1;
            return Take::Order(order);
        }
        match [due, fresh_at].into_iter().flatten().min() {
            Some(at) => Take::Wait(at - now),
            None if state.under_way == 0 => Take::Over,
            None => Take::Wait(Duration::from_secs(1)),
        }
    }

    /// A delivery that could not be settled comes again, after this long at the earliest.
    pub fn put_back(&self, order: usize, after: Duration) {
        self.deliver_again(order, after);
        self.state().under_way -= 1;
    }

    /// An order is delivered once more, after this long at the earliest.
    pub fn deliver_again(&self, order: usize, after: Duration) {
        let mut state = self.state();
        state.put_backs += 1;
        let place = (Instant::now() + after, state.put_backs);
        state.put_back.insert(place, order);
        drop(state);
        self.changed.notify_waiters();
    }

    /// A delivery is acknowledged: it never comes again.
    pub fn acknowledge(&self) {
        let mut state = self.state();
        state.under_way -= 1;
        state.acknowledged += 1;
        let over = state.under_way == 0 && state.fresh.is_empty() && state.put_back.is_empty();
        drop(state);
        if over {
            self.changed.notify_waiters();
        }
    }
}

enum Take {
    Order(usize),
    Wait(Duration),
    Over,
}
