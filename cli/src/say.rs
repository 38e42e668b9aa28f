//! What the program says of itself: on standard error, for standard output is the command's.

use std::io::{IsTerminal as _, Write as _};

use serde_json::{Map, Value};

/// How it speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say {
    json: bool,
    /// Progress is shown: somebody watches, or asked for it.
    progress: bool,
}

impl Say {
    /// With `json` each line is an object. Progress is for a terminal, JSON, or who asks for it.
    pub(crate) fn new(json: bool, verbose: bool) -> Self {
        Self { json, progress: json || verbose || std::io::stderr().is_terminal() }
    }

    /// What is as expected.
    pub(crate) fn progress(self, event: &str, fields: Value, text: &str) {
        if self.progress {
            self.warn(event, fields, text);
        }
    }

    /// What somebody has to know.
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
        // Nobody reads it any more: then nobody has to.
        drop(writeln!(std::io::stderr(), "{line}"));
    }
}
