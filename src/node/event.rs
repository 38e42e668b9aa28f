//! Events that a node reports, and their log lines. They may be lost: nothing depends on them.

mod cause;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream::unfold;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub use self::cause::HistoryCause;
use crate::error::Commands;
use crate::op::{Began, Loss};

/// Message of a node to its handle; see [`LockNode::events`](crate::node::spi::LockNode::events).
/// Every message may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSignal {
    /// A lock, a claim or a list has changed, and callers may wait for the change: a lock was
    /// released, its holder's metadata changed, a claim ended, or a list of candidates has a new
    /// entry. The value is the main key of the lock, or the key of the record or the list.
    Changed(Arc<str>),
    /// A lock is free, and the handle `waiter` is the first in its queue.
    Turn {
        /// The main key of the lock.
        key: Arc<str>,
        /// Number of the first handle in the queue of the lock.
        waiter: u64,
    },
    /// An event of the node. Programs receive only this kind of message.
    Event(NodeEvent),
}

impl From<NodeEvent> for NodeSignal {
    fn from(event: NodeEvent) -> Self {
        Self::Event(event)
    }
}

/// A [`NodeEvent`] with the name of its node. [`NodeEvents`] returns such values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedEvent {
    /// Name of the node.
    pub node: Arc<str>,
    /// The event.
    pub event: NodeEvent,
}

/// The events of the nodes of a handle; see [`Redlock::events`](crate::Redlock::events).
///
/// `NodeEvents` is also a [`Stream`] of [`NamedEvent`]s. A reader that is more than 1024 events
/// behind misses the oldest events.
#[must_use = "events are missed unless they are read"]
pub struct NodeEvents {
    all: Pin<Box<dyn Stream<Item = NamedEvent> + Send + Sync>>,
}

impl NodeEvents {
    pub(crate) fn new(events: Receiver<NamedEvent>) -> Self {
        Self { all: Box::pin(unfold(events, next).fuse()) }
    }

    /// Waits for the next event. Returns `None` after the drop of the handle and its clones.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no event is lost: the next call continues.
    pub async fn next(&mut self) -> Option<NamedEvent> {
        self.all.next().await
    }

    /// Returns the next event if it has already arrived. Never waits.
    pub fn try_next(&mut self) -> Option<NamedEvent> {
        self.all.next().now_or_never().flatten()
    }
}

