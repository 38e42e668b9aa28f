//! Changes to idempotency keys by an operator. Each change has a reason, and is written to the log.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::facts::{Found, NodeRecords, facts};
use super::key_change::{KeyChange, NodeChange};
use super::{KeyFacts, KeyState, NodeSeen, Nodes, PAGE, Records, Select};
use crate::masters::{Master, find_masters};
use crate::script;
use palisade::ConfigError;
use palisade::idempotency::{Call, Resolved, RunError};
use palisade::internal::lineage::Handover;
use palisade::internal::{MARKER, RecordChange, RecordEdit, Unchanged, check_name, key_of};

/// Author and reason of a change to a key, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    by: String,
    reason: String,
}

impl Audit {
    /// Creates an `Audit` from the author of a change (a person or a program) and the reason.
    /// Examples are `alice` and `host 7 is gone, ticket 12`.
    ///
    /// # Errors
    /// [`ConfigError`] if the author or the reason is empty, is longer than 512 bytes, or has
    /// control characters.
    pub fn new(by: impl Into<String>, reason: impl Into<String>) -> Result<Self, ConfigError> {
        let (by, reason) = (by.into(), reason.into());
        check_name("by", &by)?;
        check_name("reason", reason.trim())?;
        Ok(Self { by, reason })
    }

    /// Returns the author of the change.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Returns the reason of the change.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Kind of change to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Ends the running claim of the key, for example if the process of the claim is dead. The
    /// attempt counts as lapsed: it began and left no result. The next call does not wait for the
    /// end of the lease: its policy or its probe decides at once. If the process of the claim is
    /// still alive, the next renewal of the claim fails, and the process loses the claim. Effects
    /// before that remain.
    Release,
    /// Removes the attempts of the key from its records, if no attempt left a result. Make sure
    /// first that the attempts had no effect. The next call runs the handler, under any policy. The
    /// change runs no handler. The recorded steps and the fingerprint stay.
    ///
    /// A key that the nodes have forgotten after a loss of data stays parked, because the nodes
    /// have no record of its attempts. To run such a key, use [`Call::rerun`] or decide about the
    /// loss ([`Incident::decide`]).
    ///
    /// [`Incident::decide`]: crate::Incident::decide
    Rerun,
    /// Removes the result, the attempts and the fingerprint of the key, as [`Records::purge`] does,
    /// with or without a result. A later copy of its request runs again. A key with a running claim
    /// is not purged.
    Purge,
}

impl Change {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Rerun => "rerun",
            Self::Purge => "purge",
        }
    }

    fn of(self, unfinished: bool) -> RecordChange {
        match self {
            Self::Release => RecordChange::Release,
            Self::Rerun => RecordChange::Rerun,
            Self::Purge if unfinished => RecordChange::PurgeUnfinished,
            Self::Purge => RecordChange::Purge,
        }
    }
}

/// The selection of records that [`Records::purge`] empties. A copy of a purged request runs again
/// if it comes later. So select records that are too old for such a copy
/// ([`older_than`](Self::older_than)), or accept that copies run again
/// ([`late_copies_run_again`](Self::late_copies_run_again)).
#[derive(Clone, Debug)]
#[must_use = "it only selects records; pass it to `Records::purge`"]
pub struct Purge {
    select: Select,
    unfinished: bool,
}

impl Purge {
    /// Selects records with a result, if the last claim is at least this
    /// [old](super::KeyFacts::age). Choose an age after which no copy of a request can arrive:
    /// longer than the longest redelivery, retry or replay by hand, plus two `clock_error`.
    pub fn older_than(age: Duration) -> Self {
        let states = vec![KeyState::Stored];
        let select = Select { states, older_than: age, ..Select::default() };
        Self { select, unfinished: false }
    }

    /// Selects records with a result, of any age. A copy of a purged request runs again if it comes
    /// later.
    pub fn late_copies_run_again() -> Self {
        Self::older_than(Duration::ZERO)
    }

    /// Selects also keys without a result. After the purge, the nodes have no record of the
    /// attempts of these keys, although an attempt may have taken effect. Keys with a running claim
    /// are never purged.
    pub fn unfinished_too(mut self) -> Self {
        self.select.states.push(KeyState::Lapsed);
        self.unfinished = true;
        self
    }

    /// Sets the largest number of keys that are purged.
    pub fn limit(mut self, keys: usize) -> Self {
        self.select.limit = Some(keys);
        self
    }
}

/// Result of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it may not be done"]
pub struct Purged {
    /// The result for each selected key.
    pub keys: Vec<KeyChange>,
    /// Nodes that could not be read, as in [`KeyList::unread`](super::KeyList::unread).
    pub unread: Vec<(String, String)>,
    /// True if the limit was reached, as in [`KeyList::more`](super::KeyList::more).
    pub more: bool,
}

impl Records {
    /// Makes a change to one key.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped, some nodes may have made the change. Calling again is safe.
    pub async fn change(
        &self,
        change: Change,
        key: &str,
        audit: &Audit,
    ) -> Result<KeyChange, ConfigError> {
        let changed = self.change_if(change, key, |_| true, audit).await?;
        let none =
            || KeyChange { change, key: key.to_owned(), audit: audit.clone(), nodes: Vec::new() };
        Ok(changed.unwrap_or_else(none))
    }

