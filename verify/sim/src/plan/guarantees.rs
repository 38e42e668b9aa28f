//! Promises of the library that must be kept in the run of a plan, under the plan's assumptions.

use super::{Copy, Ms, Plan, Policy, Steps};

/// State of the server clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// All clocks are within the clock error E of true time.
    Right,
    /// Some clocks are wrong by more than the clock error E. There is still one holder, but tokens
    /// and terms may decrease.
    Apart,
    /// Clocks step without being noticed, so a lease may end early.
    Step,
}

/// Guarantees of the library that hold under the assumptions of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a promise of its own")]
pub(crate) struct Guarantees {
    pub(crate) clocks: Clocks,
    /// True if keys are parked: after an attempt without a result, the handler does not start
    /// again.
    pub(crate) once: bool,
    /// True if the handler of a forgotten key never runs again. Then a finished step does not run
    /// again either.
    pub(crate) steps: bool,
    /// True if a name with a holder is never reported as vacant. This needs that all processes use
    /// the same nodes.
    pub(crate) vacant: bool,
    /// Longest loss of data that the keys accept, in milliseconds. After such a loss, handlers may
    /// run again.
    pub(crate) accepts: Ms,
    /// Maximum time, in milliseconds, for which a replaced master still grants.
    pub(crate) window: Ms,
    /// True if a free lock must be granted. A very wrong clock can make tokens so large that the
    /// nodes refuse them.
    pub(crate) served: bool,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Time, in ms, after a fair caller's last request in which its place in the queue still
    /// counts, by the clock of every node.
    pub(crate) fresh: Ms,
    /// Longest quarantine of any node. `None` if another may begin that the run does not know of.
    pub(crate) longest: Option<Ms>,
    /// True if no message is lost and no fault happens.
    pub(crate) calm: bool,
}

impl Plan {
    pub(crate) fn guarantees(&self) -> Guarantees {
        let unnoticed = self.steps == Steps::Unnoticed;
        // Small steps of the clocks (`Steps::Small`) stay within the permitted clock error.
        let is_wild = self.apart || self.steps == Steps::Noticed && self.wildest() > 0;
        Guarantees {
            clocks: match (unnoticed, is_wild) {
                (true, _) => Clocks::Step,
                (false, true) => Clocks::Apart,
                (false, false) => Clocks::Right,
            },
            once: self.orders.policy == Policy::Once,
            accepts: self.orders.accepts,
            window: self.window(),
            steps: self.orders.policy != Policy::Least,
            vacant: self.stages.iter().all(|s| s.nodes == self.stages[0].nodes),
            served: !self.apart,
            nodes: self.nodes.iter().filter(|node| !node.is_foreign).count().max(1),
            fresh: 2_950_u64
                .saturating_sub(u64::from(self.truth.drift_ppm) * 3 / 1_000)
                .saturating_sub(2 * self.truth.error / 1_000),
            longest: self.begins_once().then(|| self.most(|s| s.max_ttl) + self.window()),
            calm: self.net.lose_request + self.net.lose_reply == 0
                && self.faults.is_empty()
                && self.clients.iter().all(|client| !client.twin),
        }
    }

    /// Returns true if no node begins two data histories after one fault. It does where a client
    /// comes that knows more than the one that came first: of a history that these data lack, or
    /// the name of data that were emptied.
    fn begins_once(&self) -> bool {
        let is_whole = |copy: &Copy| *copy == Copy::Behind(0);
        let once = |node: usize| {
            let all = self.faults.iter().filter_map(|(_, fault)| fault.begins());
            let all: Vec<Copy> = all.filter(|(of, _)| *of == node).map(|(_, copy)| copy).collect();
            match *all {
                [] => true,
                [copy] => copy != Copy::Empty && self.nodes[node].is_new,
                _ => all.iter().all(is_whole) && self.nodes[node].is_new,
            }
        };
        self.cluster.is_none()
            && self.steps == Steps::None
            && !self.apart
            && (0..self.nodes.len()).all(once)
    }
}
