//! Events of a node, and their log lines. An event may be lost, and no promise depends on one.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::FutureExt as _;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::op::{Began, Loss};

/// Message of a node to its handle ([`LockNode::events`](crate::node::spi::LockNode::events)). Any
/// may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSignal {
    /// A lock that is waited for was released, or its metadata changed. Holds the main key of the
    /// lock.
    Changed(Arc<str>),
    /// A lock is free, and this handle is the first of those that wait for it
    /// ([`Place`](crate::node::spi::Place)).
    Turn {
        /// The main key of the lock.
        key: Arc<str>,
        /// Number of the handle.
        waiter: u64,
    },
    /// An event, which operators receive, too.
    Event(NodeEvent),
}

impl From<NodeEvent> for NodeSignal {
    fn from(event: NodeEvent) -> Self {
        Self::Event(event)
    }
}

/// A [`NodeEvent`] with the name of its node, as [`NodeEvents`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedEvent {
    /// Name of the node.
    pub node: Arc<str>,
    /// The event.
    pub event: NodeEvent,
}

/// The events of a handle's nodes; see [`Redlock::events`](crate::Redlock::events).
///
/// Also a [`Stream`] of [`NamedEvent`]s. A reader that lags by more than 1024 events misses the
/// oldest.
#[must_use = "events are missed unless they are read"]
pub struct NodeEvents {
    next: Pin<Box<dyn Future<Output = Next> + Send + Sync>>,
}

/// The receiver of the events, with the event that it received.
type Next = (Receiver<NamedEvent>, Option<NamedEvent>);

impl NodeEvents {
    pub(crate) fn new(events: Receiver<NamedEvent>) -> Self {
        Self { next: Box::pin(next(events)) }
    }

    /// Returns the next event; `None` once the handle and its clones are gone.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is lost: the next call continues.
    pub async fn next(&mut self) -> Option<NamedEvent> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Returns the next event if it has come already.
    pub fn try_next(&mut self) -> Option<NamedEvent> {
        poll_fn(|cx| self.poll_event(cx)).now_or_never().flatten()
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<NamedEvent>> {
        let Poll::Ready((events, event)) = self.next.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.next = Box::pin(next(events));
        Poll::Ready(event)
    }
}

async fn next(mut events: Receiver<NamedEvent>) -> Next {
    loop {
        match events.recv().await {
            Ok(event) => return (events, Some(event)),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return (events, None),
        }
    }
}

impl fmt::Debug for NodeEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeEvents").finish_non_exhaustive()
    }
}

impl Stream for NodeEvents {
    type Item = NamedEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<NamedEvent>> {
        self.poll_event(cx)
    }
}

