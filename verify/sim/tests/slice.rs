//! Runs of the simulator with a fixed range of seeds, and with seeds that failed once. Another test
//! asserts that the same seed always gives the same trace.

use sim::soak::{Soak, fingerprint, story};
use sim::{Scene, Tamper};

const SLICE: u64 = 600;

fn breaks_nothing(tamper: Option<Tamper>) {
    // Plans with cron ticks are slow, because a tick takes a second. So they run with fewer seeds.
    let is_long = tamper == Some(Tamper::Scene(Scene::Ticks));
    let seeds = if is_long { SLICE / 8 } else { SLICE };
    let soak = Soak {
        first: 1_000_000,
        seeds,
        jobs: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        prepare: &|| {},
        tick: &|| {},
        step: 1,
        tamper,
    };
    let sum = soak.run();
    if let Some(failure) = sum.failure {
        panic!("{}", story(failure.seed, tamper));
    }
    assert_eq!(sum.seeds, seeds);
}

#[test]
fn a_slice_of_seeds_breaks_nothing() {
    breaks_nothing(None);
}

/// Defines a test for each scene, which is a kind of plan that tests one rule.
macro_rules! scenes {
    ($($(#[$doc:meta])* $name:ident: $scene:ident,)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                breaks_nothing(Some(Tamper::Scene(Scene::$scene)));
            }
        )*
    };
}

scenes! {
    /// Only the simulated plans of the scene `TakeOvers` contain takeovers of locks.
    takeovers_break_nothing: TakeOvers,
    /// In the plans of this scene (kind of plan), planned handovers of servers stop in the middle
    /// or follow each other more often than in other plans.
    handovers_break_nothing: Handovers,
    a_retention_that_runs_out_breaks_nothing: Retention,
    operators_break_nothing: Operators,
    /// Only the plans of this scene have keys that accept losses of data.
    losses_break_nothing: Losses,
    classic_locks_on_the_same_key_break_nothing: Classic,
    readers_and_writers_break_nothing: Readers,
    permits_break_nothing: Permits,
    all_permits_at_once_break_nothing: AllPermits,
    hand_overs_break_nothing: HandOvers,
    locks_of_two_names_break_nothing: Several,
    fair_callers_break_nothing: Fair,
    /// Only in these plans is a master promoted again that never noticed its replacement.
    returning_masters_break_nothing: Returns,
    data_put_back_break_nothing: PutBacks,
    addresses_of_other_nodes_break_nothing: Astray,
    newcomers_break_nothing: Newcomers,
    unequal_leases_break_nothing: Unequal,
    declared_servers_that_keep_their_word_break_nothing: Declared,
    ticks_break_nothing: Ticks,
    /// In these plans the node is a cluster.
    moving_slots_break_nothing: Slots,
    failing_shards_break_nothing: Shards,
    slots_that_come_back_break_nothing: ThereAndBack,
    takeovers_of_a_shard_break_nothing: Takeovers,
    other_clusters_break_nothing: OtherClusters,
    unequal_windows_break_nothing: LongWords,
}

#[test]
fn seeds_that_once_failed_are_mended() {
    let kept = include_str!("../regressions.txt");
    for line in kept.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let seed = line.split_whitespace().next().unwrap_or_default();
        let seed: u64 = seed.parse().expect("regressions.txt: a seed begins each line");
        let (_, violation) = fingerprint(seed);
        assert!(violation.is_none(), "{}", story(seed, None));
    }
}

#[test]
fn a_seed_gives_the_same_trace_bit_for_bit() {
    for seed in 2_000_000..2_000_200 {
        let (first, second) = (fingerprint(seed).0, fingerprint(seed).0);
        assert_eq!(first, second, "seed {seed} gave two traces");
    }
    let apart = fingerprint(2_000_000).0 != fingerprint(2_000_001).0;
    assert!(apart, "two seeds gave one trace");
}
