//! Shows the warnings of the palisade library as messages of the program `palisade`. There is one
//! message at the beginning of a problem, and one message at its end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, Once, PoisonError};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::say::Say;

/// Kinds of trouble of a node or a lease that can end: the event at the beginning, and the event at
/// the end.
const ENDS: [(&str, &str); 4] = [
    ("down", "up"),
    ("quarantine_begun", "quarantine_ended"),
    ("min_replicas_missing", "min_replicas_restored"),
    ("renewal_failed", "renewed"),
];
/// Maximum number of warnings that are kept until they are shown.
const KEPT: usize = 64;

static STATE: Mutex<State> =
    Mutex::new(State { shown: false, kept: Vec::new(), left_out: 0, trouble: BTreeSet::new() });

struct State {
    shown: bool,
    kept: Vec<Message>,
    /// Number of warnings that were dropped because `kept` was full.
    left_out: u64,
    /// Problems that were reported and have not ended. Each entry has the name of the event that
    /// began the problem, and the node or lease that has the problem.
    trouble: BTreeSet<(&'static str, String)>,
}

struct Message {
    event: &'static str,
    fields: Map<String, Value>,
    text: String,
}

/// Keeps the warnings of the library until the call of [`show`].
pub(crate) fn keep(say: Say) {
    static KEEPS: Once = Once::new();
    KEEPS.call_once(|| {
        if let Err(e) = tracing_subscriber::registry().with(Warnings(say)).try_init() {
            let text = format!("the library's warnings cannot be shown: {e}");
            say.warn("no_warnings", json!({ "why": e.to_string() }), &text);
        }
    });
}

/// Shows the kept warnings. After this call each warning is shown at once. A program that ends
/// before this call shows no warnings, because its error contains the cause.
pub(crate) fn show(say: Say) {
    keep(say);
    let (kept, left_out) = {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.shown = true;
        (std::mem::take(&mut state.kept), std::mem::take(&mut state.left_out))
    };
    for Message { event, fields, text } in kept {
        say.warn(event, Value::Object(fields), &text);
    }
    if left_out > 0 {
        let text = format!("{left_out} more warnings before this one were not kept");
        say.warn("warnings_left_out", json!({ "left_out": left_out }), &text);
    }
}

struct Warnings(Say);

impl<S: Subscriber> Layer<S> for Warnings {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let of = event.metadata();
        if of.target().split("::").next() != Some("palisade") {
            return;
        }
        let mut parts = Parts::default();
        event.record(&mut parts);
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(event) = state.kind(*of.level() <= Level::WARN, &parts) else { return };
        let text = parts.text();
        if state.shown {
            drop(state);
            self.0.warn(event, Value::Object(parts.fields), &text);
        } else if state.kept.len() < KEPT {
            state.kept.push(Message { event, fields: parts.fields, text });
        } else {
            state.left_out += 1;
        }
    }
}

impl State {
    /// Returns the name of the event in the output of `palisade`; `None` if the event is not shown.
    fn kind(&mut self, is_warning: bool, parts: &Parts) -> Option<&'static str> {
        if is_warning {
            if let Some((begin, _)) = ENDS.iter().find(|(begin, _)| *begin == parts.event) {
                self.trouble.insert((begin, parts.whose()));
            }
            return Some("warning");
        }
        let (begin, _) = ENDS.iter().find(|(_, end)| *end == parts.event)?;
        self.trouble.remove(&(*begin, parts.whose())).then_some("ended")
    }
}

/// The message and the fields of a tracing event.
#[derive(Default)]
struct Parts {
    message: String,
    /// Value of the field `event`, in which the library names the event.
    event: String,
    fields: Map<String, Value>,
}

impl Visit for Parts {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

impl Parts {
    fn add(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => {
                value.as_str().unwrap_or_default().clone_into(&mut self.message);
            }
            "event" => value.as_str().unwrap_or_default().clone_into(&mut self.event),
            name => drop(self.fields.insert(name.to_owned(), value)),
        }
    }

    /// Returns the node or the lease of the event.
    fn whose(&self) -> String {
        let named = ["node", "of"].into_iter().find_map(|name| self.fields.get(name));
        named.and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn text(&self) -> String {
        let shown = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name}: {text}"),
            other => format!("{name}: {other}"),
        };
        let fields: Vec<_> = self.fields.iter().map(shown).collect();
        match &*fields {
            [] => self.message.clone(),
            fields => format!("{} ({})", self.message, fields.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_find_no_room_are_counted() {
        let keeps = tracing_subscriber::registry().with(Warnings(Say::new(false, false)));
        tracing::subscriber::with_default(keeps, || {
            for n in 0..KEPT + 3 {
                tracing::warn!(target: "palisade::node", n, "trouble");
            }
            tracing::warn!(target: "another", "not the library's");
        });
        let state = STATE.lock().unwrap();
        assert_eq!((state.kept.len(), state.left_out), (KEPT, 3));
    }
}
