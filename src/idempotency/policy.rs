//! Policies for a key under which an earlier attempt may have taken effect: one for an attempt that
//! left no result, and one for a key of which too few nodes know whether there was an attempt.

use super::ParkedReason;
use super::unknown_past::Doubt;

/// Policy for a key whose earlier attempt began and left no result. The attempt may have taken
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lapsed {
    /// Do not run the handler, but answer [`Outcome::Parked`](super::Outcome::Parked), now and
    /// every time, until an operator decides with [`Call::resolve`](super::Call::resolve) or
    /// [`Call::rerun`](super::Call::rerun).
    Park,
    /// Run the handler again with a higher fencing token;
    /// [`Context::attempt`](super::Context::attempt) is then at least 2. For handlers whose effect
    /// recognises repeats.
    Rerun,
}

/// Policy for a key of which too few nodes know whether it was used before, because the other nodes
/// are new or lost data since the key may have been used. An earlier attempt, and even its result,
/// may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Forgotten {
    /// Do not run the handler, unless an operator decided to run the keys that were forgotten
    /// because of the loss ([`Decision`](super::Decision)), but answer
    /// [`Outcome::Parked`](super::Outcome::Parked).
    Park,
    /// Run the handler, as if the key was new. For handlers whose effect recognises repeats.
    Run,
}

/// Policies for a key whose earlier attempt left no result (lapsed), and for a key whose record
/// may have been lost with a node's data (forgotten).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) lapsed: Lapsed,
    pub(super) forgotten: Forgotten,
}

impl Policy {
    pub(super) const AT_MOST_ONCE: Self = Self { lapsed: Lapsed::Park, forgotten: Forgotten::Park };
    pub(super) const AT_LEAST_ONCE: Self =
        Self { lapsed: Lapsed::Rerun, forgotten: Forgotten::Run };

    /// Returns the reason for which the handler is not run; `None` if it may run. If an earlier
    /// attempt left no result and the key is also forgotten, both policies must let the handler
    /// run.
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
    use crate::quorum::record::Forgetting;

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
