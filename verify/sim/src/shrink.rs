//! Makes a plan whose run broke a rule smaller. A part is removed if the plan without it still
//! breaks the same rule.

use crate::plan::{Plan, Wave};
use crate::run::{Report, run};

const BUDGET: u32 = 1_500;

struct Shrinker {
    plan: Plan,
    report: Report,
    broken: &'static str,
    left: u32,
}

/// Returns the smallest plan of a simulated run that was found and still breaks the same rule, and
/// the report of its run.
pub(crate) fn shrink(plan: Plan, broken: &'static str, report: Report) -> (Plan, Report) {
    let mut s = Shrinker { plan, report, broken, left: BUDGET };
    while s.round() && s.left > 0 {}
    (s.plan, s.report)
}

impl Shrinker {
    fn take(&mut self, plan: Plan) -> bool {
        if self.left == 0 || plan == self.plan {
            return false;
        }
        self.left -= 1;
        let report = run(plan.clone());
        let same = report.violation.as_ref().is_some_and(|v| v.invariant == self.broken);
        if same {
            self.plan = plan;
            self.report = report;
        }
        same
    }

    fn with(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan);
        self.take(plan)
    }

    /// Tries to remove each part of the plan once. Returns true if a part was removed.
    fn round(&mut self) -> bool {
        let mut smaller = false;
        for i in (0..self.plan.faults.len()).rev() {
            smaller |= self.with(|p| {
                p.faults.remove(i);
            });
        }
        for i in (0..self.plan.tasks.len()).rev() {
            smaller |= self.with(|p| p.tasks[i].actions.clear());
            for action in (0..self.plan.tasks[i].actions.len()).rev() {
                smaller |= self.with(|p| {
                    p.tasks[i].actions.remove(action);
                });
            }
        }
        smaller |= self.with(|p| p.net.late = 0);
        smaller |= self.with(|p| p.net.lose_request = 0);
        smaller |= self.with(|p| p.net.lose_reply = 0);
        smaller |= self.with(|p| p.net.duplicate = 0);
        smaller |= self.with(|p| p.net.lose_hint = 0);
        smaller |= self.with(|p| p.cross = false);
        smaller |= self.with(|p| p.copy_every = 0);
        for i in 0..self.plan.nodes.len() {
            for server in 0..self.plan.nodes[i].servers.len() {
                smaller |= self.with(|p| p.nodes[i].servers[server].clock.ppm = 0);
                smaller |= self.with(|p| p.nodes[i].servers[server].clock = Wave::TRUE);
            }
        }
        for i in 0..self.plan.clients.len() {
            smaller |= self.with(|p| p.clients[i].clock.ppm = 0);
            smaller |= self.with(|p| p.clients[i].clock.wall.ppm = 0);
            smaller |= self.with(|p| p.clients[i].clock.wall = Wave::TRUE);
            smaller |= self.with(|p| p.clients[i].reads = u64::MAX);
            smaller |= self.with(|p| p.clients[i].twin = false);
        }
        smaller
    }
}
