//! The loop that runs a quorum machine. A quorum machine is the state machine of one operation. The
//! loop passes each answer to the machine, sends the machine's requests, and sets the timer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::{Instant, Sleep};

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::reply_collector::ReplyCollector;
use crate::op::Reply;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// Inputs for the run of a quorum machine: collector, timer and limits.
pub(super) struct Round<'a> {
    /// Collector that receives the answers.
    pub(super) replies: &'a Arc<ReplyCollector>,
    /// The only timer of the operation. The timer belongs to the runtime that polls the operation
    /// (overview 7).
    pub(super) timer: Sleep,
    /// Time after which no request of the round may take effect.
    pub(super) until: Moment,
    /// The lease that the round renews; `None` for other rounds. After the end of the lease no
    /// request is sent.
    pub(super) of: Option<&'a Lease>,
}

impl Core {
    /// Runs a quorum machine until the machine decides. The first requests were sent at `now`.
    ///
    /// # Cancellation safety
    /// If the future is dropped, requests that were queued are still sent, and their answers go to
    /// `replies`.
    pub(super) async fn run<M: Machine>(
        &self,
        mut now: Moment,
        machine: &mut M,
        Round { replies, timer, until, of }: Round<'_>,
    ) -> M::Decision {
        tokio::pin!(timer);
        let began = now;
        let mut set = None;
        let mut progress = machine.on_time(now);
        loop {
            let at = match progress {
                Progress::Decided(decision) => return decision,
                Progress::Wait(at) => at,
                Progress::Send(asks, at) => {
                    let deadline = self.node_deadline(now).min(until);
                    let send = |node, op| self.send(node, op, deadline, replies);
                    match of {
                        Some(lease) => drop(lease.send(now, false, asks, send)),
                        None => asks.into_iter().for_each(|(node, op)| send(node, op)),
                    }
                    at
                }
            };
            let mail = poll_fn(|cx| {
                // An answer that has arrived is handled before the timer.
                if let Poll::Ready(mail) = replies.poll_recv(cx) {
                    return Poll::Ready(Some(mail));
                }
                if set != Some(at) {
                    set = Some(at);
                    timer.as_mut().reset(Instant::now() + at.since(now));
                }
                timer.as_mut().poll(cx).map(|()| None)
            });
            let mail = mail.await;
            now = self.env.now();
            progress = if let Some((node, reply)) = mail {
                tracing::debug!(
                    target: "palisade::verb",
                    node = &*self.names[node],
                    took_us = now.since(began).as_micros() as u64,
                    answer = word(&reply),
                    "answer"
                );
                machine.on_reply(now, node, &reply)
            } else {
                set = None;
                machine.on_time(now)
            };
        }
    }
}

/// Returns the kind of an answer as a word for the log, without the contents of the answer.
fn word(answer: &Answer) -> &'static str {
    match answer {
        Ok(reply) if reply.is_grant() => "yes",
        Ok(Reply::Held { .. } | Reply::Queued { .. }) => "held",
        Ok(Reply::Quarantined { .. }) => "quarantined",
        Ok(Reply::NotOwner) => "not_owner",
        Ok(Reply::InFlight { .. }) => "in_flight",
        Ok(Reply::Mismatch) => "mismatch",
        Ok(_) => "read",
        Err(_) => "fault",
    }
}
