//! The words a leader leaves on the nodes: what it proclaims, and enough to know whose words they
//! are.
//!
//! On a node words lie beside the lock, under a key of their own, and could outlive it by an
//! instant. They therefore carry the digest of their owner: words are shown only together with the
//! owner that a majority names, never next to a later one.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::lock::digest;
use crate::op::Holder;
use crate::token::{FencingToken, OwnerToken};

/// Longest words, as JSON: 64 KiB. Each renewal carries them to every node.
pub const WORDS_MAX: usize = 64 * 1024;

/// What all fields but the value take at most.
const FRAME_MAX: usize = 1024;

/// A leader, as the nodes tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Orders the leaders: larger than every earlier one's. The leader's fencing token.
    pub term: FencingToken,
    /// What it proclaimed last.
    pub value: String,
    /// The number of this value in its term, from 1.
    pub number: u64,
    /// Since when it leads, by its own wall clock.
    pub since: SystemTime,
    /// Its lease on the nodes, unless it renews: no one else leads before this has passed, if it
    /// does not resign.
    pub remaining: Duration,
    /// Its host's name; empty if it has none.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
}

/// The same as it lies on the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Words {
    pub(crate) value: Arc<str>,
    pub(crate) number: u64,
    term: FencingToken,
    owner: String,
    since: u64,
    host: Arc<str>,
    pid: u32,
}

impl Words {
    /// A new leader's first.
    pub(crate) fn first(
        value: &str,
        (owner, term): (OwnerToken, FencingToken),
        wall_micros: u64,
    ) -> Self {
        Self {
            value: value.into(),
            number: 1,
            term,
            owner: digest(owner),
            since: wall_micros,
            host: host(),
            pid: std::process::id(),
        }
    }

    /// The next of the same leader.
    pub(crate) fn say(&mut self, value: &str) {
        self.value = value.into();
        self.number += 1;
    }

    pub(crate) fn encode(&self) -> Arc<[u8]> {
        // Strings and numbers: there is nothing in it that JSON cannot hold.
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    /// The owner's own words on a node, if it has said any there. Words are numbered from 1, and a
    /// term is a fencing token.
    pub(crate) fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let words: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        let sound = words.number > 0 && words.term.get() < 1 << 53;
        (sound && words.owner == digest(owner)).then_some((words.number, words))
    }

    pub(crate) fn leader(self, remaining: Duration) -> Leader {
        Leader {
            term: self.term,
            value: self.value.to_string(),
            number: self.number,
            since: UNIX_EPOCH + Duration::from_micros(self.since),
            remaining,
            host: self.host.to_string(),
            pid: self.pid,
        }
    }
}

/// Refuses a value whose words would be too long.
pub(crate) fn check_value(value: &str) -> Result<(), ConfigError> {
    let limit = WORDS_MAX - FRAME_MAX;
    // Escapes count: it is the JSON that travels.
    let len = if value.len() > limit {
        value.len()
    } else {
        serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
    };
    if len <= limit {
        return Ok(());
    }
    let rule = format!("at most {limit} bytes as JSON; proclaim where to find more, not all of it");
    Err(ConfigError::new("value", format!("{len} bytes"), rule))
}

fn host() -> Arc<str> {
    static HOST: OnceLock<Arc<str>> = OnceLock::new();
    let read = || {
        let uname = rustix::system::uname();
        let name = uname.nodename().to_string_lossy();
        name.chars().filter(|c| !c.is_control()).take(64).collect::<String>().into()
    };
    Arc::clone(HOST.get_or_init(read))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(meta: &[u8]) -> Holder {
        Holder { owner: None, fence: 9, remaining: None, meta: Some(meta.into()) }
    }

    #[test]
    fn words_are_read_only_by_their_owner() {
        let (me, other) = (OwnerToken::from_random(1), OwnerToken::from_random(2));
        let mut words = Words::first("a \"b\"\n", (me, FencingToken::new(7)), 1_000_000);
        words.say("c");
        let kept = holder(&words.encode());
        assert!(!String::from_utf8_lossy(&words.encode()).contains(me.as_str()));
        assert!(Words::read(other, &kept).is_none());
        let (number, read) = Words::read(me, &kept).unwrap();
        let leader = read.leader(Duration::from_secs(3));
        assert_eq!((number, leader.number, leader.value.as_str()), (2, 2, "c"));
        assert_eq!(leader.term.get(), 7);
        assert_eq!(leader.since, UNIX_EPOCH + Duration::from_secs(1));
        assert!(Words::read(me, &holder(b"{")).is_none());
    }

    #[test]
    fn the_longest_value_fits_and_one_more_byte_is_refused() {
        let longest = "x".repeat(WORDS_MAX - FRAME_MAX - 2);
        check_value(&longest).unwrap();
        let owner = OwnerToken::from_random(u128::MAX);
        let mut words = Words::first(&longest, (owner, FencingToken::new(1 << 52)), u64::MAX);
        words.number = u64::MAX - 1;
        words.host = "\u{10348}".repeat(64).into();
        words.say(&longest);
        assert!(words.encode().len() <= WORDS_MAX);
        assert!(check_value(&format!("{longest}x")).is_err());
        let escaped = "\u{1}".repeat(WORDS_MAX / 5);
        assert!(check_value(&escaped).unwrap_err().to_string().contains("bytes as JSON"));
    }
}
