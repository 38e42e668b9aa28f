//! The list of an election's candidates (election 11).
//!
//! A candidate that waits writes its entry on the nodes, and the same request reads the other
//! entries. Who leads does not depend on the list: candidates delay their attempts by it
//! (`priority`), and people read it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::Election;
use super::error::LeaderError;
use super::priority::{Rival, hold_back};
use super::value::{Identity, Leader};
use crate::config::renew_every;
use crate::lock::digest;
use crate::op::{Enlist, MAX_ENTRY};
use crate::token::{FencingToken, OwnerToken};

/// Longest value that the list contains, in bytes as JSON. A longer value is left out.
const VALUE_MAX: usize = 256;

/// A process that takes part in an election; see [`Election::candidates`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The process that takes part.
    pub identity: Identity,
    /// Term in which the process leads; `None` if it does not lead.
    pub term: Option<FencingToken>,
    /// Time since which the process leads or, if it does not lead, campaigns; by its own wall
    /// clock.
    pub since: SystemTime,
    /// [Priority](super::ElectionBuilder::priority) of the process.
    pub priority: u8,
    /// False if the process does not attempt to lead ([`Election::set_eligible`]).
    pub eligible: bool,
    /// Value that the leader proclaimed, or with which a candidate campaigns. `None` if a
    /// candidate's value is too long for the list (256 bytes as JSON).
    pub value: Option<String>,
    /// Time until the nodes drop the candidate's entry or the leader's lock, unless it is renewed.
    pub remaining: Duration,
}

impl Election {
    /// Returns the processes that take part. The leader comes first. Then come the candidates that
    /// wait, in the order in which they are preferred: by priority, then by the start of their
    /// campaigns. The processes that are not eligible come last.
    ///
    /// The list is for people and dashboards, and has limits. It is merged from the answers of a
    /// majority of the nodes, which do not answer at the same time, and is as old as these answers.
    /// A candidate is listed from its first refused attempt on, or from the start of its campaign
    /// if it has a priority or is not eligible. It stays listed for up to its ttl after it has
    /// died. At most 64 candidates are listed in one election; a candidate that finds no room
    /// campaigns unlisted. Times are those of the candidates' own wall clocks. The first candidate
    /// that waits need not be the next leader. Only the leader and its [term](Candidate::term) are
    /// as certain as [`leader`](Self::leader) is.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub async fn candidates(&self) -> Result<Vec<Candidate>, LeaderError> {
        let closed = || LeaderError::Closed(self.resource());
        let _operation = self.core.closing.enter().ok_or_else(closed)?;
        let reader = OwnerToken::from_random(self.core.env.random());
        let (leads, listed) = tokio::join!(
            self.sight(false),
            self.core.enlist(self.entry(reader, None), Entry::read)
        );
        let listed = listed.map_err(|outcomes| {
            LeaderError::NoQuorum(self.core.no_quorum(outcomes).of(self.resource()))
        })?;
        let (mut all, mut seat) = (Vec::new(), None);
        if let Some((metadata, remaining)) = leads? {
            seat.clone_from(&metadata.candidate);
            all.push(Candidate::leads(metadata.leader(remaining)));
        }
        // A leader removes its candidate's entry only after it has won, so the entry may still be
        // there.
        let waits = listed.into_iter().filter(|c| seat.as_ref() != Some(&digest(c.owner)));
        all.extend(waits.map(|c| c.content.candidate(c.remaining)));
        all.sort_by_key(Candidate::rank);
        Ok(all)
    }

    /// Returns true if this process attempts to lead. Clones of this election share the setting.
    pub fn is_eligible(&self) -> bool {
        self.course.is_eligible()
    }

    /// Sets whether this process attempts to lead from now on. A waiting campaign then begins to
    /// attempt, or stops attempting and stays listed. A leader goes on leading;
    /// [`resign`](super::Leadership::resign) ends its term.
    pub fn set_eligible(&self, eligible: bool) {
        self.course.set_eligible(eligible);
    }

    fn entry(&self, owner: OwnerToken, entry: Option<Arc<[u8]>>) -> Enlist {
        Enlist { key: self.keys.candidates(), owner, ttl: self.ttl, entry, news: false }
    }
}

