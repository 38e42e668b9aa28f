//! The connection of a consumer to its broker: a sequence of sessions. A new session replaces each
//! broken one.

use std::time::Duration;

use palisade::node::spi::{Env as _, SystemEnv};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Broker, BrokerError, Session as _, Terms};

/// Long, because a busy broker declares queues slowly.
const OPEN: Duration = Duration::from_secs(30);
/// Longest wait of one fetch during the pause after a failure: short, so that the consumer can stop
/// soon.
const TURN: Duration = Duration::from_millis(500);
/// First and longest pause after a failure at a broker.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Returns the pause before the next try at a broker after a failure. `failures` counts the earlier
/// failures. The pause is half a second, doubled for each earlier failure, and at most half a
/// minute. Up to half of the pause is subtracted at random, so that consumers do not retry at the
/// same time.
pub fn pause(failures: u32) -> Duration {
    let full = PAUSE.0.saturating_mul(1 << failures.min(30)).min(PAUSE.1);
    let share = f64::from(SystemEnv.random() as u16) / f64::from(u16::MAX);
    full / 2 + (full / 2).mul_f64(share)
}

/// After each broken session there is a pause, which grows until a session has lasted longer than
/// the longest pause.
pub(super) struct Sessions<'a, B: Broker> {
    broker: &'a B,
    terms: &'a Terms,
    now: Option<(B::Session, Instant)>,
    /// Consecutive sessions that broke early or could not be opened.
    failures: u32,
    again: Option<Instant>,
}

impl<'a, B: Broker> Sessions<'a, B> {
    pub(super) fn new(broker: &'a B, terms: &'a Terms) -> Self {
        Self { broker, terms, now: None, failures: 0, again: None }
    }

    /// Empty if no delivery arrived, or during the pause after a failure.
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

    pub(super) async fn close(&mut self) {
        if let Some((session, opened)) = self.now.take() {
            if opened.elapsed() > PAUSE.1 {
                self.failures = 0;
            }
            session.close().await;
        }
    }
}
