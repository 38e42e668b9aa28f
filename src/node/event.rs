//! Events that a node reports, and their log lines. An event may be lost, so no promise of this
//! library depends on one.

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
/// message may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSignal {
    /// What a caller waits for has changed: a lock was released or its holder's metadata changed, a
    /// claim has ended, or a list of candidates has a new entry. Holds the main key of the lock, or
    /// the key of the record or the list.
    Changed(Arc<str>),
    /// A lock is free, and the named handle is the first in the queue of handles that wait for it
    /// ([`Place`](crate::node::spi::Place)).
    Turn {
        /// The main key of the lock.
        key: Arc<str>,
        /// Number of the handle whose turn it is.
        waiter: u64,
    },
    /// An event of the node; operators receive it, too.
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
/// The value is also a [`Stream`] of [`NamedEvent`]s. A reader that lags by more than 1024 events
/// misses the oldest.
#[must_use = "events are missed unless they are read"]
pub struct NodeEvents {
    next: Pin<Box<dyn Future<Output = Next> + Send + Sync>>,
}

/// Receiver of the events, and the event that it has received; `None` if no more will come.
type Next = (Receiver<NamedEvent>, Option<NamedEvent>);

impl NodeEvents {
    pub(crate) fn new(events: Receiver<NamedEvent>) -> Self {
        Self { next: Box::pin(next(events)) }
    }