async fn next(mut events: Receiver<NamedEvent>) -> Option<(NamedEvent, Receiver<NamedEvent>)> {
    loop {
        match events.recv().await {
            Ok(event) => return Some((event, events)),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return None,
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
        self.all.poll_next_unpin(cx)
    }
}

/// An event of a node.
///
/// Every event is also logged through `tracing`, with the target `palisade::node` and the fields
/// `node` (the node's name), `event` (the name given at each variant) and the further fields that
/// the variant lists. These names are stable across versions. The handle logs the events of all
/// kinds of nodes, with four exceptions. [`Down`](Self::Down), [`Up`](Self::Up),
/// [`LoginFailed`](Self::LoginFailed) and the events of the min-replicas check are logged by the
/// server nodes of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The node cannot be reached, or the connection to the node was lost. Log: `down` with
    /// `cause`, after a failed try to connect.
    Down,
    /// The node was connected or reconnected, possibly to another server. The handle then reads the
    /// identity of the node's data history. Log: `up`.
    Up,
    /// A [`CredentialsProvider`](super::CredentialsProvider) failed, or a server refused what it
    /// gave, on a new connection or on an open one, which goes on until the server ends it. The
    /// node asks again. Log: `login_failed` with `why`, without secrets.
    #[non_exhaustive]
    LoginFailed {
        /// Whether the login was for the servers or for the Sentinels, the cause, and after a
        /// refusal the server and what the connection is for.
        why: Arc<str>,
    },
    /// The node has a new data history: the server restarted, another server took over, or data
    /// were lost. So the node may have forgotten its earlier grants. Log: `history_changed` with
    /// `cause`.
    #[non_exhaustive]
    HistoryChanged {
        /// Cause of the change, as far as the client can find it.
        cause: HistoryCause,
    },
    /// The server has given another name to its data (after a backup, or after its replicas were
    /// away for an hour), and has proved that it lost nothing; or a server that was declared
    /// [durable](super::RedisNodeBuilder::durable) was restarted or replaced. Nothing is refused.
    /// Log: `renamed`.
    Renamed,
    /// The server was declared [durable](super::RedisNodeBuilder::durable), and lacks data that
    /// this handle has seen: the declaration is false, or a backup was restored. Until this moment
    /// the server may have granted what was held. A quarantine begins. Sent to the handle that
    /// finds it first; others get [`HistoryChanged`](Self::HistoryChanged) only. Log:
    /// `durable_refuted`, an error.
    DurableRefuted,
    /// The node is in quarantine. It grants nothing for the time `remaining`, but holders may
    /// re-assert leases. Log: `quarantine_begun` with `remaining_ms`, `began`, `lost_ms` and
    /// `loss`.
    #[non_exhaustive]
    QuarantineBegun {
        /// Time until the node grants again.
        remaining: Duration,
        /// State in which the node's data began. If they began [empty](Began::Empty) and the
        /// deployment is new, mark the deployment as new by `palisade init --new`; in tests use
        /// `trust_fresh(true)`.
        began: Began,
        /// Writes that the node may have lost, including those of a Sentinel group's failover
        /// window; `None` if the node does not report them. Idempotency keys that [accept such a
        /// loss](crate::idempotency::IdempotencyBuilder::accept_loss) do not count as forgotten.
        loss: Option<Loss>,
    },
    /// The quarantine has ended, and the node grants again. Sent with the node's first reply after
    /// the quarantine. Log: `quarantine_ended`.
    QuarantineEnded,
    /// Holders of this handle renewed their leases on a node in quarantine. Log: `reasserted` with
    /// `leases`.
    #[non_exhaustive]
    Reasserted {
        /// Number of re-asserted leases in one batch.
        leases: u64,
    },
    /// The master's min-replicas check (`min-replicas-to-write`) is off or weaker than required, or
    /// the node cannot read its settings. Log: `min_replicas_missing` with `why`.
    #[non_exhaustive]
    MinReplicasMissing {
        /// The fault of the min-replicas check, and a command that corrects it.
        why: Arc<str>,
    },
    /// The master's min-replicas check is as strong as required again. Log:
    /// `min_replicas_restored`.
    MinReplicasRestored,
    /// The clients of this node use different lengths of the quarantine (`max_ttl` and the failover
    /// window) or different clock errors, or this client used larger ones before. The node uses the
    /// largest, and keeps them until a person lowers them by `palisade settings --lower`
    /// (quarantine 7). Set the same `max_ttl` and `clock_error` in every process. Otherwise a
    /// quarantine may end too early: the node has lost all its data, and only a client with the
    /// smaller ones reaches it. Log: `settings_disagree` with `ours_ms`, `node_ms`,
    /// `our_clock_error_ms` and `node_clock_error_ms`.
    #[non_exhaustive]
    SettingsDisagree {
        /// Length of the quarantine by this handle's settings.
        ours: Duration,
        /// Length of the quarantine that the node uses. Longer than `ours`, or equal to `ours` if
        /// this handle has just raised the length.
        node: Duration,
        /// Clock error by this handle's settings.
        our_clock_error: Duration,
        /// Clock error that the node uses. Larger than `our_clock_error`, or equal to it.
        node_clock_error: Duration,
    },
    /// A majority of the nodes, including this node, began without data or lost data within the
    /// retention. So the nodes cannot exclude an earlier use of an idempotency key without a
    /// record. For a call without [`created_at`](crate::idempotency::Call::created_at) the policy
    /// for forgotten keys decides. A call with a `created_at` after the loss runs. Sent once per
    /// handle, node and loss. Log: `keys_forgotten` with `remaining_ms`.
    #[non_exhaustive]
    KeysForgotten {
        /// Time until the node can again exclude an earlier use of a key. A further loss of data
        /// extends this time.
        remaining: Duration,
    },
    /// The ttl of this handle's lease is too short for a failover of this node, and the handle has
    /// no majority without this node. So a failover will end the lease, although the holder renews
    /// it. Sent once. Use a ttl of `enough`, and a `max_ttl` that allows it in every process. Or
    /// configure the Sentinels to replace a master sooner. Log: `ttl_too_short` with `ttl_ms`,
    /// `lasts_ms`, `needed_ms`, `down_after_ms`, `window_ms` and `enough_ms`.
    #[non_exhaustive]
    TtlTooShort {
        /// Ttl of the lease.
        ttl: Duration,
        /// Time for which the lease still lasts if the node stops replying just before a renewal,
        /// which is the worst time.
        lasts: Duration,
        /// Time for which the lease has to last to outlive a failover: the reaction time of the
        /// Sentinels, the takeover by the new master, and the failover window.
        needed: Duration,
        /// Time without an answer after which the Sentinels replace a master; see
        /// [`FailoverTimes::down_after`](super::FailoverTimes::down_after).
        down_after: Duration,
        /// L; see [`FailoverTimes::window`](super::FailoverTimes::window).
        window: Duration,
        /// Shortest sufficient ttl, in whole seconds.
        enough: Duration,
    },
}

