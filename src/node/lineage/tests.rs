//! Lines of `testdata/judge.txt`: `replid=9 run=8 me=3.5.20@9000 -> begins 6 from 9000 to 10000`.
//! The server has another replication id than its marker, and another process. The client remembers
//! history 3, generation 5, and 20 writes, the last at 9000. The 6th history begins, and its data
//! may lack what was written from 9000 on.

mod histories;

use proptest::prelude::*;

use super::*;
use crate::fuzzing::config;

/// In ms.
const NOW: u64 = 10_000;
const NAME: u64 = 77;
const DAY: u64 = 86_400_000;

fn ms(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn two(text: &str, separator: char) -> (u64, u64) {
    let (a, b) = text.split_once(separator).unwrap_or_else(|| panic!("not two numbers: {text}"));
    (ms(a), ms(b))
}

fn lost(from: u64, began: u64, to: u64) -> Losses {
    Losses::default().and(Loss { from, began, to })
}

fn marker() -> Marker {
    Marker {
        generation: 5,
        since: 2_000,
        process: Process { run: 7, inputs: Some(10), calls: 1, was_reset: false },
        evicted: 1,
        epoch: 6,
        quarantine: 3_000,
        floor: 5_000_000,
        written: 2_000,
        losses: lost(1_000, 2_000, 2_000),
        ..Marker::born(1, 2, 3, ReplicationId::of(4))
    }
}

fn shown(m: &Marker) -> Shown {
    let Marker { history, generation, replid, process, evicted, .. } = *m;
    Shown {
        marker: Some(*m),
        is_empty: false,
        note: Some(Note { history, generation, seq: 20, micros: 9_000_000 }),
        replid,
        process,
        evicted,
        stayed: false,
        disturbed: false,
        micros: NOW * 1_000,
    }
}

fn asked() -> Asked {
    Asked {
        max_ttl: Duration::from_secs(3),
        clock_error: Duration::ZERO,
        window: Duration::ZERO,
        longest_window: Duration::ZERO,
        trust_fresh: false,
        allow_eviction: false,
        durable: false,
        disturbed: None,
        epoch: None,
        remembers: Remembered::default(),
        name: NAME,
    }
}

fn say(shown: &mut Shown, asked: &mut Asked, word: &str) {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let number = || ms(value);
    let span = || Duration::from_millis(ms(value));
    let newest = &mut asked.remembers.newest;
    match name {
        "replid" => shown.replid = ReplicationId::of(number()),
        "run" => (shown.process.run, shown.evicted) = (number(), 0),
        "inputs" => shown.process.inputs = value.parse().ok(),
        "calls" => shown.process.calls = number(),
        "reset" => shown.process.was_reset = true,
        "evicted" => shown.evicted = number(),
        "generation" => {
            shown.marker = shown.marker.map(|m| Marker { generation: number(), ..m });
            shown.note = shown.note.map(|n| Note { generation: number(), ..n });
        }
        "left" => shown.marker = shown.marker.map(|m| Marker { evicted: EVICTED, ..m }),
        "empty" | "bad" => {
            (shown.marker, shown.is_empty, shown.evicted) = (None, name == "empty", 0);
        }
        "me" => {
            let (numbers, note) = value.split_once('@').expect("the note's time");
            let (history, rest) = numbers.split_once('.').expect("the history's number");
            let (generation, seq) = two(rest, '.');
            let (history, note) = (ms(history), ms(note));
            *newest = Lineage { deployment: 1, vote: 2, generation, history, seq, note };
        }
        "ids" => (newest.deployment, newest.vote) = two(value, '/'),
        "known" => asked.remembers.known_since = Some(number() * 1_000),
        "epoch" => asked.epoch = Some(number()),
        "ttl" => asked.max_ttl = span(),
        "L" => (asked.window, asked.longest_window) = (span(), span()),
        "unread" => asked.longest_window = span(),
        "e" => asked.clock_error = span(),
        "fresh" => asked.trust_fresh = true,
        "shared" => asked.remembers.is_shared = true,
        "evicts" => asked.allow_eviction = true,
        "durable" => asked.durable = true,
        "note" if value == "none" => shown.note = None,
        "note" if value == "other" => shown.note = shown.note.map(|n| Note { generation: 4, ..n }),
        "note" => {
            let (seq, at) = two(value, '@');
            shown.note = shown.note.map(|n| Note { seq, micros: at * 1_000, ..n });
        }
        "same" => {}
        _ => alter(shown.marker.as_mut().expect("a marker"), name, value),
    }
}

fn alter(m: &mut Marker, name: &str, value: &str) {
    match (name, value) {
        ("unnamed", _) => (m.deployment, m.vote) = (0, 0),
        ("since", at) => (m.since, m.losses) = (ms(at), lost(1_000, ms(at), ms(at))),
        ("never-lost", _) => {
            (m.since, m.quarantine, m.floor, m.losses) = (0, 0, 0, Losses::default());
        }
        ("E", error) => m.clock_error = ms(error) * 1_000,
        ("closed", till) => m.handover = Some(Handover::Closed(ms(till))),
        ("settling", till) => m.handover = Some(Handover::Settling(ms(till))),
        ("began", "e") => m.began = Began::Empty,
        ("began", "l") => m.began = Began::Lost,
        ("uncounted", _) => m.process.inputs = None,
        _ => panic!("unknown word {name}"),
    }
}

/// Only what differs from the one that was shown.
fn told(shown: &Shown, verdict: &Verdict) -> String {
    let (m, change) = match *verdict {
        Verdict::Goes(marker, change) => (marker, change),
        Verdict::Foreign(theirs) => {
            return format!("foreign {}/{}", theirs.deployment, theirs.vote);
        }
        Verdict::Closed(left) => return format!("closed {}", left.as_millis()),
    };
    if shown.marker == Some(m) {
        assert_eq!(change, Change::default());
        return "goes".to_owned();
    }
    let before = shown.marker.unwrap_or_else(|| Marker::born(0, 0, 0, shown.replid));
    assert_eq!((m.replid, m.written), (shown.replid, NOW));
    let mut words = Vec::new();
    let mut say = |applies: bool, word: String| words.extend(applies.then_some(word));
    let loss = m.losses.iter().last().filter(|_| m.losses != before.losses);
    let Loss { from, began, to } = loss.unwrap_or(Loss { from: 0, began: 0, to: 0 });
    say(change.begun, format!("begins {}", m.generation));
    say(change.begun && loss.is_some(), format!("from {from} to {to}"));
    say(!change.begun && loss.is_some(), format!("to={to}"));
    say(change.missing, "missing".to_owned());
    say(change.renamed, "renamed".to_owned());
    say(change.refuted, "refuted".to_owned());
    say(change.raised, "raised".to_owned());
    say(m.epoch != before.epoch, format!("epoch={}", m.epoch));
    say(m.quarantine != before.quarantine, format!("q={}", m.quarantine));
    say(m.clock_error != before.clock_error, format!("E={}", m.clock_error / 1_000));
    let origin = if m.began == Began::Empty { "e" } else { "l" };
    say(m.began != before.began, format!("began={origin}"));
    let ids = (m.deployment, m.vote);
    say(ids != (before.deployment, before.vote), format!("ids={}/{}", m.deployment, m.vote));
    say(m.handover != before.handover && m.handover.is_none(), "open".to_owned());
    say(m.handover != before.handover && m.handover.is_some(), "settles".to_owned());
    say(m.evicted != shown.evicted, format!("evicted={}", m.evicted));
    if change.begun {
        assert_eq!((m.history, m.process), (NAME, shown.process));
        assert!(loss.is_none() || (began, m.since) == (NOW, NOW), "a quarantine begins now");
        assert_eq!(m.handover, None);
    } else {
        assert_eq!((m.history, m.generation), (before.history, before.generation));
        assert_eq!((m.since, m.floor), (before.since, before.floor));
    }
    words.join(" ")
}

/// Its owner got a higher epoch for another slot.
#[test]
fn a_slot_that_was_never_away_takes_over_its_owners_epoch() {
    let later = Asked { epoch: Some(marker().epoch + 1), ..asked() };
    let went = |shown: Shown, asked: &Asked| match judge(&shown, asked) {
        Verdict::Goes(m, change) => (m.epoch, change.begun, m.losses.iter().last().unwrap().from),
        other => panic!("{other:?}"),
    };
    let (shown, from) = (shown(&marker()), marker().losses.iter().last().unwrap().from);
    assert_eq!(went(Shown { stayed: true, ..shown }, &later), (7, false, from));
    assert!(went(Shown { stayed: false, ..shown }, &later).1);
    // It was demoted in between, and has read nothing since.
    let renamed = Shown { replid: ReplicationId::of(9), stayed: true, ..shown };
    assert!(went(renamed, &later).1);
    // Some keys may be gone (cluster 8).
    let disturbed = Shown { disturbed: true, stayed: true, ..shown };
    assert_eq!(went(disturbed, &later), (7, true, 0));
    // The epochs of a cluster that was made from these data are lower.
    let process = Process { run: 77, ..shown.process };
    let anew = Asked { epoch: Some(1), ..asked() };
    assert_eq!(went(Shown { process, ..renamed }, &anew).0, 1);
    assert_eq!(went(Shown { stayed: true, ..shown }, &anew), (6, false, from));
}

#[test]
fn who_may_not_vote_leaves_evictions_and_asks_for_nothing() {
    let longer = Asked { max_ttl: Duration::from_secs(60), epoch: Some(7), ..asked() };
    let whole = shown(&marker());
    assert_eq!(left(&whole, &longer), None, "nothing was deleted");
    let evicted = Shown { evicted: 2, ..whole };
    let other = Lineage { deployment: 8, vote: 9, ..longer.remembers.newest };
    let stranger = Asked { remembers: Remembered { newest: other, ..longer.remembers }, ..longer };
    assert_eq!(left(&evicted, &stranger), None);
    let m = left(&evicted, &Asked { epoch: None, ..longer }).unwrap();
    assert_eq!(m, Marker { evicted: EVICTED, written: m.written, ..marker() });
    for of in [&evicted, &Shown { replid: ReplicationId::of(9), ..evicted }] {
        let m = left(of, &longer).unwrap();
        let (begun, note) = (m.losses.iter().last().unwrap(), whole.note.unwrap().micros / 1_000);
        assert_eq!((m.replid, m.evicted, begun.from), (of.replid, EVICTED, note));
        assert_eq!(m.quarantine, marker().quarantine);
    }
    let new = Marker { since: 0, quarantine: 0, losses: Losses::default(), ..marker() };
    let m = left(&Shown { evicted: 2, ..shown(&new) }, &longer).unwrap();
    assert!(m.since == 0 || m.quarantine > 0, "{m:?}");
    let gone = Shown { marker: None, is_empty: true, evicted: 2, ..whole };
    assert_eq!(left(&gone, &longer), None, "a server of others");
    let used = Lineage { generation: 5, history: 3, ..Lineage::default() };
    let used = Asked { remembers: Remembered { newest: used, ..longer.remembers }, ..longer };
    assert_eq!(left(&gone, &used).unwrap().began, Began::Lost);
}

#[test]
fn what_a_server_shows_and_a_client_remembers_decides_on_its_data() {
    let lines = include_str!("testdata/judge.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let wrong = lines.filter_map(|line| {
        let (facts, expect) = line.split_once(" -> ").expect("a line has an outcome");
        let (mut shown, mut asked) = (shown(&marker()), asked());
        facts.split_whitespace().for_each(|word| say(&mut shown, &mut asked, word));
        let got = told(&shown, &judge(&shown, &asked));
        (got != expect).then(|| format!("{line}\n    got: {got}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_verdict_is_final() {
    for line in include_str!("testdata/judge.txt").lines().filter(|line| line.contains(" -> ")) {
        let (mut shown, mut asked) = (shown(&marker()), asked());
        let facts = line.split(" -> ").next().unwrap_or_default();
        facts.split_whitespace().for_each(|word| say(&mut shown, &mut asked, word));
        let Verdict::Goes(m, _) = judge(&shown, &asked) else { continue };
        if asked.remembers.newest.generation < m.generation {
            let next = Shown { marker: Some(m), note: None, ..shown };
            assert_eq!(judge(&next, &asked), Verdict::Goes(m, Change::default()), "{line}");
        }
    }
}

#[test]
fn the_floor_is_above_every_token_of_a_replaced_server() {
    let server = Shown { replid: ReplicationId::of(9), ..shown(&marker()) };
    let client = Asked {
        clock_error: Duration::from_millis(40),
        longest_window: Duration::from_secs(2),
        ..asked()
    };
    let server = Shown { process: Process { run: 8, ..server.process }, ..server };
    let Verdict::Goes(m, _) = judge(&server, &client) else { panic!("refused") };
    assert_eq!((m.quarantine, m.quarantine_end()), (5_000, NOW + 5_000));
    assert_eq!(m.floor, (NOW + 2 * 40 + 5_000) * 1_000);
}

#[test]
fn a_master_is_closed_only_with_data_that_are_whole_and_old_enough() {
    let closed = |m: Marker, epoch| m.close(&shown(&m), epoch, 600);
    let expected = Marker { handover: Some(Handover::Closed(NOW + 600)), ..marker() };
    let with = |handover| Marker { handover: Some(handover), ..marker() };
    assert_eq!(closed(marker(), Some(6)), Ok(expected));
    assert_eq!(closed(marker(), None), Ok(expected));
    assert_eq!(closed(marker(), Some(5)), Ok(expected), "the Sentinels began at 0 again");
    assert_eq!(closed(with(Handover::Closed(NOW)), Some(6)), Ok(expected));
    assert_eq!(closed(with(Handover::Settling(NOW)), Some(6)), Ok(expected));
    let since = NOW - 3_000;
    assert!(closed(Marker { since, ..marker() }, None).is_ok());
    let evicted = |evicted| Shown { evicted, ..shown(&marker()) };
    let left = Marker { evicted: EVICTED, ..marker() };
    assert!(left.close(&evicted(2), Some(6), 600).is_ok(), "others notice it still");
    let renamed = Shown { replid: ReplicationId::of(9), ..shown(&marker()) };
    let refused = [
        (marker().close(&renamed, Some(6), 600), "earlier data history"),
        (closed(marker(), Some(7)), "earlier data history"),
        (marker().close(&evicted(2), Some(6), 600), "has deleted keys"),
        (closed(Marker { since: since + 1, ..marker() }, None), "quarantine for another 1 ms"),
        (closed(with(Handover::Closed(NOW + 1)), None), "at most 1 ms"),
        (closed(with(Handover::Settling(NOW + 1)), None), "in 1 ms"),
    ];
    for (result, words) in refused {
        let refusal = result.expect_err(words);
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[test]
fn a_handover_takes_the_history_along() {
    let closed = Marker { handover: Some(Handover::Closed(NOW + 2_000)), ..marker() };
    let process = Process { run: 8, ..Process::fresh() };
    let server = Shown { replid: ReplicationId::of(9), process, evicted: 0, ..shown(&closed) };
    let taken = closed.finish(&server, Some(7), 2_000).expect("in time");
    assert_eq!(taken, closed.taken_over(&server, Some(7)));
    let (history, note) = ((taken.history, taken.generation, taken.since), server.note);
    assert_eq!(history, (closed.history, closed.generation, closed.since));
    assert_eq!(taken.losses, closed.losses);
    assert_eq!((taken.epoch, taken.written), (7, NOW));
    assert_eq!((taken.replid, taken.process, taken.evicted), (server.replid, process, 0));
    let evicted = Shown { evicted: 1, ..server };
    assert_eq!(closed.leaving_evictions(&server), closed);
    let left = closed.leaving_evictions(&evicted).finish(&evicted, None, 0).expect("on record");
    assert_eq!(left.evicted, EVICTED, "evictions are left to those who do not allow them");
    let refusal = closed.finish(&evicted, Some(7), 0).expect_err("deleted at the promotion");
    assert!(refusal.contains("has deleted keys"), "{refusal}");
    assert_eq!(taken.settles(NOW), Some(NOW + 3_000));
    assert_eq!(taken.settles(NOW + 3_000), None);
    assert_eq!(closed.taken_over(&server, Some(5)).epoch, 5, "the Sentinels began at 0 again");
    assert_eq!(closed.taken_over(&server, None).epoch, 6);
    let mut client = Asked { epoch: Some(7), ..asked() };
    client.remembers.newest = closed.lineage(note);
    let now = Shown { marker: Some(taken), ..server };
    assert_eq!(judge(&now, &client), Verdict::Goes(taken, Change::default()));
    assert!(closed.finish(&server, Some(7), 2_001).is_err(), "closed for too short a time");
    assert!(closed.finish(&shown(&closed), Some(7), 0).is_err(), "the same server");
    assert!(marker().finish(&server, Some(7), 0).is_err(), "not closed");
    assert!(taken.finish(&shown(&closed), Some(7), 0).is_err(), "settling is not closed");
    assert_eq!(closed.opened(), marker());
    assert_eq!(taken.opened(), Marker { handover: None, ..taken });
}

#[test]
fn each_field_of_a_marker_is_believed_up_to_its_bound() {
    type Case<'a> = (&'a str, u64, &'a dyn Fn(u64) -> Marker);
    const TIME: u64 = 1_790_000_000_000;
    // 2E is a second.
    let latest = TIME + 2_000;
    let quarantine = 30_000;
    let usual = Marker {
        since: TIME - 3_600_000,
        quarantine,
        clock_error: 500_000,
        losses: Losses::default(),
        written: TIME,
        ..marker()
    };
    let losing = |began, to| Marker { losses: lost(0, began, to), ..usual };
    let until = |handover| Marker { handover: Some(handover), ..usual };
    let of: [Case<'_>; 10] = [
        ("since", latest, &|since| Marker { since, ..usual }),
        ("quarantine", 2 * DAY, &|quarantine| Marker { quarantine, ..usual }),
        ("clock_error", DAY * 500, &|clock_error| Marker { clock_error, ..usual }),
        ("floor", (TIME + 3_000) * 1_000, &|floor| Marker { floor, ..usual }),
        ("floor in a quarantine", (TIME + quarantine + 3_000) * 1_000, &|floor| Marker {
            since: TIME,
            floor,
            ..usual
        }),
        ("written", latest, &|written| Marker { written, ..usual }),
        ("began", latest, &|began| losing(began, TIME)),
        ("to", latest + DAY, &|to| losing(TIME, to)),
        ("closed", latest + 600_000, &|till| until(Handover::Closed(till))),
        ("settling", latest + 2 * DAY, &|till| until(Handover::Settling(till))),
    ];
    for (field, bound, with) in of {
        let parsed = |value| Marker::parse(&with(value).to_string(), TIME);
        assert_eq!(parsed(bound), Some(with(bound)), "{field}");
        assert_eq!(parsed(bound + 1), None, "{field}");
    }
    let lengthless = Marker { quarantine: 0, ..usual };
    assert_eq!(Marker::parse(&lengthless.to_string(), TIME), None);
    let new = Marker { since: 0, floor: 0, ..lengthless };
    assert_eq!(Marker::parse(&new.to_string(), TIME), Some(new));
    let exact = |written| Marker { clock_error: 0, written, ..usual };
    let parsed = |m: Marker| Marker::parse(&m.to_string(), TIME);
    assert!(parsed(exact(TIME + 1_000)).is_some() && parsed(exact(TIME + 1_001)).is_none());
}

#[test]
fn what_has_not_the_form_of_a_marker_is_none() {
    let text = Marker { losses: Losses::default(), ..marker() }.to_string();
    assert!(Marker::parse(&text, NOW).is_some());
    for end in 0..text.len() {
        assert_eq!(Marker::parse(&text[..end], NOW), None, "the first {end} characters");
    }
    let loss = " 0000000001000-0000000002000-0000000002000";
    assert!(Marker::parse(&format!("{text}{}", loss.repeat(8)), NOW).is_some());
    let others = [
        format!("{text}{}", loss.repeat(9)),
        format!("{text}x"),
        format!("{text} x"),
        format!("{text}{}", &loss[..loss.len() - 1]),
        format!("{text}{}", loss.replacen("-0", "0-", 1)),
        text.replacen("p1", "p2", 1),
        text.replacen(" n ", " N ", 1),
        text.replacen(" -0", " x0", 1),
        text.replacen("000005", "+00005", 1),
        text.replacen("000005", "00000é", 1),
        text.replacen(' ', "  ", 1),
    ];
    for other in others {
        assert_eq!(Marker::parse(&other, NOW), None, "{other}");
    }
}

fn replication_ids() -> impl Strategy<Value = ReplicationId> {
    any::<(u64, u64, u32)>().prop_map(|(a, b, c)| {
        ReplicationId::parse(&format!("{a:016x}{b:016x}{c:08x}")).expect("40 digits")
    })
}

fn markers(now: u64) -> impl Strategy<Value = Marker> {
    let inputs = proptest::option::of(0..9_999_999_999_999_999_u64);
    let process = (any::<u64>(), inputs, 0..1_000_000_u64);
    let process =
        process.prop_map(|(run, inputs, calls)| Process { run, inputs, calls, was_reset: false });
    let losses = (0..10_000_000_000_000_u64, 0..=now, 0..=now + DAY);
    let losses = losses.prop_map(|(from, began, to)| Loss { from, began, to });
    let losses = proptest::collection::vec(losses, 0..=8);
    let handover = prop_oneof![
        Just(None::<Handover>),
        (0..=now + 600_000).prop_map(|till| Some(Handover::Closed(till))),
        (0..=now + 2 * DAY).prop_map(|till| Some(Handover::Settling(till))),
    ];
    let began = prop_oneof![Just(Began::Known), Just(Began::Empty), Just(Began::Lost)];
    let names = (any::<(u64, u64, u64)>(), 0..1_000_000_u64, replication_ids());
    let times = (0..=now, 1..=2 * DAY, 0..=now * 1_000, 0..=now, 0..=DAY * 500);
    let counts = (0..1_000_000_000_000_u64, 0..10_000_000_000_000_000_u64);
    (names, times, counts, process, losses, handover, began).prop_map(|all| {
        let (names, times, counts, process, losses, handover, began) = all;
        let ((deployment, vote, history), generation, replid) = names;
        let ((since, quarantine, floor, written, clock_error), (evicted, epoch)) = (times, counts);
        let losses = losses.into_iter().fold(Losses::default(), Losses::and);
        let whole = Marker { generation, since, process, quarantine, floor, written, ..marker() };
        let whole = Marker { evicted, epoch, clock_error, began, handover, losses, ..whole };
        Marker { deployment, vote, history, replid, ..whole }
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_marker_is_read_as_it_was_written(m in markers(1_790_000_000_000)) {
        prop_assert_eq!(Marker::parse(&m.to_string(), 1_790_000_000_000), Some(m));
    }

    #[test]
    fn a_note_is_read_as_it_was_written(
        history in any::<u64>(),
        generation in 0..1_000_000_u64,
        seq in 0..1_000_000_000_000_u64,
        micros in 0..10_000_000_000_000_000_u64,
    ) {
        let note = Note { history, generation, seq, micros };
        let text = note.to_string();
        prop_assert_eq!(text.len(), NOTE);
        prop_assert_eq!(Note::parse(&text), Some(note));
        prop_assert_eq!(Note::parse(&format!("{text} 0000000000000")), Some(note));
        prop_assert_eq!(Note::parse(&format!("{text}+0000000000000")), Some(note));
        for end in 0..text.len() {
            prop_assert_eq!(Note::parse(&text[..end]), None);
        }
    }

    #[test]
    fn merged_losses_cover_each_that_was_added(
        spans in proptest::collection::vec((0..5_000_u64, 0..900_u64, 1..900_u64), 0..24),
    ) {
        let (mut all, mut began) = (Vec::new(), 5_000);
        for (before, window, gap) in spans {
            began += gap;
            all.push(Loss { from: began.saturating_sub(before), began, to: began + window });
        }
        let merged = all.iter().copied().fold(Losses::default(), Losses::and);
        prop_assert_eq!(merged.iter().count(), all.len().min(8));
        for one in all {
            prop_assert!(merged.iter().any(|m| m.from <= one.from && one.to <= m.to), "{one:?}");
        }
    }
}
