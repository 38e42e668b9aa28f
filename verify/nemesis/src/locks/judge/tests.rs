//! Tests of the checks of `nemesis locks`. The checks must find each kind of violation in a log
//! that contains it, and none in a good log.

use super::*;

/// Observations of all tasks in one test. Each task is in its own process, unless the test changes
/// this.
#[derive(Default)]
struct History(Vec<Line>);

impl History {
    fn hold(
        mut self,
        task: u8,
        name: &str,
        mode: Mode,
        token: u64,
        (from, end): (u64, u64),
    ) -> Self {
        let names = name.split(',').map(ToOwned::to_owned).collect();
        let grant =
            Grant { names, mode, token, since: from, queued: None, until: end, ticket: None };
        self.0.push(line(task, from, What::Held(grant)));
        self
    }

    fn then(mut self, task: u8, at: u64, what: What) -> Self {
        self.0.push(line(task, at, what));
        self
    }

    /// Changes the grant that was added last.
    fn with(mut self, change: impl FnOnce(&mut Grant)) -> Self {
        if let Some(Line { what: What::Held(grant), .. }) = self.0.last_mut() {
            change(grant);
        }
        self
    }

    fn judge(&self, kind: Kind) -> Found {
        judge(kind, &self.0, 1_000).0
    }
}

fn line(task: u8, at: u64, what: What) -> Line {
    Line { at, who: TaskId { client: task, life: 1, task: 0 }, what }
}

#[test]
fn a_writer_beside_a_reader_is_an_overlap_and_readers_are_not() {
    let readers = History::default().hold(1, "read_write", Mode::Shared, 5, (10, 30)).hold(
        2,
        "read_write",
        Mode::Shared,
        5,
        (20, 40),
    );
    let found = readers.judge(Kind::ReadWrite);
    assert!(found.is_good() && found.grants == 2, "{found:?}");
    let found = readers.hold(3, "read_write", Mode::Exclusive, 6, (35, 50)).judge(Kind::ReadWrite);
    assert!(!found.is_good() && found.overlaps == 1, "{found:?}");
}

#[test]
fn a_renewal_prolongs_a_hold_and_a_release_ends_it() {
    let renewed = || {
        History::default()
            .hold(1, "reentrant", Mode::Exclusive, 5, (10, 20))
            .then(1, 15, What::Inner { token: 5 })
            .then(1, 18, What::Valid { until: 40 })
    };
    let next = |of: History| of.hold(2, "reentrant", Mode::Exclusive, 6, (30, 40));
    assert_eq!(next(renewed()).judge(Kind::Reentrant).overlaps, 1);
    assert_eq!(next(renewed().then(1, 25, What::Over)).judge(Kind::Reentrant).overlaps, 0);
}

#[test]
fn tokens_grow_with_conflicting_holders_only() {
    let good = || {
        History::default()
            .hold(1, "read_write", Mode::Exclusive, 5, (10, 20))
            .hold(2, "read_write", Mode::Shared, 5, (30, 40))
            .hold(3, "read_write", Mode::Shared, 5, (35, 45))
    };
    assert_eq!(good().judge(Kind::ReadWrite).tokens_wrong, 0);
    let wrong = |mode, token| {
        let found = good().hold(4, "read_write", mode, token, (50, 60)).judge(Kind::ReadWrite);
        found.tokens_wrong
    };
    assert_eq!(wrong(Mode::Exclusive, 6), 0);
    assert_eq!(wrong(Mode::Exclusive, 5), 1, "not above the readers before");
    assert_eq!(wrong(Mode::Shared, 4), 1, "below the writer before");
}

#[test]
fn a_slot_has_one_holder_and_its_own_tokens() {
    let two = History::default().hold(1, "semaphore", Mode::Slot(0), 9, (10, 30)).hold(
        2,
        "semaphore",
        Mode::Slot(1),
        5,
        (20, 40),
    );
    let found = two.judge(Kind::Semaphore);
    assert!(found.is_good() && found.most_held == Some(2), "{found:?}");
    let found = two.hold(3, "semaphore", Mode::Slot(1), 6, (35, 50)).judge(Kind::Semaphore);
    assert_eq!((found.overlaps, found.tokens_wrong), (1, 0), "{found:?}");
}

#[test]
fn more_permits_than_there_are_is_an_overlap() {
    let five = (0..5_u8).fold(History::default(), |all, n| {
        all.hold(n + 1, "semaphore", Mode::Slot(n.into()), 5, (10, 30))
    });
    let found = five.judge(Kind::Semaphore);
    assert_eq!((found.most_held, found.overlaps), (Some(5), 1), "{found:?}");
}

