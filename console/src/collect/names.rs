//! Names that the scan has found. A name counts only if the nodes have a fence, candidates or a
//! record for it, so a key of another program causes no further requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade::error::Resource;
use palisade::internal::{DECISIONS, check_namespace, of_key, of_record};
use palisade::node::spi::LockKeys;
use palisade_ops::{Ask, LockQueue, OfEach, Scanned, Waiter};
use tokio::time::Instant;

use super::{Collector, keys};
use crate::model::{LeftOut, LockId, Model, Vote};
use crate::pages;

/// Number of lock names that one request checks for a holder and waiters.
const CHECKED: usize = 200;
/// Upper limit of the time since the last page of keys, from which the size of the next page is
/// computed. The next page has as many keys as the rate limit (keys per second) allows for this
/// time.
const LONGEST: Duration = Duration::from_secs(2);
/// Beginnings of the names of trial locks. A health check or the doctor takes such a lock to see
/// that locking works.
const TRIALS: [&str; 2] = ["palisade:health", "palisade:doctor:"];
const LOCKS: usize = 50_000;
const ELECTIONS: usize = 2_000;
const NAMESPACES: usize = 1_000;
const PREFIXES: usize = 8;

/// The names that the console has found, and the progress of the scan that finds them.
#[derive(Default)]
pub(super) struct Names {
    pub(super) round: u64,
    began: Option<Instant>,
    ended: BTreeSet<String>,
    locks: BTreeMap<LockId, Name>,
    /// Numbers of names that this round of the scan left out because it had too many, by node. The
    /// next field has the numbers of the last complete round.
    left_out: BTreeMap<String, LeftOut>,
    last_left_out: LeftOut,
}

#[derive(Clone, Copy, Default)]
struct Name {
    /// Round of the scan in which the name was found first. The next field is the round in which it
    /// was found last.
    first: u64,
    round: u64,
    /// True if the last check found a value or a waiter for the name.
    is_live: bool,
    /// Number of the collector's last reading of the nodes that checked the name.
    checked: u64,
}

/// One page of a node's keys, or the reason for which the node could not be read.
#[derive(Clone, Copy)]
struct Page<'a> {
    node: &'a str,
    keys: Result<&'a [String], &'a str>,
    is_last: bool,
}

impl<'a> From<&'a Scanned> for Page<'a> {
    fn from(scanned: &'a Scanned) -> Self {
        let keys = scanned.keys.as_deref().map_err(String::as_str);
        Self { node: &scanned.node, keys, is_last: scanned.is_last }
    }
}

/// Object to which a key of a node belongs, with its name.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Lock(LockId),
    Election(String),
    Record(String, String),
    /// An operator's decision about a loss of data, for the keys of this namespace.
    Decision(String),
    /// A key that another application's handle wrote. The handle has this prefix.
    Other(String),
}

/// Returns the lock, election, record or other object to which a key belongs. Returns `None` for a
/// key of another program, for a key of a trial lock, and for a secondary key of an object that is
/// found by another key.
fn found(prefix: &str, key: &str) -> Option<Found> {
    if let Some((namespace, name)) = of_record(prefix, key) {
        if namespace == DECISIONS {
            let of = name.rsplit_once('/').map(|(of, _)| of)?;
            return check_namespace(of).is_ok().then(|| Found::Decision(of.to_owned()));
        }
        let is_ours = check_namespace(namespace).is_ok();
        return is_ours.then(|| Found::Record(namespace.to_owned(), name.to_owned()));
    }
    for (end, fence) in [(":fence", true), (":candidates", false)] {
        let Some(base) = key.strip_suffix(end) else { continue };
        let inner = base.strip_prefix('{').and_then(|base| base.strip_suffix('}'));
        let main = inner.unwrap_or(base);
        let keys = LockKeys::new(main);
        let side = if fence { keys.fence().to_owned() } else { format!("{base}{end}") };
        if side != key {
            return None;
        }
        return match of_key(prefix, main)? {
            Resource::Election(name) => of_label(prefix, main, "election:", &name),
            // Health checks and the doctor create and remove trial locks all the time, so the
            // console does not show these locks.
            Resource::Lock(name)
                if fence && !TRIALS.iter().any(|trial| name.starts_with(trial)) =>
            {
                Some(Found::Lock(LockId { name: name.to_string(), is_semaphore: false }))
            }
            _ => None,
        };
    }
    match of_key(prefix, key)? {
        Resource::Semaphore(name) => of_label(prefix, key, "permits:", &name),
        _ => None,
    }
}

