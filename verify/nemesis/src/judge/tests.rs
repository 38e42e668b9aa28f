//! Each bad log is the good log with one change: the checks must find it, and report no other rule.
//! Times are in milliseconds.

use super::*;
use crate::event::{Answer, TaskId, Verb};
use crate::locks::record::{Grant, Mode, What};

const MS: Nanos = 1_000_000;

fn who(client: u8) -> TaskId {
    TaskId { client, life: 1, task: 0 }
}

fn on(client: u8, at: Nanos, kind: EventKind) -> Event {
    Event { at: at * MS, who: who(client), kind }
}

fn held(client: u8, at: Nanos, token: u64, (since, until): (Nanos, Nanos)) -> Event {
    let (since, until) = (since * MS, until * MS);
    on(client, at, EventKind::Held { name: "lock".into(), token, since, until })
}

/// Returns the event that a client took the lock from the holder with the token `fence`, who may
/// rely on the lock until `closed`.
fn took(client: u8, at: Nanos, token: u64, fence: u64, closed: Nanos) -> Event {
    let (name, closed) = ("lock".into(), closed * MS);
    on(client, at, EventKind::Took { name, token, fence, closed })
}

fn valid(client: u8, at: Nanos, token: u64, until: Nanos) -> Event {
    on(client, at, EventKind::Valid { name: "lock".into(), token, until: until * MS })
}

fn over(client: u8, at: Nanos, token: u64) -> Event {
    on(client, at, EventKind::Over { name: "lock".into(), token, lost: false })
}

fn write(client: u8, at: Nanos, token: u64, accepted: bool) -> Event {
    on(client, at, EventKind::Write { name: "lock".into(), token, accepted })
}

fn begin(client: u8, at: Nanos, verb: Verb, within: u64) -> Event {
    on(client, at, EventKind::Begin { verb, name: "order".into(), within })
}

fn end(client: u8, at: Nanos, verb: Verb) -> Event {
    on(client, at, EventKind::End { verb, name: "order".into(), answer: Answer::Done })
}

fn started(client: u8, at: Nanos, token: u64) -> Event {
    on(client, at, EventKind::Started { key: "order".into(), token, attempt: 1, valid: true })
}

fn booked(client: u8, at: Nanos, token: u64, accepted: bool) -> Event {
    on(client, at, EventKind::Booked { key: "order".into(), token, value: "a".into(), accepted })
}

fn result(client: u8, at: Nanos, value: &str) -> Event {
    on(client, at, EventKind::Result { key: "order".into(), value: value.into(), executed: false })
}

fn says(client: u8, at: Nanos, term: u64, value: &str) -> Event {
    on(client, at, EventKind::Says { name: "lock".into(), term, value: value.into() })
}

fn seen(client: u8, at: Nanos, term: u64, value: &str, stream: bool) -> Event {
    on(client, at, EventKind::Seen { name: "lock".into(), term, value: value.into(), stream })
}

/// Returns a log without a broken rule. Client 1 holds the lock, renews it, and is stopped and
/// killed. After the deadline of client 1, client 2 holds the lock. Client 3 begins an order and
/// dies. Client 4 completes the order. Client 5 receives the result.
fn good() -> Vec<Event> {
    vec![
        on(1, 0, EventKind::Born),
        held(1, 10, 5, (5, 1_000)),
        write(1, 20, 5, true),
        valid(1, 500, 5, 1_500),
        on(1, 900, EventKind::Frozen { until: 2_000 * MS }),
        says(1, 950, 5, "one"),
        held(2, 1_501, 9, (1_000, 2_500)),
        says(2, 1_502, 9, "two"),
        seen(6, 1_505, 5, "one/4", true),
        seen(6, 1_506, 9, "two", true),
        write(2, 1_510, 9, true),
        over(2, 1_600, 9),
        held(3, 1_601, 10, (1_590, 3_000)),
        over(3, 1_700, 10),
        write(1, 2_001, 5, false),
        on(1, 2_100, EventKind::Died { wanted: true }),
        begin(3, 3_000, Verb::Run, 1_000),
        started(3, 3_010, 3),
        booked(3, 3_020, 3, true),
        on(3, 3_030, EventKind::Died { wanted: true }),
        begin(4, 3_100, Verb::Run, 1_000),
        started(4, 3_500, 4),
        result(4, 3_600, "a"),
        end(4, 3_610, Verb::Run),
        begin(5, 3_700, Verb::Run, 1_000),
        result(5, 3_710, "a"),
        end(5, 3_720, Verb::Run),
        begin(5, 3_800, Verb::Leader, 1_000),
        end(5, 3_810, Verb::Leader),
        seen(5, 3_811, 9, "two/7", false),
        begin(8, 4_000, Verb::Acquire, 1_000),
        on(8, 4_100, EventKind::Stalled { until: 8_000 * MS }),
        end(8, 13_000, Verb::Acquire),
        on(0, 14_000, EventKind::Calm),
        on(0, 15_000, EventKind::Served),
    ]
}