impl Candidate {
    fn leads(leader: Leader) -> Self {
        Self {
            identity: leader.identity,
            term: Some(leader.term),
            since: leader.since,
            priority: leader.priority,
            eligible: true,
            value: Some(leader.value),
            remaining: leader.remaining,
        }
    }

    /// Returns the key by which the list is sorted: the process that sorts first is listed first.
    fn rank(&self) -> impl Ord + use<> {
        let Identity { host, pid, boot } = self.identity.clone();
        let last = std::cmp::Reverse(self.priority);
        (self.term.is_none(), !self.eligible, last, self.since, host, pid, boot)
    }
}

/// The entry of a candidate, in the form stored on the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    number: u64,
    #[serde(default)]
    value: Option<Arc<str>>,
    since: u64,
    host: String,
    pid: u32,
    boot: u64,
    priority: u8,
    eligible: bool,
}

impl Entry {
    fn read(text: &[u8]) -> Option<(u64, Self)> {
        let entry: Self = serde_json::from_slice(text).ok()?;
        Some((entry.number, entry))
    }

    fn encode(&self) -> Arc<[u8]> {
        // The entry contains only strings and numbers, which JSON can always represent.
        serde_json::to_vec(self).expect("strings and numbers are JSON").into()
    }

    fn candidate(self, remaining: Duration) -> Candidate {
        let Self { host, pid, boot, .. } = self;
        Candidate {
            identity: Identity { host, pid, boot },
            term: None,
            since: UNIX_EPOCH + Duration::from_micros(self.since),
            priority: self.priority,
            eligible: self.eligible,
            value: self.value.map(|value| value.to_string()),
            remaining,
        }
    }
}

/// List as a candidate has read it last, and the priority that it has announced to the other
/// candidates.
#[derive(Debug, Default)]
struct Read {
    /// Eligible candidates of higher priority that were in the list when it was read last.
    rivals: Vec<Rival>,
    /// Priority of this candidate because of which the others were asked to read the list again;
    /// zero before that, and while this candidate is not eligible.
    priority: u8,
}

/// The entry of one campaign in the list of candidates. Dropping the value removes the entry from
/// the nodes.
pub(super) struct Seat<'a> {
    of: &'a Election,
    owner: OwnerToken,
    since: u64,
    value: Option<Arc<str>>,
    /// Notified when an attempt was refused, so that `keep` begins to write the entry.
    waits: Notify,
    listed: AtomicBool,
    number: AtomicU64,
    read: Mutex<Read>,
}

impl<'a> Seat<'a> {
    pub(super) fn new(of: &'a Election, value: &str) -> Self {
        let short = serde_json::to_vec(value).is_ok_and(|json| json.len() <= VALUE_MAX);
        Self {
            of,
            owner: OwnerToken::from_random(of.core.env.random()),
            since: of.core.env.wall_micros(),
            value: short.then(|| value.into()),
            waits: Notify::new(),
            listed: AtomicBool::new(false),
            number: AtomicU64::new(0),
            read: Mutex::default(),
        }
    }

    /// Returns the digest that identifies this entry. If the candidate wins, its metadata contain
    /// the digest, so that the leader is not listed as a candidate, too.
    pub(super) fn id(&self) -> String {
        digest(self.owner)
    }

    /// Records that an attempt was refused, so that the candidate is listed from now on.
    pub(super) fn wait(&self) {
        self.waits.notify_one();
    }

