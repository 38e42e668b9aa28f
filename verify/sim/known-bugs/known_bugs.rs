//! Tests of the simulator itself. For each known bug, at least one seed must fail.
//!
//! These tests run in the copy of the repository that `scripts/known-bugs` creates.
//! `scripts/known-bugs --nocapture` prints the number of seeds that each bug needed.

use palisade::bugs::{Bug, put_back};
use sim::soak::{Soak, Sum};
use sim::{Order, Scene, Tamper};

/// Maximum number of seeds for one bug.
const WITHIN: u64 = 40_000;

/// Seeds and plans of the runs in which the simulator looks for a bug.
#[derive(Clone, Copy)]
enum SeedSet {
    /// Seeds from this number on, in steps of 8. They all have the same last three bits, which
    /// select the theme of a run: its main kinds of faults.
    Theme(u64),
    /// Plans that this `Tamper` changes.
    Changed(Tamper),
}

const MIXED: SeedSet = SeedSet::Theme(8);
const FAILOVERS: SeedSet = SeedSet::Theme(1);
const TOKENS: SeedSet = SeedSet::Theme(2);
const ORDERS: SeedSet = SeedSet::Theme(3);
const RERUNS: SeedSet = SeedSet::Theme(4);
const SLOW_ANSWERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::SlowAnswers));
const OLD_MASTER: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::OldMaster));
const PRINTS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Prints));
const TAKE_OVERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::TakeOvers));
const HANDOVERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Handovers));
const RETENTION: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Retention));
const OPERATORS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Operators));
const CLASSIC: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Classic));
const LOSSES: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Losses));
const READERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Readers));
const PERMITS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Permits));
const ALL_PERMITS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::AllPermits));
const HAND_OVERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::HandOvers));
const SEVERAL: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Several));
const FAIR: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Fair));
const RETURNS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Returns));
const PUT_BACKS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::PutBacks));
const ASTRAY: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Astray));
const NEWCOMERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Newcomers));
const UNEQUAL: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Unequal));
const DECLARED: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Declared));
const THERE_AND_BACK: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::ThereAndBack));
const CLUSTER_TAKEOVERS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Takeovers));
const LONG_WORDS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::LongWords));
const TICKS: SeedSet = SeedSet::Changed(Tamper::Scene(Scene::Ticks));

