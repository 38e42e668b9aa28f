//! Histories of views, and the owners that follow from them.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// `a1=0-9 b2=10-19`: name, epoch and slots of each master, as `of` sees it. After a `!` it has
/// failed, after a `>` the slot with which its range begins is migrating, and `-` is no slots.
fn view(of: &str, text: &str) -> View {
    let mut migrating = Vec::new();
    let mut member = |word: &str| {
        let (name, slots) = word.split_once('=').unwrap();
        let (id, epoch) = name.split_at(1);
        let port = 7_000 + u16::from(id.as_bytes()[0]);
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap();
            (first.parse().unwrap(), last.parse().unwrap())
        };
        let slots = slots.trim_end_matches(['!', '>']);
        let slots: Vec<(u16, u16)> =
            if slots == "-" { Vec::new() } else { slots.split('+').map(range).collect() };
        if word.ends_with('>') && id == of {
            migrating.push(slots[0].0);
        }
        Member {
            id: id.into(),
            at: Address::new("h", port),
            epoch: epoch.parse().unwrap(),
            master: None,
            slots,
            has_failed: word.ends_with('!'),
        }
    };
    let members = text.split(' ').map(&mut member).collect();
    View { of: of.into(), members, migrating }
}

/// `ab`: these two see it so.
fn views(all: &[(&str, &str)]) -> Vec<View> {
    let of = |(who, text): &(&str, &str)| -> Vec<View> {
        who.chars().map(|of| view(&of.to_string(), text)).collect()
    };
    all.iter().flat_map(of).collect()
}

fn hear(map: &mut Map, ms: u64, all: &[(&str, &str)]) {
    let (asked, heard) = (at(ms), at(ms));
    let views = &views(all);
    map.decide(Round { views, asked, heard, unbroken: MS, ..Round::default() });
}

/// Owner, epoch and time of the last word.
fn owner(map: &Map, slot: u16) -> Option<String> {
    map.word(slot)
        .ok()
        .map(|word| format!("{}{}@{}", word.owner, word.epoch, word.asked.as_nanos() / 1_000_000))
}

fn trouble(map: &Map) -> String {
    map.word(16_383).unwrap_err().detail().to_owned()
}

const ALL: &str = "a1=0-9 b2=10-19 c3=20-29";

#[test]
fn a_majority_of_the_masters_names_an_owner_with_its_epoch() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("a", ALL)]);
    assert_eq!(owner(&map, 0), None, "one of three");
    assert!(trouble(&map).contains("1 of the cluster's 3 masters"));
    hear(&mut map, 2, &[("aa", ALL)]);
    assert_eq!(owner(&map, 0), None, "the same one twice");
    hear(&mut map, 3, &[("ab", ALL)]);
    assert_eq!(owner(&map, 9).as_deref(), Some("a1@3"));
    assert_eq!(map.unowned(at(0)), [(30, 16_383)]);
    assert!(trouble(&map).contains("no majority of the masters names an owner"));
    // `c` took a slot, and only it knows.
    let claims = "a1=0-8 b2=10-19 c4=9-29";
    hear(&mut map, 4, &[("a", ALL), ("c", claims)]);
    assert_eq!(owner(&map, 9).as_deref(), Some("a1@3"), "its word gets older");
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@4"));
    hear(&mut map, 5, &[("bc", claims)]);
    assert_eq!(owner(&map, 9).as_deref(), Some("c4@5"));
    // Two that are behind do not bring it back.
    hear(&mut map, 6, &[("ab", ALL)]);
    assert_eq!(owner(&map, 9).as_deref(), Some("c4@5"));
    let doubt = map.doubt(9).detail().to_owned();
    assert!(doubt.contains("names a with the lower or equal epoch 1"), "{doubt}");
    hear(&mut map, 7, &[("ab", "a5=0-9 b2=10-19 c4=20-29")]);
    assert_eq!(owner(&map, 9).as_deref(), Some("a5@7"));
}

