//! The harness is tested too: each rule of the design that is left out is found by the seeds.
//!
//! Other rules of `palisade::bugs` need rarer histories than this many seeds hold; they are not
//! claimed here.
//!
//! `cargo test --release -p sim known_bugs -- --nocapture` prints how many seeds each took.

use palisade::bugs::{Bug, put_back};
use sim::soak::{Soak, Sum};

/// Seeds within which each bug must be found.
const WITHIN: u64 = 10_000;

fn hunt(bug: Option<Bug>, stuck_dice: bool) -> Sum {
    let soak = Soak {
        first: 1,
        seeds: WITHIN,
        jobs: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        prepare: &|| put_back(bug),
        tick: &|| {},
        stuck_dice,
    };
    soak.run()
}

fn must_be_caught(name: &str, sum: &Sum) {
    let failure = sum.failure.as_ref();
    let failure = failure.unwrap_or_else(|| panic!("{name}: not found in {WITHIN} seeds"));
    println!("| {name} | {} | {} |", failure.seed, failure.violation.invariant);
}

macro_rules! known_bugs {
    ($($test:ident: $bug:ident,)*) => {
        mod known_bugs {
            use super::*;
            $(#[test]
            fn $test() {
                must_be_caught(stringify!($bug), &hunt(Some(Bug::$bug), false));
            })*

            #[test]
            fn owner_token_reused() {
                must_be_caught("OwnerTokenReused", &hunt(None, true));
            }
        }
    };
}

known_bugs! {
    max_without_raise: MaxWithoutRaise,
    fence_dies_with_lock: FenceDiesWithLock,
    revival: Revival,
    failure_releases: FailureReleases,
    late_grants_stay: LateGrantsStay,
    drift_forgotten: DriftForgotten,
    process_as_generation: ProcessAsGeneration,
    quarantine_short: QuarantineShort,
    no_floor: NoFloor,
    complete_by_record: CompleteByRecord,
    record_of_one_node: RecordOfOneNode,
}
