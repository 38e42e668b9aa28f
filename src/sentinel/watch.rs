//! Watches a group by polling its Sentinels, sooner after an event.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::ask::{Asker, Inquiry, Replicas, Round};
use super::discovery::{Master, minority};
use super::events::Events;
use crate::dial::address::Address;
use crate::env::Env;
use crate::error::NodeError;
use crate::sync::SyncMutex;
use crate::time::Moment;

const ALARMED: Duration = Duration::from_millis(150);
const ALARM_POLLS: u32 = 20;
/// The shortest L for which the Sentinels' word can be kept young enough (sentinel 10).
pub(crate) const SHORTEST_WINDOW: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) master: Option<Master>,
    /// Just before the question whose answers decided the master.
    confirmed: Moment,
    pub(crate) error: Option<NodeError>,
    pub(crate) known: usize,
    pub(crate) reachable: usize,
    in_tilt: usize,
    news: Option<(Moment, Master)>,
}

impl Seen {
    pub(crate) fn is_in_tilt(&self) -> bool {
        self.in_tilt > minority(self.known)
    }
}

pub(crate) struct Watch {
    shared: Arc<Shared>,
    poll_every: Duration,
    task: SyncMutex<Option<JoinHandle<()>>>,
}

struct Shared {
    asker: AsyncMutex<Asker>,
    events: Arc<Events>,
    seen: SyncMutex<Seen>,
    env: Arc<dyn Env>,
    /// Between the beginnings of two rounds. `None` while L is not known.
    within: SyncMutex<Option<Duration>>,
    /// The present connection must then not be used any more.
    version: watch::Sender<u64>,
}

impl Watch {
    pub(crate) fn new(
        inquiry: Inquiry,
        sentinels: Vec<Address>,
        poll_every: Duration,
        env: Arc<dyn Env>,
    ) -> Self {
        let events = Arc::<Events>::default();
        let asker = Asker::new(inquiry, sentinels, Arc::clone(&events));
        let shared = Arc::new(Shared {
            asker: AsyncMutex::new(asker),
            events,
            seen: SyncMutex::new(Seen::default()),
            within: SyncMutex::new(None),
            env,
            version: watch::Sender::new(0),
        });
        Self { shared, poll_every, task: SyncMutex::new(None) }
    }

    /// A master that a round has just decided is returned at once to the first call.
    /// `beside` runs as long as the Sentinels are asked.
    pub(crate) async fn resolve(
        &self,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Master, NodeError> {
        self.start(beside);
        let news = self.shared.seen.lock().news.take();
        match news {
            Some((at, master)) if self.shared.env.now() <= at + self.poll_every => Ok(master),
            _ => self.shared.round(true).await.decision,
        }
    }

    pub(crate) fn named(&self) -> (Option<u64>, Moment) {
        let seen = self.shared.seen.lock();
        (seen.master.as_ref().and_then(|master| master.epoch), seen.confirmed)
    }

    pub(crate) fn ask_within(&self, span: Duration) {
        *self.shared.within.lock() = Some(span / 3);
    }

    pub(crate) fn seen(&self) -> Seen {
        self.shared.seen.lock().clone()
    }

    pub(crate) async fn replicas(&self) -> Replicas {
        let mut asker = self.shared.asker.lock().await;
        asker.replicas(self.shared.enough()).await
    }

    /// What the last Sentinel said in an event, which decides nothing.
    pub(crate) fn promoted(&self) -> watch::Receiver<Option<Address>> {
        self.shared.events.promoted.subscribe()
    }

    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// `new` does not, because a program may build a node outside of a runtime.
    fn start(&self, beside: impl Future<Output = ()> + Send + 'static) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let asks = keep_asking(Arc::clone(&self.shared), self.poll_every);
            *task = Some(tokio::spawn(async {
                tokio::join!(asks, beside);
            }));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Shared {
    fn known(&self) -> usize {
        self.seen.lock().known
    }

    /// Then nobody waits for the other Sentinels (sentinel 2).
    fn enough(&self) -> Duration {
        self.within.lock().unwrap_or(SHORTEST_WINDOW / 3) / 2
    }

    async fn round(&self, hurry: bool) -> Round {
        let mut asker = self.asker.lock().await;
        let begun = self.env.now();
        let round = asker.round(hurry, self.enough()).await;
        // Still locked, so that states are published in the order of the rounds.
        self.publish(&round, begun);
        round
    }

    fn publish(&self, round: &Round, asked: Moment) {
        let mut seen = self.seen.lock();
        seen.known = round.known;
        seen.reachable = round.reachable;
        seen.in_tilt = round.in_tilt;
        match &round.decision {
            Ok(master) => {
                let same = seen
                    .master
                    .as_ref()
                    .is_none_or(|old| old.at == master.at && old.epoch == master.epoch);
                seen.error = None;
                seen.master = Some(master.clone());
                seen.confirmed = asked;
                if !same || seen.news.is_some() {
                    seen.news = Some((self.env.now(), master.clone()));
                }
                // Still locked, so who has read this decision sees its version.
                if !same {
                    self.version.send_modify(|g| *g += 1);
                }
            }
            // The connection stays: a replaced master refuses writes without enough replicas after
            // L.
            Err(e) => (seen.error, seen.news) = (Some(e.clone()), None),
        }
    }
}

async fn keep_asking(shared: Arc<Shared>, every: Duration) {
    let (mut alarm, mut troubled, mut took) = (0_u32, false, Duration::ZERO);
    loop {
        let within = shared.within.lock().unwrap_or(Duration::MAX);
        let pause = every.min(within.saturating_sub(took));
        let pause = if alarm > 0 { pause.min(ALARMED) } else { pause };
        let mut reported = false;
        tokio::select! {
            biased;
            by = shared.events.reason() => {
                reported = true;
                // A single Sentinel could send events without end.
                if by > minority(shared.known()).max(1) {
                    alarm = ALARM_POLLS;
                }
                // Events come in bursts, and the other Sentinels may be slower.
                sleep(Duration::from_millis(20)).await;
            }
            () = sleep(jittered(pause, &*shared.env)) => alarm = alarm.saturating_sub(1),
        }
        // A group that stays down is polled at the usual pace again.
        let asked = shared.env.now();
        let round = shared.round(reported || alarm > 0).await;
        took = shared.env.now().since(asked);
        let was = std::mem::replace(&mut troubled, round.troubled);
        if troubled && !was {
            alarm = ALARM_POLLS;
        }
    }
}

fn jittered(pause: Duration, env: &dyn Env) -> Duration {
    let permille = (env.random() % 201) as u32 + 900;
    pause * permille / 1000
}
