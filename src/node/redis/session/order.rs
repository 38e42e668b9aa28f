//! The order in which batches are executed, kept also when the server lost its script.
//!
//! Batches under way find it missing one after the other, and each is sent again. That happens in
//! the order in which they left first, and nothing new leaves in between: else a release could be
//! executed before its own acquire.

use std::collections::BTreeSet;

use tokio::sync::watch;

/// The batches of one connection.
#[derive(Debug, Default)]
pub(super) struct Order(watch::Sender<Places>);

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// Those whose place on the wire is not known to be their last.
    open: BTreeSet<u64>,
    /// How many are being sent again.
    again: usize,
}

impl Order {
    /// Whether nothing is being sent again.
    pub(super) fn is_kept_now(&self) -> bool {
        self.0.borrow().again == 0
    }

    /// Ends when nothing is.
    pub(super) async fn is_kept(&self) {
        // The sender is ours, so it is never closed.
        let _ = self.0.subscribe().wait_for(|p| p.again == 0).await;
    }

    /// The place of a batch that leaves now.
    pub(super) fn take(&self) -> Place<'_> {
        let mut place = Place { order: self, number: 0, again: false };
        self.0.send_if_modified(|p| {
            p.next += 1;
            p.open.insert(p.next);
            place.number = p.next;
            false
        });
        place
    }
}

/// A batch under way.
pub(super) struct Place<'a> {
    order: &'a Order,
    number: u64,
    again: bool,
}

impl Place<'_> {
    /// It found no script. Ends when it is its turn to be sent again.
    pub(super) async fn again(&mut self) {
        self.again = true;
        self.order.0.send_modify(|p| p.again += 1);
        let first = |p: &Places| p.open.first() == Some(&self.number);
        let _ = self.order.0.subscribe().wait_for(first).await;
    }

    /// It is on its way for the last time.
    pub(super) fn left(&self) {
        self.order.0.send_if_modified(|p| p.open.remove(&self.number) && p.again > 0);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.left();
        if self.again {
            self.order.0.send_modify(|p| p.again -= 1);
        }
    }
}
