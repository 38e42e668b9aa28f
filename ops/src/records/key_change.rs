//! Result of a change to an idempotency key, by node and as a whole.

use std::fmt;

use super::Records;
use super::change::{Audit, Change};

const FORGOTTEN: &str = "A key that is parked because nodes lost data is decided about with all \
                         others of that loss: `palisade idem incidents` lists the losses, \
                         `palisade idem decide` decides. One key is resolved or run again by its \
                         program; one of `palisade once` by `palisade idem resolve`";

/// Result of a change to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it may not be done"]
pub struct KeyChange {
    /// The kind of change.
    pub change: Change,
    /// The key to which the change applies.
    pub key: String,
    /// Author and reason of the change.
    pub audit: Audit,
    /// The result at each node, with the node's name.
    pub nodes: Vec<(String, NodeChange)>,
}

/// Result of a change at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// The record was changed.
    Done,
    /// The record needed no change.
    AsItIs,
    /// The node has no record of the key.
    Absent,
    /// The record was not changed. The text has the reason.
    Refused(&'static str),
    /// The node did not receive the request, so it still has the old record. The text has the
    /// reason.
    Unreachable(String),
    /// The request was sent and no answer came. The record may have been changed. The text has the
    /// reason.
    Unanswered(String),
}

impl KeyChange {
    /// Returns true if a majority of the nodes made the change or had nothing to change.
    /// [`missing`](Self::missing) returns the other nodes.
    pub fn is_done(&self) -> bool {
        2 * (self.nodes.len() - self.missing().count()) > self.nodes.len()
    }

    /// Returns true if it is not known whether the change is done: it is done if the nodes without
    /// an answer have made the change, and not done otherwise. Look at the key before you repeat
    /// the change.
    pub fn may_be_done(&self) -> bool {
        let unanswered =
            |(_, change): &&(_, NodeChange)| matches!(change, NodeChange::Unanswered(_));
        let unanswered = self.nodes.iter().filter(unanswered).count();
        let did = self.nodes.len() - self.missing().count();
        !self.is_done() && 2 * (did + unanswered) > self.nodes.len()
    }

    /// Returns true if nodes changed their records, but the change is not [done](Self::is_done).
    /// Until the change is repeated, the old records of the other nodes may still take effect.
    pub fn is_partly_done(&self) -> bool {
        !self.is_done() && self.is_changed()
    }

    /// Returns the nodes that did not make the change, or did not report it. The old records of
    /// these nodes may still take effect: a parked key may be parked again, and a purged result may
    /// be replayed. Repeat the change if a node is missing.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let missing = |change: &NodeChange| {
            !matches!(change, NodeChange::Done | NodeChange::AsItIs | NodeChange::Absent)
        };
        self.nodes.iter().filter(move |(_, c)| missing(c)).map(|(node, _)| &**node)
    }

    /// Returns true if a majority of the nodes has no record, and no node that answered has one. In
    /// that case the key, its namespace or its prefix may be wrong.
    pub fn is_unknown(&self) -> bool {
        let absent = |(_, change): &&(_, NodeChange)| *change == NodeChange::Absent;
        let absent = self.nodes.iter().filter(absent).count();
        let unheard = |change: &NodeChange| {
            matches!(change, NodeChange::Unreachable(_) | NodeChange::Unanswered(_))
        };
        2 * absent > self.nodes.len()
            && self.nodes.iter().all(|(_, one)| *one == NodeChange::Absent || unheard(one))
    }

    /// Returns true if at least one node changed its record.
    fn is_changed(&self) -> bool {
        self.nodes.iter().any(|(_, change)| *change == NodeChange::Done)
    }

    pub(super) fn log(&self, of: &Records) {
        let (done, key) = (self.is_done(), &*self.key);
        tracing::warn!(
            target: "palisade_ops",
            event = self.change.word(),
            prefix = of.prefix(),
            namespace = of.namespace(),
            key,
            by = self.audit.by(),
            reason = self.audit.reason(),
            done,
            may_be_done = self.may_be_done(),
            missing = self.missing().count(),
            "idempotency key changed by an operator"
        );
    }
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, n) = (self.change.word(), self.nodes.len());
        let did = n - self.missing().count();
        if self.is_unknown() {
            let look = "no node that answered has a record of it; check the key, its namespace \
                        and its prefix";
            write!(f, "{what} of {:?}: nothing to change, {look}. {FORGOTTEN}", self.key)?;
        } else if self.change == Change::Rerun && self.is_done() && !self.is_changed() {
            let none = "no attempt is known of it";
            write!(f, "{what} of {:?}: nothing to change, {none}. {FORGOTTEN}", self.key)?;
        } else {
            let done = if self.is_done() {
                "done"
            } else if self.may_be_done() {
                "not known to be done; look at the key before it is repeated"
            } else if self.is_changed() {
                "done on too few nodes, so repeat it"
            } else {
                "not done"
            };
            write!(f, "{what} of {:?}: {done}, {did} of {n} nodes", self.key)?;
        }
        for (node, change) in &self.nodes {
            match change {
                NodeChange::Done | NodeChange::AsItIs | NodeChange::Absent => {}
                NodeChange::Refused(why) => write!(f, "; {node}: {why}")?,
                NodeChange::Unreachable(why) => write!(f, "; {node}: not reached: {why}")?,
                NodeChange::Unanswered(why) => {
                    write!(f, "; {node}: asked, and may have changed it: {why}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_without_an_answer_may_be_done() {
        // d: done, i: as it is, n: no record, r: refused, u: not reached, a: no answer.
        let of = |nodes: &str| {
            let node = |c: char| match c {
                'd' => NodeChange::Done,
                'i' => NodeChange::AsItIs,
                'n' => NodeChange::Absent,
                'r' => NodeChange::Refused("it runs"),
                'u' => NodeChange::Unreachable("it is down".to_owned()),
                _ => NodeChange::Unanswered("no answer".to_owned()),
            };
            let nodes = nodes.chars().map(|c| (c.to_string(), node(c))).collect();
            let audit = Audit::new("alice", "it hangs").unwrap();
            KeyChange { change: Change::Release, key: "k".to_owned(), audit, nodes }
        };
        for (nodes, done, may_be, partly, unknown, word) in [
            ("ddd", true, false, false, false, "done, 3 of 3"),
            ("dua", false, true, true, false, "not known to be done"),
            ("dda", true, false, false, false, "done, 2 of 3"),
            ("daa", false, true, true, false, "not known to be done"),
            ("duu", false, false, true, false, "done on too few nodes"),
            ("aaa", false, true, false, false, "not known to be done"),
            ("uua", false, false, false, false, "not done"),
            ("rra", false, false, false, false, "not done"),
            ("naa", false, true, false, false, "not known to be done"),
            ("nuu", false, false, false, false, "not done"),
            ("nnu", true, false, false, true, "nothing to change"),
            ("nna", true, false, false, true, "nothing to change"),
            ("nni", true, false, false, false, "done, 3 of 3"),
        ] {
            let change = of(nodes);
            assert_eq!(
                (change.is_done(), change.may_be_done(), change.is_partly_done()),
                (done, may_be, partly),
                "{nodes}"
            );
            assert_eq!(change.is_unknown(), unknown, "{nodes}");
            assert!(change.to_string().contains(word), "{nodes}: {change}");
        }
    }
}