/// An event of a node.
///
/// All events are also logged through `tracing` by those nodes of this crate that are servers
/// ([`KeysForgotten`](Self::KeysForgotten): by the handle), with the target `palisade::node` and
/// the fields `node` (its name), `event` (the name given at each variant) and those given there.
/// These names are stable across versions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The node cannot be reached or was lost. Log: `down` with `cause`, once a new connection
    /// failed.
    Down,
    /// The node was (re)connected, perhaps to another server; the handle then asks it for its data
    /// history. Log: `up`.
    Up,
    /// The node has another data history than before, so it may have forgotten what it granted.
    /// Log: `history_changed` with `cause`.
    #[non_exhaustive]
    HistoryChanged {
        /// The cause, as far as the client can see it.
        cause: HistoryCause,
    },
    /// The node grants nothing for this long; holders may re-assert their leases. Log:
    /// `quarantine_begun` with `remaining_ms`, `began`, `lost_ms` and `loss`.
    #[non_exhaustive]
    QuarantineBegun {
        /// Time until the node grants again.
        remaining: Duration,
        /// State of the data at the beginning. If it is [empty](Began::Empty), mark a new
        /// deployment with `palisade init --new`; in tests use `trust_fresh(true)`.
        began: Began,
        /// What the node's data may lack; `None` if the node does not report it. Idempotency keys
        /// that [accept such a loss](crate::idempotency::IdempotencyBuilder::accept_loss) are not
        /// forgotten. The failover window of a Sentinel group is part of it.
        loss: Option<Loss>,
    },
    /// The node grants again; sent with its first answer after the end. Log: `quarantine_ended`.
    QuarantineEnded,
    /// Holders of this handle re-asserted their leases in a quarantine. Log: `reasserted` with
    /// `leases`.
    #[non_exhaustive]
    Reasserted {
        /// Number of leases in one batch.
        leases: u64,
    },
    /// The min-replicas check is off, weaker than required, or cannot be read. Log:
    /// `min_replicas_missing` with `why`.
    #[non_exhaustive]
    MinReplicasMissing {
        /// The fault, and the command that corrects it.
        why: Arc<str>,
    },
    /// The min-replicas check is strong enough again. Log: `min_replicas_restored`.
    MinReplicasRestored,
    /// Clients of this node do not agree on the length of a quarantine (`max_ttl` and the failover
    /// window), or this client used a longer one before. The longest counts, until one to two such
    /// lengths after the last client that asked for it (quarantine 7). Set the same `max_ttl`
    /// everywhere: if a client with a shorter one is alone with a node that lost all its data, it
    /// ends the quarantine too early. Log: `settings_disagree` with `ours_ms` and `node_ms`.
    #[non_exhaustive]
    SettingsDisagree {
        /// Length that this handle asks for.
        ours: Duration,
        /// Length that the node uses: longer than ours, or equal to ours after it was raised from a
        /// shorter one.
        node: Duration,
    },
    /// A majority of the nodes, this one included, cannot know that an idempotency key without a
    /// birth is new: their data are empty, or incomplete within the retention. Until they can, the
    /// policy for forgotten keys answers such keys; keys with
    /// [`created_at`](crate::idempotency::Call::created_at) run. Sent once per handle, node and
    /// loss. Log: `keys_forgotten` with `remaining_ms`.
    #[non_exhaustive]
    KeysForgotten {
        /// Time for which this lasts, unless the node loses data again.
        remaining: Duration,
    },
    /// A renewed lease of this handle would not outlive a failover of this node, and without this
    /// node the handle has no majority: the holder will lose the lease although it renews. Sent
    /// once. Use a ttl of `enough` (and `max_ttl`, in every process), or configure the Sentinels to
    /// replace a master sooner. Log: `ttl_too_short` with `ttl_ms`, `lasts_ms`, `needed_ms`,
    /// `down_after_ms`, `window_ms` and `enough_ms`.
    #[non_exhaustive]
    TtlTooShort {
        /// Ttl of the lease.
        ttl: Duration,
        /// Time for which the lease lasts if the node becomes silent at the worst moment.
        lasts: Duration,
        /// Duration of the failover: until the Sentinels act, the takeover, and the window.
        needed: Duration,
        /// See [`FailoverTimes::down_after`](super::FailoverTimes::down_after).
        down_after: Duration,
        /// See [`FailoverTimes::window`](super::FailoverTimes::window).
        window: Duration,
        /// A ttl that would be enough.
        enough: Duration,
    },
}

/// Cause of a change of a node's data history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryCause {
    /// A new server process answers at the same address; its data may be complete.
    Restart,
    /// Another server answers: a replica was promoted, or the address now points to another server.
    Promotion,
    /// The node's marker is gone: `FLUSHALL`, or a restart without data.
    DataLost,
    /// This handle has not seen the node before, or the same process writes another history.
    Unknown,
}

impl HistoryCause {
    fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Promotion => "promotion",
            Self::DataLost => "data lost",
            Self::Unknown => "unknown",
        }
    }
}

/// Reason for which a node without data grants nothing, and the remedy.
const EMPTY: &str = "it was never initialised: new, or emptied; if the whole deployment is new, \
                     run `palisade init --new`; if it had data before, do not: see `palisade idem \
                     incidents`";
/// Reason for which a node that lost its data grants nothing.
const LOST: &str = "its data are lost; what was known of idempotency keys is unknown";

