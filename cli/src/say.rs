//! Messages of the program: on standard error, because standard output belongs to the command.

use std::io::{IsTerminal as _, Write as _};

use serde_json::{Map, Value};

/// The form of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say {
    json: bool,
    /// Whether progress is shown: on a terminal, or on request.
    progress: bool,
}

impl Say {
    /// With `json` each line is an object. Progress is shown on a terminal, as JSON, or on request.
    pub(crate) fn new(json: bool, verbose: bool) -> Self {
        Self { json, progress: json || verbose || std::io::stderr().is_terminal() }
    }

    /// Reports progress.
    pub(crate) fn progress(self, event: &str, fields: Value, text: &str) {
        if self.progress {
            self.warn(event, fields, text);
        }
    }

    /// Reports something that a person has to know.
    pub(crate) fn warn(self, event: &str, fields: Value, text: &str) {
        let line = if self.json {
            let mut all = Map::from_iter([("event".to_owned(), event.into())]);
            if let Value::Object(fields) = fields {
                all.extend(fields);
            }
            all.insert("text".to_owned(), text.into());
            Value::Object(all).to_string()
        } else {
            format!("palisade: {text}")
        };
        // The reader may close the pipe.
        drop(writeln!(std::io::stderr(), "{line}"));
    }
}
