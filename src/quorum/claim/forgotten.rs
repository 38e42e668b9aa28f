//! The part of the claim machine for nodes that may have lost claims of the key. Checks that the
//! other nodes are a majority. If they are not, computes the time after which the lost claims would
//! have expired on enough nodes.

use std::time::Duration;

use super::{Forgetting, Record, Vote};

impl Record {
    /// Returns true if a node that may have lost claims has granted, and the nodes that certainly
    /// have every claim can no longer be a majority.
    pub(super) fn must_relax(&self) -> bool {
        let forgot = self.forgetful().count();
        let remember = self.count(|v| matches!(v, Vote::Granted { .. })) - forgot;
        !self.relaxed && forgot > 0 && remember + self.silent() < self.need()
    }

    /// Returns the nodes that granted but may have lost a claim of the key. Each node comes with
    /// the time after which a lost claim would have expired. This time is for a key whose birth
    /// (the time of the request) is unknown.
    pub fn forgetful(&self) -> impl Iterator<Item = (usize, Duration)> {
        self.votes.iter().enumerate().filter_map(|(node, v)| match v {
            Vote::Granted { unsure, .. } if !unsure.is_zero() => Some((node, *unsure)),
            _ => None,
        })
    }

    /// Returns the nodes that granted and whose data began empty. If an operator confirmed these
    /// nodes as new, a majority would certainly have every claim of the key. Returns no nodes if
    /// that is not so.
    fn fresh(&self) -> Vec<usize> {
        let is_fresh = |v: &Vote| matches!(v, Vote::Granted { fresh: true, .. });
        let sure = |v: &Vote| matches!(v, Vote::Granted { unsure, .. } if unsure.is_zero());
        if self.count(|v| is_fresh(v) || sure(v)) < self.need() {
            return Vec::new();
        }
        let nodes = self.votes.iter().enumerate();
        nodes.filter(|(_, v)| is_fresh(v)).map(|(node, _)| node).collect()
    }

    /// Returns the facts about lost claims in the grants: the time after which the lost claims
    /// would have expired on enough nodes, and the losses of the nodes that may lack a claim.
    pub(super) fn forgotten(&self) -> Forgetting {
        let granted = self.votes.iter().filter_map(|v| match v {
            Vote::Granted { unsure, .. } => Some(*unsure),
            _ => None,
        });
        let mut spans: Vec<Duration> = granted.collect();
        spans.sort_unstable();
        let remaining = spans.get(self.need() - 1).copied().unwrap_or_default();
        let mut all = Vec::new();
        for vote in &self.votes {
            match vote {
                Vote::Granted { unsure, losses, .. } if !unsure.is_zero() => {
                    if losses.is_empty() {
                        // This node did not report its losses. An operator decides about each loss
                        // by its name, so an incomplete list is not enough, and it is left empty.
                        all.clear();
                        break;
                    }
                    all.extend_from_slice(losses);
                }
                _ => {}
            }
        }
        all.sort_unstable_by_key(|loss| (loss.began, loss.from));
        all.dedup_by_key(|loss| (loss.began, loss.from));
        let remember =
            self.count(|v| matches!(v, Vote::Granted { unsure, .. } if unsure.is_zero()));
        let missing = self.count(|v| matches!(v, Vote::Silent | Vote::Failed(_)));
        let unheard = remember + missing >= self.need();
        Forgetting { remaining, losses: all, fresh: self.fresh(), unheard }
    }
}
