//! Checks that the callers of a fair lock get the lock in the order of their places in the queue,
//! and that a free lock is given to one of them (rules fair 1 to 4 in docs/design).

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::plan::{Fault, Guarantees};
use crate::trace::Event;

/// A waiting call: its client, its task, and the name of the lock.
type Call = (usize, usize, u16);

/// State of a call that waits.
#[derive(Debug, Default)]
struct Wait {
    began: u64,
    /// Time at which the call first received its position in the queue. `None` before.
    queued: Option<u64>,
    /// Calls that already had a position when this call began.
    before: Vec<Call>,
}

/// Place of a caller in a node's queue: the time since which the node has had the place without a
/// gap, and the time of the last request for the place.
type Run = (u64, u64);

/// Waiting calls and their places in the queues of the nodes, as far as the events of the run show
/// them.
#[derive(Debug)]
struct Order {
    guarantees: Guarantees,
    waits: BTreeMap<Call, Wait>,
    /// For each client, name and node: the place in the node's queue. A client has at most one
    /// place for a name.
    places: BTreeMap<(usize, u16, usize), Run>,
    /// Nodes that had a failover or a handover. Their new master may lack the places in the queue.
    moved: Vec<usize>,
    /// For each name: the time at which its last holder gave it up, or `None` while it has a
    /// holder.
    idle: BTreeMap<u16, Option<u64>>,
}

/// Longest time, in µs, that a free lock may stay without a holder while fair callers wait. It
/// covers the time for which the place of a stopped caller counts, the pause between two requests,
/// and some attempts that collide.
const SERVED: u64 = 6_000_000;

/// Returns the rule that fair callers get the lock in the order of their places in the queue.
pub(super) fn order(guarantees: Guarantees) -> Rule {
    let (waits, places, idle) = Default::default();
    let mut order = Order { guarantees, waits, places, moved: Vec::new(), idle };
    rule("fair callers are served in their order", "docs/design/fair.md", move |at, event| {
        order.see(at, event)
    })
}

impl Order {
    /// Returns the number of nodes in whose queue of waiters the call had a place for the whole
    /// time since `began`.
    fn nodes_with(&self, (client, _, name): Call, began: u64, now: u64) -> usize {
        let fresh = self.guarantees.fresh * 1_000;
        let has = |node| {
            self.places.get(&(client, name, node)).is_some_and(|(since, last)| {
                *since <= began && last + fresh > now && !self.moved.contains(&node)
            })
        };
        (0..self.guarantees.nodes).filter(|node| has(*node)).count()
    }

    fn served(&mut self, now: u64, call: Call) -> Result<(), String> {
        let Some(wait) = self.waits.remove(&call) else { return Ok(()) };
        let need = self.guarantees.nodes / 2 + 1;
        // A call of the same task that began later is another call.
        let still_waits =
            |first: &&Call| self.waits.get(*first).is_some_and(|w| w.began <= wait.began);
        for first in wait.before.iter().filter(still_waits) {
            if self.nodes_with(*first, wait.began, now) >= need {
                let ((client, task, _), (a, b, _)) = (call, *first);
                return Err(format!("client {client}.{task} passed {a}.{b}, which came first"));
            }
        }
        Ok(())
    }

    fn died(&mut self, who: usize) {
        self.waits.retain(|(client, ..), _| *client != who);
        self.places.retain(|(client, ..), _| *client != who);
    }

    fn is_stuck(&self, now: u64) -> Option<Call> {
        let stuck = |(call, wait): (&Call, &Wait)| {
            let idle = self.idle.get(&call.2).copied().unwrap_or(Some(0))?;
            let since = wait.queued?.max(idle);
            (now > since + SERVED).then_some(*call)
        };
        self.waits.iter().find_map(stuck)
    }

    fn see(&mut self, at: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::AsksFairly { client, task, name } => {
                let queued = |(call, wait): (&Call, &Wait)| {
                    (call.2 == name && wait.queued.is_some()).then_some(*call)
                };
                let before = self.waits.iter().filter_map(queued).collect();
                let wait = Wait { began: at, queued: None, before };
                self.waits.insert((client, task, name), wait);
            }
            Event::Queued { client, task, name } => {
                if let Some(wait) = self.waits.get_mut(&(client, task, name)) {
                    wait.queued.get_or_insert(at);
                }
            }
            Event::Placed { node, client, name, with_ticket: false } => {
                self.places.remove(&(client, name, node));
            }
            Event::Placed { node, client, name, with_ticket: true } => {
                let fresh = self.guarantees.fresh * 1_000;
                let run = self.places.entry((client, name, node)).or_insert((at, at));
                *run = (if run.1 + fresh > at { run.0 } else { at }, at);
            }
            Event::Refused { client, task, name, .. } | Event::Cancelled { client, task, name } => {
                self.waits.remove(&(client, task, name));
            }
            Event::ItsTurn { client, task, name } => return self.served(at, (client, task, name)),
            Event::Holds { name, .. } => drop(self.idle.insert(name, None)),
            Event::Parts { name, .. } => drop(self.idle.insert(name, Some(at))),
            Event::Fault(Fault::Kill { client } | Fault::Deploy { client, .. }) => {
                self.died(client);
            }
            Event::Fault(Fault::Failover { node, .. } | Fault::Handover { node, .. }) => {
                self.moved.push(node);
            }
            Event::NewLife { node, .. } | Event::Lost { node, .. } => {
                self.places.retain(|(_, _, of), _| *of != node);
            }
            _ => {}
        }
        match self.is_stuck(at).filter(|_| self.guarantees.calm) {
            Some((client, task, _)) => {
                Err(format!("the lock is free, and client {client}.{task} is not served"))
            }
            None => Ok(()),
        }
    }
}
