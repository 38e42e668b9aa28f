//! Inspection of a lock without acquiring it.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::client::Core;
use crate::error::{AcquireError, NodeError, NodeFault, NodeOutcome};
use crate::lock::Mutex;
use crate::name::LockKeys;
use crate::op::{Readers, Reply, SharedGrant};
use crate::quorum::majority;
use crate::token::{FencingToken, OwnerToken};

/// In bytes; a longer reason is cut.
const NOTE_MAX: usize = 1_024;

/// State of a lock on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeView {
    /// The lock is not held on this node.
    Free,
    /// This holder has the lock on this node.
    Held(LockHolder),
    /// Readers hold the lock on this node.
    #[non_exhaustive]
    Readers {
        /// Number of readers.
        count: u32,
        /// Readers whose leases end last, at most 64. The reader whose lease ends last is first.
        listed: Vec<LockHolder>,
    },
    /// The lock is not held by the node's clock, but the node grants it to no new owner for this
    /// time. The reason is a planned handover of the node to another server a short time ago: the
    /// clock of the new server may have ended a lease too early.
    Kept(Duration),
    /// The lock's key has a value that this client cannot read as a lock: another program's value,
    /// or the readers of the lock if the Redis user of this client lacks `+zrange`. The value
    /// expires after this time; `None` if it never expires.
    Foreign(Option<Duration>),
    /// The node did not report the state of the lock, for this reason.
    Unknown(NodeOutcome),
}

/// A holder of a lock, as one node or a majority of the nodes reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// Identifier of the attempt that holds the lock, as [`LockGuard::owner`] returns it. It is the
    /// same on every node and different for every attempt, and does not suffice to release the
    /// lock.
    ///
    /// [`LockGuard::owner`]: super::LockGuard::owner
    pub owner: String,
    /// Largest fencing token that the node has for the lock. If a majority reports the holder, it
    /// is the largest token of these nodes. It is not below the holder's own token.
    pub fence: FencingToken,
    /// Time until the holder's lease ends, unless the holder renews it.
    pub remaining: Duration,
    /// Reason that is stored with the lock if it was [taken over](Mutex::take_over).
    pub note: Option<String>,
    pub(super) token: OwnerToken,
}

/// Result of [`Mutex::inspect`]: the state of the lock on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Name of each node, with the state of the lock on this node.
    pub nodes: Vec<(Arc<str>, NodeView)>,
}

impl Inspection {
    /// Returns the holder that a majority of the nodes reports; `None` if there is none.
    pub fn holder(&self) -> Option<LockHolder> {
        let held = || {
            self.nodes.iter().filter_map(|(_, view)| match view {
                NodeView::Held(holder) => Some(holder),
                _ => None,
            })
        };
        let needed = majority(self.nodes.len());
        let of = |token| held().filter(move |h| h.token == token);
        let token = held().map(|h| h.token).find(|token| of(*token).count() >= needed)?;
        // The longest first: a majority has the holder until the one at `needed - 1` ends.
        let mut ends: Vec<_> = of(token).map(|h| h.remaining).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let first = of(token).next()?;
        let fence = of(token).map(|h| h.fence).max().unwrap_or(first.fence);
        let note = of(token).find_map(|h| h.note.clone());
        Some(LockHolder { fence, remaining: ends[needed - 1], note, ..first.clone() })
    }

    /// Returns the readers that a majority of the nodes lists. Each node lists at most 64 readers;
    /// [`reader_count`](Self::reader_count) also counts readers that are not listed.
    pub fn readers(&self) -> Vec<LockHolder> {
        let listed = self.nodes.iter().flat_map(|(_, view)| match view {
            NodeView::Readers { listed, .. } => &listed[..],
            _ => &[],
        });
        let mut all: Vec<&LockHolder> = listed.collect();
        all.sort_by_key(|reader| (reader.token, std::cmp::Reverse(reader.remaining)));
        let needed = majority(self.nodes.len());
        let of_one = all.chunk_by(|a, b| a.token == b.token);
        let by_majority = of_one.filter(|views| views.len() >= needed);
        by_majority
            .map(|views| {
                let fence = views.iter().map(|view| view.fence).max().unwrap_or_default();
                LockHolder { fence, ..views[needed - 1].clone() }
            })
            .collect()
    }

