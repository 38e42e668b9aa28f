//! The loop of a consumer. It fetches messages up to the limit, runs each message's handler under
//! the key of the message, and settles each message at the broker.

use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::idempotency::{Call, Context, Failed, Outcome, RunError};
use palisade::internal::{Waits, check_name};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::consume::KeyOf;
use super::gate::{Deployment, Gate};
use super::hold::Holding;
use super::sessions::Sessions;
use super::{
    Broker, BrokerError, ConsumeError, Consumer, ConsumerReport, DeadLetter, DeadLetterReason,
    Delivery, Disposition, Handler, Rules,
};

/// Without the broker's confirmation in this time the message counts as unsettled, and the broker
/// delivers it again.
const SETTLE: Duration = Duration::from_secs(30);

enum End {
    Requested,
    Stopped(String),
    Broken(BrokerError),
}

struct Settled {
    disposition: Disposition,
    /// RabbitMQ does not confirm an acknowledgement; there true means that it was sent.
    confirmed: bool,
    deployment: Deployment,
}

pub(super) struct Work<'a, B: Broker, H> {
    consumer: &'a Consumer<B>,
    holding: Arc<Holding>,
    handler: Arc<H>,
    sessions: Sessions<'a, B>,
    tasks: JoinSet<Settled>,
    ended: ConsumerReport,
    gate: Gate,
}

impl<'a, B: Broker, H: Handler<B::Delivery>> Work<'a, B, H> {
    pub(super) fn new(consumer: &'a Consumer<B>, handler: H) -> Self {
        let waits = Waits::new(&consumer.of);
        let holding = Arc::new(Holding::new(&consumer.of, &waits));
        Self {
            consumer,
            handler: Arc::new(handler),
            sessions: Sessions::new(&consumer.broker, &consumer.terms),
            tasks: JoinSet::new(),
            ended: ConsumerReport::default(),
            gate: Gate::new(waits),
            holding,
        }
    }

    pub(super) async fn serve(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        let holding = Arc::clone(&self.holding);
        tokio::select! {
            biased;
            ended = self.run(stop) => ended,
            never = holding.watch() => match never {},
        }
    }

    async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        let mut stop = pin!(stop);
        let end = loop {
            let (fetched, end) = self.next(stop.as_mut()).await;
            let deliveries = match fetched {
                Ok(deliveries) => deliveries,
                Err(error) => break End::Broken(error),
            };
            self.ended.delivered += deliveries.len() as u64;
            for delivery in deliveries {
                if end.is_some() {
                    self.tasks.spawn(give_back(delivery));
                } else {
                    self.tasks.spawn(self.task(delivery).settled());
                }
            }
            if let Some(end) = end {
                break end;
            }
        };
        let (tasks, ended, gate) = (&mut self.tasks, &mut self.ended, &mut self.gate);
        let drained = async {
            while let Some(done) = tasks.join_next().await {
                // The loop has ended, so a further reason to end is ignored.
                let _ = ended.note(done, gate);
            }
        };
        let _ = timeout(self.consumer.rules.grace, drained).await;
        self.ended.unfinished = self.tasks.len() as u64;
        self.tasks.abort_all();
        self.sessions.close().await;
        let ended = self.ended;
        match end {
            End::Requested => Ok(ended),
            End::Stopped(why) => Err(ConsumeError::Stopped { why, ended }),
            End::Broken(error) => Err(ConsumeError::Broker { error, ended }),
        }
    }

    fn task(&self, delivery: B::Delivery) -> Task<B::Delivery, H> {
        Task {
            holding: Arc::clone(&self.holding),
            rules: self.consumer.rules.clone(),
            key_of: self.consumer.key_of.clone(),
            handler: Arc::clone(&self.handler),
            delivery: Arc::new(delivery),
        }
    }

    async fn next(
        &mut self,
        mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> (Result<Vec<B::Delivery>, BrokerError>, Option<End>) {
        let Self { sessions, tasks, ended, gate, consumer, .. } = self;
        let most = consumer.rules.concurrency;
        loop {
            let closed = gate.closed_until();
            if closed.is_none() && tasks.len() < most {
                break;
            }
            tokio::select! {
                biased;
                () = stop.as_mut() => return (Ok(Vec::new()), Some(End::Requested)),
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Some(why) = ended.note(done, gate) {
                        return (Ok(Vec::new()), Some(End::Stopped(why)));
                    }
                }
                () = sleep_until(closed.unwrap_or_else(Instant::now)), if closed.is_some() => {}
            }
        }
        let mut end = None;
        let mut fetch = pin!(sessions.fetch(gate.room(most - tasks.len())));
        loop {
            tokio::select! {
                biased;
                () = stop.as_mut(), if end.is_none() => end = Some(End::Requested),
                // Polled to its end even after a reason to stop: fetched messages can be returned
                // to the broker.
                fetched = &mut fetch => {
                    if fetched.as_ref().is_ok_and(|fetched| !fetched.is_empty()) {
                        gate.fetched();
                    }
                    return (fetched, end);
                }
                Some(done) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Some(why) = ended.note(done, gate) {
                        end = Some(End::Stopped(why));
                    }
                }
            }
        }
    }
}

impl ConsumerReport {
    fn note(&mut self, done: Result<Settled, JoinError>, gate: &mut Gate) -> Option<String> {
        let Settled { disposition, confirmed, deployment } = match done {
            Ok(settled) => settled,
            Err(e) => {
                tracing::error!(target: "palisade::consumer", error = %e, "a delivery was dropped");
                self.unsettled += 1;
                return None;
            }
        };
        gate.judge(&deployment);
        match &disposition {
            _ if !confirmed => self.unsettled += 1,
            Disposition::Ack => self.acked += 1,
            Disposition::Retry(_) | Disposition::Stop(_) => self.retried += 1,
            Disposition::Park(_) => self.parked += 1,
        }
        match disposition {
            Disposition::Stop(why) => Some(why),
            _ => None,
        }
    }
}

