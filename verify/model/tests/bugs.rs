//! Each rule that is left out is found, by the shortest history that breaks a promise.

use model::{Bug, Role, Spec, explore, worlds};

/// The states of the worlds in which the bugs are looked for are fewer by far.
const MOST: usize = 2_000_000;

fn finds(bug: Bug, world: &str, broken: &str) {
    let spec = worlds::all().into_iter().find(|spec| spec.name == world).expect("a world");
    finds_in(&spec, bug, broken);
}

fn finds_in(spec: &Spec, bug: Bug, broken: &str) {
    let found = explore(&spec.with(bug), MOST);
    let violation = found.violation.unwrap_or_else(|| panic!("{bug:?}: {} states", found.states));
    println!("{bug:?}: {}\n{}\n", violation.what, violation.history.join("\n"));
    assert!(violation.what.contains(broken), "{bug:?}: {}", violation.what);
}

macro_rules! found {
    ($($name:ident: $bug:ident in $world:literal, $broken:literal;)*) => {
        $(#[test]
        fn $name() {
            finds(Bug::$bug, $world, $broken);
        })*
    };
}

found! {
    a_release_of_anothers_lock: ReleaseIgnoresOwner in "mutex", "was given since";
    a_lease_that_is_revived: RevivesLapsedLease in "mutex, a slow network", "was given since";
    a_node_that_counts_twice: CountsOneNodeTwice in "mutex", "is not above";
    a_quarantine_that_is_skipped: NoQuarantine in "mutex, a loss of data", "is not above";
    a_fence_that_is_not_raised: FenceNotRaised in "mutex, a loss of data", "is not above";
    a_validity_that_begins_late: ValidFromAnswer in "mutex, a slow network", "was given since";
    a_validity_without_drift: NoDrift in "mutex, a fast clock", "is said to be lost";
    a_grant_that_is_not_given_back: NoUndo in "mutex, a slow network", "a new caller is refused";
    a_reader_beside_a_writer: ReaderBesideWriter in "readers and a writer", "two hold it";
    a_writer_beside_a_reader: WriterBesideReader in "readers and a writer", "two hold it";
    permits_that_are_counted: PermitsCounted in "three and two permits", "is not above";
    a_claim_that_sees_no_result: ClaimIgnoresResult in "key, run again", "two results";
    a_late_result: CompleteIgnoresBallot in "key, run again", "two results";
    attempts_that_do_not_count: AttemptsIgnored in "key", "run twice";
    a_result_that_is_not_adopted: NothingAdopted in "key, run again", "two results";
    a_key_that_is_forgotten: NoQuarantine in "key, a loss of data", "run twice";
    a_claim_of_one_node: CountsOneNodeTwice in "key", "run twice";
}

/// It needs a third call of the key.
#[test]
fn a_result_of_one_node() {
    let mut spec = worlds::all().into_iter().find(|spec| spec.name == "key, run again").unwrap();
    spec.roles[1] = Role::Key { calls: 2, extends: 0, reruns: true };
    finds_in(&spec, Bug::ResultOfOneNode, "two results");
}
