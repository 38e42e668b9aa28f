//! Crash points in a consumer's handling of a message. [`CrashPoints`] has none after the claim and
//! after the effect: the handler has to add these two.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use palisade::error::ConfigError;
use palisade_consumer::{Broker, BrokerError, Delivery, Disposition, Session, Terms};

/// A point in the handling of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrashPoint {
    /// The broker has delivered the message. The key of the message is not claimed yet.
    Fetched,
    /// The message's result is stored. The consumer has sent no acknowledgement to the broker.
    Completed,
    /// The consumer has sent the acknowledgement, and the broker has confirmed it if this kind of
    /// broker does.
    Acknowledged,
}

type Hook = Arc<dyn Fn(CrashPoint) + Send + Sync>;

/// A broker with crash points. `hook` is called at each point, for each message.
pub struct CrashPoints<B> {
    broker: B,
    hook: Hook,
}

/// A session of the wrapped broker, with crash points.
pub struct Watched<S> {
    session: S,
    hook: Hook,
}

/// A delivery with crash points. It dereferences to the delivery of the wrapped broker.
pub struct Passing<D> {
    delivery: D,
    hook: Hook,
}

impl<B> CrashPoints<B> {
    /// Wraps this broker. `hook` is called at each crash point.
    pub fn new(broker: B, hook: impl Fn(CrashPoint) + Send + Sync + 'static) -> Self {
        Self { broker, hook: Arc::new(hook) }
    }
}

impl<B: fmt::Debug> fmt::Debug for CrashPoints<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CrashPoints").field(&self.broker).finish()
    }
}

impl<D> Deref for Passing<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.delivery
    }
}

impl<B: Broker> Broker for CrashPoints<B> {
    type Session = Watched<B::Session>;
    type Delivery = Passing<B::Delivery>;

    fn check(&self, terms: &Terms) -> Result<(), ConfigError> {
        self.broker.check(terms)
    }

    async fn open(&self, terms: &Terms) -> Result<Self::Session, BrokerError> {
        Ok(Watched { session: self.broker.open(terms).await?, hook: Arc::clone(&self.hook) })
    }
}

impl<S: Session> Session for Watched<S> {
    type Delivery = Passing<S::Delivery>;

    fn is_broken(&self) -> bool {
        self.session.is_broken()
    }

    async fn next(&mut self, room: usize) -> Result<Vec<Self::Delivery>, BrokerError> {
        let fetched = self.session.next(room).await?;
        let passing = |delivery| {
            (self.hook)(CrashPoint::Fetched);
            Passing { delivery, hook: Arc::clone(&self.hook) }
        };
        Ok(fetched.into_iter().map(passing).collect())
    }

    async fn close(self) {
        self.session.close().await;
    }
}

impl<D: Delivery> Delivery for Passing<D> {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        self.delivery.key()
    }

    fn created_at(&self) -> Option<SystemTime> {
        self.delivery.created_at()
    }

    fn body(&self) -> &[u8] {
        self.delivery.body()
    }

    fn failures(&self) -> u32 {
        self.delivery.failures()
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        let is_done = *how == Disposition::Ack;
        if is_done {
            (self.hook)(CrashPoint::Completed);
        }
        self.delivery.settle(how, failures).await?;
        if is_done {
            (self.hook)(CrashPoint::Acknowledged);
        }
        Ok(())
    }

    fn heartbeat(&self) -> Option<Duration> {
        self.delivery.heartbeat()
    }

    async fn extend(&self) -> Result<(), BrokerError> {
        self.delivery.extend().await
    }
}
