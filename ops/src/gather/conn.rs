//! A connection to a server or Sentinel. All its requests have the same deadline, so a frozen
//! server costs one time-out, not one per request.

use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::super::facts::{Fields, Read, Unread};
use palisade::internal::{self, Endpoint, Line, Secrets, error_text};

/// An open connection, with the deadline of its requests.
pub(crate) struct Conn {
    line: Line,
    until: Instant,
}

impl Conn {
    /// Connects to the endpoint and logs in.
    pub(crate) async fn open(at: &Endpoint, until: Instant) -> Result<Self, String> {
        // The deadline `until` ends every wait, so the connection itself needs no time-out.
        match timeout_at(until, internal::open(at)).await {
            Ok(Ok(line)) => Ok(Self { line, until }),
            Ok(Err(e)) => Err(error_text(&e, &at.secrets())),
            Err(_) => Err(LATE.to_owned()),
        }
    }

    /// Returns the secrets of the login, which must not be shown.
    pub(crate) fn secrets(&self) -> &Secrets {
        self.line.secrets()
    }

    /// Sends a command and returns its answer. The text of an error names the command as `what`.
    pub(crate) async fn execute(&self, command: &Cmd, what: &str) -> Read<Value> {
        let mut handle = self.line.clone();
        let sent = async { handle.send_packed_command(command).await };
        match timeout_at(self.until, sent).await {
            Ok(answer) => answered(answer.and_then(Value::extract_error), what, self.secrets()),
            Err(_) => Err(Unread::Failed(LATE.to_owned())),
        }
    }

    /// Sends a command as [`Self::execute`] does, and converts the answer to a value of type `T`.
    pub(crate) async fn read<T: FromRedisValue>(
        &self,
        command: &Cmd,
        what: &str,
    ) -> Result<T, String> {
        let value = self.execute(command, what).await?;
        redis::from_redis_value(value).map_err(|_| format!("{what}: answer not understood"))
    }

    /// Sends a command as [`Self::execute`] does, after splitting it at spaces, and parses the
    /// answer. An answer that cannot be parsed counts as failed.
    pub(crate) async fn query<T>(
        &self,
        command: &str,
        what: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Read<T> {
        parsed(&self.execute(&split(command), what).await?, what, parse)
    }
}

/// Parses an answer; an answer that cannot be parsed counts as failed.
pub(crate) fn parsed<T>(
    value: &Value,
    what: &str,
    parse: impl FnOnce(&Value) -> Option<T>,
) -> Read<T> {
    parse(value).ok_or_else(|| Unread::Failed(format!("{what}: answer not understood")))
}

fn split(command: &str) -> Cmd {
    let mut parts = command.split(' ');
    let mut command = redis::cmd(parts.next().unwrap_or_default());
    for part in parts {
        command.arg(part);
    }
    command
}

const LATE: &str = "no answer before the deadline";

fn answered(answer: RedisResult<Value>, what: &str, secrets: &Secrets) -> Read<Value> {
    answer.map_err(|e| {
        let lower = e.detail().unwrap_or_default().to_ascii_lowercase();
        let unknown = lower.contains("unknown command") || lower.contains("unknown subcommand");
        if e.code() == Some("NOPERM") || unknown {
            Unread::Closed(format!("{what} not allowed"))
        } else {
            Unread::Failed(error_text(&e, secrets))
        }
    })
}

/// Returns the value's text without control characters. Secrets are replaced later, in the report:
/// here, a password that is also a common word would change the values.
pub(crate) fn text(value: &Value) -> Option<String> {
    raw(value).map(|text| Secrets::default().clean(&text))
}

/// Returns the value's text unchanged, for parsing.
pub(crate) fn raw(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}

/// Returns names with their values, from a map or from a flat list.
pub(crate) fn fields(value: &Value) -> Option<Fields> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(k, v)| Some((text(k)?, text(v)?))).collect(),
        Value::Array(items) if items.len().is_multiple_of(2) => {
            items.chunks_exact(2).map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect()
        }
        _ => None,
    }
}

/// Returns the fields of an answer to `INFO`, which has one line `name:value` for each.
pub(crate) fn info(value: &Value) -> Option<Fields> {
    let all = raw(value)?;
    let pairs = all.lines().filter_map(|line| line.split_once(':'));
    let clean = |text: &str| Secrets::default().clean(text.trim_end());
    Some(pairs.map(|(name, value)| (clean(name), clean(value))).collect())
}
