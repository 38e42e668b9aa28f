//! An order has at most one effect that the ledger accepts. A batch key has a second effect only if
//! an operator ran it again. Each has one result, and no handler starts after a client received it,
//! or after the effect of a batch key.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::holders::by;
use super::{Granted, Violation, tokens};
use crate::event::{Event, EventKind, Nanos, TaskId, Verb};

#[derive(Default)]
struct Order {
    /// First result that a client received, the client, and the time.
    result: Option<(Arc<str>, TaskId, Nanos)>,
    booked: Option<(TaskId, u64)>,
    /// Values of the order's effects.
    effects: Vec<Arc<str>>,
    /// True after a handler performed an effect that the ledger accepts with any fencing token, so
    /// that it cannot refuse a repeat. From then on, no handler may begin.
    acted: bool,
    /// Number of additional effects, each allowed by an operator.
    again: u32,
}

pub(super) fn judge(events: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut orders: BTreeMap<&Arc<str>, Order> = BTreeMap::new();
    let mut granted: BTreeMap<Arc<str>, Vec<Granted>> = BTreeMap::new();
    let mut begun: BTreeMap<TaskId, Nanos> = BTreeMap::new();
    for e in events {
        match &e.kind {
            EventKind::Begin {
                verb: Verb::Run | Verb::RunEach | Verb::ClaimMany | Verb::Rerun,
                ..
            } => {
                begun.insert(e.who, e.at);
            }
            EventKind::Started { key, token, valid, .. } => {
                let order = orders.entry(key).or_default();
                if let Some((_, to, at)) = order.result.as_ref().filter(|_| *valid) {
                    let text = format!(
                        "{} started it (token {token}) {:.3} ms after {} had its result",
                        by(e.who),
                        (e.at - at) as f64 / 1e6,
                        by(*to)
                    );
                    found.push(Violation::new("no handler after a result", key, e.at, text));
                }
                if order.acted && order.again == 0 && *valid {
                    let text = format!("{} started it (token {token})", by(e.who));
                    found.push(Violation::new("no handler after a key's effect", key, e.at, text));
                }
                let since = begun.get(&e.who).copied().unwrap_or(e.at);
                let g = Granted { since, at: e.at, token: *token, by: by(e.who) };
                granted.entry(Arc::clone(key)).or_default().push(g);
            }
            EventKind::Decided { key, rerun: true } => orders.entry(key).or_default().again += 1,
            EventKind::Booked { key, token, value, accepted: true }
            | EventKind::Acted { key, token, value } => {
                let order = orders.entry(key).or_default();
                order.effects.push(Arc::clone(value));
                order.acted |= matches!(e.kind, EventKind::Acted { .. });
                if order.booked.is_some() && order.again > 0 {
                    order.again -= 1;
                } else if let Some((who, before)) = order.booked {
                    let text = format!(
                        "by {} (token {before}) and by {} (token {token})",
                        by(who),
                        by(e.who)
                    );
                    found.push(Violation::new("one effect an order", key, e.at, text));
                }
                order.booked = Some((e.who, *token));
            }
            EventKind::Result { key, value, .. } => {
                let order = orders.entry(key).or_default();
                match &order.result {
                    Some((first, to, _)) if first != value => {
                        let text = format!(
                            "{} was given {value:?}, {} {first:?} before",
                            by(e.who),
                            by(*to)
                        );
                        found.push(Violation::new("one result an order", key, e.at, text));
                    }
                    Some(_) => {}
                    None => {
                        order.result = Some((Arc::clone(value), e.who, e.at));
                        if !order.effects.contains(value) {
                            let text = format!("{} was given {value:?}", by(e.who));
                            let rule = "no result without an effect";
                            found.push(Violation::new(rule, key, e.at, text));
                        }
                    }
                }
            }
            _ => {}
        }
    }
    found.extend(tokens(&granted));
    found
}