pub(crate) const DURABLE_REFUTED: &str = "declared `durable`, but the server lost data";
const LOST: &str = "its data are lost; what was known of idempotency keys is unknown";

impl NodeEvent {
    pub(crate) fn log(&self, node: &str, commands: &Commands) {
        macro_rules! say {
            ($level:ident, $event:literal, $text:literal $(, $field:ident = $value:expr)*) => {
                tracing::$level!(
                    target: "palisade::node", node, event = $event, $($field = $value,)* $text
                )
            };
        }
        match self {
            // Only the connection has the cause, and logs `down`.
            Self::Down => {}
            Self::Up => say!(info, "up", "node connected"),
            Self::LoginFailed { why } => {
                say!(warn, "login_failed", "no new login; tried again", why = &**why);
            }
            Self::HistoryChanged { cause: cause @ HistoryCause::FirstUse } => say!(
                info,
                "history_changed",
                "node has no data of palisade yet: it is new, or was emptied",
                cause = cause.word()
            ),
            Self::HistoryChanged { cause } => {
                say!(warn, "history_changed", "node has a new data history", cause = cause.word());
            }
            Self::Renamed => {
                say!(info, "renamed", "the server's data have another name, and count as whole");
            }
            Self::DurableRefuted => say!(
                error,
                "durable_refuted",
                "{DURABLE_REFUTED}: find out which data are missing before you declare it again"
            ),
            Self::QuarantineBegun { remaining, began, loss } => {
                let why = match began {
                    Began::Known => "after a restart or failover".to_owned(),
                    Began::Empty => format!("never initialised; {}", commands.first_step()),
                    Began::Lost => LOST.to_owned(),
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
            Self::SettingsDisagree { ours, node: kept, our_clock_error, node_clock_error } => {
                let lower = commands.lower();
                say!(
                    warn,
                    "settings_disagree",
                    "clients differ in max_ttl, failover window or clock_error; the largest count; \
                     if no program asks for more than this one any longer: `{lower}`",
                    ours_ms = millis(*ours),
                    node_ms = millis(*kept),
                    our_clock_error_ms = millis(*our_clock_error),
                    node_clock_error_ms = millis(*node_clock_error)
                );
            }
            Self::KeysForgotten { remaining } => {
                let incidents = commands.incidents();
                say!(
                    warn,
                    "keys_forgotten",
                    "node is new or lost data: until one retention has passed, new idempotency \
                 keys without `created_at` count as forgotten; where they wait for a decision, \
                 `{incidents}` shows it and says how to decide",
                    remaining_ms = millis(*remaining)
                );
            }
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
pub(super) mod tests {
    use std::io;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// The log lines of one thread, for tests.
    #[derive(Clone, Default)]
    pub(in crate::node) struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        pub(in crate::node) fn capture(&self, work: impl FnOnce()) {
            let writer = self.clone();
            let subscriber =
                tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
            tracing::subscriber::with_default(subscriber.finish(), work);
        }

        pub(in crate::node) fn text(&self) -> String {
            let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&log).into_owned()
        }
    }

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

    #[test]
    fn a_first_use_is_no_warning() {
        use HistoryCause::{DataLost, FirstUse, Promotion, Restart, Unknown};
        let log = Log::default();
        let causes = [FirstUse, Restart, Promotion, DataLost, Unknown];
        let events = causes.map(|cause| NodeEvent::HistoryChanged { cause });
        log.capture(|| events.iter().for_each(|event| event.log("a", &Commands::default())));
        let lines = log.text();
        assert_eq!(lines.lines().count(), causes.len(), "{lines}");
        for (line, cause) in lines.lines().zip(causes) {
            let level = if cause == FirstUse { " INFO " } else { " WARN " };
            assert!(line.contains(level), "{cause:?}: {line}");
        }
    }

    /// Operators' alerts use these names.
    #[test]
    fn the_names_in_the_log_stay() {
        let changed = |cause| NodeEvent::HistoryChanged { cause };
        let log = Log::default();
        let span = Duration::from_millis(1_500);
        let why: Arc<str> = "because".into();
        let all = [
            (NodeEvent::Up, "up", ""),
            (NodeEvent::LoginFailed { why: why.clone() }, "login_failed", "why=\"because\""),
            (changed(HistoryCause::DataLost), "history_changed", "cause=\"data lost\""),
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
                "if the whole deployment is new: `palisade init --new --node redis://a` (in tests: \
                 `trust_fresh(true)`); if it had data before, do not: `palisade idem incidents \
                 --node redis://a` node=",
            ),
            (
                NodeEvent::DurableRefuted,
                "durable_refuted",
                "declared `durable`, but the server lost data: find out which",
            ),
            (NodeEvent::QuarantineEnded, "quarantine_ended", ""),
            (NodeEvent::Reasserted { leases: 7 }, "reasserted", "leases=7"),
            (NodeEvent::MinReplicasMissing { why }, "min_replicas_missing", "why=\"because\""),
            (NodeEvent::MinReplicasRestored, "min_replicas_restored", ""),
            (
                NodeEvent::SettingsDisagree {
                    ours: span,
                    node: 2 * span,
                    our_clock_error: span / 3,
                    node_clock_error: span,
                },
                "settings_disagree",
                "`palisade settings --lower --max-ttl 15s --clock-error 500ms --node redis://a` \
                 node=\"orders-a\" event=\"settings_disagree\" ours_ms=1500 node_ms=3000 \
                 our_clock_error_ms=500 node_clock_error_ms=1500",
            ),
            (
                NodeEvent::KeysForgotten { remaining: span },
                "keys_forgotten",
                "`palisade idem incidents --node redis://a` shows it and says how to decide \
                 node=\"orders-a\" event=\"keys_forgotten\" remaining_ms=1500",
            ),
            (changed(HistoryCause::FirstUse), "history_changed", "cause=\"first use\""),
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
        let commands = Commands::new([Arc::from("redis://a")].into_iter(), "");
        let commands = commands.with_terms(10 * span, span / 3);
        log.capture(|| all.iter().for_each(|(event, ..)| event.log("orders-a", &commands)));
        let lines = log.text();
        assert_eq!(lines.lines().count(), all.len(), "{lines}");
        for (line, (_, name, fields)) in lines.lines().zip(&all) {
            for text in ["palisade::node", "node=\"orders-a\"", &format!("event={name:?}"), fields]
            {
                assert!(line.contains(text), "{text} in {line}");
            }
        }
    }
}
