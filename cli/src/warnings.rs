//! Warnings of the library, as messages of the program.

use std::fmt;
use std::sync::Once;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::say::Say;

/// From here on what the library warns of is written by `say`; once for each process.
pub(crate) fn listen(say: Say) {
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| {
        if let Err(e) = tracing_subscriber::registry().with(Warnings(say)).try_init() {
            let text = format!("the library's warnings cannot be shown: {e}");
            say.warn("no_warnings", json!({ "why": e.to_string() }), &text);
        }
    });
}

struct Warnings(Say);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let of = event.metadata();
        let ours = of.target().split("::").next() == Some("palisade");
        if !ours || *of.level() > Level::WARN {
            return;
        }
        let mut parts = Parts::default();
        event.record(&mut parts);
        let shown = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name}: {text}"),
            other => format!("{name}: {other}"),
        };
        let fields: Vec<_> = parts.fields.iter().map(shown).collect();
        let text = match &*fields {
            [] => parts.message,
            fields => format!("{} ({})", parts.message, fields.join(", ")),
        };
        self.0.warn("warning", Value::Object(parts.fields), &text);
    }
}

/// The parts of an event.
#[derive(Default)]
struct Parts {
    message: String,
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
            // What a message of the program calls its kind.
            "event" => {}
            name => drop(self.fields.insert(name.to_owned(), value)),
        }
    }
}