/// One side of a cut replaces a master by `x`, and both sides have two of their three masters.
#[test]
fn a_takeover_in_a_minority_is_not_followed() {
    let took = "x9=0-9 b2=10-19 c3=20-29";
    let [mut left, mut right] = [(); 2].map(|()| Map::default());
    for map in [&mut left, &mut right] {
        hear(map, 1, &[("abc", ALL)]);
    }
    hear(&mut left, 2, &[("ab", ALL)]);
    hear(&mut right, 2, &[("cx", took)]);
    assert_eq!(owner(&left, 0).as_deref(), Some("a1@2"));
    for slot in [0, 10, 20] {
        assert!(owner(&right, slot).unwrap().ends_with("@1"), "one of the three that are known");
    }
    assert!(trouble(&right).contains("1 of the cluster's 3 masters answered"), "it says why");
    // After the cut.
    hear(&mut right, 3, &[("bcx", took)]);
    assert_eq!(owner(&right, 0).as_deref(), Some("x9@3"));
    // Then the three are `x`, `b` and `c`.
    hear(&mut right, 4, &[("xb", took)]);
    assert_eq!(owner(&right, 20).as_deref(), Some("c3@4"));
    hear(&mut right, 5, &[("ab", ALL)]);
    assert_eq!(owner(&right, 10).as_deref(), Some("b2@4"), "`a` is no master any more");
}