/// Runs seeds with the bug turned on until one of them breaks a rule.
fn hunt(bug: Option<Bug>, at: SeedSet) -> Sum {
    let (first, tamper) = match at {
        SeedSet::Theme(theme) => (theme, None),
        SeedSet::Changed(tamper) => (8, Some(tamper)),
    };
    let soak = Soak {
        first,
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
    ($($test:ident: $bug:ident in $place:ident,)*) => {
        mod known_bugs {
            use super::*;
            $(#[test]
            fn $test() {
                must_be_caught(stringify!($bug), &hunt(Some(Bug::$bug), $place));
            })*

            #[test]
            fn owner_token_reused() {
                let sum = hunt(None, SeedSet::Changed(Tamper::StuckDice));
                must_be_caught("OwnerTokenReused", &sum);
            }
        }
    };
}

known_bugs! {
    max_without_raise: MaxWithoutRaise in TOKENS,
    fence_dies_with_lock: FenceDiesWithLock in TOKENS,
    shared_key_shortened: SharedKeyShortened in UNEQUAL,
    revival: Revival in FAILOVERS,
    overtaken_renewed: OvertakenRenewed in FAILOVERS,
    failure_releases: FailureReleases in FAILOVERS,
    late_grants_stay: LateGrantsStay in MIXED,
    drift_forgotten: DriftForgotten in MIXED,
    quarantine_short: QuarantineShort in ORDERS,
    quarantine_not_kept: QuarantineNotKept in NEWCOMERS,
    no_floor: NoFloor in TOKENS,
    floor_without_window: FloorWithoutWindow in TOKENS,
    complete_by_record: CompleteByRecord in RERUNS,
    steps_unfenced: StepsUnfenced in RERUNS,
    record_of_one_node: RecordOfOneNode in RERUNS,
    yes_before_replicas: YesBeforeReplicas in FAILOVERS,
    validity_from_answer: ValidityFromAnswer in SLOW_ANSWERS,
    recreate_in_quarantine: RecreateInQuarantine in OLD_MASTER,
    two_masters_vote: TwoMastersVote in OLD_MASTER,
    extend_by_copy: ExtendByCopy in OLD_MASTER,
    named_by_who_lapses: NamedByWhoLapses in OLD_MASTER,
    handover_without_settling: HandoverWithoutSettling in FAILOVERS,
    claims_without_settling: ClaimsWithoutSettling in HANDOVERS,
    closed_while_settling: ClosedWhileSettling in HANDOVERS,
    handover_unchecked: HandoverUnchecked in HANDOVERS,
    quarantined_witness: QuarantinedWitness in FAILOVERS,
    late_requests_run: LateRequestsRun in FAILOVERS,
    deadline_of_another_clock: DeadlineOfAnotherClock in FAILOVERS,
    promises_expire_early: PromisesExpireEarly in ORDERS,
    fingerprint_of_claims_only: FingerprintOfClaimsOnly in PRINTS,
    no_lock_delay: NoLockDelay in MIXED,
    births_without_margin: BirthsWithoutMargin in LOSSES,
    reservations_stay: ReservationsStay in MIXED,
    reserved_over_holder: ReservedOverHolder in MIXED,
    takeovers_release: TakeoversRelease in TAKE_OVERS,
    extensions_keep_nothing: ExtensionsKeepNothing in RETENTION,
    changes_unfenced: ChangesUnfenced in OPERATORS,
    foreign_overwritten: ForeignOverwritten in CLASSIC,
    note_ahead: NoteAhead in LOSSES,
    loss_from_its_end: LossFromItsEnd in LOSSES,
    loss_without_window: LossWithoutWindow in LOSSES,
    unproved_loss_accepted: UnprovedLossAccepted in LOSSES,
    ticks_by_process: TicksByProcess in TICKS,
    reader_beside_writer: ReaderBesideWriter in READERS,
    writer_beside_reader: WriterBesideReader in READERS,
    one_expiry_for_readers: OneExpiryForReaders in READERS,
    reader_token_unsettled: ReaderTokenUnsettled in READERS,
    shared_extend_over_writer: SharedExtendOverWriter in READERS,
    downgrade_releases_first: DowngradeReleasesFirst in READERS,
    any_slot_counts: AnySlotCounts in PERMITS,
    move_steals: MoveSteals in PERMITS,
    counting_semaphore: CountingSemaphore in PERMITS,
    permits_one_by_one: PermitsOneByOne in ALL_PERMITS,
    resume_by_extend: ResumeByExtend in HAND_OVERS,
    resume_from_nothing: ResumeFromNothing in HAND_OVERS,
    many_tokens_differ: ManyTokensDiffer in SEVERAL,
    partial_many: PartialMany in SEVERAL,
    join_takes_others: JoinTakesOthers in SEVERAL,
    names_together_only: NamesTogetherOnly in SEVERAL,
    tickets_unsettled: TicketsUnsettled in FAIR,
    grant_takes_place: GrantTakesPlace in FAIR,
    batches_yield: BatchesYield in FAILOVERS,
    batches_overtake: BatchesOvertake in MIXED,
    epoch_ignored: EpochIgnored in RETURNS,
    begins_again: BeginsAgain in RETURNS,
    epoch_of_any_age: EpochOfAnyAge in RETURNS,
    address_alone: AddressAlone in RETURNS,
    young_note_instead: YoungNoteInstead in RETURNS,
    foreign_taken: ForeignTaken in ASTRAY,
    unnamed_goes_on: UnnamedGoesOn in PUT_BACKS,
    named_at_once: NamedAtOnce in PUT_BACKS,
    unnamed_refused: UnnamedRefused in PUT_BACKS,
    first_comers_count: FirstComersCount in NEWCOMERS,
    memory_ignored: MemoryIgnored in PUT_BACKS,
    generation_forgotten: GenerationForgotten in PUT_BACKS,
    equal_generation_taken: EqualGenerationTaken in PUT_BACKS,
    seq_forgotten: SeqForgotten in PUT_BACKS,
    seq_of_notes: SeqOfNotes in PUT_BACKS,
    seq_by_note: SeqByNote in PUT_BACKS,
    rename_begins: RenameBegins in PUT_BACKS,
    proof_without_run: ProofWithoutRun in FAILOVERS,
    proof_without_counters: ProofWithoutCounters in PUT_BACKS,
    resetstat_unseen: ResetstatUnseen in PUT_BACKS,
    resetstat_unchanged: ResetstatUnchanged in PUT_BACKS, // rare: not drawn
    second_id_instead: SecondIdInstead in PUT_BACKS, // rare: not drawn
    evictions_unseen: EvictionsUnseen in PUT_BACKS,
    handover_forgets_epoch: HandoverForgetsEpoch in HANDOVERS,
    kept_once: KeptOnce in HANDOVERS,
    // A → B → B′ → A.
    epoch_of_slots_ignored: EpochIgnored in THERE_AND_BACK,
    majority_of_views: MajorityOfViews in CLUSTER_TAKEOVERS,
    word_by_own_window: WordByOwnWindow in LONG_WORDS,
    declared_foreign: DeclaredForeign in DECLARED,
    declared_without_settling: DeclaredWithoutSettling in DECLARED,
    declared_in_quarantine: DeclaredInQuarantine in DECLARED,
}

/// Defines one test for each order of a change of settings that the manual forbids. The simulator
/// must find a violation.
macro_rules! unsafe_orders {
    ($($test:ident: $order:ident,)*) => {
        mod unsafe_orders {
            use super::*;
            $(#[test]
            fn $test() {
                let sum = hunt(None, SeedSet::Changed(Tamper::Unsafe(Order::$order)));
                must_be_caught(stringify!($order), &sum);
            })*
        }
    };
}

unsafe_orders! {
    max_ttl_up: MaxTtlUp,
    max_ttl_down: MaxTtlDown,
    clock_error: ClockError,
    drift: Drift,
    retention: Retention,
    nodes_added: NodesAdded,
    node_replaced: NodeReplaced,
    node_leaves_early: NodeLeavesEarly,
    node_joins_as_new: NodeJoinsAsNew,
}

/// Defines one test for each act of an operator on a cluster that the manual forbids. The simulator
/// must find a violation.
macro_rules! forbidden {
    ($($test:ident: $scene:ident,)*) => {
        mod forbidden {
            use super::*;
            $(#[test]
            fn $test() {
                let sum = hunt(None, SeedSet::Changed(Tamper::Scene(Scene::$scene)));
                must_be_caught(stringify!($scene), &sum);
            })*
        }
    };
}

forbidden! {
    broken_off_moves: BrokenOffMoves,
    takeovers_for_newcomers: TakeoversForNewcomers,
}
