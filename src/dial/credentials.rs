//! Logins that change while a node uses them: what a program implements, and the file that changes.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::SyncMutex;

/// What a [`CredentialsProvider`] answers.
pub type CredentialsAnswer = Result<Credentials, Box<dyn Error + Send + Sync>>;

/// Gives a node its logins, for example tokens that a cloud service has signed. A node asks for
/// each new connection, once its socket is open, and again before the login of an open one ends.
///
/// Which ends an answer has depends on the service:
///
/// | service | [`token_ends`] | [`session_ends`] |
/// |---|---|---|
/// | Entra ID: a connection is cut when its token ends | what is left of the token | – |
/// | AWS IAM: a connection is cut 12 h after its last login | – | 12 h |
/// | Memorystore: the token is checked at the login alone | – | – |
///
/// At 60 % to 80 % of the sooner end, differently on each connection, the node asks again and sends
/// `AUTH` on that open connection, also on those that listen for hints and events. So the session
/// goes on, and no call fails. If the first answer for a connection has no end, the connection
/// keeps that login: a provider cannot push a new one, nor revoke an old one.
///
/// If the provider fails or the server refuses, an open session goes on as before. Each failed
/// question is a [`NodeEvent::LoginFailed`] and is counted in [`NodeMetrics::logins_failed`]. The
/// next one follows after 125 ms to 250 ms, later after up to 5 s, or 30 s if no connection has to
/// be made, and sooner if the end is near. Until then new connections log in with the last answer,
/// as long as its token has not ended and no server has refused it.
///
/// For each login of a node at most one question is under way, and connections that are opened
/// within a second share its answer. It may take 10 s; then it is dropped, and counts as failed. It
/// must not block its thread. If a try to connect gave up before, the next one gets the answer.
///
/// # Errors
/// An error, no answer in time, a token that has ended, a panic, and a refusal by the server are
/// the fault [`NodeFault::Credentials`] of a node that has no connection. Its text contains that of
/// the error, so that must contain no secret.
///
/// # Cancellation safety
/// The node may drop the future at any time, and calls the method again later.
///
/// ```
/// use std::future::Future;
/// use std::pin::Pin;
/// use std::time::Duration;
///
/// use palisade::RedisNode;
/// use palisade::node::{Credentials, CredentialsAnswer, CredentialsProvider};
///
/// struct Tokens;
///
/// impl CredentialsProvider for Tokens {
///     fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>> {
///         Box::pin(async {
///             let (token, lasts) = ("of the token service", Duration::from_secs(3_600));
///             Ok(Credentials::new(token).user("app").token_ends(lasts))
///         })
///     }
/// }
///
/// # fn main() -> Result<(), palisade::ConfigError> {
/// let node = RedisNode::builder("redis://10.0.0.1").credentials(Tokens).build()?;
/// # drop(node);
/// # Ok(()) }
/// ```
///
/// [`token_ends`]: Credentials::token_ends
/// [`session_ends`]: Credentials::session_ends
/// [`NodeEvent::LoginFailed`]: crate::node::NodeEvent::LoginFailed
/// [`NodeFault::Credentials`]: crate::error::NodeFault::Credentials
/// [`NodeMetrics::logins_failed`]: crate::node::NodeMetrics::logins_failed
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials of a login that follows at once.
    fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>>;
}

/// One login, and for how long it is good. `Debug` shows no secret.
#[derive(Clone)]
pub struct Credentials {
    pub(super) user: Option<Box<str>>,
    pub(super) password: Box<str>,
    pub(super) token_ends: Option<Duration>,
    pub(super) session_ends: Option<Duration>,
}

impl Credentials {
    /// Makes credentials without an end, for the user name of the node's own settings. With
    /// Memorystore that is all: it checks a token at the login alone.
    pub fn new(password: impl AsRef<str>) -> Self {
        let password = password.as_ref().into();
        Self { user: None, password, token_ends: None, session_ends: None }
    }

    /// Sets the name of the ACL user.
    #[must_use]
    pub fn user(self, name: impl AsRef<str>) -> Self {
        Self { user: Some(name.as_ref().into()), ..self }
    }

    /// Sets the time from now after which the server cuts a connection that has logged in with this
    /// password and with no later one: with Entra ID, what is left of the token. If the next answer
    /// has the same user and password, none is sent. Zero is a token that has ended: the answer
    /// counts as failed.
    ///
    /// Not for AWS IAM: there a token has to be good at the login alone.
    #[must_use]
    pub fn token_ends(self, after: Duration) -> Self {
        Self { token_ends: Some(after), ..self }
    }

    /// Sets the time after which the server cuts a connection that has not logged in again: with
    /// AWS IAM, 12 hours. Then the node logs in again even with the same password. Zero has the
    /// same meaning as in [`token_ends`](Self::token_ends).
    #[must_use]
    pub fn session_ends(self, after: Duration) -> Self {
        Self { session_ends: Some(after), ..self }
    }

    /// The sooner one.
    pub(super) fn ends(&self) -> Option<Duration> {
        self.token_ends.into_iter().chain(self.session_ends).min()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("token_ends", &self.token_ends)
            .field("session_ends", &self.session_ends)
            .finish_non_exhaustive()
    }
}

/// Reads the password from a file, as its first line, each time that a connection is opened, and
/// once a minute while one is open. So a changed file is used without a restart. While the file
/// cannot be read, or its first line is empty, the last password is used and the log has a warning.
#[derive(Clone)]
pub struct PasswordFile {
    path: PathBuf,
    every: Duration,
    last: Arc<SyncMutex<Option<Box<str>>>>,
}

impl PasswordFile {
    /// Names the file. It is read later, on the runtime's threads for blocking work.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), every: Duration::from_secs(60), last: Arc::default() }
    }

    /// Sets the longest time after which an open connection uses a changed file, at least 250 ms.
    /// Default: one minute. Give the old password at least that time after the change.
    #[must_use]
    pub fn read_every(self, every: Duration) -> Self {
        Self { every: every.max(Duration::from_millis(250)), ..self }
    }

    pub(crate) fn last(self, password: &str) -> Self {
        *self.last.lock() = Some(password.into());
        self
    }

    fn password(&self, read: io::Result<String>) -> Result<Box<str>, String> {
        let mut last = self.last.lock();
        match (read, &*last) {
            (Ok(read), _) => Ok(last.insert(read.into()).clone()),
            (Err(e), Some(last)) => {
                let file = self.path.display();
                tracing::warn!(%file, error = %e, "the last password is used");
                Ok(last.clone())
            }
            (Err(e), None) => Err(format!("{}: {e}", self.path.display())),
        }
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl CredentialsProvider for PasswordFile {
    fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>> {
        Box::pin(async {
            let path = self.path.clone();
            let read = tokio::task::spawn_blocking(move || first_line(&path)).await?;
            Ok(Credentials::new(self.password(read)?).token_ends(self.every))
        })
    }
}

pub(crate) fn first_line(path: &Path) -> io::Result<String> {
    let text = std::fs::read(path)?;
    match String::from_utf8_lossy(&text).lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is empty")),
    }
}
