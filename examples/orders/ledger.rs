//! The downstream system: a ledger that books orders and does not use the library under test.
//!
//! It checks bookings as a careful bank does. It compares a booking's fencing token with the
//! largest one it has seen for the order, and refuses a smaller one. It books an order only once. A
//! second booking that passes the fence is refused, too, but *counted as a double*: the fence and
//! the probe must be sufficient without the ledger's own check.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade::FencingToken;

/// The ledger's answer to a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The order was booked.
    Booked,
    /// A larger token was seen: another consumer works on this order by now.
    OldToken,
    /// The order is already booked.
    Twice,
}

/// The ledger's entry for one order.
#[derive(Debug, Default)]
struct Entry {
    /// The largest fencing token seen.
    fence: FencingToken,
    /// The invoices that took effect. More than one is a double.
    booked: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Books {
    entries: BTreeMap<Arc<str>, Entry>,
    old_tokens: u64,
    probes: u64,
}

/// The ledger: an entry for each order key.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Books>);

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Number of orders with an effect.
    pub executed: usize,
    /// Number of orders with more than one effect.
    pub doubles: usize,
    /// Number of orders without an effect.
    pub lost: usize,
    /// Number of bookings refused because of an old token.
    pub old_tokens: u64,
    /// Number of probes.
    pub probes: u64,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books `invoice` as the order `key`.
    pub fn book(&self, key: &Arc<str>, token: FencingToken, invoice: &Arc<str>) -> Verdict {
        let mut books = self.books();
        let entry = books.entries.entry(Arc::clone(key)).or_default();
        if token < entry.fence {
            books.old_tokens += 1;
            return Verdict::OldToken;
        }
        entry.fence = token;
        entry.booked.push(Arc::clone(invoice));
        if entry.booked.len() > 1 { Verdict::Twice } else { Verdict::Booked }
    }

    /// Returns the invoice booked as the order `key`, if any. From now on the ledger refuses tokens
    /// smaller than `token` for this order, so that the answer stays true: a stalled consumer with
    /// an older token comes too late.
    pub fn probe(&self, key: &Arc<str>, token: FencingToken) -> Option<Arc<str>> {
        let mut books = self.books();
        books.probes += 1;
        let entry = books.entries.entry(Arc::clone(key)).or_default();
        entry.fence = entry.fence.max(token);
        entry.booked.first().cloned()
    }

    /// Returns the invoice booked as the order `key`, if any, without refusing later bookings.
    pub fn booked(&self, key: &str) -> Option<Arc<str>> {
        self.books().entries.get(key).and_then(|e| e.booked.first().cloned())
    }

    /// Counts the effects of these orders in the books.
    pub fn audit<'a>(&self, orders: impl Iterator<Item = &'a Arc<str>>) -> Audit {
        let books = self.books();
        let mut audit = Audit {
            executed: 0,
            doubles: 0,
            lost: 0,
            old_tokens: books.old_tokens,
            probes: books.probes,
        };
        for order in orders {
            match books.entries.get(order).map_or(0, |e| e.booked.len()) {
                0 => audit.lost += 1,
                n => {
                    audit.executed += 1;
                    audit.doubles += usize::from(n > 1);
                }
            }
        }
        audit
    }
}
