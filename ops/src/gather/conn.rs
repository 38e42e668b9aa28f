//! One connection to a server or Sentinel. Every question ends at the same deadline, so a frozen
//! server costs one time-out and not one per question.

use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::super::facts::{Fields, Read};
use palisade::internal::{self, Endpoint, Line, Secrets, said};

/// An open connection and when its questions end.
pub(crate) struct Conn {
    line: Line,
    until: Instant,
}

impl Conn {
    /// Connects and logs in.
    pub(crate) async fn open(at: &Endpoint, until: Instant) -> Result<Self, String> {
        // Our own deadline ends every wait.
        match timeout_at(until, internal::open(at)).await {
            Ok(Ok(line)) => Ok(Self { line, until }),
            Ok(Err(e)) => Err(said(&e, &at.secrets())),
            Err(_) => Err(LATE.to_owned()),
        }
    }

    /// The login secrets, which must not be shown.
    pub(crate) fn secrets(&self) -> &Secrets {
        self.line.secrets()
    }

    /// Asks; `what` is named where it is not allowed.
    pub(crate) async fn ask(&self, command: &Cmd, what: &str) -> Read<Value> {
        let mut handle = self.line.clone();
        let sent = async { handle.send_packed_command(command).await };
        match timeout_at(self.until, sent).await {
            Ok(answer) => answered(answer.and_then(Value::extract_error), what, self.secrets()),
            Err(_) => Read::Failed(LATE.to_owned()),
        }
    }

    /// As [`Self::ask`], with the answer as a value of this type.
    pub(crate) async fn read<T: FromRedisValue>(
        &self,
        command: &Cmd,
        what: &str,
    ) -> Result<T, String> {
        match self.ask(command, what).await {
            Read::Got(value) => {
                redis::from_redis_value(value).map_err(|_| format!("{what}: answer not understood"))
            }
            Read::Closed(why) | Read::Failed(why) => Err(why),
        }
    }

    /// As [`Self::ask`], with the command split at spaces.
    pub(crate) async fn say(&self, command: &str, what: &str) -> Read<Value> {
        self.ask(&split(command), what).await
    }
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
    match answer {
        Ok(value) => Read::Got(value),
        Err(e) => {
            let lower = e.detail().unwrap_or_default().to_ascii_lowercase();
            let unknown = lower.contains("unknown command") || lower.contains("unknown subcommand");
            if e.code() == Some("NOPERM") || unknown {
                Read::Closed(format!("{what} not allowed"))
            } else {
                Read::Failed(said(&e, secrets))
            }
        }
    }
}

impl<T> Read<T> {
    /// Converts the answer; an answer that cannot be converted counts as failed.
    pub(crate) fn then<U>(self, what: &str, read: impl FnOnce(&T) -> Option<U>) -> Read<U> {
        match self {
            Self::Got(value) => read(&value)
                .map_or_else(|| Read::Failed(format!("{what}: answer not understood")), Read::Got),
            Self::Closed(why) => Read::Closed(why),
            Self::Failed(why) => Read::Failed(why),
        }
    }
}

/// A text without control characters. Secrets are replaced later, in the report: here, a password
/// that is also a common word would change the values.
pub(crate) fn text(value: &Value) -> Option<String> {
    raw(value).map(|text| Secrets::default().clean(&text))
}

/// The unchanged text, for parsing.
pub(crate) fn raw(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}

/// Names with their values, as a map or flat.
pub(crate) fn fields(value: &Value) -> Option<Fields> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(k, v)| Some((text(k)?, text(v)?))).collect(),
        Value::Array(items) if items.len().is_multiple_of(2) => {
            items.chunks_exact(2).map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect()
        }
        _ => None,
    }
}

/// `INFO`: a line `name:value` each.
pub(crate) fn info(value: &Value) -> Option<Fields> {
    let all = raw(value)?;
    let pairs = all.lines().filter_map(|line| line.split_once(':'));
    let clean = |text: &str| Secrets::default().clean(text.trim_end());
    Some(pairs.map(|(name, value)| (clean(name), clean(value))).collect())
}