/// Returns the election or semaphore of a key. If the console has no prefix and the handle that
/// wrote the key has one, returns that prefix.
fn of_label(prefix: &str, main: &str, label: &str, name: &str) -> Option<Found> {
    let is_own = main.strip_prefix(prefix)?.starts_with(label);
    if !is_own {
        let at = main.find(label)?;
        return Some(Found::Other(main[..at].to_owned()));
    }
    Some(match label {
        "election:" => Found::Election(name.to_owned()),
        _ => Found::Lock(LockId { name: name.to_owned(), is_semaphore: true }),
    })
}

impl Names {
    /// Stores the names on one page of keys of each node. If all nodes were read to the end, ends
    /// the present round of the scan, that is, of the reading of all keys.
    fn note(&mut self, scanned: &[Page], prefix: &str, most_keys: usize, model: &mut Model) {
        let began = *self.began.get_or_insert_with(Instant::now);
        for page in scanned {
            let node = page.node.to_owned();
            match page.keys {
                Ok(keys) => {
                    *model.scan.progress.entry(node.clone()).or_default() += keys.len() as u64;
                    let mut left_out = self.left_out.remove(&node).unwrap_or_default();
                    for key in keys {
                        self.found(found(prefix, key), most_keys, model, &mut left_out);
                    }
                    self.left_out.insert(node.clone(), left_out);
                    model.unread.remove(&node);
                }
                Err(why) => drop(model.unread.insert(node.clone(), why.to_owned())),
            }
            if page.is_last {
                self.ended.insert(node);
            }
        }
        // Most names are on each node. So the largest number of names that were left out on one
        // node counts, and not the sum of all nodes.
        let left_out = self.left_out.values().copied().fold(LeftOut::default(), LeftOut::max);
        model.left_out = left_out.max(self.last_left_out);
        let readable = scanned.iter().filter(|page| page.keys.is_ok());
        let is_over = readable.clone().count() > 0
            && readable.clone().all(|page| self.ended.contains(page.node));
        if is_over {
            let last = self.round;
            // A name is removed only if a majority of the nodes was read: a minority of the nodes
            // does not show that the name is gone.
            if 2 * readable.count() > scanned.len() {
                self.locks.retain(|_, name| name.is_live || name.round >= last);
                model.keys.retain(|_, key| key.round >= last);
                model.elections.retain(|_, row| row.leader.is_some() || row.round >= last);
            }
            (model.left_out, self.last_left_out) = (left_out, left_out);
            self.left_out.clear();
            model.scan.round = Some(began.elapsed());
            model.scan.rounds += 1;
            model.scan.totals = std::mem::take(&mut model.scan.progress);
            self.ended.clear();
            (self.began, self.round) = (None, last + 1);
        }
    }

    fn found(
        &mut self,
        found: Option<Found>,
        most_keys: usize,
        model: &mut Model,
        left_out: &mut LeftOut,
    ) {
        let round = self.round;
        match found {
            Some(Found::Lock(id)) => {
                if self.locks.len() < LOCKS || self.locks.contains_key(&id) {
                    let new = Name { first: round, ..Name::default() };
                    self.locks.entry(id).or_insert(new).round = round;
                } else {
                    left_out.locks += 1;
                }
            }
            Some(Found::Election(name)) => {
                if model.elections.len() < ELECTIONS || model.elections.contains_key(&name) {
                    model.elections.entry(name).or_default().round = round;
                } else {
                    left_out.elections += 1;
                }
            }
            Some(Found::Decision(namespace)) => add_namespace(model, &namespace),
            Some(Found::Record(namespace, key)) => {
                add_namespace(model, &namespace);
                let id = (namespace, key);
                if model.keys.len() < most_keys || model.keys.contains_key(&id) {
                    model.keys.entry(id).or_default().round = round;
                } else {
                    left_out.keys += 1;
                }
            }
            Some(Found::Other(prefix)) if model.other_prefixes.len() < PREFIXES => {
                model.other_prefixes.insert(prefix);
            }
            _ => {}
        }
    }

    /// Returns the number of lock names that an earlier round of the scan found and that were never
    /// checked.
    fn unchecked(&self) -> usize {
        let is_due = |name: &&Name| name.checked == 0 && name.first < self.round;
        self.locks.values().filter(is_due).count()
    }

    /// Returns the names to check now: first those in use, then the others, each part beginning
    /// with the name whose last check is the oldest.
    fn to_check(&self) -> Vec<LockId> {
        let mut all: Vec<_> = self.locks.iter().collect();
        all.sort_by_key(|(_, name)| name.checked);
        let (live, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, name)| name.is_live);
        // Half of the checks are reserved for names that were not in use, so that a new holder of
        // such a name is found.
        let of_rest = rest.len().min(CHECKED.saturating_sub(live.len()).max(CHECKED / 2));
        let chosen = live.iter().take(CHECKED - of_rest).chain(rest.iter().take(of_rest));
        chosen.map(|(id, _)| (*id).clone()).collect()
    }

    /// Returns the names of locks that were never checked for a holder.
    fn unknown(&self) -> Vec<LockId> {
        let new = self.locks.iter().filter(|(_, name)| name.checked == 0);
        new.take(CHECKED).map(|(id, _)| id.clone()).collect()
    }
}

