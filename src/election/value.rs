//! The metadata that a leader publishes. They may stay a moment longer than the lock, so a reader
//! accepts them only if a majority reports the same owner as the holder.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::env::{Env as _, SystemEnv};
use crate::error::ConfigError;
use crate::lock::digest;
use crate::op::Holder;
use crate::token::{FencingToken, OwnerToken};

/// Longest metadata of a leader, in bytes as JSON: 64 KiB. Each renewal sends the metadata to every
/// node.
pub const MAX_METADATA: usize = 64 * 1024;

/// All fields but the value, in bytes as JSON.
const FRAME_MAX: usize = 1024;

/// A leader, as read from the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Term of the leadership, which is also the fencing token. It is larger than the term of every
    /// earlier leader.
    pub term: FencingToken,
    /// Value that the leader proclaimed last.
    pub value: String,
    /// Number of this value within the term. The first value has number 1.
    pub number: u64,
    /// Start of the leadership, by the leader's own wall clock.
    pub since: SystemTime,
    /// Time until the leader's lease ends on the nodes, including the
    /// [lock-delay](crate::ElectionBuilder::drain). A renewal extends this time. No other process
    /// leads before its end, unless the leader resigns.
    pub remaining: Duration,
    /// The process that leads.
    pub identity: Identity,
    /// Time that the leader needs to end its work after a loss of the leadership. It is zero if the
    /// leader declared no drain time.
    pub drain: Duration,
    /// [Priority](crate::ElectionBuilder::priority) of the leader.
    pub priority: u8,
}

/// The identity of a process, shown as `host/pid/boot`.
///
/// Host and process id can repeat after a restart. The boot number distinguishes such runs, because
/// each run of a program draws a new random number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Identity {
    /// Name of the host; empty if the host has none.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Random number of this run of the process. Zero if the process uses a version of palisade
    /// without boot numbers.
    pub boot: u64,
}

impl Identity {
    /// Returns the identity of this process.
    pub fn here() -> Self {
        static BOOT: OnceLock<u64> = OnceLock::new();
        // Never zero, and at most 53 bits, so every JSON parser reads it exactly.
        let boot = BOOT.get_or_init(|| (SystemEnv.random() as u64 >> 11).max(1));
        Self { host: host().to_string(), pid: std::process::id(), boot: *boot }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:x}", self.host, self.pid, self.boot)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) value: Arc<str>,
    pub(crate) number: u64,
    term: FencingToken,
    owner: String,
    since: u64,
    host: Arc<str>,
    pid: u32,
    #[serde(default)]
    boot: u64,
    #[serde(default)]
    drain_ms: u64,
    #[serde(default)]
    priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) candidate: Option<String>,
}

impl Metadata {
    pub(crate) fn first(
        value: &str,
        (owner, term): (OwnerToken, FencingToken),
        (wall_micros, drain): (u64, Duration),
    ) -> Self {
        let here = Identity::here();
        Self {
            value: value.into(),
            number: 1,
            term,
            owner: digest(owner),
            since: wall_micros,
            host: here.host.into(),
            pid: here.pid,
            boot: here.boot,
            drain_ms: u64::try_from(drain.as_millis()).unwrap_or(u64::MAX),
            priority: 0,
            candidate: None,
        }
    }

    pub(crate) fn of(self, priority: u8, candidate: Option<String>) -> Self {
        Self { priority, candidate, ..self }
    }

    pub(crate) fn publish(&mut self, value: &str) {
        self.value = value.into();
        self.number += 1;
    }

    pub(crate) fn encode(&self) -> Arc<[u8]> {
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    /// With the number of the value.
    pub(crate) fn read(owner: OwnerToken, holder: &Holder) -> Option<(u64, Self)> {
        let metadata: Self = serde_json::from_slice(holder.meta.as_ref()?).ok()?;
        let sound = metadata.number > 0 && metadata.term.get() < 1 << 53;
        (sound && metadata.owner == digest(owner)).then_some((metadata.number, metadata))
    }

    pub(crate) fn leader(self, remaining: Duration) -> Leader {
        Leader {
            term: self.term,
            value: self.value.to_string(),
            number: self.number,
            since: UNIX_EPOCH + Duration::from_micros(self.since),
            remaining,
            identity: Identity { host: self.host.to_string(), pid: self.pid, boot: self.boot },
            drain: Duration::from_millis(self.drain_ms),
            priority: self.priority,
        }
    }
}

pub(crate) fn check_value(value: &str) -> Result<(), ConfigError> {
    let limit = MAX_METADATA - FRAME_MAX;
    // The value is sent as JSON, so its escape sequences count.
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

    const TTL: Duration = Duration::from_secs(2);

    fn holder(meta: &[u8]) -> Holder {
        Holder { owner: None, fence: 9, remaining: None, meta: Some(meta.into()) }
    }

    #[test]
    fn metadata_is_read_only_with_its_owner() {
        let (me, other) = (OwnerToken::from_random(1), OwnerToken::from_random(2));
        let mut metadata =
            Metadata::first("a \"b\"\n", (me, FencingToken::new(7)), (1_000_000, TTL));
        metadata.publish("c");
        let kept = holder(&metadata.encode());
        assert!(!String::from_utf8_lossy(&metadata.encode()).contains(me.as_str()));
        assert!(Metadata::read(other, &kept).is_none());
        let (number, read) = Metadata::read(me, &kept).unwrap();
        let leader = read.leader(Duration::from_secs(3));
        assert_eq!((number, leader.number, leader.value.as_str()), (2, 2, "c"));
        assert_eq!(leader.term.get(), 7);
        assert_eq!(leader.since, UNIX_EPOCH + Duration::from_secs(1));
        assert_eq!((leader.drain, leader.identity), (TTL, Identity::here()));
        assert!(Metadata::read(me, &holder(b"{")).is_none());
    }

    #[test]
    fn the_longest_value_fits_and_one_more_byte_is_refused() {
        let longest = "x".repeat(MAX_METADATA - FRAME_MAX - 2);
        check_value(&longest).unwrap();
        let owner = OwnerToken::from_random(u128::MAX);
        let mut metadata = Metadata::first(
            &longest,
            (owner, FencingToken::new(1 << 52)),
            (u64::MAX, Duration::MAX),
        );
        metadata = metadata.of(u8::MAX, Some(digest(owner)));
        metadata.number = u64::MAX - 1;
        metadata.host = "\u{10348}".repeat(64).into();
        metadata.publish(&longest);
        assert!(metadata.encode().len() <= MAX_METADATA);
        assert!(check_value(&format!("{longest}x")).is_err());
        let escaped = "\u{1}".repeat(MAX_METADATA / 5);
        assert!(check_value(&escaped).unwrap_err().to_string().contains("bytes as JSON"));
    }
}
