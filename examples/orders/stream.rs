//! The order stream: real invoices, delivered one or more times and out of order. The seed of a
//! random generator decides the number and the order of the deliveries.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::invoice::Invoice;

/// Number of hash tags in the keys of orders.
pub const TAGS: usize = 100;

/// The rule that decides if two deliveries belong to the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Both deliveries have the same invoice number.
    Request,
    /// Both deliveries have the same customer, day and total.
    Business,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Business => "business",
        }
    }

    /// Returns the idempotency key of an invoice. A cluster chooses the slot by the part in braces,
    /// the end of the customer's number: every slot in use costs each client a beat (cluster 5).
    pub fn key(self, invoice: &Invoice) -> Arc<str> {
        let Invoice { number, day, customer, total } = invoice;
        let tag = customer.parse().map_or(0, |customer: usize| customer % TAGS);
        match self {
            Self::Request => format!("{{{tag:02}}}{number}").into(),
            Self::Business => format!("{{{tag:02}}}{customer}/{day}/{total}").into(),
        }
    }
}

/// The fault that is injected into the first handler of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// No fault.
    Well = 0,
    /// The consumer dies before it books the order.
    CrashBefore = 1,
    /// The consumer dies after it booked the order and before it stored the result.
    CrashAfter = 2,
    /// The consumer freezes until its lease has ended, and then books with its old token.
    Stall = 3,
}

/// An order: an invoice, its idempotency key, and the fault that is injected into its first
/// handler.
#[derive(Debug)]
pub struct Order {
    pub invoice: Invoice,
    pub key: Arc<str>,
    fate: AtomicU8,
}

impl Order {
    /// Returns the fault to inject for this order on the first call, and [`Fate::Well`] (no fault)
    /// on all later calls.
    pub fn fate(&self) -> Fate {
        match self.fate.swap(Fate::Well as u8, Ordering::Relaxed) {
            1 => Fate::CrashBefore,
            2 => Fate::CrashAfter,
            3 => Fate::Stall,
            _ => Fate::Well,
        }
    }
}

/// The stream of the orders at one [`Level`]. A delivery is under way until its order is settled or
/// returned to the stream.
#[derive(Debug)]
pub struct Stream {
    pub level: Level,
    pub orders: Vec<Order>,
    /// Creation time of the orders. All deliveries of an order have the same creation time.
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
    /// Earliest time of the next delivery, and the interval between deliveries. If it is `None`,
    /// orders are delivered at full speed.
    pace: Option<(Instant, Duration)>,
}

impl Stream {
    /// Creates a stream from `seed`. Each invoice is delivered one to four times. Half of the
    /// repeated deliveries follow soon after the first one; the other half come much later. One
    /// order in 200 has a crash after the effect, one in 200 a stall, and one in 400 a crash before
    /// the effect.
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

    /// Returns the number of deliveries that have not begun. Deliveries that were put back do not
    /// count.
    pub fn remaining(&self) -> usize {
        self.state().fresh.len()
    }

    /// Returns the number of deliveries so far.
    pub fn delivered(&self) -> u64 {
        self.state().taken
    }

    /// Returns the number of deliveries that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Spreads the remaining deliveries evenly over `span`. If `span` is `None`, delivers at full
    /// speed.
    pub fn spread(&self, span: Option<Duration>) {
        let mut state = self.state();
        let n = u32::try_from(state.fresh.len().max(1)).unwrap_or(u32::MAX);
        state.pace = span.map(|s| (Instant::now(), s / n));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns the next delivery, or `None` when all orders are settled.
    pub async fn next(&self) -> Option<usize> {
        loop {
            let changed = self.changed.notified();
            let wait = match self.take() {
                Take::Order(order) => return Some(order),
                Take::Over => return None,
                Take::Wait(wait) => wait,
            };
            // `changed` was created before `take`, so a change after `take` also ends this wait.
            // The limit of one second is a precaution.
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

    /// Puts back an order that could not be settled. The next delivery is at least `after` from
    /// now.
    pub fn put_back(&self, order: usize, after: Duration) {
        self.deliver_again(order, after);
        self.state().under_way -= 1;
    }

    /// Delivers an order one more time, at least `after` from now.
    pub fn deliver_again(&self, order: usize, after: Duration) {
        let mut state = self.state();
        state.put_backs += 1;
        let place = (Instant::now() + after, state.put_backs);
        state.put_back.insert(place, order);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Acknowledges a delivery, so that the stream does not repeat it.
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
