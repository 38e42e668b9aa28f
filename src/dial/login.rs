//! Asks a node's [`CredentialsProvider`], one question at a time, and logs in again on open
//! connections before the server ends them.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::credentials::{Credentials, CredentialsProvider};
use super::endpoint::Endpoint;
use super::error_text::error_text;
use crate::env::{Env, pause};
use crate::error::{NodeError, NodeFault};
use crate::safe_text::Secrets;
use crate::sync::SyncMutex;
use crate::time::Moment;

const QUESTION: Duration = Duration::from_secs(10);
/// Between two questions.
const FLOOR: Duration = Duration::from_millis(250);
/// For which a good answer serves further connections, once one has taken it, and before.
const GOOD: Duration = Duration::from_secs(1);
const UNTAKEN: Duration = Duration::from_secs(30);
/// Longest pauses after failures: for a new connection, and for one that is open.
const NEW: Duration = Duration::from_secs(5);
const OPEN: Duration = Duration::from_secs(30);
/// A timer stands still while the machine is suspended.
const NAP: Duration = Duration::from_secs(60);

/// The provider failed, or the server refused what it gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoCredentials(pub(super) Arc<str>);

impl From<NoCredentials> for RedisError {
    fn from(why: NoCredentials) -> Self {
        std::io::Error::other(why).into()
    }
}

impl From<NoCredentials> for NodeError {
    fn from(why: NoCredentials) -> Self {
        Self::not_executed(NodeFault::Credentials, why.0)
    }
}

pub(crate) struct Login {
    pub(super) credentials: Credentials,
    given: Moment,
    was_refused: AtomicBool,
}

impl Login {
    fn secrets(&self) -> Secrets {
        Secrets::of(self.credentials.user.as_deref(), Some(&self.credentials.password))
    }

    fn is_good(&self, now: Moment) -> bool {
        let ends = self.credentials.token_ends.is_none_or(|end| now < self.given + end);
        ends && !self.was_refused.load(Ordering::Acquire)
    }

    /// Longest pause before the next try on a connection that has this login.
    fn patience(&self, now: Moment) -> Duration {
        let left = self.credentials.ends().map_or(OPEN, |end| (self.given + end).since(now));
        if left.is_zero() { OPEN } else { (left / 4).clamp(FLOOR, OPEN) }
    }

    /// At 60 % to 80 % of the time: connections that were opened together do not log in together.
    fn due(&self, env: &dyn Env) -> Option<Moment> {
        let share = 0.6 + 0.2 * f64::from(env.random() as u16) / f64::from(u16::MAX);
        self.credentials.ends().map(|end| self.given + end.mul_f64(share).max(FLOOR))
    }
}

type Answer = Result<Arc<Login>, NoCredentials>;
type Report = Box<dyn Fn(&str) + Send + Sync>;
/// Sends a command on a connection.
pub(crate) type Sends = Box<dyn Fn(Cmd) -> BoxFuture<'static, RedisResult<Value>> + Send + Sync>;

/// Of one login of one node; shared by all its connections.
pub(crate) struct Logins {
    provider: Arc<dyn CredentialsProvider>,
    env: Arc<dyn Env>,
    state: SyncMutex<State>,
    answered: Notify,
    on_failure: OnceLock<Report>,
}

#[derive(Default)]
struct State {
    is_asking: bool,
    /// With the time of the answer, or when a connection took it first.
    last: Option<(Answer, Moment)>,
    is_taken: bool,
    /// For new connections while the provider fails.
    good: Option<Arc<Login>>,
    /// Answers that were an error, or that a server refused, since one was accepted.
    failures: u32,
    random: u128,
    /// That connections use, or will.
    known: Vec<Weak<Login>>,
}

impl State {
    /// When the next question may be asked, on behalf of a new connection or with the patience of
    /// an open one.
    fn stale_at(&self, patience: Option<Duration>) -> Moment {
        match &self.last {
            None => Moment::default(),
            Some((Ok(login), came)) if !login.was_refused.load(Ordering::Acquire) => {
                let good = if self.is_taken { GOOD } else { UNTAKEN };
                let ends = login.credentials.ends().map_or(good, |end| end.mul_f64(0.6));
                *came + ends.clamp(FLOOR, good)
            }
            Some((_, came)) => *came + self.pause(patience.unwrap_or(NEW)),
        }
    }

