//! Changes of the clients' settings while processes with old and new settings run. The order of the
//! changes is safe or unsafe.

use super::{Fault, Ms, Plan, Settings};
use crate::dice::Dice;

/// Setting that changes during a run, with an unsafe way to change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `max_ttl` becomes larger, and `ttl` with it. The unsafe way: both in one step.
    MaxTtlUp,
    /// `ttl` becomes smaller, and `max_ttl` with it. The unsafe way: both in one step.
    MaxTtlDown,
    /// `clock_error` changes. The unsafe way: the new value is smaller than the clocks' real error.
    ClockError,
    /// `drift` changes. The unsafe way: the new value is smaller than the real drift of the clocks.
    Drift,
    /// The retention changes. The unsafe way: requests created before the change are still sent.
    Retention,
    /// The number of nodes grows from one to three. The unsafe way: two nodes are added in one
    /// step.
    NodesAdded,
    /// A node is replaced. The unsafe way: the old node leaves and the new node joins in one step.
    NodeReplaced,
    /// A node is replaced. The unsafe way: the old node leaves before the retention has ended.
    NodeLeavesEarly,
    /// A node is added. The unsafe way: it is declared as new (known to be empty), so it begins
    /// without a quarantine.
    NodeJoinsAsNew,
}

impl Order {
    /// Returns true if the unsafe way of this change breaks rules about keys whose requests have a
    /// creation time.
    pub(super) fn is_about_keys(self) -> bool {
        matches!(
            self,
            Self::Retention | Self::NodeLeavesEarly | Self::NodeJoinsAsNew | Self::ClockError
        )
    }
}

/// Settings of the processes, one after another. A stage begins `wait` milliseconds after each
/// process has the settings of the stage before it.
struct Rollout {
    stages: Vec<Settings>,
    wait: Ms,
}

impl Plan {
    /// Draws a random change of the clients' settings, and the times at which processes with the
    /// new settings replace the old ones.
    pub(super) fn draw_fleet(&mut self, d: &mut Dice, unsafe_order: Option<Order>) {
        let safe = unsafe_order.is_none();
        let order = unsafe_order.unwrap_or_else(|| {
            d.pick(&[
                Order::MaxTtlUp,
                Order::MaxTtlDown,
                Order::ClockError,
                Order::Drift,
                Order::Retention,
                Order::NodesAdded,
                Order::NodeReplaced,
            ])
        });
        let rollout = match order {
            Order::MaxTtlUp | Order::MaxTtlDown => self.lease(d, order, safe),
            Order::ClockError | Order::Drift => self.clocks(d, order, safe),
            Order::Retention => self.retention(d),
            Order::NodesAdded => self.grow(d, safe),
            Order::NodeReplaced | Order::NodeLeavesEarly | Order::NodeJoinsAsNew => {
                self.replace(d, order, safe)
            }
        };
        self.stages = rollout.stages;
        let end = self.deploy(d, rollout.wait);
        if order == Order::Retention {
            self.born_after(d, if safe { end } else { 0 });
        }
    }

    /// Deploys all stages one after another. A stage (the next settings of the processes) begins
    /// only after each process has the settings of the stage before it. Returns the time of the
    /// end.
    fn deploy(&mut self, d: &mut Dice, wait: Ms) -> Ms {
        let mut at = d.range(50, 700);
        for stage in 1..self.stages.len() {
            let mut clients: Vec<usize> = (0..self.clients.len()).collect();
            while !clients.is_empty() {
                let next = d.range(0, clients.len() as u64 - 1) as usize;
                let client = clients.remove(next);
                self.faults.push((at, Fault::Deploy { client, stage }));
                at += d.range(0, self.stages[0].ttl * 3 / 2);
            }
            at += wait;
        }
        at
    }

