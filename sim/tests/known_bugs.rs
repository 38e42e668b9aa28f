//! The harness is tested too: each rule of the design that is left out is found by the seeds.
//!
//! `cargo test --release -p sim known_bugs -- --nocapture` prints how many seeds each took.

use palisade::bugs::{Bug, put_back};
use sim::soak::{Soak, Sum};
use sim::{Order, Tamper};

/// Most seeds of a theme that are tried.
const WITHIN: u64 = 20_000;

/// What the last three bits of a seed make it about.
mod about {
    pub(super) const MIXED: u64 = 8;
    pub(super) const FAILOVERS: u64 = 1;
    pub(super) const TOKENS: u64 = 2;
    pub(super) const ORDERS: u64 = 3;
    pub(super) const RERUNS: u64 = 4;
    pub(super) const STEPS: u64 = 5;
}

/// Goes through the seeds of one theme until the bug is found.
fn hunt(bug: Option<Bug>, tamper: Option<Tamper>, theme: u64) -> Sum {
    let soak = Soak {
        first: theme,
        seeds: WITHIN,
        jobs: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        prepare: &|| put_back(bug),
        tick: &|| {},
        step: 8,
        tamper,
    };
    soak.run()
}

fn must_be_caught(name: &str, sum: &Sum) {
    let failure = sum.failure.as_ref();
    let failure = failure.unwrap_or_else(|| panic!("{name}: not found in {} seeds", sum.seeds));
    let (seed, broken) = (failure.seed, failure.violation.invariant);
    println!("| {name} | {} seeds, {seed} | {broken} |", sum.seeds);
}

macro_rules! known_bugs {
    ($($test:ident: $bug:ident about $theme:ident,)*) => {
        mod known_bugs {
            use super::*;
            $(#[test]
            fn $test() {
                let sum = hunt(Some(Bug::$bug), None, about::$theme);
                must_be_caught(stringify!($bug), &sum);
            })*

            #[test]
            fn owner_token_reused() {
                let sum = hunt(None, Some(Tamper::StuckDice), about::MIXED);
                must_be_caught("OwnerTokenReused", &sum);
            }
        }
    };
}

known_bugs! {
    max_without_raise: MaxWithoutRaise about MIXED,
    fence_dies_with_lock: FenceDiesWithLock about MIXED,
    revival: Revival about MIXED,
    overtaken_renewed: OvertakenRenewed about MIXED,
    failure_releases: FailureReleases about MIXED,
    late_grants_stay: LateGrantsStay about MIXED,
    drift_forgotten: DriftForgotten about STEPS,
    process_as_generation: ProcessAsGeneration about MIXED,
    quarantine_short: QuarantineShort about FAILOVERS,
    no_floor: NoFloor about TOKENS,
    floor_without_window: FloorWithoutWindow about TOKENS,
    complete_by_record: CompleteByRecord about RERUNS,
    record_of_one_node: RecordOfOneNode about ORDERS,
    yes_before_replicas: YesBeforeReplicas about FAILOVERS,
    validity_from_answer: ValidityFromAnswer about MIXED,
    recreate_in_quarantine: RecreateInQuarantine about FAILOVERS,
    two_masters_vote: TwoMastersVote about FAILOVERS,
    extend_by_copy: ExtendByCopy about FAILOVERS,
    named_by_who_lapses: NamedByWhoLapses about FAILOVERS,
    raise_in_quarantine: RaiseInQuarantine about ORDERS,
    quarantine_not_kept: QuarantineNotKept about FAILOVERS,
    named_by_since_alone: NamedBySinceAlone about FAILOVERS,
    late_requests_run: LateRequestsRun about FAILOVERS,
    promises_expire_early: PromisesExpireEarly about ORDERS,
    fingerprint_of_claims_only: FingerprintOfClaimsOnly about ORDERS,
    births_without_margin: BirthsWithoutMargin about ORDERS,
}

/// Settings that are changed in an order that the manual warns of.
mod unsafe_orders {
    use super::*;

    fn order(order: Order) {
        let name = format!("{order:?}");
        must_be_caught(&name, &hunt(None, Some(Tamper::Unsafe(order)), about::MIXED));
    }

    #[test]
    fn max_ttl_up() {
        order(Order::MaxTtlUp);
    }

    #[test]
    fn max_ttl_down() {
        order(Order::MaxTtlDown);
    }

    #[test]
    fn clock_error() {
        order(Order::ClockError);
    }

    #[test]
    fn drift() {
        order(Order::Drift);
    }

    #[test]
    fn retention() {
        order(Order::Retention);
    }

    #[test]
    fn nodes_added() {
        order(Order::NodesAdded);
    }

    #[test]
    fn node_replaced() {
        order(Order::NodeReplaced);
    }

    #[test]
    fn node_leaves_early() {
        order(Order::NodeLeavesEarly);
    }

    #[test]
    fn node_joins_as_new() {
        order(Order::NodeJoinsAsNew);
    }
}
