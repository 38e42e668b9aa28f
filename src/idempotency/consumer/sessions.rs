//! The connection of a consumer to its broker: one session after the other, each replaced as a
//! whole when it breaks.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{Broker, BrokerError, Session as _, Terms};
use crate::env::{self, Env as _, SystemEnv};

/// Longest time to open a session. A busy broker declares queues slowly.
const OPEN: Duration = Duration::from_secs(30);
/// Longest part of the pause for which one fetch waits, so that a stop is noticed.
const TURN: Duration = Duration::from_millis(500);
/// First and longest pause after a failure at a broker.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Returns the pause after `failures` failures at a broker: half a second at first, doubled each
/// time up to half a minute, minus a random part of at most half, so that consumers do not retry in
/// step.
pub fn pause(failures: u32) -> Duration {
    env::pause(SystemEnv.random(), failures, PAUSE)
}

/// The sessions of a consumer, opened one after the other. It pauses after each session that broke,
/// longer each time, until one has lasted for longer than the longest pause.
pub(super) struct Sessions<'a, B: Broker> {
    broker: &'a B,
    terms: &'a Terms,
    now: Option<(B::Session, Instant)>,
    /// Number of consecutive sessions that broke or could not be opened.
    failures: u32,
    /// End of the pause.
    again: Option<Instant>,
}

impl<'a, B: Broker> Sessions<'a, B> {
    /// Makes the sessions; the first one is opened with the first fetch.
    pub(super) fn new(broker: &'a B, terms: &'a Terms) -> Self {
        Self { broker, terms, now: None, failures: 0, again: None }
    }

    /// Returns at most `room` deliveries; empty if there is none, or no session yet.
    pub(super) async fn fetch(&mut self, room: usize) -> Result<Vec<B::Delivery>, BrokerError> {
        if let Some(again) = self.again {
            sleep_until(again.min(Instant::now() + TURN)).await;
            if Instant::now() < again {
                return Ok(Vec::new());
            }
            self.again = None;
        }
        let error = match self.read(room).await {
            Err(e) if e.is_passing() => e,
            done => return done,
        };
        self.close().await;
        let pause = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.again = Some(Instant::now() + pause);
        tracing::warn!(
            target: "palisade::consumer", %error, again_ms = pause.as_millis() as u64,
            "no messages; trying the broker again"
        );
        Ok(Vec::new())
    }

    async fn read(&mut self, room: usize) -> Result<Vec<B::Delivery>, BrokerError> {
        let (now, _) = match &mut self.now {
            Some(now) => now,
            none => {
                let opened = timeout(OPEN, self.broker.open(self.terms)).await;
                let late = |_| BrokerError::passing(format!("it did not answer within {OPEN:?}"));
                none.insert((opened.map_err(late)??, Instant::now()))
            }
        };
        if now.is_broken() {
            return Err(BrokerError::passing("the session broke"));
        }
        now.next(room).await
    }

    /// Ends the session, if there is one.
    pub(super) async fn close(&mut self) {
        if let Some((session, opened)) = self.now.take() {
            if opened.elapsed() > PAUSE.1 {
                self.failures = 0;
            }
            session.close().await;
        }
    }
}
