//! The part of a claim for nodes that may have lost claims of the key.

use std::time::Duration;

use super::{Forgetting, Record};
use crate::op::Reply;
use crate::quorum::Answer;

impl Record {
    pub(super) fn must_relax(&self) -> bool {
        let remember = self.answers.count(remembers);
        !self.relaxed
            && self.forgetful().next().is_some()
            && remember + self.answers.silent() < self.answers.need()
    }

    /// Returns the nodes that granted but may have lost a claim of the key, with the time after
    /// which a lost claim of a key whose birth is unknown would have expired.
    pub fn forgetful(&self) -> impl Iterator<Item = (usize, Duration)> {
        self.answers.each().enumerate().filter_map(|(node, answer)| match answer {
            Some(Ok(Reply::Claimed { unsure, .. })) if !unsure.is_zero() => Some((node, *unsure)),
            _ => None,
        })
    }

    /// None if even with these too few nodes certainly had every claim.
    fn fresh(&self) -> Vec<usize> {
        let is_fresh = |r: &Reply| matches!(r, Reply::Claimed { fresh: true, .. }) && !remembers(r);
        if self.answers.count(|r| is_fresh(r) || remembers(r)) < self.answers.need() {
            return Vec::new();
        }
        let nodes = self.answers.each().enumerate();
        let fresh = nodes.filter(|(_, answer)| matches!(answer, Some(Ok(r)) if is_fresh(r)));
        fresh.map(|(node, _)| node).collect()
    }

    pub(super) fn forgotten(&self) -> Forgetting {
        let granted = self.answers.replies().filter_map(|reply| match reply {
            Reply::Claimed { unsure, .. } => Some(*unsure),
            _ => None,
        });
        let mut spans: Vec<Duration> = granted.collect();
        spans.sort_unstable();
        let remaining = spans.get(self.answers.need() - 1).copied().unwrap_or_default();
        let mut all = Vec::new();
        for reply in self.answers.replies() {
            match reply {
                Reply::Claimed { unsure, losses, .. } if !unsure.is_zero() => {
                    if losses.is_empty() {
                        // An operator decides about each loss, so an incomplete list is not enough.
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
        let remember = self.answers.count(remembers);
        let missing = self.answers.silent() + self.answers.failed();
        let unheard = remember + missing >= self.answers.need();
        let granted = |answer: Option<&Answer>| matches!(answer, Some(Ok(Reply::Claimed { .. })));
        let nodes = self.answers.each().enumerate().filter(|(_, answer)| !granted(*answer));
        let not_granted = nodes.map(|(node, _)| node).collect();
        Forgetting { remaining, losses: all, fresh: self.fresh(), unheard, not_granted }
    }
}

pub(super) fn remembers(reply: &Reply) -> bool {
    matches!(reply, Reply::Claimed { unsure, .. } if unsure.is_zero())
}
