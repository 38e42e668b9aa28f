//! The way to a broker: one session after the other, each replaced as a whole when it breaks.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Delivery, Source};

/// How long it may take to open a session. A busy broker declares queues slowly.
const OPEN: Duration = Duration::from_secs(30);
/// How long it takes at least until a broker that failed is asked again.
const AGAIN: Duration = Duration::from_millis(500);

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

/// The [`Source`] that opens one session after the other.
pub struct Sessions<S: Session> {
    plan: S::Plan,
    now: Option<S>,
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
        Self { plan, now: None }
    }

    async fn read(&mut self, room: usize) -> Result<Vec<S::Delivery>, Option<S::Error>> {
        if self.now.as_ref().is_some_and(S::is_broken) {
            self.replace().await;
        }
        let now = match &mut self.now {
            Some(now) => now,
            none => {
                let opened = timeout(OPEN, S::open(&self.plan)).await.map_err(|_| None)?;
                none.insert(opened.map_err(Some)?)
            }
        };
        now.next(room).await.map_err(Some)
    }

    async fn replace(&mut self) {
        if let Some(broken) = self.now.take() {
            broken.close().await;
        }
    }
}

impl<S: Session> Source for Sessions<S> {
    type Delivery = S::Delivery;
    type Error = S::Error;

    async fn fetch(&mut self, room: usize) -> Result<Vec<S::Delivery>, S::Error> {
        let cause = match self.read(room).await {
            Ok(deliveries) => return Ok(deliveries),
            Err(Some(e)) if !S::is_passing(&e) => return Err(e),
            Err(Some(e)) => e.to_string(),
            Err(None) => format!("it did not answer within {OPEN:?}"),
        };
        tracing::warn!(
            target: "palisade::consumer", error = %cause, "no messages; trying the broker again"
        );
        self.replace().await;
        sleep(AGAIN).await;
        Ok(Vec::new())
    }

    async fn close(&mut self) {
        self.replace().await;
    }
}