    /// Writes the entry, and reads the other entries with the same request. Returns true if the
    /// candidate was eligible in the entry that was written. If too few nodes answer, the entries
    /// read before stay in use until they expire.
    ///
    /// # Cancellation safety
    /// If dropped, the entry may be on the nodes all the same; dropping the `Seat` removes it.
    pub(super) async fn write(&self) -> bool {
        self.listed.store(true, Ordering::Relaxed);
        let (here, eligible) = (Identity::here(), self.of.is_eligible());
        let counts = if eligible { self.of.priority() } else { 0 };
        let entry = Entry {
            number: self.number.fetch_add(1, Ordering::Relaxed) + 1,
            value: self.value.clone(),
            since: self.since,
            host: here.host,
            pid: here.pid,
            boot: here.boot,
            priority: self.of.priority(),
            eligible,
        };
        let text = entry.encode();
        debug_assert!(text.len() <= MAX_ENTRY, "{} bytes", text.len());
        let news = counts != self.known().priority;
        if self.read(Enlist { news, ..self.of.entry(self.owner, Some(text)) }).await {
            self.known().priority = counts;
        }
        eligible
    }

    /// Reads the other entries without writing one.
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub(super) async fn look(&self) {
        self.read(self.of.entry(self.owner, None)).await;
    }

    fn known(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, op: Enlist) -> bool {
        let core = &self.of.core;
        let requested_at = core.env.now();
        let Ok(all) = core.enlist(op, Entry::read).await else { return false };
        let above = |c: &crate::quorum::candidates::Candidate<Entry>| {
            c.owner != self.owner && c.content.eligible && c.content.priority > self.of.priority()
        };
        let rival = |c: crate::quorum::candidates::Candidate<Entry>| Rival {
            priority: c.content.priority,
            until: requested_at + c.remaining,
        };
        self.known().rivals = all.into_iter().filter(above).map(rival).collect();
        true
    }

    /// Returns for how long the next attempt is delayed in favour of candidates of higher priority
    /// (election 12).
    pub(super) fn hold_back(&self) -> Duration {
        hold_back(&self.known().rivals, self.of.core.env.now(), self.of.ttl)
    }

    /// Writes the entry as soon as an attempt was refused, and from then on again at each quarter
    /// of the ttl. It is also written when this candidate's eligibility changes, and when a
    /// majority of nodes hints that the preferred candidates have changed. Each write reads the
    /// list.
    ///
    /// # Cancellation safety
    /// As [`write`](Self::write).
    pub(super) async fn keep(&self) -> Infallible {
        if !self.listed.load(Ordering::Relaxed) {
            self.waits.notified().await;
        }
        let core = &self.of.core;
        core.listen();
        let listens = core.hints.wait(&self.of.keys.candidates(), None);
        loop {
            // Listening begins before the write, so a hint that comes during the write is not
            // missed.
            let news = listens.ended();
            let written = self.write().await;
            tokio::select! {
                biased;
                () = self.of.course.eligible_is(!written) => {}
                () = news => tokio::time::sleep(listens.floor(core.env.now())).await,
                () = tokio::time::sleep(renew_every(self.of.ttl)) => {}
            }
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if *self.listed.get_mut() {
            self.of.core.strike(self.of.entry(self.owner, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_entry_has_room_and_comes_back() {
        let longest = "x".repeat(VALUE_MAX - 2);
        assert_eq!(serde_json::to_vec(&longest).unwrap().len(), VALUE_MAX);
        for host in ["\u{10348}".repeat(64), "\"".repeat(64)] {
            let entry = Entry {
                number: u64::MAX,
                value: Some(longest.as_str().into()),
                since: u64::MAX >> 11,
                host: host.clone(),
                pid: u32::MAX,
                boot: u64::MAX >> 11,
                priority: u8::MAX,
                eligible: false,
            };
            let text = entry.encode();
            assert!(text.len() <= MAX_ENTRY, "{}", text.len());
            let (number, read) = Entry::read(&text).unwrap();
            let shown = read.candidate(Duration::from_secs(1));
            assert_eq!((number, shown.identity.host), (u64::MAX, host));
            assert_eq!(shown.value, Some(longest.clone()));
            assert_eq!((shown.priority, shown.eligible, shown.term), (u8::MAX, false, None));
        }
        assert!(Entry::read(b"{").is_none());
    }
}
