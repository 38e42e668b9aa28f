//! Messages of `palisade` on standard error. Standard output belongs to the command that `palisade`
//! runs.
//!
//! A separate thread writes the messages. If nothing reads standard error, only this thread waits.
//! `palisade` still renews the lease, ends the command and receives signals.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// Maximum time for which `palisade` waits until a message is written. The message then precedes
/// later output.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Maximum time to write the last messages.
const LAST: Duration = Duration::from_secs(2);
/// Maximum number of messages that wait to be written.
const WAITING: usize = 256;

/// Form of messages: text or JSON, with or without progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Say {
    json: bool,
    /// True if progress is shown: on a terminal, or on request.
    progress: bool,
}

impl Say {
    /// Creates the form of messages. With `json`, each line is a JSON object. Progress is shown on
    /// a terminal, as JSON, or if `verbose` is set.
    pub(crate) fn new(json: bool, verbose: bool) -> Self {
        Self { json, progress: json || verbose || std::io::stderr().is_terminal() }
    }

    /// Reports progress.
    pub(crate) fn progress(self, event: &str, fields: Value, text: &str) {
        if self.progress {
            self.warn(event, fields, text);
        }
    }

    /// Reports an event that is important to a person.
    pub(crate) fn warn(self, event: &str, fields: Value, text: &str) {
        let Some(writer) = Writer::get() else {
            return put(&self.line(event, fields, text));
        };
        let left_out = writer.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let text = format!("{left_out} messages are left out here, because they were not read");
            writer.write(self.line("left_out", json!({ "messages": left_out }), &text), left_out);
        }
        writer.write(self.line(event, fields, text), 1);
    }

    fn line(self, event: &str, fields: Value, text: &str) -> String {
        let text = own_words(text);
        if !self.json {
            return format!("palisade: {}", plain(&text));
        }
        let mut all = Map::from_iter([("event".to_owned(), event.into())]);
        if let Value::Object(fields) = fields {
            all.extend(fields);
        }
        all.insert("text".to_owned(), text.into());
        escaped(&Value::Object(all).to_string())
    }
}

/// Waits until the messages are written, for at most `LAST`.
pub(crate) fn end() {
    if let Some(writer) = Writer::get() {
        writer.written(LAST);
    }
}

/// Names of settings in the library's texts, and the options that replace them in messages.
const OPTIONS: [(&str, &str); 4] = [
    (" (in tests: `trust_fresh(true)`)", ""),
    ("`map_address`", "--map"),
    ("`created_at`", "--created-at"),
    ("raise ttl and max_ttl", "raise --ttl and --max-ttl"),
];

/// Replaces the library's names of settings by the option names of this program.
fn own_words(text: &str) -> String {
    OPTIONS.iter().fold(text.to_owned(), |text, (name, option)| text.replace(name, option))
}

/// Returns a text that is safe on a terminal. Another process or a server may have written parts of
/// the text. These parts must not control the terminal, and no line of them may look like a
/// message.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\n  "),
            c if commands(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns the JSON text with `\u` escapes for the characters that control a terminal. The values
/// of the JSON stay the same.
pub(crate) fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if commands(c) && c != '\n' {
            // Writing to a `String` does not fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns true if a terminal treats this character as a command, or if the character changes the
/// direction of the text around it.
fn commands(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

fn put(line: &str) {
    // The reader of standard error may have closed the stream. So an error is ignored.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Sends lines to the thread that writes them.
struct Writer {
    lines: SyncSender<String>,
    /// Number of lines that are not written yet, and the condition for a change of this number.
    waiting: Arc<(Mutex<usize>, Condvar)>,
    /// Number of messages that were dropped because the queue was full.
    left_out: AtomicUsize,
}

impl Writer {
    /// Returns the writer of palisade's messages; `None` if the writer's thread could not be
    /// started.
    fn get() -> Option<&'static Self> {
        static WRITER: OnceLock<Option<Writer>> = OnceLock::new();
        WRITER.get_or_init(Self::start).as_ref()
    }

    fn start() -> Option<Self> {
        let (lines, handed) = sync_channel::<String>(WAITING);
        let waiting = Arc::<(Mutex<usize>, Condvar)>::default();
        let of = Arc::clone(&waiting);
        let work = move || {
            for line in handed {
                put(&line);
                *of.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                of.1.notify_all();
            }
        };
        thread::Builder::new().name("messages".to_owned()).spawn(work).ok()?;
        Some(Self { lines, waiting, left_out: AtomicUsize::new(0) })
    }

    /// Queues a line. If the queue is full, drops the line and adds `messages` to `left_out`.
    fn write(&self, line: String, messages: usize) {
        let first = {
            let mut waiting = self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
            if self.lines.try_send(line).is_err() {
                self.left_out.fetch_add(messages, Ordering::Relaxed);
                return;
            }
            *waiting += 1;
            *waiting == 1
        };
        // If an earlier line still waits, nothing reads standard error at present. Then a wait for
        // this line would only delay `palisade`.
        if first {
            self.written(AT_ONCE);
        }
    }

    fn written(&self, within: Duration) {
        let (waiting, less) = &*self.waiting;
        let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        drop(less.wait_timeout_while(waiting, within, |waiting| *waiting > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_as_on_the_command_line() {
        let text = "say which by `map_address`, or have the server announce it";
        let line = Say { json: false, progress: false }.line("error", json!({}), text);
        assert_eq!(line, "palisade: say which by --map, or have the server announce it");
    }
}