    /// Returns the number of readers that a majority of the nodes has; zero if the lock is not held
    /// for reading. If a node has more readers than it lists, the result is the largest number such
    /// that a majority of the nodes reports at least this number of readers.
    pub fn reader_count(&self) -> usize {
        let (mut counts, mut lists_all) = (Vec::new(), true);
        for (_, view) in &self.nodes {
            if let NodeView::Readers { count, listed } = view {
                counts.push(*count as usize);
                lists_all &= *count as usize <= listed.len();
            }
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let least = counts.get(majority(self.nodes.len()) - 1).filter(|_| !lists_all);
        self.readers().len().max(least.copied().unwrap_or_default())
    }

    pub(super) fn longest_of(&self, owners: &[OwnerToken]) -> Duration {
        let left = self.nodes.iter().filter_map(|(_, view)| match view {
            NodeView::Held(holder) if owners.contains(&holder.token) => Some(holder.remaining),
            _ => None,
        });
        left.max().unwrap_or_default()
    }

    /// Returns true if the lock can be acquired now. That is so if no owner can have the lock on a
    /// majority of the nodes, even if the owner has it on all nodes that did not answer, and if no
    /// majority of the nodes has another program's value under the lock's key.
    pub fn is_free(&self) -> bool {
        let may_hold = |token: Option<OwnerToken>| {
            let counts = |view: &NodeView| match view {
                NodeView::Held(h) => Some(h.token) == token,
                NodeView::Readers { count, listed } => {
                    listed.iter().any(|h| Some(h.token) == token) || *count as usize > listed.len()
                }
                NodeView::Kept(_) | NodeView::Unknown(_) => true,
                NodeView::Free | NodeView::Foreign(_) => false,
            };
            self.nodes.iter().filter(|(_, view)| counts(view)).count()
        };
        let foreign = self.nodes.iter().filter(|(_, v)| matches!(v, NodeView::Foreign(_))).count();
        let tokens = self.nodes.iter().flat_map(|(_, view)| match view {
            NodeView::Held(h) => vec![Some(h.token)],
            NodeView::Readers { listed, .. } => listed.iter().map(|h| Some(h.token)).collect(),
            _ => vec![None],
        });
        let needed = majority(self.nodes.len());
        foreign < needed && tokens.map(may_hold).all(|nodes| nodes < needed)
    }
}

impl Mutex {
    /// Asks every node for the holder of the lock, and waits for all answers. Changes nothing.
    ///
    /// # Errors
    /// [`AcquireError::Closed`] if the `Redlock` handle was closed.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub async fn inspect(&self) -> Result<Inspection, AcquireError> {
        let _operation = self.begin()?;
        Ok(look(&self.core, &self.keys).await)
    }
}

pub(super) async fn look(core: &Core, keys: &LockKeys) -> Inspection {
    let silent = || NodeError::not_executed(NodeFault::Timeout, "");
    let view = |(name, reply): (_, Option<_>)| (name, view(reply.unwrap_or(Err(silent()))));
    Inspection { nodes: core.inspect_each(keys, core.n()).await.into_iter().map(view).collect() }
}

fn view(reply: Result<Reply, NodeError>) -> NodeView {
    let failed = |e| NodeView::Unknown(NodeOutcome::Failed(e));
    match reply {
        Ok(Reply::Readers(Readers { fence, count, listed })) => {
            let reader = |reader: &SharedGrant| LockHolder {
                owner: digest(reader.owner),
                fence: FencingToken::new(fence),
                remaining: reader.remaining,
                note: None,
                token: reader.owner,
            };
            NodeView::Readers { count, listed: listed.iter().map(reader).collect() }
        }
        Ok(Reply::Holder(None)) => NodeView::Free,
        Ok(Reply::Holder(Some(h))) => match h.owner {
            None => NodeView::Foreign(h.remaining),
            Some(OwnerToken::KEPT) => NodeView::Kept(h.remaining.unwrap_or_default()),
            Some(token) => NodeView::Held(LockHolder {
                owner: digest(token),
                fence: FencingToken::new(h.fence),
                remaining: h.remaining.unwrap_or_default(),
                note: h.meta.as_deref().and_then(|meta| String::from_utf8(meta.to_vec()).ok()),
                token,
            }),
        },
        Ok(Reply::Quarantined { remaining, began, .. }) => {
            NodeView::Unknown(NodeOutcome::quarantined(remaining, began))
        }
        Ok(_) => failed(NodeError::not_executed(NodeFault::Protocol, "not an answer to this")),
        Err(e) => failed(e),
    }
}