fn add_namespace(model: &mut Model, namespace: &str) {
    if model.namespaces.len() < NAMESPACES && !model.namespaces.contains(namespace) {
        model.namespaces.insert(namespace.to_owned());
    }
}

pub(crate) fn main_key(prefix: &str, id: &LockId) -> String {
    let label = if id.is_semaphore { "permits:" } else { "" };
    format!("{prefix}{label}{}", id.name)
}

impl Collector {
    /// Reads the next page of keys, the queues of locks, and the records of keys, in one round
    /// trip. If the page has new names, reads them at once in a second round trip, and returns
    /// true.
    pub(super) async fn survey(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let elapsed = self.scanned_at.map_or(super::EVERY, |at| at.elapsed().min(LONGEST));
        self.scanned_at = Some(Instant::now());
        let page = (elapsed.as_secs_f64() * shared.keys_per_second as f64) as usize;
        let (locks, keys) = (self.names.to_check(), keys::to_read(&shared));
        self.ask(Some(page.max(1)), locks, keys).await;
        let (locks, keys) = (self.names.unknown(), keys::new(&shared));
        let is_any = !locks.is_empty() || keys.is_some();
        if is_any {
            self.ask(None, locks, keys).await;
        }
        is_any
    }

    async fn ask(&mut self, page: Option<usize>, ids: Vec<LockId>, keys: Option<keys::Chosen>) {
        let shared = Arc::clone(&self.shared);
        let main: Vec<String> = ids.iter().map(|id| main_key(shared.prefix(), id)).collect();
        let main: Vec<&str> = main.iter().map(String::as_str).collect();
        let records = keys.as_ref().map(|(of, keys)| (of, &**keys));
        let ask = Ask { scan: page, locks: &main, keys: records };
        let answers = self.survey.read(&ask).await;
        shared.requests.fetch_add(self.survey.take_sent(), Ordering::Relaxed);
        let Ok(answers) = answers else { return };
        if page.is_some() {
            self.scanned(&answers.scanned);
        }
        self.queues(ids, &answers.queues);
        if let Some(keys) = keys {
            keys::note(&shared, keys, (answers.facts, &answers.unread));
        }
    }

    fn scanned(&mut self, scanned: &[Scanned]) {
        let shared = &self.shared;
        let pages: Vec<Page> = scanned.iter().map(Page::from).collect();
        let mut model = shared.model();
        self.names.note(&pages, shared.prefix(), shared.keys, &mut model);
        for page in scanned.iter().filter(|page| page.keys.is_ok()) {
            let is_of = |vote: &&mut Vote| pages::is_node(&page.node, &vote.node);
            let vote = model.votes.iter_mut().find(is_of);
            if let Some(vote) = vote {
                vote.latency = Some(page.took);
                vote.latencies.truncate(super::votes::LATENCIES - 1);
                vote.latencies.push_front(page.took);
            }
        }
    }

    fn queues(&mut self, ids: Vec<LockId>, all: &OfEach<Vec<LockQueue>>) {
        if ids.is_empty() {
            return;
        }
        let read: Vec<&Vec<LockQueue>> =
            all.iter().filter_map(|(_, of)| of.as_ref().ok()).collect();
        let mut model = self.shared.model();
        for (at, id) in ids.into_iter().enumerate() {
            let seen: Vec<&LockQueue> = read.iter().filter_map(|of| of.get(at)).collect();
            let waiters = waiters(&seen);
            let is_there = seen.iter().any(|seen| seen.is_there);
            if seen.is_empty() {
                // No node could be read, so the waiters are not known.
                if let Some(row) = model.locks.get_mut(&id) {
                    row.waiters = None;
                }
                continue;
            }
            let name = self.names.locks.entry(id.clone()).or_default();
            (name.is_live, name.checked) = (is_there || !waiters.is_empty(), self.count);
            if name.is_live || model.locks.contains_key(&id) {
                let row = model.locks.entry(id).or_default();
                (row.waiters, row.is_there) = (Some(waiters), is_there);
            }
        }
        model.locks_unchecked = self.names.unchecked();
    }
}