    /// Empties records: removes the results, the attempts and the fingerprints. A later copy of a
    /// request runs again if the record of the request was emptied. An emptied record keeps its
    /// ballot until the record expires, so that the nodes refuse late requests of earlier attempts.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped, some keys may be purged on some nodes. Calling again is safe.
    pub async fn purge(&self, purge: &Purge, audit: &Audit) -> Result<Purged, ConfigError> {
        let list = self.list(&purge.select).await?;
        let mut nodes = find_masters(&self.deployment).await?;
        let keys: Vec<String> = list.keys.into_iter().map(|facts| facts.key).collect();
        let mut done = Vec::with_capacity(keys.len());
        for keys in keys.chunks(PAGE) {
            done.extend(self.purge_some(&mut nodes, purge, keys, audit).await);
        }
        Ok(Purged { keys: done, unread: list.unread, more: list.more })
    }

    /// A key may have been used since the keys were listed.
    async fn purge_some(
        &self,
        nodes: &mut Nodes,
        purge: &Purge,
        keys: &[String],
        audit: &Audit,
    ) -> Vec<KeyChange> {
        let seen = self.seen(nodes, keys).await;
        let is_meant = |(i, key): (usize, &String)| {
            facts(key.clone(), &seen, i).is_none_or(|facts| purge.select.takes(&facts))
        };
        let meant: Vec<bool> = keys.iter().enumerate().map(is_meant).collect();
        let change = (Change::Purge, purge.unfinished);
        self.change_as_seen(nodes, (&seen, &meant), change, keys, audit).await
    }

    /// Makes a change to one key, as [`change`](Self::change) does, if `is_meant` returns true for
    /// the facts about the key; they are `None` if no node has a record. Returns `None` if a
    /// majority of the nodes was read and `is_meant` returned false. Each node changes its record
    /// only if the record is still the one that was read. So a page for operators can change
    /// exactly the attempt that it showed.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
    ///
    /// # Cancellation safety
    /// If the future is dropped, some nodes may have made the change. Calling again is safe.
    pub async fn change_if(
        &self,
        change: Change,
        key: &str,
        is_meant: impl FnOnce(Option<&KeyFacts>) -> bool + Send,
        audit: &Audit,
    ) -> Result<Option<KeyChange>, ConfigError> {
        check_name("key", key)?;
        let (mut nodes, keys) = (find_masters(&self.deployment).await?, [key.to_owned()]);
        let seen = self.seen(&mut nodes, &keys).await;
        let is_meant = is_meant(Self::combine(keys.to_vec(), &seen).first());
        // Too few answers do not show that this is a wrong key for the change.
        if !is_meant && 2 * seen.iter().flatten().count() > seen.len() {
            return Ok(None);
        }
        let (seen, change) = ((&*seen, &[is_meant][..]), (change, change == Change::Purge));
        let changed = self.change_as_seen(&nodes, seen, change, &keys, audit).await;
        Ok(changed.into_iter().next())
    }

    /// If they were not changed since they were read. Keys that are not `meant` are reported as
    /// used since.
    async fn change_as_seen(
        &self,
        nodes: &Nodes,
        (seen, meant): (&[NodeSeen], &[bool]),
        (change, unfinished): (Change, bool),
        keys: &[String],
        audit: &Audit,
    ) -> Vec<KeyChange> {
        let asks = nodes.iter().zip(seen).map(|((_, master), seen)| async move {
            match (master, seen) {
                (Ok(master), Some(seen)) => {
                    self.tell(master, (change, unfinished), keys, (seen, meant)).await
                }
                (Err(why), _) => Err(NodeChange::Unreachable(why.clone())),
                (Ok(_), None) => Err(NodeChange::Unreachable("not read".to_owned())),
            }
        });
        let answers = join_all(asks).await;
        let of = |(i, key): (usize, &String)| {
            let said =
                |((node, _), answer): (&(String, _), &Result<Vec<NodeChange>, NodeChange>)| {
                    let change = match answer {
                        Ok(words) => words[i].clone(),
                        Err(all) => all.clone(),
                    };
                    (node.clone(), change)
                };
            let nodes = nodes.iter().zip(&answers).map(said).collect();
            let changed = KeyChange { change, key: key.clone(), audit: audit.clone(), nodes };
            changed.log(self);
            changed
        };
        keys.iter().enumerate().map(of).collect()
    }

