//! A lock seen from outside: who holds it on each node, and taking it over from a holder that does
//! not come back.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::driver::Core;
use crate::error::{AcquireError, NodeError, NodeFault, NodeOutcome};
use crate::lock::{LockGuard, Mutex};
use crate::name::LockKeys;
use crate::op::{IfHeld, Reply};
use crate::quorum::acquire::Loss;
use crate::quorum::majority::majority;
use crate::token::{FencingToken, OwnerToken};

/// How long a takeover tries where the mutex has no `acquire_timeout`.
const WAIT: Duration = Duration::from_secs(10);
/// Longest reason that is kept with the lock.
const NOTE_MAX: usize = 1_024;

/// What one node knows of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeView {
    /// Nobody holds it there.
    Free,
    /// This one holds it there.
    Held(Holder),
    /// Another program's value is under its key, for this long; without end if `None`.
    Foreign(Option<Duration>),
    /// The node gave no answer that counts.
    Unknown(NodeOutcome),
}

/// A holder, as one node or a majority names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Names the attempt that holds the lock: the same on every node, another for every attempt.
    /// Nobody can release the lock by it.
    pub owner: String,
    /// The node's fence; of a majority the largest. Not below the holder's fencing token.
    pub fence: FencingToken,
    /// Until its lease ends, unless it is renewed.
    pub remaining: Duration,
    /// What the holder says of itself: the reason of a [takeover](Mutex::take_over).
    pub note: Option<String>,
    token: OwnerToken,
}

/// What [`Mutex::inspect`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Every node by name.
    pub nodes: Vec<(Arc<str>, NodeView)>,
}

impl Inspection {
    /// The holder that a majority names.
    pub fn holder(&self) -> Option<Holder> {
        let held = || {
            self.nodes.iter().filter_map(|(_, view)| match view {
                NodeView::Held(holder) => Some(holder),
                _ => None,
            })
        };
        let needed = majority(self.nodes.len());
        let of = |token| held().filter(move |h| h.token == token);
        let token = held().map(|h| h.token).find(|token| of(*token).count() >= needed)?;
        // It is gone from a majority when as many nodes are left as are not enough.
        let mut ends: Vec<_> = of(token).map(|h| h.remaining).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let first = of(token).next()?;
        let fence = of(token).map(|h| h.fence).max().unwrap_or(first.fence);
        let note = of(token).find_map(|h| h.note.clone());
        Some(Holder { fence, remaining: ends[needed - 1], note, ..first.clone() })
    }

    /// Whether no holder can have a majority, so that the lock can be taken now.
    pub fn is_free(&self) -> bool {
        let may_hold = |token: Option<OwnerToken>| {
            let counts = |view: &NodeView| match view {
                NodeView::Held(h) => Some(h.token) == token,
                NodeView::Unknown(_) => true,
                NodeView::Free | NodeView::Foreign(_) => false,
            };
            self.nodes.iter().filter(|(_, view)| counts(view)).count()
        };
        let foreign = self.nodes.iter().filter(|(_, v)| matches!(v, NodeView::Foreign(_))).count();
        let tokens = self.nodes.iter().map(|(_, view)| match view {
            NodeView::Held(h) => Some(h.token),
            _ => None,
        });
        let needed = majority(self.nodes.len());
        foreign < needed && tokens.map(may_hold).all(|nodes| nodes < needed)
    }
}

/// What [`Mutex::take_over`] came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct TakenOver {
    /// The holder from whom it was taken, as it was seen last; none if it was gone by then.
    pub from: Option<Holder>,
    /// The lock, under a higher token.
    pub guard: LockGuard,
}

impl Mutex {
    /// Asks every node who holds the lock, and waits for all that answer. Changes nothing.
    ///
    /// # Errors
    /// [`AcquireError::Closed`].
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at will.
    pub async fn inspect(&self) -> Result<Inspection, AcquireError> {
        let _verb = self.begin()?;
        Ok(look(&self.core, &self.keys).await)
    }

