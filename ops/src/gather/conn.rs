//! A connection to a server or Sentinel. All requests share one deadline, so a frozen server costs
//! one time-out in total.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::super::facts::{Fields, Read, Unread};
use palisade::internal::{self, Endpoint, Line, Secrets, error_text, missing_right};

#[derive(Clone)]
pub(crate) struct Conn {
    line: Arc<Line>,
    until: Instant,
}

impl Conn {
    pub(crate) async fn open(at: &Endpoint, until: Instant) -> Result<Self, String> {
        Self::opened(at, internal::open(at), until).await
    }

    /// For longer answers, such as many long keys.
    pub(crate) async fn open_wide(at: &Endpoint, until: Instant) -> Result<Self, String> {
        Self::opened(at, internal::open_wide(at), until).await
    }

    async fn opened(
        at: &Endpoint,
        line: impl Future<Output = RedisResult<Line>>,
        until: Instant,
    ) -> Result<Self, String> {
        // Every wait ends at `until`.
        match timeout_at(until, line).await {
            Ok(Ok(line)) => Ok(Self::over(line, until)),
            Ok(Err(e)) => Err(internal::opening_text(&e, at)),
            Err(_) => Err(LATE.to_owned()),
        }
    }

    pub(crate) fn over(line: Line, until: Instant) -> Self {
        Self { line: Arc::new(line), until }
    }

    pub(crate) fn until(&self, until: Instant) -> Self {
        Self { line: Arc::clone(&self.line), until }
    }

    pub(crate) fn secrets(&self) -> Secrets {
        self.line.secrets()
    }

    /// An error's text calls the command `what`.
    pub(crate) async fn execute(&self, command: &Cmd, what: &str) -> Read<Value> {
        match self.send(command).await {
            Some(answer) => answered(answer, what, &self.secrets()),
            None => Err(Unread::Failed(LATE.to_owned())),
        }
    }

    /// Sends a command without which an operation cannot go on, and returns the answer. The text of
    /// an error says which right the user lacks.
    pub(crate) async fn needed(&self, command: &Cmd) -> Result<Value, String> {
        let answer = self.send(command).await.ok_or_else(|| LATE.to_owned())?;
        answer.map_err(|e| refused(&e, &self.secrets()))
    }

    /// Sends a command that changes something, as [`Self::needed`] does. `Ok(Err(why))` is an error
    /// that the server answered; `Err(why)` means that no answer came, so the server may have
    /// executed the command.
    pub(crate) async fn change(&self, command: &Cmd) -> Result<Result<Value, String>, String> {
        match self.send(command).await.ok_or_else(|| LATE.to_owned())? {
            Err(e) if e.code().is_none() => Err(error_text(&e, &self.secrets())),
            answer => Ok(answer.map_err(|e| refused(&e, &self.secrets()))),
        }
    }

    /// `None` if there is no answer before the deadline.
    pub(crate) async fn send(&self, command: &Cmd) -> Option<RedisResult<Value>> {
        let mut handle = (**self.line).clone();
        let sent = async { handle.send_packed_command(command).await };
        let answer = timeout_at(self.until, sent).await.ok()?;
        Some(answer.and_then(Value::extract_error))
    }

    /// In ms since 1970.
    pub(crate) async fn deadline_at_server(&self) -> Result<u64, String> {
        let (s, us): (u64, u64) = self.read(&redis::cmd("TIME"), "TIME").await?;
        let left = self.until.saturating_duration_since(Instant::now());
        let left = u64::try_from(left.as_millis()).unwrap_or_default();
        Ok(s.saturating_mul(1_000).saturating_add(us / 1_000).saturating_add(left))
    }

    /// Sends `count` commands in one write, and returns the answer to each of them, with the texts
    /// of [`Self::needed`].
    pub(crate) async fn all_needed(
        &self,
        commands: &Pipeline,
        count: usize,
    ) -> Result<Vec<Result<Value, String>>, String> {
        let mut handle = (**self.line).clone();
        let sent = async { handle.send_packed_commands(commands, 0, count).await };
        let answers = timeout_at(self.until, sent).await.map_err(|_| LATE.to_owned())?;
        let text = |e| refused(&e, &self.secrets());
        let answers = answers.map_err(text)?;
        Ok(answers.into_iter().map(|answer| answer.extract_error().map_err(text)).collect())
    }

    /// Sends a command as [`Self::needed`] does, and converts the answer to a value of type `T`.
    pub(crate) async fn read<T: FromRedisValue>(
        &self,
        command: &Cmd,
        what: &str,
    ) -> Result<T, String> {
        let value = self.needed(command).await?;
        redis::from_redis_value(value).map_err(|_| format!("{what}: answer not understood"))
    }

    /// Split at spaces. If the answer cannot be parsed, the request counts as failed.
    pub(crate) async fn query<T>(
        &self,
        command: &str,
        what: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Read<T> {
        parsed(&self.execute(&split(command), what).await?, what, parse)
    }
}

pub(crate) fn parsed<'v, T>(
    value: &'v Value,
    what: &str,
    parse: impl FnOnce(&'v Value) -> Option<T>,
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

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").finish_non_exhaustive()
    }
}

pub(crate) const LATE: &str = "no answer before the deadline";

fn answered<T>(answer: RedisResult<T>, what: &str, secrets: &Secrets) -> Read<T> {
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

fn refused(e: &RedisError, secrets: &Secrets) -> String {
    missing_right(e, secrets).unwrap_or_else(|| error_text(e, secrets))
}

/// Returns the value as text without control characters. Secrets are removed later, by the report
/// that shows the text. Removing them here would change values, because a password can be a common
/// word.
pub(crate) fn text(value: &Value) -> Option<String> {
    raw(value).map(|text| Secrets::default().clean(&text))
}

pub(crate) fn raw(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}

pub(crate) fn fields(value: &Value) -> Option<Fields> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(k, v)| Some((text(k)?, text(v)?))).collect(),
        Value::Array(items) if items.len().is_multiple_of(2) => {
            items.chunks_exact(2).map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect()
        }
        _ => None,
    }
}

pub(crate) fn info(value: &Value) -> Option<Fields> {
    let all = raw(value)?;
    let pairs = all.lines().filter_map(|line| line.split_once(':'));
    let clean = |text: &str| Secrets::default().clean(text.trim_end());
    Some(pairs.map(|(name, value)| (clean(name), clean(value))).collect())
}