    fn lease(&mut self, d: &mut Dice, order: Order, safe: bool) -> Rollout {
        let low = self.stages[0];
        let long = low.max_ttl * d.range(2, 3);
        let (raised, high) =
            (Settings { max_ttl: long, ..low }, Settings { ttl: long, max_ttl: long, ..low });
        let mut stages = if safe { vec![low, raised, high] } else { vec![low, high] };
        if order == Order::MaxTtlDown {
            stages.reverse();
        }
        if self.orders.births.is_empty() {
            return Rollout { stages, wait: 0 };
        }
        let retention = low.retention.max(2 * long + low.clock_error);
        let stages = stages.into_iter().map(|s| Settings { retention, ..s }).collect();
        Rollout { stages, wait: 0 }
    }

    fn clocks(&mut self, d: &mut Dice, order: Order, safe: bool) -> Rollout {
        let one = self.stages[0];
        if order == Order::Drift {
            // The real clocks drift apart by at most the `drift_ppm` of the first stage (the first
            // settings). So another setting is safe only if it is larger.
            let more = if safe { d.range(u64::from(one.drift_ppm), 90_000) as u32 } else { 100 };
            let other = Settings { drift_ppm: more, ..one };
            return either_way(d, one, other);
        }
        let most = (one.max_ttl - 1) / 2;
        let clock_error = if safe { d.range(one.clock_error, most) } else { 1 };
        either_way(d, one, Settings { clock_error, ..one })
    }

    fn retention(&mut self, d: &mut Dice) -> Rollout {
        let one = self.stages[0];
        // A request without a creation time runs again if its record has expired. So its retention
        // stays longer than the run.
        let born = !self.orders.births.is_empty();
        let short = if born { 2 * one.ttl + one.clock_error + 1_400 } else { one.retention };
        let (short, long) = (
            Settings { retention: short, ..one },
            Settings { retention: short + d.range(600, 2_000), ..one },
        );
        either_way(d, short, long)
    }

    fn born_after(&mut self, d: &mut Dice, from: Ms) {
        for birth in &mut self.orders.births {
            birth.at = from + d.range(0, 200);
        }
    }

    fn masks(&self, masks: &[u64], wait: Ms) -> Rollout {
        let one = self.stages[0];
        let stages = masks.iter().map(|nodes| Settings { nodes: *nodes, ..one }).collect();
        Rollout { stages, wait }
    }

    /// Adds two nodes to a deployment of one. If `safe`, the nodes are added one by one, so that
    /// the processes first have two nodes; otherwise both are added at once.
    fn grow(&mut self, d: &mut Dice, safe: bool) -> Rollout {
        self.nodes.truncate(1);
        self.join(d, 2, false);
        if safe { self.masks(&[0b1, 0b11, 0b111], 0) } else { self.masks(&[0b1, 0b111], 0) }
    }

    /// Replaces one of three nodes. First the new node joins, and then the old node leaves.
    fn replace(&mut self, d: &mut Dice, order: Order, safe: bool) -> Rollout {
        while self.nodes.len() < 3 {
            let more = self.node(d, 1);
            self.nodes.push(more);
        }
        self.nodes.truncate(3);
        self.join(d, 1, order == Order::NodeJoinsAsNew);
        if !safe && order == Order::NodeReplaced {
            return self.masks(&[0b111, 0b1110], 0);
        }
        let kept = if self.orders.births.is_empty() { 0 } else { self.stages[0].retention };
        let wait = if safe { kept + self.stages[0].max_ttl } else { 0 };
        self.masks(&[0b111, 0b1111, 0b1110], wait)
    }

    fn join(&mut self, d: &mut Dice, count: u64, is_new: bool) {
        for _ in 0..count {
            let mut node = self.node(d, 1);
            node.is_new = is_new;
            self.nodes.push(node);
        }
    }
}

fn either_way(d: &mut Dice, one: Settings, other: Settings) -> Rollout {
    let stages = if d.chance(500) { vec![one, other] } else { vec![other, one] };
    Rollout { stages, wait: 0 }
}