struct Task<D, H> {
    holding: Arc<Holding>,
    rules: Rules,
    key_of: Option<KeyOf<D>>,
    handler: Arc<H>,
    delivery: Arc<D>,
}

impl<D: Delivery, H: Handler<D>> Task<D, H> {
    async fn settled(self) -> Settled {
        let before = self.delivery.failures();
        // A panic in the user's code or in the broker's client counts as a failure, so that the
        // delivery is settled. `AssertUnwindSafe`: the panicked state is not used again.
        let judged = AssertUnwindSafe(self.judged(before)).catch_unwind().await;
        let (disposition, failures, deployment) = judged.unwrap_or_else(|panic| {
            let what = format!("its delivery panicked: {}", panic_text(&*panic));
            let disposition = self.rules.after_failure(before, None, &what);
            (disposition, before.saturating_add(1), Deployment::Unknown)
        });
        let confirmed = settle(&*self.delivery, &disposition, failures).await;
        Settled { disposition, confirmed, deployment }
    }

    async fn judged(&self, before: u32) -> (Disposition, u32, Deployment) {
        let (key, call) = match self.call() {
            Ok(call) => call,
            Err(why) => {
                let why = DeadLetter::new(DeadLetterReason::Unreadable, why);
                return (Disposition::Park(why), before, Deployment::Unknown);
            }
        };
        let (rules, holding) = (&self.rules, &self.holding);
        let outcome = tokio::select! {
            biased;
            outcome = self.run(call) => outcome,
            never = beat(&*self.delivery) => match never {},
        };
        let failed = matches!(outcome, Err(RunError::Handler { overtaken: false, .. }));
        let mut disposition = rules.disposition(&outcome, before);
        match &outcome {
            Ok(Outcome::Parked(parked)) if rules.holds(parked) => {
                disposition = Disposition::Retry(holding.hold(&key, parked));
            }
            // Nothing new about the key, so a held message remains held.
            Err(RunError::NoQuorum { .. }) | Ok(Outcome::InFlight { .. }) => {}
            _ => holding.release(&key),
        }
        if let Disposition::Park(letter) = &mut disposition {
            letter.key = check_name("key", &key).is_ok().then(|| key.to_string());
        }
        (disposition, before.saturating_add(u32::from(failed)), Deployment::of(&outcome))
    }

    fn call(&self) -> Result<(Arc<str>, Call), String> {
        let (of, delivery) = (&self.holding.of, &*self.delivery);
        let key = match &self.key_of {
            None => delivery.key()?,
            Some(key_of) => {
                let none = "the consumer's `key` finds no key in the message";
                key_of(delivery).ok_or_else(|| none.to_owned())?.into()
            }
        };
        let mut call = of.key(&*key);
        if let Some(created) = delivery.created_at() {
            call = call.created_at(created);
        }
        if self.rules.body_matters {
            call = call.fingerprint_bytes(delivery.body());
        }
        Ok((key.into(), call))
    }

    async fn run(&self, call: Call) -> Result<Outcome<H::Value>, RunError> {
        let (handler, message) = (Arc::clone(&self.handler), Arc::clone(&self.delivery));
        let rules = self.rules.clone();
        let handle = move |cx: Context| async move {
            if !rules.may_run(cx.attempt()) {
                return Err(Failed::no_effect("too many attempts left no result"));
            }
            handler.handle(cx, message).await
        };
        if !self.handler.has_probe() {
            return call.detached().run(handle).await;
        }
        let (handler, message) = (Arc::clone(&self.handler), Arc::clone(&self.delivery));
        let probe = move |cx| async move { handler.probe(cx, message).await };
        call.probe(probe).detached().run(handle).await
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

/// Without heartbeats a broker would deliver the message to a second consumer during the handler.
async fn beat<D: Delivery>(delivery: &D) -> Infallible {
    let Some(every) = delivery.heartbeat() else { return std::future::pending().await };
    loop {
        sleep(every).await;
        match timeout(every, delivery.extend()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!(
                target: "palisade::consumer", error = %e,
                "the broker did not extend the time of a delivery"
            ),
            Err(_) => tracing::debug!(
                target: "palisade::consumer", "the broker did not answer a heartbeat"
            ),
        }
    }
}

async fn give_back<D: Delivery>(delivery: D) -> Settled {
    let again = Disposition::Retry(Duration::ZERO);
    let confirmed = settle(&delivery, &again, delivery.failures()).await;
    Settled { disposition: again, confirmed, deployment: Deployment::Unknown }
}

/// Returns true if the broker confirmed. Otherwise it delivers the message again, and the consumer
/// uses the stored result.
async fn settle<D: Delivery>(delivery: &D, how: &Disposition, failures: u32) -> bool {
    let settled = AssertUnwindSafe(timeout(SETTLE, delivery.settle(how, failures)));
    let cause = match settled.catch_unwind().await {
        Ok(Ok(Ok(()))) => {
            if let Disposition::Park(why) = how {
                tracing::warn!(target: "palisade::consumer", %why, "a message was put aside");
            }
            return true;
        }
        Ok(Ok(Err(e))) => e.to_string(),
        Ok(Err(_)) => format!("no answer within {SETTLE:?}"),
        Err(panic) => format!("it panicked: {}", panic_text(&*panic)),
    };
    if let Disposition::Park(why) = how {
        tracing::warn!(
            target: "palisade::consumer", error = %cause, %why,
            "a dead letter is not confirmed; the message comes again"
        );
    } else {
        tracing::debug!(target: "palisade::consumer", error = %cause, ?how, "not settled");
    }
    false
}