fn broken(mut log: Vec<Event>) -> Vec<&'static str> {
    sort(&mut log);
    judge(&log).iter().map(|v| v.rule).collect()
}

fn with(more: Vec<Event>) -> Vec<&'static str> {
    broken([good(), more].concat())
}

fn at(time: Nanos, event: Event) -> Vec<&'static str> {
    let mut log = good();
    let place = log.iter().position(|e| e.at == time * MS).expect("there is one at this time");
    log[place] = event;
    broken(log)
}

#[test]
fn a_good_log_passes() {
    assert_eq!(broken(good()), [""; 0]);
}

#[test]
fn two_holders_at_once_are_found() {
    // Client 2 begins before the last deadline that the killed client 1 had reported.
    assert_eq!(at(1_501, held(2, 1_499, 9, (1_000, 2_500))), ["one holder at a time"]);
    // Client 3 begins to hold the lock at 1 601 ms, before client 2 releases it.
    assert_eq!(at(1_600, over(2, 1_602, 9)), ["one holder at a time"]);
    // Two long holds overlap. A short hold between their beginnings must not hide this.
    let short = vec![held(7, 5_000, 20, (4_900, 9_000)), held(8, 5_100, 21, (4_950, 5_200))];
    let long = vec![held(6, 6_000, 22, (4_960, 9_000))];
    assert_eq!(with([short, long].concat()), ["one holder at a time"; 2]);
}

/// Returns a log with a takeover. Client 6 holds the lock until 7 s. Client 7 takes the lock at 5.5
/// s and announces that the lock is closed until 7.2 s. The lease of client 7 ends, and client 8
/// holds the lock from 7.1 s.
fn taken() -> Vec<Event> {
    vec![
        held(6, 5_000, 20, (4_990, 7_000)),
        held(7, 5_500, 21, (5_400, 7_100)),
        took(7, 5_500, 21, 20, 7_200),
        over(7, 5_510, 21),
        write(6, 5_520, 20, true),
        held(8, 7_100, 22, (7_000, 7_500)),
        write(8, 7_110, 22, true),
    ]
}

fn taken_but(at: Nanos, event: Event) -> Vec<&'static str> {
    let mut log = taken();
    let place = log.iter().position(|e| e.at == at * MS).expect("there is one at this time");
    log[place] = event;
    with(log)
}

#[test]
fn a_takeover_lets_its_holder_believe_and_no_third_in() {
    assert_eq!(with(taken()), [""; 0]);
    // Client 7 gives the lock up at once. Client 8 acquires the lock while it must still be closed
    // to other clients.
    let early = taken_but(7_100, held(8, 7_099, 22, (7_000, 7_500)));
    assert_eq!(early, ["one holder at a time"]);
    // Client 8 acquires the lock while clients 6 and 7 may both rely on it.
    let early = taken_but(7_100, held(8, 6_999, 22, (6_900, 7_500)));
    assert_eq!(early, ["one holder at a time"; 2]);
    // Without the event `Took`, client 7 counts as a second holder.
    let mut plain = taken();
    plain.remove(2);
    assert_eq!(with(plain), ["one holder at a time"]);
}