    /// An error is the result for all keys.
    async fn tell(
        &self,
        master: &Master,
        (change, unfinished): (Change, bool),
        keys: &[String],
        (seen, meant): (&NodeRecords, &[bool]),
    ) -> Result<Vec<NodeChange>, NodeChange> {
        let edits = seen.found.iter().zip(meant).map(|(found, meant)| match meant {
            true => edit(seen, found, change.of(unfinished)),
            false => Err(USED),
        });
        let edits: Vec<Result<RecordEdit, NodeChange>> = edits.collect();
        if edits.iter().all(Result::is_err) {
            return Ok(edits.into_iter().filter_map(Result::err).collect());
        }
        let conn = master.open(&self.deployment).await.map_err(NodeChange::Unreachable)?;
        // A request that waits too long at the server cannot change a record after its failure was
        // reported.
        let deadline = conn.deadline_at_server().await.map_err(NodeChange::Unreachable)?;
        let mut command = redis::cmd("EVAL");
        let sent =
            || keys.iter().zip(&edits).filter_map(|(key, edit)| Some((key, edit.as_ref().ok()?)));
        command.arg(script::CHANGE).arg(sent().count() + 1).arg(MARKER);
        for (key, _) in sent() {
            command.arg(format!("{}{key}", self.begins));
        }
        command.arg(&seen.marker[..]).arg(deadline);
        for (_, RecordEdit { begins, text, is_whole }) in sent() {
            command.arg(&begins[..]).arg(&text[..]).arg(u8::from(*is_whole));
        }
        let answer = conn.change(&command).await.map_err(NodeChange::Unanswered)?;
        let answer = answer.map_err(NodeChange::Unreachable)?;
        let words = redis::from_redis_value::<Vec<String>>(answer).unwrap_or_default();
        let words: Option<Vec<_>> = words.iter().map(|word| said(word)).collect();
        let strange =
            || NodeChange::Unanswered(format!("{}: EVAL: answer not understood", master.at));
        let words = words.filter(|words| words.len() == sent().count()).ok_or_else(strange)?;
        let mut words = words.into_iter();
        let word = |edit: Result<_, NodeChange>| match edit {
            Ok(_) => words.next().unwrap_or(NodeChange::Absent),
            Err(why) => why,
        };
        Ok(edits.into_iter().map(word).collect())
    }
}

const USED: NodeChange = NodeChange::Refused("it was used since it was read; look again");

/// Returns what is to be written, or the reason for which nothing is.
fn edit(node: &NodeRecords, found: &Found, change: RecordChange) -> Result<RecordEdit, NodeChange> {
    let now = node.micros / 1_000;
    let longer = match node.lineage.and_then(|m| Some((m.handover?, m.quarantine))) {
        Some((Handover::Closed(till), _)) if now < till => {
            let why = "closed for a handover; try again when that is over";
            return Err(NodeChange::Refused(why));
        }
        // A lease may last for twice E longer than the server's clock shows; the length of a
        // quarantine is longer.
        Some((Handover::Settling(till), quarantine)) if now < till => quarantine,
        _ => 0,
    };
    let record = match found {
        Found::Record(record) => record,
        Found::Nothing => return Err(NodeChange::Absent),
        Found::Foreign => {
            return Err(NodeChange::Refused("another program's value is under its key"));
        }
    };
    let edit = record.edited(change, now, longer).map_err(|why| match why {
        Unchanged::NoClaimRuns => NodeChange::AsItIs,
        Unchanged::ClaimRuns => {
            NodeChange::Refused("its claim runs; wait for its end, or release it first")
        }
        Unchanged::ClaimMayRun => NodeChange::Refused(
            "soon after a handover its claim may still run; wait a moment, or release it first",
        ),
        Unchanged::Stored => NodeChange::Refused("it has a result"),
        Unchanged::Unfinished => NodeChange::Refused("it has no result"),
    })?;
    if change == RecordChange::Rerun && record.attempts() == 0 {
        return Err(NodeChange::AsItIs);
    }
    Ok(edit)
}

/// Converts a word that the script returned to a result; `None` for an unknown word.
fn said(word: &str) -> Option<NodeChange> {
    Some(match word {
        "done" => NodeChange::Done,
        "changed" => USED,
        "broken" => NodeChange::Unanswered(
            "the server refused one of its writes; see the rights of this user".to_owned(),
        ),
        "late" => NodeChange::Unreachable("the request was there after its deadline".to_owned()),
        _ => return None,
    })
}

/// Stores a result for a key as [`Call::resolve`] does, and writes the author and the reason to the
/// log. Use this function if the effect of an earlier attempt did happen.
///
/// # Errors
/// [`RunError`] if the result was not stored, because a setting is invalid or too few nodes
/// answered. After `NotRecorded` the result may be stored.
///
/// # Cancellation safety
/// If the future is dropped, the result may be stored. Calling again is safe.
pub async fn resolve<T>(call: Call, value: &T, audit: &Audit) -> Result<Resolved<T>, RunError>
where
    T: Serialize + DeserializeOwned,
{
    let (prefix, key) = key_of(&call);
    let prefix = prefix.to_owned();
    let resolved = call.resolve(value).await;
    let done = matches!(resolved, Ok(Resolved::Stored));
    tracing::warn!(
        target: "palisade_ops",
        event = "resolve",
        prefix,
        namespace = key.namespace(),
        key = key.key(),
        by = audit.by(),
        reason = audit.reason(),
        done,
        "idempotency key changed by an operator"
    );
    resolved
}