    fn pause(&self, longest: Duration) -> Duration {
        pause(self.random, self.failures.saturating_sub(1), (FLOOR, longest))
    }

    fn take(&mut self, patience: Option<Duration>, now: Moment) -> Option<Answer> {
        if now >= self.stale_at(patience) {
            return None;
        }
        let (answer, came) = self.last.as_mut()?;
        if !std::mem::replace(&mut self.is_taken, true) && answer.is_ok() {
            *came = now;
        }
        match (&*answer, &self.good) {
            (Err(_), Some(good)) if patience.is_none() && good.is_good(now) => {
                Some(Ok(Arc::clone(good)))
            }
            (answer, _) => Some(answer.clone()),
        }
    }
}

impl Logins {
    pub(crate) fn new(provider: Arc<dyn CredentialsProvider>, env: Arc<dyn Env>) -> Self {
        Self {
            provider,
            env,
            state: SyncMutex::default(),
            answered: Notify::new(),
            on_failure: OnceLock::new(),
        }
    }

    pub(super) fn of_node(&self, env: &Arc<dyn Env>) -> Self {
        Self::new(Arc::clone(&self.provider), Arc::clone(env))
    }

    pub(crate) fn on_failure(&self, report: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.on_failure.set(Box::new(report));
    }

    /// Of all logins in use.
    pub(super) fn secrets(&self) -> Secrets {
        let known: Vec<_> = self.state.lock().known.iter().filter_map(Weak::upgrade).collect();
        known.iter().fold(Secrets::default(), |all, login| all.and(&login.secrets()))
    }

    /// A dropped future leaves the question under way for the next caller.
    ///
    /// An open connection says for how long it waits after a failure; a new one says `None`, and is
    /// given the last good login while the provider fails.
    pub(super) async fn ask(self: &Arc<Self>, patience: Option<Duration>) -> Answer {
        loop {
            let answered = self.answered.notified();
            let asks = {
                let mut state = self.state.lock();
                if let Some(answer) = state.take(patience, self.env.now()) {
                    return answer;
                }
                !std::mem::replace(&mut state.is_asking, true)
            };
            if asks {
                let asking = Asking(Arc::clone(self));
                self.env.spawn(&Handle::current(), Box::pin(asking.answer()));
            }
            answered.await;
            // A runtime that shuts down drops the question at once, each time.
            yield_now().await;
        }
    }

    fn keep(&self, answer: Answer) {
        let failure = answer.as_ref().err().cloned();
        let mut state = self.state.lock();
        if let Ok(login) = &answer {
            state.known.retain(|known| known.strong_count() > 0);
            state.known.push(Arc::downgrade(login));
            state.good = Some(Arc::clone(login));
        }
        state.random = self.env.random();
        (state.last, state.is_taken) = (Some((answer, self.env.now())), false);
        drop(state);
        if let Some(NoCredentials(why)) = failure {
            self.failed(&why);
        }
    }

    /// The next connection asks again, after a pause.
    fn failed(&self, why: &str) {
        let mut state = self.state.lock();
        state.failures = state.failures.saturating_add(1);
        drop(state);
        if let Some(report) = self.on_failure.get() {
            report(why);
        }
    }
}

/// A question under way, in a task of its own: a try to connect may end before the provider
/// answers. Dropping it lets the next caller ask, even if the task never ran.
struct Asking(Arc<Logins>);

impl Asking {
    async fn answer(self) {
        let logins = &self.0;
        let asks = AssertUnwindSafe(async { logins.provider.credentials().await });
        let answer = match timeout(QUESTION, asks.catch_unwind()).await {
            Ok(Ok(Ok(given))) if given.ends() == Some(Duration::ZERO) => {
                Err("the provider's token has ended".to_owned())
            }
            Ok(Ok(Ok(credentials))) => {
                let (given, was_refused) = (logins.env.now(), AtomicBool::new(false));
                Ok(Arc::new(Login { credentials, given, was_refused }))
            }
            Ok(Ok(Err(e))) => Err(logins.secrets().clean(&format!("the provider failed: {e}"))),
            Ok(Err(_)) => Err("the provider panicked".to_owned()),
            Err(_) => Err(format!("the provider gave no answer within {QUESTION:?}")),
        };
        logins.keep(answer.map_err(|why| NoCredentials(why.into())));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.state.lock().is_asking = false;
        self.0.answered.notify_waiters();
    }
}

