//! The downstream system of the consumers: a ledger that books orders. It does not use palisade.
//!
//! The ledger stores the largest fencing token that it has seen for each order, and refuses a
//! booking with a smaller token. It answers a second booking of an order, if the token is large
//! enough, with `Verdict::Twice`, and the audit *counts the order as a double*. There must be no
//! double: the token check and the probe must prevent each second booking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade::FencingToken;

/// The ledger's answer to a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The order was booked.
    Booked,
    /// The ledger has seen a larger token for this order: another consumer works on the order now.
    OldToken,
    /// The order was booked before, so this booking is a double.
    Twice,
}

/// The entry of one order in the ledger, which books the invoices.
#[derive(Debug, Default)]
struct Entry {
    /// The largest fencing token that the ledger has seen for the order.
    fence: FencingToken,
    /// The invoices booked for the order. A second invoice means that the order was booked twice.
    booked: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Books {
    entries: BTreeMap<Arc<str>, Entry>,
    old_tokens: u64,
    probes: u64,
}

/// The ledger, shared by all consumers.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Books>);

/// The counts of an audit of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Number of orders with an effect: at least one booked invoice.
    pub executed: usize,
    /// Number of orders with more than one effect.
    pub doubles: usize,
    /// Number of orders without an effect.
    pub lost: usize,
    /// Number of bookings refused because of an old token.
    pub old_tokens: u64,
    /// Number of times that a consumer asked the ledger if an order is booked.
    pub probes: u64,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books `invoice` for the order `key`, if the ledger has not seen a larger token for this
    /// order.
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

    /// Returns the invoice that is booked for the order `key`, if any. From now on the ledger
    /// refuses tokens smaller than `token` for this order. So a stalled consumer with an older
    /// token cannot book the order after a probe that found no booking.
    pub fn probe(&self, key: &Arc<str>, token: FencingToken) -> Option<Arc<str>> {
        let mut books = self.books();
        books.probes += 1;
        let entry = books.entries.entry(Arc::clone(key)).or_default();
        entry.fence = entry.fence.max(token);
        entry.booked.first().cloned()
    }

    /// Returns the invoice that is booked for the order `key`, if any. Unlike
    /// [`probe`](Self::probe), this function does not change the ledger.
    pub fn booked(&self, key: &str) -> Option<Arc<str>> {
        self.books().entries.get(key).and_then(|e| e.booked.first().cloned())
    }

    /// Counts the orders that are booked, booked more than once, and not booked.
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
