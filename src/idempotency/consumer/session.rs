//! The way to a broker: one session after the other, each replaced as a whole when it breaks.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{Delivery, Source};
use crate::env::{self, Env as _, SystemEnv};

/// How long it may take to open a session. A busy broker declares queues slowly.
const OPEN: Duration = Duration::from_secs(30);
/// Longest part of a pause that one fetch waits, so that a stop is noticed.
const TURN: Duration = Duration::from_millis(500);
/// First and longest pause after a failure at a broker.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The pause before something is tried again that failed `failures` times before at a broker: half
/// a second at first, doubled each time up to half a minute, and of that a random part of at most
/// half less, so that consumers do not come in step.
pub fn pause(failures: u32) -> Duration {
    env::pause(SystemEnv.random(), failures, PAUSE)
}

/// A connection to a broker, with all that belongs to it. When anything on it breaks it is replaced
/// as a whole: what was not settled on it comes again, and nothing of it is used any more.
pub trait Session: Send + Sized {
    /// What a session is opened for.
    type Plan: Send + Sync;
    /// What comes.
    type Delivery: Delivery;
    /// Why it broke, or cannot be opened.
    type Error: Error + Send + Sync + 'static;

    /// Connects, and declares what has to be there.
    fn open(plan: &Self::Plan) -> impl Future<Output = Result<Self, Self::Error>> + Send;

    /// Whether something happened after which it has to be replaced.
    fn is_broken(&self) -> bool {
        false
    }

    /// As [`Source::fetch`], on this session. After an error the session is replaced.
    fn next(
        &mut self,
        room: usize,
    ) -> impl Future<Output = Result<Vec<Self::Delivery>, Self::Error>> + Send;

    /// Returns what was handed over and not settled.
    fn close(self) -> impl Future<Output = ()> + Send;

    /// Whether another session can help: not if the broker refuses the login or the request.
    fn is_passing(error: &Self::Error) -> bool;
}

/// The [`Source`] that opens one session after the other. It pauses after each that broke, longer
/// each time, until one has stood for longer than the longest pause.
pub struct Sessions<S: Session> {
    plan: S::Plan,
    now: Option<(S, Instant)>,
    /// Sessions in a row that broke, or could not be opened.
    failures: u32,
    /// The end of the pause.
    again: Option<Instant>,
}

impl<S: Session> fmt::Debug for Sessions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The plan may have a password in it.
        f.debug_struct("Sessions").field("open", &self.now.is_some()).finish_non_exhaustive()
    }
}

impl<S: Session> Sessions<S> {
    /// Sessions opened for this. The first is opened with the first fetch.
    pub fn new(plan: S::Plan) -> Self {
        Self { plan, now: None, failures: 0, again: None }
    }

    /// `None`: the session broke, or did not answer; the text says which.
    async fn read(&mut self, room: usize) -> Result<Vec<S::Delivery>, (Option<S::Error>, String)> {
        let (now, _) = match &mut self.now {
            Some(now) => now,
            none => {
                let late = |_| (None, format!("it did not answer within {OPEN:?}"));
                let opened = timeout(OPEN, S::open(&self.plan)).await.map_err(late)?;
                none.insert((opened.map_err(known)?, Instant::now()))
            }
        };
        if now.is_broken() {
            return Err((None, "the session broke".to_owned()));
        }
        now.next(room).await.map_err(known)
    }

    async fn replace(&mut self) {
        if let Some((broken, opened)) = self.now.take() {
            if opened.elapsed() > PAUSE.1 {
                self.failures = 0;
            }
            broken.close().await;
        }
    }
}

fn known<E: Error>(e: E) -> (Option<E>, String) {
    let text = e.to_string();
    (Some(e), text)
}

impl<S: Session> Source for Sessions<S> {
    type Delivery = S::Delivery;
    type Error = S::Error;

    async fn fetch(&mut self, room: usize) -> Result<Vec<S::Delivery>, S::Error> {
        if let Some(again) = self.again {
            sleep_until(again.min(Instant::now() + TURN)).await;
            if Instant::now() < again {
                return Ok(Vec::new());
            }
            self.again = None;
        }
        let cause = match self.read(room).await {
            Ok(deliveries) => return Ok(deliveries),
            Err((Some(e), _)) if !S::is_passing(&e) => return Err(e),
            Err((_, cause)) => cause,
        };
        self.replace().await;
        let pause = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.again = Some(Instant::now() + pause);
        tracing::warn!(
            target: "palisade::consumer", error = %cause, again_ms = pause.as_millis() as u64,
            "no messages; trying the broker again"
        );
        Ok(Vec::new())
    }

    async fn close(&mut self) {
        self.replace().await;
    }
}