#[test]
fn masters_that_come_and_go_are_followed_by_a_majority_of_both() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("abc", ALL)]);
    let five = "a1=0-4 b2=10-14 c3=20-29 d4=5-9 e5=15-19";
    hear(&mut map, 2, &[("cde", five)]);
    assert_eq!(owner(&map, 5).as_deref(), Some("a1@1"), "three of five, and one of three");
    hear(&mut map, 3, &[("acd", five)]);
    assert_eq!(owner(&map, 5).as_deref(), Some("d4@3"));
    // Who has no slots left answers as long as it was one of the five.
    let three = "a1=- b2=- c6=20-29+0-4+10-14 d4=5-9 e5=15-19";
    hear(&mut map, 4, &[("de", three)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@3"), "two of five");
    hear(&mut map, 5, &[("ade", three)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("c6@5"));
    hear(&mut map, 6, &[("ab", five), ("de", three)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("c6@5"), "four of five have to show the same");
    hear(&mut map, 7, &[("de", three)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("c6@7"));
}

#[test]
fn a_master_that_only_the_others_know_counts() {
    let mut map = Map::default();
    let more = format!("{ALL} d4=30-39 e5=40-49");
    hear(&mut map, 1, &[("ab", ALL)]);
    hear(&mut map, 2, &[("a", ALL), ("b", &more)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@1"), "two of five");
    hear(&mut map, 3, &[("a", ALL), ("bd", &more)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@1"), "only `b` knows `d`");
    hear(&mut map, 4, &[("a", ALL), ("bcd", &more)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@4"));
}

/// An address leads to a server of another cluster, which names its own.
#[test]
fn servers_of_another_cluster_have_no_say() {
    let other = "x7=0-9 y8=10-19 z9=20-29";
    let mut map = Map::default();
    hear(&mut map, 1, &[("ab", ALL), ("x", other)]);
    assert_eq!(owner(&map, 0), None);
    let why = trouble(&map);
    assert!(why.contains("two clusters") && why.contains("x (h:7120)"), "{why}");
    hear(&mut map, 2, &[("ab", ALL)]);
    assert!(map.named(&views(&[("a", ALL), ("x", other)])).iter().all(|at| at.port() < 7_100));
    hear(&mut map, 3, &[("ab", ALL), ("xyz", other)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@3"));
    assert_eq!(map.masters().count(), 3);
    hear(&mut map, 4, &[("xyz", other)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@3"));
    // One that was forgotten, and still shows six.
    let six = format!("{ALL} f4=30-39 g5=40-49 h6=50-59");
    hear(&mut map, 5, &[("ab", ALL), ("f", &six)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@5"));
}

#[test]
fn who_has_lost_the_owner_does_not_name_it() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("abc", ALL)]);
    let lost = "a1=0-9! b2=10-19 c3=20-29";
    hear(&mut map, 2, &[("bc", lost)]);
    assert_eq!([0, 10].map(|slot| owner(&map, slot).unwrap()), ["a1@1", "b2@2"]);
    hear(&mut map, 3, &[("ab", ALL), ("c", lost)]);
    assert_eq!(owner(&map, 0).as_deref(), Some("a1@3"));
}

#[test]
fn an_owner_is_watched_as_long_as_the_words_follow_each_other() {
    let mut map = Map::default();
    let mut since = |text: &str, ms| {
        hear(&mut map, ms, &[("ab", text)]);
        map.word(0).unwrap().since
    };
    let later = "a4=0-9 b2=10-19 c3=20-29";
    assert_eq!([since(ALL, 1), since(ALL, 2), since(later, 3)], [1, 1, 1]);
    assert_eq!(since(later, 5), 4, "nobody looked in between");
    assert_eq!(since("a4=1-9 b5=0-19 c3=20-29", 6), 5);
    assert_eq!(since("a6=0-9 b5=10-19 c3=20-29", 7), 6);
}

/// Its owner says so, and nobody else.
#[test]
fn a_slot_that_was_open_is_disturbed_until_it_has_another_owner() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("abc", ALL)]);
    let open = "a1=0-9> b2=10-19 c3=20-29";
    hear(&mut map, 2, &[("bc", open)]);
    assert_eq!(map.word(0).unwrap().disturbed, None);
    hear(&mut map, 3, &[("a", open)]);
    hear(&mut map, 4, &[("abc", "a7=0-9 b2=10-19 c3=20-29")]);
    let disturbed = |map: &Map, slot| map.word(slot).unwrap().disturbed;
    assert_eq!([0, 1].map(|slot| disturbed(&map, slot)), [Some(at(3)), None]);
    let mut new = Map::default();
    hear(&mut new, 1, &[("abc", open)]);
    assert_eq!(disturbed(&new, 0), Some(at(1)), "with the first words");
    map.disturb(1, "b", at(5));
    assert_eq!(disturbed(&map, 1), None, "it is not the owner");
    map.disturb(1, "a", at(5));
    hear(&mut map, 6, &[("abc", "a7=1-9 b8=0-0+10-19 c3=20-29")]);
    assert_eq!([0, 1].map(|slot| disturbed(&map, slot)), [None, Some(at(5))]);
}

/// c was replaced by d and hears nothing of it, and a by e.
#[test]
fn one_server_with_an_old_view_prevents_nothing() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("abc", "a1=0-9 b2=10-19 c3=20-29")]);
    let old = ("c", "a1=0-9 b2=10-19 c3=20-29");
    hear(&mut map, 2, &[("abd", "a1=0-9 b2=10-19 d4=20-29 c3=-"), old]);
    for round in 3..6 {
        hear(&mut map, round, &[("abde", "e5=0-9 b2=10-19 d4=20-29 a1=- c3=-"), old]);
        for slot in [0, 10, 20] {
            assert_eq!(map.word(slot).unwrap().asked, at(round), "slot {slot}, round {round}");
        }
    }
}

#[test]
fn a_new_program_waits_for_half_of_the_addresses_in_the_settings() {
    let mut map = Map::default();
    let views = &views(&[("abc", ALL)]);
    map.decide(Round { views, lacks_seeds: true, ..Round::default() });
    assert!(trouble(&map).contains("fewer than half of the addresses"));
    map.decide(Round { views, ..Round::default() });
    map.decide(Round { views, lacks_seeds: true, ..Round::default() });
    assert!(map.word(0).is_ok());
}

#[test]
fn a_cluster_with_one_master_is_refused() {
    let mut map = Map::default();
    hear(&mut map, 1, &[("a", "a1=0-9")]);
    assert!(trouble(&map).contains("use three masters"));
    hear(&mut map, 2, &[("r", ALL)]);
    assert!(trouble(&map).contains("0 of the cluster's 3 masters answered"));
    hear(&mut map, 3, &[("a", "a1=-")]);
    assert!(trouble(&map).contains("no server of the cluster has slots"));
}

#[test]
fn the_slots_of_a_master_are_shown_as_ranges() {
    let mut map = Map::default();
    hear(&mut map, 3, &[("ab", ALL)]);
    assert_eq!(map.slots_of(&"b".into()), [(10, 19)]);
    assert_eq!(map.unowned(at(4)), [(0, 16_383)], "all words are older");
}

/// Also one whose address nobody knows.
#[test]
fn every_replica_counts() {
    let mut all = views(&[("ab", ALL)]);
    for (id, at) in [("r", Address::new("h", 1)), ("s", None)] {
        let (id, master) = (id.into(), Some("a".into()));
        let replica = Member { id, at, epoch: 1, master, slots: Vec::new(), has_failed: false };
        all[1].members.push(replica);
    }
    let mut map = Map::default();
    map.decide(Round { views: &all, ..Round::default() });
    let known = map.replicas(&"a".into());
    assert_eq!((known.count, known.named.len()), (2, 1));
}
