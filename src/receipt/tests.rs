//! By hand, and against a model that keeps the data itself.

use proptest::prelude::*;

use super::*;

const A: u64 = 0xa;
const B: u64 = 0xb;
const C: u64 = 0xc;

fn first(history_id: u64) -> Server {
    Server { history_id, predecessor: None }
}

fn from(history_id: u64, before: u64, offset: u64) -> Server {
    Server { history_id, predecessor: Some(Predecessor { history_id: before, offset }) }
}

fn of(history_id: u64, offset: u64, seen: &[Server]) -> Fate {
    fate(Written { history_id, offset: Some(offset) }, seen)
}

#[test]
fn a_write_survives_exactly_below_the_fork() {
    let seen = [first(A), from(B, A, 100)];
    assert_eq!(of(A, 99, &seen), Fate::Survived);
    assert_eq!(of(A, 100, &seen), Fate::Lost);
    assert_eq!(of(A, 101, &seen), Fate::Lost);
    assert_eq!(of(B, 101, &seen), Fate::Standing);
    assert_eq!(of(A, 5, &seen[..1]), Fate::Standing);
}

#[test]
fn what_cannot_be_shown_is_unknown() {
    assert_eq!(of(A, 1, &[]), Fate::Unknown);
    // An append-only file hides continuity; an unrelated server has none.
    assert_eq!(of(A, 1, &[first(A), first(B)]), Fate::Unknown);
    assert_eq!(of(A, 1, &[first(A), from(B, C, 100)]), Fate::Unknown);
    // No ROLE, no offset.
    let blind = Written { history_id: A, offset: None };
    assert_eq!(fate(blind, &[first(A), from(B, A, 100)]), Fate::Unknown);
    assert_eq!(fate(blind, &[first(A)]), Fate::Standing);
}

#[test]
fn a_second_switch_is_judged_through_the_first() {
    let seen = [first(A), from(B, A, 100), from(C, B, 150)];
    assert_eq!(of(A, 99, &seen), Fate::Survived);
    assert_eq!(of(A, 120, &seen), Fate::Lost, "lost at the first");
    assert_eq!(of(B, 149, &seen), Fate::Survived);
    assert_eq!(of(B, 150, &seen), Fate::Lost);
    // The second fork may lie before the first: the second server lagged behind both.
    let seen = [first(A), from(B, A, 100), from(C, B, 90)];
    assert_eq!(of(A, 89, &seen), Fate::Survived);
    assert_eq!(of(A, 95, &seen), Fate::Lost, "survived the first, lost at the second");
}

#[test]
fn a_switch_that_nobody_saw_makes_it_unknown() {
    // B was missed: nothing says what it had of A.
    assert_eq!(of(A, 1, &[first(A), from(C, B, 150)]), Fate::Unknown);
    // The write's own server was never listed, but the new one names it.
    assert_eq!(of(A, 1, &[from(B, A, 100)]), Fate::Survived);
}

#[test]
fn there_and_back_is_not_as_if_nothing_had_happened() {
    // A → B → A: the first server again, promoted again, so under a new history.
    let again = 0xa2;
    let seen = [first(A), from(B, A, 100), from(again, B, 150)];
    assert_eq!(of(A, 99, &seen), Fate::Survived);
    assert_eq!(of(A, 140, &seen), Fate::Lost, "it was resynchronised with B");
    // Back on the very history, with no known relation: that data is where it was.
    assert_eq!(of(A, 99, &[first(A), first(B), first(A)]), Fate::Standing);
    assert_eq!(of(B, 99, &[first(A), first(B), first(A)]), Fate::Unknown);
}

#[test]
fn garbage_that_goes_round_in_a_circle_ends() {
    let seen = [from(A, B, 10), from(B, A, 10)];
    assert_eq!(of(C, 1, &seen), Fate::Unknown);
    let own = [from(A, A, 10)];
    assert_eq!(of(C, 1, &own), Fate::Unknown);
}

/// One step of a group.
#[derive(Clone, Debug)]
enum Event {
    Write,
    /// A copy of the history of `history` (counted back from the present one), `lag` writes
    /// behind its end, becomes the server. Whether it says what it went on from, and whether our
    /// client sees it.
    Switch {
        back: usize,
        lag: usize,
        tells: bool,
        seen: bool,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let switch = (0..3_usize, 0..4_usize, prop::bool::weighted(0.9), prop::bool::weighted(0.8));
    prop_oneof![
        3 => Just(Event::Write),
        2 => switch.prop_map(|(back, lag, tells, seen)| Event::Switch { back, lag, tells, seen }),
    ]
}

proptest! {
    #[test]
    fn no_verdict_contradicts_the_data(events in prop::collection::vec(event(), 1..60)) {
        // History g is number g of `logs`; a log is all that its history holds.
        let mut logs: Vec<Vec<usize>> = vec![Vec::new()];
        let mut seen = vec![first(1)];
        let mut receipts = Vec::new();
        let mut missed = false;
        let mut now = first(1);
        for (id, event) in events.into_iter().enumerate() {
            match event {
                Event::Write => {
                    let log = logs.last_mut().expect("never empty");
                    log.push(id);
                    let offset = Some(log.len() as u64);
                    receipts.push((id, Written { history_id: logs.len() as u64, offset }));
                    // Every writer there sees it.
                    if seen.last() != Some(&now) {
                        seen.push(now);
                    }
                }
                Event::Switch { back, lag, tells, seen: sees } => {
                    let of = logs.len().saturating_sub(back + 1);
                    let keep = logs[of].len().saturating_sub(lag);
                    let log = logs[of][..keep].to_vec();
                    logs.push(log);
                    let fork = (of as u64 + 1, keep as u64 + 1);
                    let history_id = logs.len() as u64;
                    now = if tells { from(history_id, fork.0, fork.1) } else { first(history_id) };
                    missed |= !tells || !sees || back > 0;
                    if sees {
                        seen.push(now);
                    }
                }
            }
        }
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        let data = logs.last().expect("never empty");
        for (id, write) in receipts {
            let there = data.contains(&id);
            match fate(write, &seen) {
                Fate::Standing | Fate::Survived => prop_assert!(there, "{id} of {seen:?}"),
                Fate::Lost => prop_assert!(!there, "{id} of {seen:?}"),
                Fate::Unknown => prop_assert!(missed, "all was seen: {id} of {seen:?}"),
            }
        }
    }
}