/// A login on a connection for a purpose.
#[derive(Clone)]
pub(crate) struct Given {
    pub(super) login: Arc<Login>,
    pub(super) logins: Arc<Logins>,
    pub(super) purpose: &'static str,
}

impl Given {
    pub(super) fn refused(&self, at: &Endpoint, e: &RedisError) -> NoCredentials {
        let why = error_text(e, &at.secrets());
        let why = format!("{why}; the server refused what the provider gave");
        // Several connections may have been given it.
        if !self.login.was_refused.swap(true, Ordering::AcqRel) {
            self.logins.failed(&format!("{at}, connection for {}: {why}", self.purpose));
        }
        NoCredentials(why.into())
    }

    fn accepted(&self) {
        let mut state = self.logins.state.lock();
        // An older one proves nothing of a provider that has failed since.
        let is_last = |(last, _): &(Answer, _)| {
            last.as_ref().is_ok_and(|last| Arc::ptr_eq(last, &self.login))
        };
        if state.last.as_ref().is_some_and(is_last)
            && !self.login.was_refused.load(Ordering::Acquire)
        {
            state.failures = 0;
        }
    }

    /// `None` if it goes on as the user before; an error if the connection is over.
    async fn renewed(&self, at: &Endpoint, sends: &Sends) -> RedisResult<Option<Self>> {
        let patience = self.login.patience(self.logins.env.now());
        let Ok(login) = self.logins.ask(Some(patience)).await else { return Ok(None) };
        let (old, new) = (&self.login.credentials, &login.credentials);
        let is_same = (&old.user, &old.password) == (&new.user, &new.password);
        let is_known = is_same && old.session_ends.or(new.session_ends).is_none();
        let new = Self { login, ..self.clone() };
        if is_known {
            new.accepted();
            return Ok(Some(new));
        }
        let at = at.with(new.clone());
        match sends(at.auth()).await.and_then(Value::extract_error) {
            Ok(_) => {
                new.accepted();
                Ok(Some(new))
            }
            Err(e) if e.code().is_some() => {
                new.refused(&at, &e);
                Ok(None)
            }
            Err(e) => {
                let why = error_text(&e, &at.secrets());
                let of = self.purpose;
                self.logins.failed(&format!("{at}, connection for {of}: no answer to AUTH: {why}"));
                if e.is_timeout() { Ok(None) } else { Err(e) }
            }
        }
    }
}

/// Logs in again on an open connection, until it is dropped.
pub(crate) struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Keeper {
    /// `None` if the connection has no login that ends.
    pub(crate) fn new(at: &Endpoint, sends: Sends) -> Option<Self> {
        let given = at.given()?;
        given.accepted();
        let env = &given.logins.env;
        let due = given.login.due(&**env)?;
        let work = Box::pin(keep(at.clone(), given.clone(), due, sends));
        Some(Self(env.spawn(&Handle::current(), work)))
    }
}

async fn keep(at: Endpoint, mut given: Given, mut due: Moment, sends: Sends) {
    let Logins { env, state, .. } = &*Arc::clone(&given.logins);
    loop {
        while let left = due.since(env.now())
            && !left.is_zero()
        {
            sleep(left.min(NAP)).await;
        }
        let next = match given.renewed(&at, &sends).await {
            Ok(Some(new)) => {
                given = new;
                given.login.due(&**env)
            }
            Ok(None) => {
                let now = env.now();
                Some(now + state.lock().pause(given.login.patience(now)))
            }
            Err(_) => None,
        };
        let Some(next) = next else { return };
        due = next.max(env.now() + FLOOR);
    }
}

#[cfg(test)]
mod tests;
