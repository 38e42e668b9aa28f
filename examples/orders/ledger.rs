//! The downstream: a ledger that books orders and knows nothing of the library that is on trial.
//!
//! It does what a careful bank does: it compares the fencing token that comes with a booking with
//! the largest one it has seen for that order, and refuses a smaller one; and it books an order
//! once. A second booking that got past the fence is refused too, but *counted as a double*: the
//! fence together with the probe has to be enough, the ledger's own care is not for hire here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade::FencingToken;

/// What the ledger says to a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Booked.
    Booked,
    /// A larger token was seen: somebody else is in charge of this order by now.
    OldToken,
    /// It is booked already.
    Twice,
}

/// One order in the books.
#[derive(Debug, Default)]
struct Entry {
    /// The largest token seen.
    fence: FencingToken,
    /// The invoices that took effect; more than one is a double.
    booked: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Books {
    entries: BTreeMap<Arc<str>, Entry>,
    old_tokens: u64,
    probes: u64,
}

/// The books, by order key.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Books>);

/// What the books say when all is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Orders with an effect.
    pub executed: usize,
    /// Orders with more than one.
    pub doubles: usize,
    /// Orders with none.
    pub lost: usize,
    /// Bookings that came with a token that was overtaken, and were refused.
    pub old_tokens: u64,
    /// How often somebody had to ask what became of an order.
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

    /// Which invoice was booked as the order `key`? From now on only `token` and larger ones are
    /// taken for it, so that the answer stays true: a consumer that stalled with an older one is
    /// too late.
    pub fn probe(&self, key: &Arc<str>, token: FencingToken) -> Option<Arc<str>> {
        let mut books = self.books();
        books.probes += 1;
        let entry = books.entries.entry(Arc::clone(key)).or_default();
        entry.fence = entry.fence.max(token);
        entry.booked.first().cloned()
    }

    /// Which invoice was booked as the order `key`, without a promise about the future.
    pub fn booked(&self, key: &str) -> Option<Arc<str>> {
        self.books().entries.get(key).and_then(|e| e.booked.first().cloned())
    }

    /// Closes the books over the orders that there were.
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