#[test]
fn a_takeover_that_does_not_raise_the_token_or_opens_too_early_is_found() {
    let mut low = taken();
    low[1] = held(7, 5_500, 19, (5_400, 7_100));
    low[2] = took(7, 5_500, 19, 20, 7_200);
    let low = with(low);
    assert!(low.contains(&"token is larger than all before"), "{low:?}");
    // The old holder's deadline is 7 s. So the event `Took` must report that the lock stays closed
    // for other owners until 7 s or later.
    let closed = |ms| {
        let mut log = taken();
        log[2] = took(7, 5_500, 21, 20, ms);
        log.remove(3);
        with(log)
    };
    assert_eq!(closed(7_000), [""; 0]);
    assert_eq!(closed(6_999), ["a takeover says how long it is closed"]);
    // A takeover must not announce that others have to wait for longer than the longest lease.
    assert_eq!(closed(7_700), [""; 0]);
    assert_eq!(closed(7_701), ["a takeover says how long it is closed"]);
    // A node may lose the data of the takeover, and then confirm the old holder's lock again. This
    // is allowed for the time of two leases plus 2 s.
    let again = |until| {
        let mut log = taken();
        log.truncate(3);
        let (last, next) = (valid(6, 5_600, 20, until), valid(7, 5_601, 21, 30_000));
        with([log, vec![last, next]].concat())
    };
    assert_eq!(again(13_200), [""; 0]);
    assert_eq!(again(13_201), ["a takeover says how long it is closed"]);
}

fn key(client: u8, at: Nanos, key: &str, kind: impl Fn(Arc<str>) -> EventKind) -> Event {
    on(client, at, kind(key.into()))
}

fn batch(client: u8, at: Nanos, keys: &[&str]) -> Event {
    let keys = keys.iter().map(|key| Arc::from(*key)).collect();
    on(client, at, EventKind::Batch { keys, turns: 1 })
}

fn batch_ends(client: u8, at: Nanos, answer: Answer) -> Event {
    on(client, at, EventKind::End { verb: Verb::RunEach, name: "batch".into(), answer })
}

fn acted(client: u8, at: Nanos, token: u64) -> Event {
    key(client, at, "k1", |key| EventKind::Acted { key, token, value: "a".into() })
}

fn parked(client: u8, at: Nanos, name: &str) -> Event {
    key(client, at, name, |key| EventKind::Parked { key, lapsed: true })
}

#[test]
fn a_second_effect_of_a_key_needs_an_operators_decision() {
    let decided = |rerun| key(2, 5_100, "k1", move |key| EventKind::Decided { key, rerun });
    let twice = |decided| with(vec![acted(1, 5_000, 3), decided, acted(2, 5_200, 4)]);
    assert_eq!(twice(decided(true)), [""; 0]);
    assert_eq!(twice(decided(false)), ["one effect an order"]);
    let third = vec![acted(1, 5_000, 3), decided(true), acted(2, 5_200, 4), acted(3, 5_300, 5)];
    assert_eq!(with(third), ["one effect an order"]);
}

#[test]
fn a_handler_after_a_keys_effect_is_found() {
    let start = |at, token| {
        let valid = true;
        key(2, at, "k1", move |key| EventKind::Started { key, token, attempt: 2, valid })
    };
    let rerun = key(2, 5_050, "k1", |key| EventKind::Decided { key, rerun: true });
    let rule = "no handler after a key's effect";
    assert_eq!(with(vec![acted(1, 5_000, 3), start(5_100, 4)]), [rule]);
    assert_eq!(with(vec![acted(1, 5_000, 3), rerun, start(5_100, 4)]), [""; 0]);
    // The first handler failed before its effect, so another handler may start.
    assert_eq!(with(vec![start(5_100, 3), start(5_200, 4), acted(1, 5_300, 4)]), [""; 0]);
}

#[test]
fn a_result_of_another_key_is_found() {
    let act = |name, value: &'static str| {
        key(1, 5_000, name, move |key| EventKind::Acted { key, token: 3, value: value.into() })
    };
    let get = |name, value: &'static str| {
        let executed = true;
        key(1, 5_100, name, move |key| EventKind::Result { key, value: value.into(), executed })
    };
    let both = |a, b| with(vec![act("k1", "a"), act("k2", "b"), get("k1", a), get("k2", b)]);
    assert_eq!(both("a", "b"), [""; 0]);
    assert_eq!(both("b", "a"), ["no result without an effect"; 2]);
}

