//! The list of an election's candidates (election 11), by which attempts are delayed (`priority`)
//! and operators see who waits. It does not decide who leads; only the lock does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use crate::sync::SyncMutex;
use crate::token::{FencingToken, OwnerToken};

/// In bytes as JSON.
const VALUE_MAX: usize = 256;

/// A process that takes part in an election, as [`Election::candidates`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Identity of the process that takes part.
    pub identity: Identity,
    /// Term of the leadership; `None` if the process does not lead.
    pub term: Option<FencingToken>,
    /// Start of the leadership, or of the campaign if the process does not lead; by the wall clock
    /// of that process.
    pub since: SystemTime,
    /// [Priority](super::ElectionBuilder::priority) of the process.
    pub priority: u8,
    /// False if the process does not attempt to lead ([`Election::set_eligible`]).
    pub eligible: bool,
    /// Value that the leader proclaimed, or the value of a candidate's campaign. `None` if the
    /// value of a candidate is too long for the list (256 bytes as JSON).
    pub value: Option<String>,
    /// Time until the nodes remove the candidate's entry or the leader's lock. A renewal extends
    /// this time.
    pub remaining: Duration,
}

impl Election {
    /// Returns the processes that take part. The leader is first. The waiting candidates follow,
    /// sorted by priority and then by the start of the campaign. The processes that are not
    /// eligible are last.
    ///
    /// The list is for people and dashboards, and has limits. It is merged from the replies of a
    /// majority of the nodes, and these replies are not of one moment. A candidate is listed from
    /// its first refused attempt on. A candidate with a priority and a process that is not eligible
    /// are listed from the start of the campaign. A dead candidate is listed for up to its ttl
    /// after its death. One election lists at most 64 candidates; further candidates campaign
    /// unlisted. Each candidate's start in the list is by the wall clock of that candidate. The
    /// first waiting candidate need not be the next leader. Only the leader and the leader's
    /// [term](Candidate::term) are as certain as the result of [`leader`](Self::leader).
    ///
    /// # Errors
    /// The errors of [`leader`](Self::leader): too few nodes answer, or the `Redlock` handle is
    /// closed.
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
        // A new leader removes its entry only after its win, so it could be listed twice.
        let waits = listed.into_iter().filter(|c| seat.as_ref() != Some(&digest(c.owner)));
        all.extend(waits.map(|c| c.content.candidate(c.remaining)));
        all.sort_by_key(Candidate::rank);
        Ok(all)
    }

    /// Returns true if this process may attempt to lead. Clones of this election share the setting.
    pub fn is_eligible(&self) -> bool {
        self.course.is_eligible()
    }

    /// Sets whether this process may attempt to lead from now on. With `true`, a waiting campaign
    /// begins its attempts. With `false`, the campaign stops its attempts, and the process stays
    /// listed as not eligible. A leader keeps its leadership; [`resign`](super::Leadership::resign)
    /// ends the term.
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

    fn rank(&self) -> impl Ord + use<> {
        let Identity { host, pid, boot } = self.identity.clone();
        let last = std::cmp::Reverse(self.priority);
        (self.term.is_none(), !self.eligible, last, self.since, host, pid, boot)
    }
}

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

#[derive(Debug, Default)]
struct Read {
    rivals: Vec<Rival>,
    /// Last announced priority. Zero before the first time, and while not eligible.
    priority: u8,
}

/// Dropping it removes the entry from the nodes.
pub(super) struct Seat<'a> {
    of: &'a Election,
    owner: OwnerToken,
    since: u64,
    value: Option<Arc<str>>,
    waits: Notify,
    listed: AtomicBool,
    number: AtomicU64,
    read: SyncMutex<Read>,
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
            read: SyncMutex::default(),
        }
    }

    /// A leader's metadata contain it, so that readers of the list can leave out its entry.
    pub(super) fn id(&self) -> String {
        digest(self.owner)
    }

    pub(super) fn wait(&self) {
        self.waits.notify_one();
    }

    /// Returns true if the candidate was eligible. If too few nodes answer, the entries last read
    /// count until they expire. If the future is dropped, the nodes may still have the entry until
    /// the `Seat` is dropped.
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
        let news = counts != self.read.lock().priority;
        if self.read(Enlist { news, ..self.of.entry(self.owner, Some(text)) }).await {
            self.read.lock().priority = counts;
        }
        eligible
    }

    pub(super) async fn look(&self) {
        self.read(self.of.entry(self.owner, None)).await;
    }

    async fn read(&self, op: Enlist) -> bool {
        let core = &self.of.core;
        let requested_at = core.env.now();
        let Ok(all) = core.enlist(op, Entry::read).await else { return false };
        let is_listed = all.iter().any(|c| c.owner == self.owner);
        let above = |c: &crate::quorum::candidates::Candidate<Entry>| {
            c.owner != self.owner && c.content.eligible && c.content.priority > self.of.priority()
        };
        let rival = |c: crate::quorum::candidates::Candidate<Entry>| Rival {
            priority: c.content.priority,
            until: requested_at + c.remaining,
        };
        self.read.lock().rivals = all.into_iter().filter(above).map(rival).collect();
        is_listed
    }

    pub(super) fn hold_back(&self) -> Duration {
        hold_back(&self.read.lock().rivals, self.of.core.env.now(), self.of.ttl)
    }

    pub(super) async fn keep(&self) -> Infallible {
        if !self.listed.load(Ordering::Relaxed) {
            self.waits.notified().await;
        }
        let core = &self.of.core;
        core.listen();
        let listens = core.hints.wait(&self.of.keys.candidates(), None);
        loop {
            // Before the write, so that no hint during it is missed.
            let news = listens.ended();
            let written = self.write().await;
            tokio::select! {
                biased;
                () = self.of.course.eligible_is(!written) => {}
                () = news => tokio::time::sleep(listens.limit(core.env.now())).await,
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
