//! The kinds of faults that `nemesis` (this test program) injects. A seed decides their random
//! order.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::names::names;

names! {
    pub(crate) enum Kind {
        KillMaster = "kill master",
        KillBox = "kill master and its Sentinel",
        FreezeMaster = "freeze master",
        IsolateMaster = "cut master from its group",
        IsolateBox = "cut master from everybody",
        OneWayMaster = "cut master one way",
        Split = "split group and clients",
        Failover = "SENTINEL FAILOVER",
        FlushAll = "FLUSHALL",
        RestartEmpty = "restart master without data",
        RestartMaster = "restart master",
        PauseMaster = "CLIENT PAUSE on master",
        StutterMaster = "master stutters",
        ClockStep = "master's clock steps",
        SlowDisk = "slow disk under master",
        FlushTwo = "FLUSHALL in two groups",
        EmptyTwo = "two masters without data",
        FailoverTwo = "failover of two groups",
        Handover = "planned handover",
        Returning = "master returns unchanged",
        BackUp = "backup of master",
        Reset = "SENTINEL RESET",
        Tilt = "Sentinels in tilt",
        Elsewhere = "address of another group",
        KillReplica = "kill replica",
        KillSentinel = "kill Sentinel",
        FreezeReplica = "freeze replica",
        FreezeSentinel = "freeze Sentinel",
        KillClient = "kill client",
        FreezeClient = "freeze client",
        IsolateClient = "cut client",
        OneWayClient = "cut client one way",
    }
}

use Kind as K;

/// Faults after which a group may be unable to grant for some time. If two groups have such a fault
/// at the same time, most grants are lost. Then only the quarantines of the groups prevent a second
/// holder.
const HEAVY: &[Kind] = &[
    K::KillMaster,
    K::KillBox,
    K::FreezeMaster,
    K::IsolateMaster,
    K::IsolateBox,
    K::OneWayMaster,
    K::Split,
    K::Failover,
    K::FlushAll,
    K::RestartEmpty,
    K::RestartMaster,
    K::PauseMaster,
    K::StutterMaster,
    K::ClockStep,
    K::SlowDisk,
    K::FlushTwo,
    K::EmptyTwo,
    K::FailoverTwo,
    K::Handover,
    K::Returning,
    K::BackUp,
    K::Reset,
    K::Tilt,
    K::Elsewhere,
];

/// Faults of replicas and Sentinels after which a group needs no failover. Also faults of clients.
const LIGHT: &[Kind] = &[
    K::KillReplica,
    K::KillSentinel,
    K::FreezeReplica,
    K::FreezeSentinel,
    K::KillClient,
    K::KillClient,
    K::FreezeClient,
    K::FreezeClient,
    K::IsolateClient,
    K::OneWayClient,
];

impl Kind {
    /// Returns the range of the fault's duration, in milliseconds. A fault with a duration of zero
    /// does not need an action that ends it.
    fn length(self) -> std::ops::Range<u64> {
        match self {
            K::Failover
            | K::FailoverTwo
            | K::Handover
            | K::FlushAll
            | K::FlushTwo
            | K::RestartEmpty
            | K::EmptyTwo
            | K::RestartMaster
            | K::BackUp
            | K::Reset
            | K::Tilt => 0..1,
            K::KillClient => 300..3_000,
            K::FreezeClient | K::IsolateClient | K::OneWayClient => 500..6_000,
            K::PauseMaster | K::StutterMaster => 2_000..6_000,
            _ => 3_000..10_000,
        }
    }
}

/// A fault with all choices of the seed. The group's master is looked up only when the fault
/// begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) kind: Kind,
    /// Index of the group, from 0.
    pub(crate) group: usize,
    /// Random bits for further choices, for example the choice of a replica.
    pub(crate) pick: u64,
    pub(crate) length: Duration,
    /// True if there is time for the group to recover after the fault.
    pub(crate) patient: bool,
    /// Additional wait before the fault.
    pub(crate) gap: Duration,
}

/// An endless sequence of faults. No kind occurs a second time before each kind has occurred once.
pub(crate) struct Lane {
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
    dice: StdRng,
    pub(crate) rest: Duration,
}

impl Lane {
    pub(crate) fn heavy(seed: u64) -> Self {
        // A failover and the quarantine after it, in which the group grants nothing, take about ten
        // seconds.
        Self::new(HEAVY, seed, Duration::from_secs(10))
    }

    pub(crate) fn light(seed: u64) -> Self {
        Self::new(LIGHT, seed ^ 0x11_67, Duration::from_secs(3))
    }

    fn new(kinds: &'static [Kind], seed: u64, rest: Duration) -> Self {
        let dice = StdRng::seed_from_u64(seed);
        Self { kinds: kinds.to_vec(), deck: Vec::new(), dice, rest }
    }

    /// Keeps only the kinds whose name contains one of `words`. Keeps all kinds if `words` is
    /// empty.
    pub(crate) fn only(mut self, words: &[String]) -> Self {
        let wanted = |k: &Kind| words.iter().any(|w| k.name().contains(w.as_str()));
        self.kinds.retain(|k| words.is_empty() || wanted(k));
        self
    }
}

impl Iterator for Lane {
    type Item = PlannedFault;

    fn next(&mut self) -> Option<PlannedFault> {
        if self.deck.is_empty() {
            self.deck.clone_from(&self.kinds);
            self.deck.shuffle(&mut self.dice);
        }
        let kind = self.deck.pop()?;
        Some(PlannedFault {
            kind,
            group: self.dice.random_range(0..3),
            pick: self.dice.random(),
            length: Duration::from_millis(self.dice.random_range(kind.length())),
            patient: self.dice.random_ratio(8, 10),
            gap: Duration::from_millis(self.dice.random_range(200..2_000)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_deals_the_same_row_and_every_kind_in_it() {
        let row = |seed| Lane::heavy(seed).take(40).collect::<Vec<_>>();
        assert_eq!(row(7), row(7));
        assert_ne!(row(7), row(8));
        let heavy: BTreeSet<_> = row(7)[..HEAVY.len()].iter().map(|d| d.kind).collect();
        let light: BTreeSet<_> = Lane::light(7).take(LIGHT.len()).map(|d| d.kind).collect();
        assert_eq!(heavy.len() + light.len(), 32);
    }
}