#[test]
fn a_key_that_is_parked_without_a_handler_is_found() {
    let rule = "parked only where a handler began";
    let ended = |answer| vec![batch(1, 5_000, &["k1", "k2", "k3"]), batch_ends(1, 5_200, answer)];
    let then = |more| with([ended(Answer::Done), more].concat());
    assert_eq!(then(vec![parked(2, 6_000, "k1")]), [rule]);
    let start = |key| EventKind::Started { key, token: 3, attempt: 1, valid: true };
    assert_eq!(then(vec![key(1, 5_100, "k1", start), parked(2, 6_000, "k1")]), [""; 0]);
    let unclear = key(1, 5_201, "k1", |key| EventKind::Unclear { key });
    assert_eq!(then(vec![unclear, parked(2, 6_000, "k1")]), [""; 0]);
    // Client 2 called its batch of keys before client 1's batch with the same key ended.
    let found = |since| vec![batch(2, since, &["k1"]), parked(2, 6_000, "k1")];
    assert_eq!(then(found(5_200)), [""; 0]);
    assert_eq!(then(found(5_201)), [rule]);
    // The client dropped its call for a batch of keys, in which one handler runs at a time. So the
    // handler of one key may have been about to begin.
    let dropped = |keys: &[&str]| {
        let parked = keys.iter().map(|key| parked(2, 6_000, key));
        with(ended(Answer::Dropped).into_iter().chain(parked).collect())
    };
    assert_eq!(dropped(&["k1"]), [""; 0]);
    assert_eq!(dropped(&["k1", "k1"]), [""; 0]);
    assert_eq!(dropped(&["k1", "k3"]), [rule]);
    // A process may be killed at any point of its batch, so both keys may be parked.
    let killed = on(1, 5_200, EventKind::Died { wanted: true });
    let killed = vec![batch(1, 5_000, &["k1", "k2"]), killed];
    let both = vec![parked(2, 6_000, "k1"), parked(2, 6_001, "k2")];
    assert_eq!(with([killed, both].concat()), [""; 0]);
    // After a loss of data, the nodes may have lost the record of any attempt.
    let forgotten = key(2, 6_000, "k1", |key| EventKind::Parked { key, lapsed: false });
    assert_eq!(then(vec![forgotten]), [""; 0]);
}

#[test]
fn a_broken_rule_of_another_kind_of_lock_is_found() {
    let held = |client, at, mode, until: Nanos| {
        let names = vec!["read_write".to_owned()];
        let (since, until) = (at * MS, until * MS);
        let grant = Grant { names, mode, token: 5, since, queued: None, until, ticket: None };
        on(client, at, EventKind::Lock { name: "read_write".into(), seen: What::Held(grant) })
    };
    let readers = || vec![held(1, 10, Mode::Shared, 30), held(2, 20, Mode::Shared, 40)];
    assert_eq!(with(readers()), [""; 0]);
    let writer = held(3, 39, Mode::Exclusive, 50);
    let rules = with([readers(), vec![writer]].concat());
    assert_eq!(rules, ["one holder at a time", "tokens grow with the holders"]);
}

#[test]
fn fair_callers_may_pass_where_servers_lose_data() {
    let held = |client, at, since, queued| {
        let (names, mode) = (vec!["fair".to_owned()], Mode::Exclusive);
        let (token, until, ticket) = (at, (at + 5) * MS, None);
        let grant = Grant { names, mode, token, since, queued, until, ticket };
        on(client, at, EventKind::Lock { name: "fair".into(), seen: What::Held(grant) })
    };
    let passed = vec![held(1, 20, 15 * MS, None), held(2, 30, 5 * MS, Some(10 * MS))];
    assert_eq!(with(passed), [""; 0]);
}

#[test]
fn a_takeover_excuses_its_own_victim_alone() {
    let victim = held(6, 5_000, 20, (4_900, 7_000));
    let taker = [held(7, 5_100, 23, (5_050, 6_000)), took(7, 5_100, 23, 22, 7_100)];
    assert_eq!(with([&[victim.clone()][..], &taker].concat()), [""; 0]);
    // Client 8 takes the lock from client 7.
    let second = [held(8, 5_200, 24, (5_150, 6_000)), took(8, 5_200, 24, 23, 7_100)];
    assert_eq!(with([&[victim.clone()][..], &taker, &second].concat()), [""; 0]);
    // Client 7 has given the lock up. Client 8 acquires the lock while the old holder may still
    // rely on it.
    let third = held(8, 6_500, 25, (6_400, 7_000));
    let given_up = over(7, 5_200, 23);
    let late = with([&[victim.clone(), given_up, third][..], &taker].concat());
    assert_eq!(late, ["one holder at a time"]);
    // Client 7 took the lock from an earlier holder, which is not in this log. So the takeover does
    // not explain why client 7 and the victim hold the lock at the same time.
    let wrong = [held(7, 5_100, 23, (5_050, 6_000)), took(7, 5_100, 23, 15, 7_100)];
    assert_eq!(with([&[victim][..], &wrong].concat()), ["one holder at a time"]);
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    assert_eq!(with(vec![held(7, 5_000, 8, (4_000, 5_100))]), ["token is larger than all before"]);
    // Two attempts that overlap get the same token.
    let twice = at(1_601, held(3, 1_601, 9, (1_400, 3_000)));
    assert_eq!(twice, ["no token twice"]);
    // An attempt may get a smaller token if it began before the larger token was granted.
    assert_eq!(at(1_601, held(3, 1_601, 8, (1_400, 3_000))), [""; 0]);
    let order =
        vec![begin(6, 5_000, Verb::Run, 900), started(6, 5_001, 2), end(6, 5_002, Verb::Run)];
    let rules = with(order);
    assert!(rules.contains(&"token is larger than all before"), "{rules:?}");
}

