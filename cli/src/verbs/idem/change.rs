//! The commands `palisade idem rerun`, `release` and `purge`. They change keys, and report the
//! author and the reason of the change.

use std::fmt::Write as _;

use clap::Args;
use palisade_ops::{Audit, Change, KeyChange, NodeChange, Purge, Purged};
use serde_json::json;

use super::super::GroundArgs;
use crate::Done;
use crate::codes::{Fail, UNAVAILABLE};
use crate::say::Say;
use crate::span::Span;

pub(super) const HELP: &str = "Examples:
  palisade idem rerun invoice-42 --reason 'printer was off' --node redis://127.0.0.1
  palisade idem release invoice-42 --reason 'host 7 is gone' --node redis://127.0.0.1
  palisade idem purge --older-than 30d --reason 'audit is over' --node redis://127.0.0.1

Each change is a line on standard error, with --json an object, that names who did it and why.
Exit code: 0 a majority of the nodes did it, 2 not done, or not for every key, or there is no such
key, 64 wrong use, 69 not reached, or not known to be done because too few nodes answered.";

/// Author and reason of a change.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Reason of the change
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Author of the change [default: $USER]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl AuditArgs {
    pub(crate) fn audit(&self) -> Result<Audit, Fail> {
        let by = self.by.clone().or_else(|| std::env::var("USER").ok());
        let by = by.filter(|by| !by.is_empty()).unwrap_or_else(|| "unknown".to_owned());
        Ok(Audit::new(by, &self.reason)?)
    }
}

/// A key, the servers that store it, and the author and reason of its change.
#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Name of the key
    #[arg(id = "record", value_name = "KEY")]
    key: String,
    /// Namespace of the keys
    #[arg(long, value_name = "NAME", default_value = "once")]
    namespace: String,
    #[command(flatten)]
    audit: AuditArgs,
}

/// Empties records. A late copy of a purged request RUNS AGAIN.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    ground: GroundArgs,
    /// Namespace of the keys
    #[arg(long, value_name = "NAME", default_value = "once")]
    namespace: String,
    /// Only records whose claim is at least this old: choose an age after which no copy of a
    /// request can arrive
    #[arg(long, value_name = "SPAN", required_unless_present = "late_copies_run_again")]
    older_than: Option<Span>,
    /// Records of any age: I know that a late copy of a purged request runs again
    #[arg(long, conflicts_with = "older_than")]
    late_copies_run_again: bool,
    /// Also keys without a result: after the purge, the nodes have no record that these keys may
    /// have taken effect
    #[arg(long)]
    unfinished_too: bool,
    /// Maximum number of keys
    #[arg(long, value_name = "N", default_value = "10000")]
    limit: usize,
    #[command(flatten)]
    audit: AuditArgs,
}

/// Prefix, namespace and key. A message names a key by these three texts.
pub(super) type Named<'a> = (&'a str, &'a str, &'a str);

/// Reports a change of a key, with its author and reason. `done` is false if the change was not
/// made, and `None` if that is not known.
pub(super) fn event(say: Say, what: &str, of: Named<'_>, audit: &Audit, done: Option<bool>) {
    let (prefix, namespace, key) = of;
    let fields = json!({
        "prefix": prefix, "namespace": namespace, "key": key, "by": audit.by(),
        "reason": audit.reason(), "done": done
    });
    let not = match done {
        Some(true) => "",
        Some(false) => "not done: ",
        None => "not known to be done: ",
    };
    let (by, reason) = (audit.by(), audit.reason());
    let text = format!(
        "{not}{what} of {key:?} (namespace {namespace:?}, prefix {prefix:?}) by {by}: {reason}"
    );
    say.warn(what, fields, &text);
}

/// Returns true if the change of the key is done; `None` if that is not known.
fn done(change: &KeyChange) -> Option<bool> {
    (!change.may_be_done()).then(|| change.is_done())
}

fn code(change: &KeyChange) -> u8 {
    if change.is_done() {
        return 0;
    }
    if change.may_be_done() {
        return UNAVAILABLE;
    }
    let reached = |change: &NodeChange| {
        !matches!(change, NodeChange::Unreachable(_) | NodeChange::Unanswered(_))
    };
    let reached = change.nodes.iter().filter(|(_, change)| reached(change)).count();
    if 2 * reached > change.nodes.len() { 2 } else { UNAVAILABLE }
}

impl OneArgs {
    pub(super) async fn run(self, change: Change) -> Result<Done, Fail> {
        let audit = self.audit.audit()?;
        let (records, say) = self.ground.records(&self.namespace)?;
        let what = if change == Change::Rerun { "rerun" } else { "release" };
        let changed = records.change(change, &self.key, &audit).await?;
        // A single key without a record probably has a wrong name. So the exit code is 2. In a
        // purge, a key without a record counts as done.
        let code = if changed.is_unknown() { 2 } else { code(&changed) };
        let of = (records.prefix(), records.namespace(), &*self.key);
        event(say, what, of, &audit, done(&changed).map(|done| done && code == 0));
        Ok(Done { text: format!("{changed}\n"), code })
    }
}

impl PurgeArgs {
    pub(super) async fn run(self) -> Result<Done, Fail> {
        let audit = self.audit.audit()?;
        let purge = match self.older_than {
            Some(Span(age)) => Purge::older_than(age),
            None => Purge::late_copies_run_again(),
        };
        let purge = if self.unfinished_too { purge.unfinished_too() } else { purge };
        let (records, say) = self.ground.records(&self.namespace)?;
        let purged = records.purge(&purge.limit(self.limit), &audit).await?;
        let mut text = String::new();
        for change in &purged.keys {
            let of = (records.prefix(), records.namespace(), &*change.key);
            event(say, "purge", of, &audit, done(change));
            if change.missing().next().is_some() {
                let _ = writeln!(text, "{change}");
            }
        }
        let done = purged.keys.iter().filter(|change| change.is_done()).count();
        let _ = writeln!(text, "purged {done} of {} keys", purged.keys.len());
        if purged.more {
            text += "there are more (--limit)\n";
        }
        for (node, why) in &purged.unread {
            let _ = writeln!(text, "not read, so its records may come back: {node}: {why}");
        }
        Ok(Done { text, code: worst(&purged) })
    }
}

fn worst(purged: &Purged) -> u8 {
    let codes = purged.keys.iter().map(code);
    codes.max().unwrap_or(0).max(if purged.unread.is_empty() { 0 } else { 2 })
}
