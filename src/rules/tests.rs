//! Words that the tables of all rules share.

use std::sync::Arc;
use std::time::Duration;

use super::header::Header;
use crate::op::{Began, Facts, Lineage, Loss, Terms};
use crate::token::OwnerToken;

/// The node's clock in ms.
pub(super) const NOW: u64 = 1_000;

pub(super) fn num(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

pub(super) fn ms(text: &str) -> Duration {
    Duration::from_millis(num(text))
}

pub(crate) fn owner(text: &str) -> OwnerToken {
    assert_eq!(text.len(), 1, "no word and no owner: {text}");
    OwnerToken::from_random(u128::from(text.as_bytes()[0]))
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn header(words: &str) -> Header {
    let facts = Facts {
        node_micros: NOW * 1_000,
        history_id: 2,
        replication: 4,
        lineage: Lineage::default(),
        since: 0,
        identity: "node".into(),
        quarantine: Duration::ZERO,
        quarantine_len: Duration::ZERO,
        quarantine_asked: Duration::ZERO,
        clock_error: Duration::ZERO,
        clock_error_asked: Duration::ZERO,
        quarantine_raised: false,
        new_history: false,
        renamed: false,
        refuted: false,
        marker_missing: false,
        began: Began::Known,
        losses: Arc::from([]),
    };
    let terms =
        Terms { max_ttl: Duration::from_millis(300), clock_error: Duration::from_millis(5) };
    let (now, settles_till) = (NOW * 1_000_000, 0);
    let mut h = Header {
        facts,
        now,
        floor: 0,
        late: false,
        settling: false,
        settles_till,
        terms,
        is_young: false,
    };
    for word in words.split_whitespace() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("since", at) => h.facts.since = num(at),
            ("floor", token) => h.floor = num(token),
            ("quarantine", rest) => h.facts.quarantine = ms(rest),
            ("lost-until", at) => h.facts.losses = Arc::from([Loss::between(0, num(at))]),
            ("empty", _) => h.facts.began = Began::Empty,
            ("settling", _) => h.settling = true,
            _ => panic!("unknown word {word}"),
        }
    }
    h
}
