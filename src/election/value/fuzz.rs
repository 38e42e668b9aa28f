//! No bytes cause a panic, and only valid metadata of the lock's owner name a leader.

use proptest::prelude::*;

use super::*;
use crate::fuzzing::{any_bytes, config, corpus};

fn beside(meta: &[u8]) -> Holder {
    Holder { owner: None, fence: 9, remaining: None, meta: Some(meta.into()) }
}

fn owner() -> OwnerToken {
    OwnerToken::from_random(7)
}

#[test]
fn fuzz_corpus_names_no_leader() {
    for (line, json) in corpus(include_str!("../../../tests/corpus/metadata.txt")) {
        let mine = json.as_str().unwrap().replace("OWNER", &digest(owner()));
        let got = Metadata::read(owner(), &beside(mine.as_bytes()));
        assert!(got.is_none(), "metadata.txt:{line}: {got:?}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_metadata_is_read_as_it_was_published(
        (value, more) in (any::<String>(), any::<String>()),
        (term, since) in (0_u64..1 << 53, any::<u64>()),
        who in any::<u128>(),
    ) {
        let me = OwnerToken::from_random(who);
        let begun = (since, Duration::ZERO);
        let mut metadata = Metadata::first(&value, (me, FencingToken::new(term)), begun);
        metadata.publish(&more);
        let (number, read) = Metadata::read(me, &beside(&metadata.encode())).unwrap();
        let leader = read.leader(Duration::MAX);
        prop_assert_eq!((number, leader.number, leader.value), (2, 2, more));
        prop_assert_eq!(leader.term.get(), term);
        prop_assert_eq!(leader.since, UNIX_EPOCH + Duration::from_micros(since));
        let other = OwnerToken::from_random(who ^ 1);
        prop_assert!(Metadata::read(other, &beside(&metadata.encode())).is_none());
    }

    #[test]
    fn fuzz_damaged_metadata_is_nothing_or_sound(
        (at, bit) in (any::<proptest::sample::Index>(), 0_u8..8),
        (cut, junk) in (any::<proptest::sample::Index>(), any_bytes()),
        how in 0_u8..4,
    ) {
        let since = (1_000_000, Duration::ZERO);
        let metadata = Metadata::first("v", (owner(), FencingToken::new(7)), since);
        let whole = metadata.encode();
        let mut meta = whole.to_vec();
        match how {
            0 => meta[at.index(whole.len())] ^= 1 << bit,
            1 => meta.truncate(cut.index(whole.len())),
            2 => meta.extend(&junk),
            _ => meta = junk,
        }
        match Metadata::read(owner(), &beside(&meta)) {
            Some((number, metadata)) => {
                let leader = metadata.leader(Duration::ZERO);
                prop_assert!(how == 0 || meta.starts_with(&whole), "a part of metadata was read");
                prop_assert!(number > 0 && leader.term.get() < 1 << 53);
            }
            // White space after whole metadata changes nothing.
            None => prop_assert!(meta != *whole),
        }
    }
}