    /// Takes the lock from this holder, as [`inspect`](Self::inspect) showed it: for an operator,
    /// where the holder is known to hang. From nobody else: another one who comes first keeps it.
    /// Each node gives it from one to the other at once, so those who wait for it go on waiting.
    ///
    /// The fence rises at once, so every resource that checks fencing tokens refuses the holder
    /// from now on. The holder itself hears of its loss at its next renewal, at the latest when
    /// its lease ends. Keep the guard until [`from.remaining`](Holder::remaining) has passed: as
    /// long as you hold the lock, two holders cannot believe in it at once. `reason` is kept with
    /// the lock as its [`note`](Holder::note), cut to one kibibyte.
    ///
    /// # Errors
    /// As [`Mutex::acquire`]; [`AcquireError::TimedOut`] if somebody else has the lock by now and
    /// keeps it, or another program's value is under its key.
    ///
    /// # Cancellation safety
    /// Dropped, the holder may have lost the lock all the same; nothing else is held.
    pub async fn take_over(
        &self,
        holder: &Holder,
        reason: &str,
    ) -> Result<TakenOver, AcquireError> {
        let _verb = self.begin()?;
        let core = &self.core;
        let started = core.env.now();
        let end = started + self.acquire_timeout.unwrap_or(WAIT);
        let mut from = None;
        loop {
            let seen = look(core, &self.keys).await.holder();
            let same = seen.filter(|seen| seen.token == holder.token);
            let take = same.as_ref().map(|same| IfHeld::TakeFrom(same.token));
            from = same.or(from);
            match core.attempt(&self.keys, self.ttl, (take, WAIT), self.level).await {
                Ok(won) => {
                    let guard = self.guard(won);
                    guard.lease().set_meta(note(reason).into());
                    // Without it the reason comes with the next renewal.
                    drop(guard.extend().await);
                    return Ok(TakenOver { from, guard });
                }
                Err(loss) if core.env.now() >= end => return Err(self.refused(loss, started)),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn refused(&self, loss: Loss, started: crate::time::Moment) -> AcquireError {
        let (of, waited) = (self.resource(), self.core.env.now().since(started));
        match loss {
            Loss::Taken(taken) => AcquireError::TimedOut { of, waited, taken },
            Loss::NoQuorum(outcomes) => self.core.no_quorum(outcomes).of(of).into(),
        }
    }
}

async fn look(core: &Core, keys: &LockKeys) -> Inspection {
    let silent = || NodeError::not_executed(NodeFault::Timeout, "");
    let view = |(name, reply): (_, Option<_>)| (name, view(reply.unwrap_or(Err(silent()))));
    Inspection { nodes: core.look_everywhere(keys).await.into_iter().map(view).collect() }
}

fn view(reply: Result<Reply, NodeError>) -> NodeView {
    let failed = |e| NodeView::Unknown(NodeOutcome::Failed(e));
    match reply {
        Ok(Reply::Holder(None)) => NodeView::Free,
        Ok(Reply::Holder(Some(h))) => match h.owner {
            None => NodeView::Foreign(h.remaining),
            Some(token) => NodeView::Held(Holder {
                owner: digest(token),
                fence: FencingToken::new(h.fence),
                remaining: h.remaining.unwrap_or_default(),
                note: h.meta.as_deref().and_then(|meta| String::from_utf8(meta.to_vec()).ok()),
                token,
            }),
        },
        Ok(Reply::Quarantined { remaining, began_empty, .. }) => {
            NodeView::Unknown(NodeOutcome::quarantined(remaining, began_empty))
        }
        Ok(_) => failed(NodeError::not_executed(NodeFault::Protocol, "not an answer to this")),
        Err(e) => failed(e),
    }
}

/// A reason as it is kept with a lock: cut between two letters.
pub(crate) fn note(reason: &str) -> Vec<u8> {
    let end = (0..=reason.len().min(NOTE_MAX)).rev().find(|end| reason.is_char_boundary(*end));
    reason.as_bytes()[..end.unwrap_or(0)].to_vec()
}

/// Names an owner without giving its token away.
pub(crate) fn digest(owner: OwnerToken) -> String {
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
    use crate::{MemoryNode, Redlock, TryAcquire};

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
    }

    #[tokio::test]
    async fn a_takeover_raises_the_fence_and_the_holder_hears_of_it() {
        let redlock = three();
        let mutex = redlock.mutex("job").build().unwrap();
        let old = mutex.acquire().await.unwrap();
        let hangs = mutex.inspect().await.unwrap().holder().unwrap();
        let taken = mutex.take_over(&hangs, "it hangs").await.unwrap();
        assert!(taken.guard.fencing_token() > old.fencing_token());
        assert!(taken.from.unwrap().fence >= old.fencing_token());
        let holder = mutex.inspect().await.unwrap().holder().unwrap();
        assert_eq!(holder.note.as_deref(), Some("it hangs"));
        assert!(old.extend().await.is_err());
        assert!(!old.is_valid());
        // The old holder's release takes nothing from the new one.
        assert!(old.release().await.is_err());
        assert!(taken.guard.is_valid());
        assert!(matches!(mutex.try_acquire().await.unwrap(), TryAcquire::Taken(_)));
        taken.guard.release().await.unwrap();
        let taken = mutex.take_over(&hangs, "it is gone").await.unwrap();
        assert!(taken.from.is_none());
    }

    #[tokio::test]
    async fn a_takeover_leaves_the_lock_to_another_who_came_first() {
        let redlock = three();
        let mutex = redlock.mutex("job");
        let mutex = mutex.acquire_timeout(Duration::from_millis(200)).build().unwrap();
        let old = mutex.acquire().await.unwrap();
        let hangs = mutex.inspect().await.unwrap().holder().unwrap();
        old.release().await.unwrap();
        let well = mutex.acquire().await.unwrap();
        let refused = mutex.take_over(&hangs, "it hangs").await;
        assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
        assert!(well.extend().await.is_ok(), "a healthy holder lost its lock");
    }

    #[test]
    fn a_note_is_cut_between_letters() {
        assert_eq!(note("ü").len(), 2);
        assert_eq!(note(&"ü".repeat(NOTE_MAX)).len(), NOTE_MAX);
        assert_eq!(note(&format!("a{}", "ü".repeat(NOTE_MAX))).len(), NOTE_MAX - 1);
    }

    #[test]
    fn foreign_values_and_silence_are_not_a_holder() {
        let silent = || NodeView::Unknown(NodeOutcome::Silent);
        let of = |views: Vec<NodeView>| Inspection {
            nodes: views.into_iter().map(|v| (Arc::from("n"), v)).collect(),
        };
        let foreign = || NodeView::Foreign(None);
        assert!(!of(vec![foreign(), foreign(), NodeView::Free]).is_free());
        assert!(of(vec![NodeView::Free, NodeView::Free, silent()]).is_free());
        assert!(!of(vec![NodeView::Free, silent(), silent()]).is_free());
        assert!(of(vec![foreign(), silent(), silent()]).holder().is_none());
    }
}
