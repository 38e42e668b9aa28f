//! The command `palisade idem list`. It lists idempotency keys.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use palisade_ops::{KeyFacts, KeyList, KeyState, Select};
use serde_json::{Value, json};

use super::super::unread_json;
use super::reasons;
use crate::Done;
use crate::codes::{Fail, UNAVAILABLE};
use crate::settings::HandleArgs;
use crate::span::Span;

pub(super) const HELP: &str = "Examples:
  palisade idem list --running --older-than 5m --node redis://127.0.0.1
  palisade idem list --namespace orders --parked --forgotten --json --node redis://127.0.0.1
  palisade idem list --namespace orders --expires-within 1h --node redis://127.0.0.1

It reads by SCAN. A key that is there all the time is found; one that is claimed or expires in
between may be missing. Exit code: 0 all nodes were read, 2 not all of them (what only they have is
missing), 64 wrong use, 69 none.";

/// Lists keys with their state, combined from all nodes.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    handle: HandleArgs,
    /// Namespace of the keys
    #[arg(long, value_name = "NAME", default_value = "once")]
    namespace: String,
    /// Keys with a running claim
    #[arg(long)]
    running: bool,
    /// Keys whose earlier attempt left no result: the next call does not run the key (it is
    /// parked), or runs it again
    #[arg(long)]
    parked: bool,
    /// Keys with a result
    #[arg(long)]
    stored: bool,
    /// Only keys whose earlier attempts the nodes may have forgotten, because the nodes lost data
    #[arg(long)]
    forgotten: bool,
    /// Only keys whose last claim is at least this old
    #[arg(long, value_name = "SPAN")]
    older_than: Option<Span>,
    /// Only keys with a record that expires within this time
    #[arg(long, value_name = "SPAN")]
    expires_within: Option<Span>,
    /// Maximum number of keys
    #[arg(long, value_name = "N", default_value = "10000")]
    limit: usize,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub(super) async fn run(self) -> Result<Done, Fail> {
        let records = self.handle.records(&self.namespace)?;
        let states = [
            (self.running, KeyState::Running),
            (self.parked, KeyState::Lapsed),
            (self.stored, KeyState::Stored),
        ];
        let select = Select {
            states: states.into_iter().filter_map(|(is, state)| is.then_some(state)).collect(),
            forgotten: self.forgotten,
            older_than: self.older_than.map_or(Duration::ZERO, |Span(age)| age),
            younger_than: None,
            expires_within: self.expires_within.map(|Span(span)| span),
            limit: Some(self.limit),
        };
        let list = records.list(&select).await?;
        if list.unread.len() == list.nodes {
            return Err(Fail::new(UNAVAILABLE, reasons(&list.unread)));
        }
        let text = if self.json { format!("{}\n", object(&list)) } else { table(&list) };
        Ok(Done { text, code: if list.unread.is_empty() { 0 } else { 2 } })
    }
}

fn object(list: &KeyList) -> Value {
    let key = |key: &KeyFacts| {
        let left = key.remaining.map(|left| left.as_millis());
        json!({ "key": key.key, "state": key.state.word(), "attempts": key.attempts,
                "age_ms": key.age.as_millis(), "remaining_ms": left, "forgotten": key.forgotten,
                "nodes": key.nodes, "expires_in_ms": key.expires_in.as_millis() })
    };
    json!({ "keys": list.keys.iter().map(key).collect::<Vec<_>>(), "more": list.more,
            "nodes": list.nodes, "unread": unread_json(&list.unread) })
}

fn table(list: &KeyList) -> String {
    let mut text = String::new();
    for key in &list.keys {
        let whole = |span: Duration| {
            if span < Duration::from_secs(1) {
                "less than 1s".to_owned()
            } else {
                format!("{:?}", Duration::from_secs(span.as_secs()))
            }
        };
        let attempts = if key.attempts == 1 { "attempt" } else { "attempts" };
        let left = key.remaining.map(|left| format!(", for {left:.1?} more")).unwrap_or_default();
        let forgotten = if key.forgotten { ", may be forgotten" } else { "" };
        let _ = writeln!(
            text,
            "{:?}: {}{left}, {} {attempts}, the last {} ago, on {} of {} nodes, expires in \
             {}{forgotten}",
            key.key,
            key.state.word(),
            key.attempts,
            whole(key.age),
            key.nodes,
            list.nodes,
            whole(key.expires_in),
        );
    }
    if list.keys.is_empty() && list.unread.is_empty() {
        text += "no such key in this namespace\n";
    }
    if list.more {
        text += "there are more (--limit)\n";
    }
    for (node, why) in &list.unread {
        let _ =
            writeln!(text, "not read, so keys that only this node has are missing: {node}: {why}");
    }
    text
}