#[test]
fn an_old_write_that_was_accepted_is_found() {
    assert_eq!(at(2_001, write(1, 2_001, 5, true)), ["writes in the order of tokens"]);
}

#[test]
fn a_guard_that_is_valid_too_long_is_found() {
    let late = with(vec![valid(1, 1_500, 5, 1_500), valid(2, 2_501, 9, 2_500)]);
    assert_eq!(late, ["no guard is valid past its deadline"]);
}

#[test]
fn an_effect_twice_is_found() {
    assert_eq!(with(vec![booked(4, 3_510, 4, true)]), ["one effect an order"]);
    assert_eq!(with(vec![booked(4, 3_510, 2, false)]), [""; 0]);
}

#[test]
fn a_second_result_is_found() {
    assert_eq!(at(3_710, result(5, 3_710, "b")), ["one result an order"]);
    let early = at(3_020, booked(3, 3_605, 3, true));
    assert_eq!(early, ["no result without an effect"]);
}

#[test]
fn a_handler_after_a_result_is_found() {
    let late =
        vec![begin(6, 3_550, Verb::Run, 900), started(6, 3_601, 7), end(6, 3_650, Verb::Run)];
    assert_eq!(with(late), ["no handler after a result"]);
}

#[test]
fn what_observers_must_not_see_is_found() {
    assert_eq!(at(1_506, seen(6, 1_506, 9, "one", true)), ["a value with its own term"]);
    let [one, other] = ["x", "y"].map(|value| seen(6, 1_506, 8, value, false));
    assert_eq!(with(vec![one, other]), ["a value with its own term"]);
    assert_eq!(with(vec![seen(6, 1_507, 5, "one", true)]), ["terms only grow"]);
    assert_eq!(at(3_811, seen(5, 3_811, 5, "one", false)), ["a read is not older"]);
}

#[test]
fn a_verb_without_an_answer_is_found() {
    // The operation took 9.95 s. The permitted time is 9.9 s: 1 s in the event `Begin`, 5 s for a
    // busy machine, and 3.9 s for a pause.
    assert_eq!(at(13_000, end(8, 13_950, Verb::Acquire)), ["an answer in time"]);
    assert_eq!(with(vec![begin(7, 5_000, Verb::Extend, 1_000)]), ["an answer in time"]);
    let killed = on(7, 10_000, EventKind::Died { wanted: true });
    assert_eq!(with(vec![begin(7, 5_000, Verb::Extend, 1_000), killed]), [""; 0]);
}

#[test]
fn a_client_that_ends_and_one_that_is_not_served_are_found() {
    let died = with(vec![on(7, 5_000, EventKind::Died { wanted: false })]);
    assert_eq!(died, ["no client ends by itself"]);
    assert_eq!(at(15_000, on(0, 15_000, EventKind::Born)), ["all are served"]);
}

#[test]
fn the_story_of_a_violation_has_its_last_events() {
    let mut log = good();
    log.push(write(1, 5_000, 5, true));
    sort(&mut log);
    let found = judge(&log);
    let story = story(&log, &found[0]).join("\n");
    for part in ["5.0000 s  client 1", "\"what\":\"write\"", "\"token\":9"] {
        assert!(story.contains(part), "{part}: {story}");
    }
}

#[test]
fn a_log_read_back_is_the_same() {
    for event in good() {
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