    /// Waits for the next event; returns `None` once the handle and its clones are gone.
    ///
    /// # Cancellation safety
    /// The future may be dropped; no event is lost, because the next call continues to wait.
    pub async fn next(&mut self) -> Option<NamedEvent> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Returns the next event if it has arrived already; never waits.
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
/// Every event is also logged through `tracing`, with the target `palisade::node` and the fields
/// `node` (the node's name), `event` (the name given at each variant) and the further fields that
/// the variant lists. These names are stable across versions. The handle logs the events of all
/// kinds of nodes; only [`Down`](Self::Down), [`Up`](Self::Up) and those of the min-replicas check
/// are logged by the nodes of this crate that are servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The node cannot be reached, or the connection to it was lost. Log: `down` with `cause`, once
    /// a try to connect again has failed.
    Down,
    /// The node was connected, or connected again, perhaps to another server; the handle then asks
    /// it for its data history. Log: `up`.
    Up,
    /// The node's data come from another sequence of writes (data history) than before, because the
    /// server restarted, another server took over, or data were lost. So the node may have
    /// forgotten what it granted. Log: `history_changed` with `cause`.
    #[non_exhaustive]
    HistoryChanged {
        /// Cause of the change, as far as the client can see it.
        cause: HistoryCause,
    },
    /// The node is in quarantine: it grants nothing for the time `remaining`, but holders may
    /// re-assert their leases. Log: `quarantine_begun` with `remaining_ms`, `began`, `lost_ms` and
    /// `loss`.
    #[non_exhaustive]
    QuarantineBegun {
        /// Time until the node grants again.
        remaining: Duration,
        /// State of the node's data when they began. If it is [empty](Began::Empty), mark a new
        /// deployment with `palisade init --new`; in tests use `trust_fresh(true)`.
        began: Began,
        /// Writes that the node may have lost; `None` if the node does not report them. They
        /// include those of the failover window of a Sentinel group. Idempotency keys that [accept
        /// such a loss](crate::idempotency::IdempotencyBuilder::accept_loss) do not count as
        /// forgotten.
        loss: Option<Loss>,
    },
    /// The quarantine has ended, and the node grants again. Sent with the node's first answer after
    /// the end. Log: `quarantine_ended`.
    QuarantineEnded,
    /// Holders of this handle renewed their leases on a node in quarantine (they re-asserted them).
    /// Log: `reasserted` with `leases`.
    #[non_exhaustive]
    Reasserted {
        /// Number of leases that one batch re-asserted.
        leases: u64,
    },
    /// The master's min-replicas check (`min-replicas-to-write`) is off, is weaker than required,
    /// or cannot be read. Log: `min_replicas_missing` with `why`.
    #[non_exhaustive]
    MinReplicasMissing {
        /// The fault, and the command that corrects it.
        why: Arc<str>,
    },
    /// The master's min-replicas check is strong enough again. Log: `min_replicas_restored`.
    MinReplicasRestored,
    /// Clients of this node do not agree on the length of a quarantine (`max_ttl` and the failover
    /// window), or this client used a longer one before. The node uses the longest length, and
    /// keeps it for one to two such lengths after the last client that asked for it (quarantine 7).
    /// Set the same `max_ttl` everywhere: if the node has lost all its data and only a client with
    /// a shorter `max_ttl` reaches it, the quarantine ends too early. Log: `settings_disagree` with
    /// `ours_ms` and `node_ms`.
    #[non_exhaustive]
    SettingsDisagree {
        /// Length of the quarantine that this handle asks for.
        ours: Duration,
        /// Length of the quarantine that the node uses. It is longer than `ours`, or equal to
        /// `ours` if this handle has just raised it.
        node: Duration,
    },
    /// A majority of the nodes, this one included, began without data or lost data within the
    /// retention. So they cannot know whether an idempotency key that they do not have was used
    /// before. Until they can, the policy for forgotten keys decides about a call without
    /// [`created_at`](crate::idempotency::Call::created_at); a call with a `created_at` after the
    /// loss runs. Sent once per handle, node and loss. Log: `keys_forgotten` with `remaining_ms`.
    #[non_exhaustive]
    KeysForgotten {
        /// Time until the node knows every key again, unless it loses data again.
        remaining: Duration,
    },
    /// A renewed lease of this handle would not outlive a failover of this node, and without this
    /// node the handle has no majority. So in a failover the holder will lose the lease although it
    /// renews. Sent once. Use a ttl of `enough` (and a `max_ttl` that allows it, in every process),
    /// or configure the Sentinels to replace a master sooner. Log: `ttl_too_short` with `ttl_ms`,
    /// `lasts_ms`, `needed_ms`, `down_after_ms`, `window_ms` and `enough_ms`.
    #[non_exhaustive]
    TtlTooShort {
        /// Ttl of the lease.
        ttl: Duration,
        /// Time that is left of the lease if the node becomes silent at the worst moment, just
        /// before a renewal.
        lasts: Duration,
        /// Time that the lease would have to last in a failover: until the Sentinels act, the
        /// takeover by the new master, and the window.
        needed: Duration,
        /// See [`FailoverTimes::down_after`](super::FailoverTimes::down_after).
        down_after: Duration,
        /// See [`FailoverTimes::window`](super::FailoverTimes::window).
        window: Duration,
        /// Shortest ttl, in whole seconds, whose leases outlive the failover.
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
    /// This handle has not seen the node before, or the same server process has another data
    /// history than before.
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

/// Log text for a node without data: why it grants nothing, and what to do.
const EMPTY: &str = "it was never initialised: new, or emptied; if the whole deployment is new, \
                     run `palisade init --new`; if it had data before, do not: see `palisade idem \
                     incidents`";
/// Log text for a node that lost its data: why it grants nothing.
const LOST: &str = "its data are lost; what was known of idempotency keys is unknown";

impl NodeEvent {
    /// Writes the event to the log, as a warning if a person may have to act.
    pub(crate) fn log(&self, node: &str) {
        macro_rules! say {
            ($level:ident, $event:literal, $text:literal $(, $field:ident = $value:expr)*) => {
                tracing::$level!(
                    target: "palisade::node", node, event = $event, $($field = $value,)* $text
                )
            };
        }
        match self {
            // The connection itself logs `down`, because only it knows the cause.
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

    /// Alarms of operators match these names, so changing a name changes the public interface.
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
