//! Sends batches in the order of the calls, also those that wait for a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::open::Turn;
use super::{Current, Resolver, Shared, Slot};
use crate::error::{Commands, NodeError, NodeFault};
use crate::node::NodeEvent;
use crate::node::redis::session::Sent;
use crate::op::Batch;

pub(super) struct Waiting {
    slot: Option<Slot>,
    batch: Arc<Batch>,
    pub(super) sent: oneshot::Sender<Result<OnItsWay, NodeError>>,
}

pub(super) type OnItsWay = (Arc<Current>, Sent);
/// Sent, or waiting for a connection.
pub(super) type Place = Result<OnItsWay, oneshot::Receiver<Result<OnItsWay, NodeError>>>;

impl<R: Resolver> Shared<R> {
    pub(super) fn place(
        self: &Arc<Self>,
        slot: Option<Slot>,
        batch: Arc<Batch>,
    ) -> Result<Place, NodeError> {
        let (sent, waits) = oneshot::channel();
        loop {
            if let Some((current, group_terms)) = self.usable(slot, &batch)
                && let Some(sent) = current.session.send(Arc::clone(&batch), group_terms)
            {
                return Ok(Ok((current, sent)));
            }
            let mut state = self.state();
            if state.current.is_some() {
                continue;
            }
            if let Some(cause) = self.pausing(&state) {
                return Err(cause);
            }
            state.waiting.push_back(Waiting { slot, batch, sent });
            let connect = !std::mem::replace(&mut state.connecting, true);
            drop(state);
            if connect {
                // A runtime that shuts down drops the task inside `spawn`, which locks the mutex.
                tokio::spawn(Turn::new(self).connect());
            }
            return Ok(Err(waits));
        }
    }

    /// Other batches follow those that wait. False if another master is named meanwhile: what was
    /// not sent goes on waiting for that master.
    pub(super) fn open_to_all(&self, current: &Arc<Current>) -> bool {
        loop {
            let next = {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                if next.is_none() {
                    state.connecting = false;
                    state.address = Some(Arc::clone(&current.at));
                    state.trying = None;
                    state.judged = current.opened;
                    state.current = Some(Arc::clone(current));
                    state.failures = 0;
                    state.failed = None;
                }
                next
            };
            let Some(Waiting { slot, batch, sent }) = next else { return true };
            if sent.is_closed() {
                continue;
            }
            let Some(terms) = self.terms_in(slot, current.version) else {
                self.state().waiting.push_front(Waiting { slot, batch, sent });
                return false;
            };
            let left = current.session.send(batch, terms).ok_or_else(|| {
                current.ended_by_limit().unwrap_or_else(|| {
                    let detail = "the server broke the new connection at once";
                    NodeError::not_executed(NodeFault::Disconnected, detail)
                })
            });
            let left = left.map(|left| (Arc::clone(current), left));
            let _ = sent.send(left);
        }
    }

    pub(super) fn ended(self: &Arc<Self>, version: u64, outcome: Result<Arc<Current>, NodeError>) {
        let refused = match outcome {
            Ok(current) => {
                if !self.open_to_all(&current) {
                    self.part_with(&current, false);
                    tokio::spawn(Turn::new(self).connect());
                    return;
                }
                NodeEvent::Up.log(&self.options.name, &Commands::default());
                let _ = self.events.send(NodeEvent::Up.into());
                VecDeque::new()
            }
            Err(cause) => {
                let mut state = self.state();
                state.connecting = false;
                if state.failures == 0 {
                    let node = &*self.options.name;
                    tracing::warn!(
                        target: "palisade::node", node, event = "down", %cause, "node lost"
                    );
                    let _ = self.events.send(NodeEvent::Down.into());
                }
                let failures = state.failures;
                state.failures = failures.saturating_add(1);
                let waiting = std::mem::take(&mut state.waiting);
                let waiting = waiting.into_iter().map(|w| (w, cause.clone())).collect();
                state.failed = Some(self.failed(failures, cause, version));
                waiting
            }
        };
        for (waiting, cause) in refused {
            let _ = waiting.sent.send(Err(cause));
        }
        self.turns.send_modify(|n| *n = n.wrapping_add(1));
    }
}