/// Cut to `NOTE_MAX` bytes, between two characters.
pub(crate) fn note(reason: &str) -> Vec<u8> {
    let end = (0..=reason.len().min(NOTE_MAX)).rev().find(|end| reason.is_char_boundary(*end));
    reason.as_bytes()[..end.unwrap_or(0)].to_vec()
}

/// Returns an identifier of an owner that does not reveal the owner token: the first 16 hexadecimal
/// digits of the token's hash.
pub fn digest(owner: OwnerToken) -> String {
    use std::fmt::Write as _;
    let hash = Sha256::digest(owner.as_str().as_bytes());
    hash.iter().take(8).fold(String::with_capacity(16), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryNode, Redlock};

    fn three() -> Redlock {
        let nodes = (0..3).fold(Redlock::builder(), |b, i| {
            b.node(MemoryNode::builder().name(format!("m{i}")).build())
        });
        nodes.ttl(Duration::from_secs(5)).build().unwrap()
    }

    #[tokio::test]
    async fn an_inspection_names_the_holder_and_changes_nothing() {
        let redlock = three();
        let mutex = redlock.mutex("job").build().unwrap();
        assert!(mutex.inspect().await.unwrap().is_free());
        let guard = mutex.acquire().await.unwrap();
        let seen = mutex.inspect().await.unwrap();
        let holder = seen.holder().unwrap();
        assert!(!seen.is_free());
        assert_eq!((seen.nodes.len(), holder.owner.len(), &holder.note), (3, 16, &None));
        assert!(holder.fence >= guard.fencing_token());
        assert!(holder.remaining > Duration::from_secs(3), "{:?}", holder.remaining);
        assert!(guard.is_valid());
        assert_eq!(guard.owner(), holder.owner);
    }

    #[test]
    fn a_note_is_cut_between_letters() {
        assert_eq!(note("ü").len(), 2);
        assert_eq!(note(&"ü".repeat(NOTE_MAX)).len(), NOTE_MAX);
        assert_eq!(note(&format!("a{}", "ü".repeat(NOTE_MAX))).len(), NOTE_MAX - 1);
    }

    #[test]
    fn readers_are_counted_beyond_those_that_a_node_lists() {
        let reader = |n: u32| LockHolder {
            owner: n.to_string(),
            fence: FencingToken::default(),
            remaining: Duration::from_secs(1),
            note: None,
            token: OwnerToken::from_random(n.into()),
        };
        let node = |count, listed: std::ops::Range<u32>| {
            let listed = listed.map(reader).collect();
            (Arc::from("n"), NodeView::Readers { count, listed })
        };
        let count = |nodes: Vec<_>| Inspection { nodes }.reader_count();
        assert_eq!(count(vec![node(2, 0..2), node(2, 0..2), node(2, 0..2)]), 2);
        assert_eq!(count(vec![node(2, 0..2), node(2, 1..3), node(2, 3..5)]), 1);
        assert_eq!(count(vec![node(1, 0..1), node(1, 1..2), node(1, 2..3)]), 0);
        let free = (Arc::from("n"), NodeView::Free);
        assert_eq!(count(vec![node(70, 0..64), node(80, 16..80), free.clone()]), 70);
        assert_eq!(count(vec![node(70, 0..64), node(80, 64..128), free.clone()]), 70);
        assert_eq!(count(vec![node(70, 0..64), free.clone(), free]), 0);
    }

    #[test]
    fn foreign_values_and_silence_are_not_a_holder() {
        let silent = || NodeView::Unknown(NodeOutcome::Silent);
        let of = |views: Vec<NodeView>| Inspection {
            nodes: views.into_iter().map(|v| (Arc::from("n"), v)).collect(),
        };
        let foreign = || NodeView::Foreign(None);
        let kept = || NodeView::Kept(Duration::from_secs(1));
        assert!(of(vec![kept(), kept(), kept()]).holder().is_none());
        assert!(!of(vec![kept(), kept(), NodeView::Free]).is_free());
        assert!(of(vec![kept(), NodeView::Free, NodeView::Free]).is_free());
        assert!(!of(vec![foreign(), foreign(), NodeView::Free]).is_free());
        assert!(of(vec![NodeView::Free, NodeView::Free, silent()]).is_free());
        assert!(!of(vec![NodeView::Free, silent(), silent()]).is_free());
        assert!(of(vec![foreign(), silent(), silent()]).holder().is_none());
    }
}
