//! The ranges of writes that a server's data may lack.

use std::sync::Arc;

use crate::op::Loss;

pub(super) const LOSSES: usize = 8;

/// Up to eight losses, the latest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([Option<Loss>; LOSSES]);

impl Losses {
    /// Adds a later loss. If the list is full, the pair of neighbours is merged whose merged range
    /// is shortest for its age. A loss of everything that comes first is not merged.
    #[must_use]
    pub fn and(mut self, latest: Loss) -> Self {
        let all = &mut self.0;
        if all[LOSSES - 1].is_some() {
            let everything = usize::from(all[0].is_some_and(|first| first.from == 0));
            let pairs = (everything..LOSSES - 1).filter_map(|at| {
                let (a, b) = all[at].zip(all[at + 1])?;
                Some((at, Loss { from: a.from.min(b.from), began: b.began, to: a.to.max(b.to) }))
            });
            let span = |one: &Loss| u128::from(one.to.saturating_sub(one.from));
            let age = |one: &Loss| u128::from(latest.began.saturating_sub(one.began).max(1));
            let shortest =
                pairs.min_by(|(_, a), (_, b)| (span(a) * age(b)).cmp(&(span(b) * age(a))));
            if let Some((at, both)) = shortest {
                all[at] = Some(both);
                all[at + 1..].rotate_left(1);
                all[LOSSES - 1] = None;
            }
        }
        if let Some(place) = all.iter_mut().find(|place| place.is_none()) {
            *place = Some(latest);
        }
        self
    }

    /// Extends the latest loss to at least `window` after the beginning of the next history.
    #[must_use]
    pub(super) fn with_window(mut self, window: u64) -> Self {
        if let Some(latest) = self.0.iter_mut().rev().flatten().next() {
            latest.to = latest.to.max(latest.began.saturating_add(window));
        }
        self
    }

    /// Without the loss of everything with which data began empty.
    #[must_use]
    pub fn without_first(self) -> Self {
        self.iter().skip(1).fold(Self::default(), Self::and)
    }

    /// The earliest loss.
    pub fn first(&self) -> Option<Loss> {
        self.0[0]
    }

    /// All losses, the latest last.
    pub fn iter(&self) -> impl Iterator<Item = Loss> {
        self.0.into_iter().flatten()
    }

    pub(super) fn list(&self) -> Arc<[Loss]> {
        self.iter().collect()
    }
}