impl NodeEvent {
    /// Writes the event to the log: as a warning if a person has to act.
    pub(crate) fn log(&self, node: &str) {
        macro_rules! say {
            ($level:ident, $event:literal, $text:literal $(, $field:ident = $value:expr)*) => {
                tracing::$level!(
                    target: "palisade::node", node, event = $event, $($field = $value,)* $text
                )
            };
        }
        match self {
            // The connection logs the cause of a loss.
            Self::Down => {}
            Self::Up => say!(info, "up", "node connected"),
            Self::HistoryChanged { cause } => {
                say!(warn, "history_changed", "node has a new data history", cause = cause.word());
            }
            Self::QuarantineBegun { remaining, began, loss } => {
                let why = match began {
                    Began::Known => "after a restart or failover",
                    Began::Empty => EMPTY,
                    Began::Lost => LOST,
                };
                let length = loss.and_then(|loss| loss.length());
                let ms = length.map_or_else(|| "unknown".to_owned(), |d| millis(d).to_string());
                let text = loss.map(|loss| loss.to_string()).unwrap_or_default();
                say!(
                    warn,
                    "quarantine_begun",
                    "node grants nothing for now, {why}",
                    remaining_ms = millis(*remaining),
                    began = began.word(),
                    lost_ms = tracing::field::display(ms),
                    loss = text
                );
            }
            Self::QuarantineEnded => say!(info, "quarantine_ended", "node grants again"),
            Self::Reasserted { leases } => {
                say!(info, "reasserted", "holders re-asserted their leases", leases = *leases);
            }
            Self::MinReplicasMissing { why } => {
                say!(
                    warn,
                    "min_replicas_missing",
                    "min-replicas check off or too weak",
                    why = &**why
                );
            }
            Self::MinReplicasRestored => {
                say!(info, "min_replicas_restored", "min-replicas check is strong enough again");
            }
            Self::SettingsDisagree { ours, node: kept } => say!(
                warn,
                "settings_disagree",
                "clients differ in max_ttl or failover window; the longest one, node_ms, counts",
                ours_ms = millis(*ours),
                node_ms = millis(*kept)
            ),
            Self::KeysForgotten { remaining } => say!(
                warn,
                "keys_forgotten",
                "node is new or lost data: until one retention has passed, new idempotency \
                 keys without `created_at` count as forgotten",
                remaining_ms = millis(*remaining)
            ),
            Self::TtlTooShort { ttl, lasts, needed, down_after, window, enough } => say!(
                warn,
                "ttl_too_short",
                "leases do not outlive a failover of this node: raise ttl and max_ttl to enough_ms",
                ttl_ms = millis(*ttl),
                lasts_ms = millis(*lasts),
                needed_ms = millis(*needed),
                down_after_ms = millis(*down_after),
                window_ms = millis(*window),
                enough_ms = millis(*enough)
            ),
        }
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Operators' alarms match these names; a change of one is a change of the public interface.
    #[test]
    fn the_names_in_the_log_stay() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let span = Duration::from_millis(1_500);
        let why: Arc<str> = "because".into();
        let all = [
            (NodeEvent::Up, "up", ""),
            (
                NodeEvent::HistoryChanged { cause: HistoryCause::DataLost },
                "history_changed",
                "cause=\"data lost\"",
            ),
            (
                NodeEvent::QuarantineBegun {
                    remaining: span,
                    began: Began::Known,
                    loss: Some(Loss::between(1_763_906_600_000, 1_763_906_600_006)),
                },
                "quarantine_begun",
                "remaining_ms=1500 began=\"known\" lost_ms=7 \
                 loss=\"lost at most 0.1 s of writes, 2025-11-23 14:03:20.0–14:03:20.1 UTC\"",
            ),
            (
                NodeEvent::QuarantineBegun { remaining: span, began: Began::Empty, loss: None },
                "quarantine_begun",
                "if it had data before, do not: see `palisade idem incidents` node=",
            ),
            (NodeEvent::QuarantineEnded, "quarantine_ended", ""),
            (NodeEvent::Reasserted { leases: 7 }, "reasserted", "leases=7"),
            (NodeEvent::MinReplicasMissing { why }, "min_replicas_missing", "why=\"because\""),
            (NodeEvent::MinReplicasRestored, "min_replicas_restored", ""),
            (
                NodeEvent::SettingsDisagree { ours: span, node: 2 * span },
                "settings_disagree",
                "ours_ms=1500 node_ms=3000",
            ),
            (NodeEvent::KeysForgotten { remaining: span }, "keys_forgotten", "remaining_ms=1500"),
            (
                NodeEvent::TtlTooShort {
                    ttl: span,
                    lasts: span,
                    needed: 2 * span,
                    down_after: span,
                    window: span,
                    enough: 3 * span,
                },
                "ttl_too_short",
                "lasts_ms=1500 needed_ms=3000 down_after_ms=1500 window_ms=1500 enough_ms=4500",
            ),
        ];
        tracing::subscriber::with_default(subscriber.finish(), || {
            for (event, ..) in &all {
                event.log("orders-a");
            }
        });
        let log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = String::from_utf8_lossy(&log);
        assert_eq!(lines.lines().count(), all.len(), "{lines}");
        for (line, (_, name, fields)) in lines.lines().zip(&all) {
            for text in ["palisade::node", "node=\"orders-a\"", &format!("event={name:?}"), fields]
            {
                assert!(line.contains(text), "{text} in {line}");
            }
        }
    }
}
