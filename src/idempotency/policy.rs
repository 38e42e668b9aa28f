//! Policies for a lapsed key, and for a forgotten one.

use super::ParkedReason;
use super::unknown_past::Doubt;

/// Policy for a lapsed key: an earlier attempt began and left no result. The attempt may have taken
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lapsed {
    /// Do not run the handler. Every call returns [`Outcome::Parked`](super::Outcome::Parked),
    /// until an operator decides with [`Call::resolve`](super::Call::resolve) or
    /// [`Call::rerun`](super::Call::rerun).
    Park,
    /// Run the handler again with a higher fencing token.
    /// [`Context::attempt`](super::Context::attempt) is then at least 2. Choose this only if the
    /// effect of the handler is safe to repeat.
    Rerun,
}

/// Policy for a forgotten key: too few nodes can exclude an earlier use. The nodes may have lost an
/// earlier attempt and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Forgotten {
    /// Do not run the handler. The call returns [`Outcome::Parked`](super::Outcome::Parked). But
    /// the handler runs if an operator has decided so for all keys that are forgotten because of
    /// the same loss of data ([`Decision`](super::Decision)).
    Park,
    /// Run the handler as for a new key. Choose this only if the effect of the handler is safe to
    /// repeat.
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) lapsed: Lapsed,
    pub(super) forgotten: Forgotten,
}

impl Policy {
    pub(super) const AT_MOST_ONCE: Self = Self { lapsed: Lapsed::Park, forgotten: Forgotten::Park };
    pub(super) const AT_LEAST_ONCE: Self =
        Self { lapsed: Lapsed::Rerun, forgotten: Forgotten::Run };

    /// `None` if the handler may run.
    pub(super) fn parks(self, doubt: &Doubt) -> Option<ParkedReason> {
        if doubt.lapsed > 0 && self.lapsed == Lapsed::Park {
            Some(ParkedReason::Lapsed)
        } else if doubt.forgotten.is_some() && self.forgotten == Forgotten::Park {
            Some(ParkedReason::Forgotten)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quorum::claim::Forgetting;

    #[test]
    fn both_questions_have_to_be_answered() {
        use Forgotten::Run;
        use Lapsed::Rerun;
        use ParkedReason as R;
        let (lost, none) = (true, false);
        let doubt = |lapsed, lost: bool| {
            let remaining = Duration::from_secs(1);
            let forgotten = lost.then(|| Forgetting {
                remaining,
                losses: Vec::new(),
                fresh: Vec::new(),
                unheard: false,
                not_granted: Vec::new(),
            });
            Doubt { lapsed, forgotten }
        };
        let policy = |lapsed, forgotten| Policy { lapsed, forgotten };
        for (policy, [lapsed, forgotten, both]) in [
            (Policy::AT_MOST_ONCE, [Some(R::Lapsed), Some(R::Forgotten), Some(R::Lapsed)]),
            (Policy::AT_LEAST_ONCE, [None, None, None]),
            (policy(Lapsed::Park, Run), [Some(R::Lapsed), None, Some(R::Lapsed)]),
            (policy(Rerun, Forgotten::Park), [None, Some(R::Forgotten), Some(R::Forgotten)]),
        ] {
            assert_eq!(policy.parks(&doubt(2, none)), lapsed, "{policy:?}");
            assert_eq!(policy.parks(&doubt(0, lost)), forgotten, "{policy:?}");
            assert_eq!(policy.parks(&doubt(1, lost)), both, "{policy:?}");
        }
        assert_eq!(doubt(1, lost).reason(), R::Lapsed);
        assert_eq!(doubt(0, lost).reason(), R::Forgotten);
    }
}