#[test]
fn several_permits_of_one_guard_are_renewed_and_end_together() {
    let of = |end: What| {
        let both = History::default()
            .hold(1, "semaphore", Mode::Slot(0), 5, (10, 20))
            .hold(1, "semaphore", Mode::Slot(2), 7, (10, 20))
            .then(1, 15, end);
        let next = |of: History, slot| of.hold(2, "semaphore", Mode::Slot(slot), 8, (22, 30));
        next(next(both, 0), 2).judge(Kind::Semaphore)
    };
    let found = of(What::Valid { until: 25 });
    assert_eq!((found.overlaps, found.most_held), (2, Some(4)), "{found:?}");
    let found = of(What::Over);
    assert_eq!((found.overlaps, found.most_held), (0, Some(2)), "{found:?}");
}

#[test]
fn an_inner_acquire_has_the_token_of_the_outer_one() {
    let found = History::default()
        .hold(1, "reentrant", Mode::Exclusive, 5, (10, 20))
        .then(1, 12, What::Inner { token: 6 })
        .judge(Kind::Reentrant);
    assert_eq!((found.inner, found.tokens_wrong), (Some(1), 1), "{found:?}");
}

#[test]
fn a_multi_lock_conflicts_on_each_name() {
    let found = History::default()
        .hold(1, "multi:left,multi:right", Mode::Exclusive, 5, (10, 20))
        .hold(2, "multi:right", Mode::Exclusive, 6, (15, 25))
        .judge(Kind::Multi);
    assert_eq!((found.overlaps, found.deadlocks), (1, Some(0)), "{found:?}");
}

#[test]
fn callers_that_wait_while_no_holder_is_there_are_a_deadlock() {
    let late = 20 + STUCK;
    let of = |from| {
        let both = "multi:left,multi:right";
        let history = History::default().hold(1, both, Mode::Exclusive, 5, (10, 20)).hold(
            2,
            both,
            Mode::Exclusive,
            6,
            (from, from + 5),
        );
        judge(Kind::Multi, &history.0, from + 10).0.deadlocks
    };
    assert_eq!((of(late), of(late + 1)), (Some(0), Some(1)));
}

#[test]
fn degraded_guards_exclude_callers_of_their_own_process_only() {
    let of = |one: u8, other: u8| {
        let mut history = History::default()
            .hold(one, "degrade", Mode::Degraded, 0, (10, 20))
            .hold(other, "degrade", Mode::Degraded, 0, (15, 25))
            .hold(3, "degrade", Mode::Exclusive, 5, (15, 25));
        history.0[1].who.task = 1;
        history.judge(Kind::Degrade)
    };
    let found = of(1, 2);
    assert!(found.is_good() && found.degraded == Some(2), "{found:?}");
    assert_eq!(of(1, 1).overlaps, 1);
}

#[test]
fn a_ticket_is_redeemed_once_and_lets_no_other_holder_in() {
    let name = "hand_over";
    let of = |second: Option<u64>, between: Option<u64>| {
        let mut all = History::default()
            .hold(1, name, Mode::Exclusive, 5, (10, 20))
            .hold(2, name, Mode::Exclusive, 7, (30, 40))
            .with(|grant| grant.ticket = Some(5));
        if let Some(token) = second {
            all = all.hold(3, name, Mode::Exclusive, token, (50, 60));
            all = all.with(|grant| grant.ticket = Some(5));
        }
        if let Some(token) = between {
            all = all.hold(4, name, Mode::Exclusive, token, (22, 25));
        }
        let found = all.judge(Kind::HandOver);
        (found.is_good(), found.resumed, found.twice, found.let_in)
    };
    assert_eq!(of(None, None), (true, Some(1), Some(0), Some(0)));
    let (good, _, twice, _) = of(Some(8), None);
    assert_eq!((good, twice), (false, Some(1)));
    assert_eq!(of(None, Some(6)), (false, Some(1), Some(0), Some(1)));
}

#[test]
fn a_grant_before_one_that_was_queued_first_is_out_of_order() {
    let of = |since: u64| {
        let history = History::default()
            .hold(1, "fair", Mode::Exclusive, 5, (20, 30))
            .with(|grant| grant.since = since)
            .hold(2, "fair", Mode::Exclusive, 6, (40, 50))
            .with(|grant| (grant.since, grant.queued) = (5, Some(10)));
        let found = history.judge(Kind::Fair);
        (found.is_good(), found.waited, found.out_of_order)
    };
    assert_eq!(of(10), (true, Some(1), Some(0)), "the calls were made at the same time");
    assert_eq!(of(11), (false, Some(1), Some(1)));
}

#[test]
fn a_fair_lock_for_which_no_call_waited_shows_no_order() {
    let found = History::default().hold(1, "fair", Mode::Exclusive, 5, (10, 20)).judge(Kind::Fair);
    assert!(found.out_of_order == Some(0) && !found.is_good(), "{found:?}");
}

#[test]
fn a_kind_without_a_grant_is_not_good() {
    assert!(!History::default().judge(Kind::Semaphore).is_good());
}