/// Merges the queues of all nodes into one list. Each waiter is in it once, with its longest wait.
fn waiters(seen: &[&LockQueue]) -> Vec<Waiter> {
    let mut all: Vec<Waiter> = seen.iter().flat_map(|seen| seen.waiters.clone()).collect();
    all.sort_by(|a, b| (&a.handle, a.is_shared, a.since).cmp(&(&b.handle, b.is_shared, b.since)));
    all.dedup_by(|b, a| (&a.handle, a.is_shared) == (&b.handle, b.is_shared));
    all.sort_by_key(|waiter| waiter.since);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str) -> Found {
        Found::Lock(LockId { name: name.to_owned(), is_semaphore: false })
    }

    #[test]
    fn a_key_belongs_to_a_name_and_a_foreign_key_to_none() {
        let semaphore = Some(Found::Lock(LockId { name: "s".to_owned(), is_semaphore: true }));
        let record =
            |namespace: &str, key: &str| Some(Found::Record(namespace.to_owned(), key.to_owned()));
        let election = || Some(Found::Election("e".to_owned()));
        for (prefix, key, belongs) in [
            ("", "{job}:fence", Some(lock("job"))),
            ("", "{a{b}c}:fence", None),
            ("", "a{b}c:fence", Some(lock("a{b}c"))),
            ("p:", "{p:job}:fence", Some(lock("job"))),
            ("p:", "{job}:fence", None),
            ("", "job", None),
            ("", "user:123", None),
            ("p:", "{p:palisade:health}:fence", None),
            ("", "{election:e}:fence", election()),
            ("", "{election:e}:candidates", election()),
            ("p:", "{p:election:e}:candidates", election()),
            ("", "{p:election:e}:fence", Some(Found::Other("p:".to_owned()))),
            ("", "permits:s", semaphore),
            ("", "idem:orders:7", record("orders", "7")),
            ("p:", "p:idem:orders:7:x", record("orders", "7:x")),
            ("", "idem:palisade-decisions:x/y/1", Some(Found::Decision("x/y".to_owned()))),
            ("", "idem:palisade-decisions:x", None),
            ("", "palisade:generation", None),
            ("", ":fence", None),
        ] {
            assert_eq!(found(prefix, key), belongs, "{prefix:?} {key:?}");
        }
    }

    #[test]
    fn names_beyond_the_limits_are_counted_and_unseen_elections_are_forgotten() {
        let (mut names, mut model) = (Names::default(), Model::default());
        let mut note = |pages: &[Page]| {
            names.note(pages, "", 4, &mut model);
            (model.elections.len(), model.keys.len(), model.left_out)
        };
        let election = |n: usize| format!("{{election:e{n:05}}}:fence");
        let mut keys: Vec<String> = (0..ELECTIONS + 5).map(election).collect();
        keys.extend((0..7).map(|n| format!("idem:orders:{n}")));
        let page = |node, keys| Page { node, keys, is_last: true };
        let all = [page("a", Ok(&*keys)), page("b", Ok(&keys))];
        let left_out = LeftOut { locks: 0, elections: 5, keys: 3 };
        assert_eq!(note(&all), (ELECTIONS, 4, left_out));
        // The first page of a new round does not reset the number of names that were left out
        // because of the limits.
        let begins = [Page { is_last: false, ..page("a", Ok(&[])) }];
        assert_eq!(note(&begins).2, left_out);
        assert_eq!(note(&all), (ELECTIONS, 4, left_out));
        // If only half of the nodes can be read, no name is removed.
        let half = [page("a", Ok(&[])), page("b", Err("it is gone"))];
        assert_eq!(note(&half).0, ELECTIONS);
        let gone = [page("a", Ok(&[])), page("b", Ok(&[]))];
        assert_eq!(note(&gone), (0, 0, LeftOut::default()));
        assert_eq!(model.scan.rounds, 4);
        // The namespace stays although all its records are gone, because an operator has to decide
        // about the loss of the records.
        assert!(model.namespaces.contains("orders"));
    }

    #[test]
    fn a_handle_waits_once_although_each_node_has_it_in_its_queue() {
        let queue = |all: &[(u64, &str)]| {
            let waiter = |(since, handle): &(u64, &str)| Waiter {
                handle: (*handle).to_owned(),
                since: *since,
                is_shared: false,
            };
            LockQueue { is_there: true, waiters: all.iter().map(waiter).collect() }
        };
        let seen = [queue(&[(5, "a"), (9, "b")]), queue(&[(6, "a")])];
        let all = waiters(&seen.iter().collect::<Vec<_>>());
        let shown: Vec<_> = all.iter().map(|one| (one.since, &*one.handle)).collect();
        assert_eq!(shown, [(5, "a"), (9, "b")]);
    }
}
