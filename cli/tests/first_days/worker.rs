//! The README's worker, with a broker that delivers each order at least twice, and the ledger of
//! its effects.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use palisade::idempotency::Resolved;
use palisade::{Idempotency, Outcome, Redlock};
use tokio::time::sleep;

/// Time between two new orders.
const ORDER: Duration = Duration::from_millis(150);
/// Time after which an order is delivered again.
const AGAIN: Duration = Duration::from_secs(1);

struct Order {
    made: SystemTime,
    due: Instant,
    /// Number of deliveries that the worker acknowledged.
    acknowledged: u32,
}

pub(crate) struct Worker {
    url: String,
    payments: Idempotency,
    births: bool,
    /// The orders that the broker still has.
    queue: BTreeMap<u32, Order>,
    orders: u32,
    next: Instant,
    effects: Rc<RefCell<Vec<u32>>>,
}

fn payments(url: &str) -> Idempotency {
    let redlock = Redlock::from_urls(url).expect("an address");
    redlock.idempotency("payments").at_most_once().build().expect("good settings")
}

impl Worker {
    pub(crate) fn new(url: &str, births: bool) -> Self {
        Self {
            url: url.to_owned(),
            payments: payments(url),
            births,
            queue: BTreeMap::new(),
            orders: 0,
            next: Instant::now(),
            effects: Rc::default(),
        }
    }

    pub(crate) async fn work_for(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.turn(true).await;
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Takes a new order, if one is due and orders still come, and handles what is due. At most one
    /// order in a call, so that the user may look in between.
    pub(crate) async fn turn(&mut self, orders_come: bool) {
        let now = Instant::now();
        if orders_come && now >= self.next {
            self.next = now + ORDER;
            let order = Order { made: SystemTime::now(), due: now, acknowledged: 0 };
            self.queue.insert(self.orders, order);
            self.orders += 1;
        }
        let due = self.queue.iter().filter(|(_, order)| order.due <= now);
        let Some(id) = due.min_by_key(|(_, order)| order.due).map(|(id, _)| *id) else { return };
        let is_done = self.deliver(id).await;
        let order = self.queue.get_mut(&id).expect("it was delivered");
        order.due = Instant::now() + AGAIN;
        order.acknowledged += u32::from(is_done);
        // The acknowledgement of the first delivery is lost.
        if order.acknowledged == 2 {
            self.queue.remove(&id);
        }
    }

    async fn deliver(&self, id: u32) -> bool {
        let mut call = self.payments.key(format!("order-{id}"));
        if self.births {
            call = call.created_at(self.queue[&id].made);
        }
        let effects = Rc::clone(&self.effects);
        let outcome = call
            .run(move |_| async move {
                effects.borrow_mut().push(id);
                Ok::<_, String>(id)
            })
            .await;
        matches!(outcome, Ok(Outcome::Executed { .. } | Outcome::Replayed(_)))
    }

    /// Returns true if the requests that wait may have taken effect, by the ledger.
    pub(crate) fn has_waiting_effects(&self) -> bool {
        let effects = self.effects.borrow();
        self.queue.keys().any(|id| effects.contains(id))
    }

    /// Restarts the worker with a version of the program that gives `created_at`.
    pub(crate) fn restart_with_births(&mut self) {
        self.births = true;
        self.payments = payments(&self.url);
    }

    pub(crate) fn has_births(&self) -> bool {
        self.births
    }

    /// Stores the results of those waiting orders that are in the ledger.
    pub(crate) async fn resolve_by_ledger(&self) {
        let known: Vec<u32> = self.effects.borrow().clone();
        for (id, order) in self.queue.iter().filter(|(id, _)| known.contains(id)) {
            let call = self.payments.key(format!("order-{id}")).created_at(order.made);
            let mut resolved = call.clone().resolve(id).await;
            for _ in 0..50 {
                if matches!(resolved, Ok(Resolved::Stored | Resolved::AlreadyStored(_))) {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
                resolved = call.clone().resolve(id).await;
            }
            let stands = matches!(resolved, Ok(Resolved::Stored | Resolved::AlreadyStored(_)));
            assert!(stands, "{resolved:?}");
        }
    }

    pub(crate) fn next_order(&self) -> u32 {
        self.orders
    }

    /// Returns true if an order with this number, or a later one, was executed.
    pub(crate) fn ran_since(&self, first: u32) -> bool {
        self.effects.borrow().iter().any(|id| *id >= first)
    }

    pub(crate) fn executed(&self) -> usize {
        self.effects.borrow().len()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of orders, of those executed twice, and of those never executed.
    pub(crate) fn ledger(&self) -> (usize, usize, usize) {
        let effects = self.effects.borrow();
        let distinct: BTreeSet<u32> = effects.iter().copied().collect();
        let orders = self.orders as usize;
        (orders, effects.len() - distinct.len(), orders - distinct.len())
    }
}
