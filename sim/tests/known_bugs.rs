//! The harness is tested too: each rule of the design that is left out is found by the seeds.
//!
//! Other rules of `palisade::bugs` need rarer histories than this many seeds hold; they are not
//! claimed here.
//!
//! `cargo test --release -p sim known_bugs -- --nocapture` prints how many seeds each took.

use palisade::bugs::{Bug, put_back};
use sim::Tamper;
use sim::soak::{Soak, Sum};

/// Goes through `within` seeds from `first` on, or until the bug is found. The rarer histories are
/// looked for where they are known to be, so that the default run stays short; from seed 1 on they
/// come after ten to eighteen thousand.
fn hunt(bug: Option<Bug>, tamper: Option<Tamper>, first: u64, within: u64) -> Sum {
    let soak = Soak {
        first,
        seeds: within,
        jobs: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        prepare: &|| put_back(bug),
        tick: &|| {},
        step: 1,
        tamper,
    };
    soak.run()
}

fn must_be_caught(name: &str, sum: &Sum) {
    let failure = sum.failure.as_ref();
    let failure = failure.unwrap_or_else(|| panic!("{name}: not found in {} seeds", sum.seeds));
    println!("| {name} | {} | {} |", failure.seed, failure.violation.invariant);
}

macro_rules! known_bugs {
    ($($test:ident: $bug:ident from $first:literal within $within:literal,)*) => {
        mod known_bugs {
            use super::*;
            $(#[test]
            fn $test() {
                must_be_caught(stringify!($bug), &hunt(Some(Bug::$bug), None, $first, $within));
            })*

            #[test]
            fn owner_token_reused() {
                must_be_caught("OwnerTokenReused", &hunt(None, Some(Tamper::StuckDice), 1, 10_000));
            }
        }
    };
}

known_bugs! {
    max_without_raise: MaxWithoutRaise from 1 within 10_000,
    fence_dies_with_lock: FenceDiesWithLock from 1 within 10_000,
    revival: Revival from 1 within 10_000,
    overtaken_renewed: OvertakenRenewed from 1 within 10_000,
    failure_releases: FailureReleases from 1 within 10_000,
    late_grants_stay: LateGrantsStay from 1 within 10_000,
    drift_forgotten: DriftForgotten from 1 within 10_000,
    process_as_generation: ProcessAsGeneration from 1 within 10_000,
    quarantine_short: QuarantineShort from 1 within 10_000,
    no_floor: NoFloor from 1 within 10_000,
    complete_by_record: CompleteByRecord from 1 within 10_000,
    record_of_one_node: RecordOfOneNode from 1 within 10_000,
    yes_before_replicas: YesBeforeReplicas from 1 within 10_000,
    validity_from_answer: ValidityFromAnswer from 10_000 within 10_000,
    recreate_in_quarantine: RecreateInQuarantine from 13_000 within 10_000,
    two_masters_vote: TwoMastersVote from 17_000 within 10_000,
}
