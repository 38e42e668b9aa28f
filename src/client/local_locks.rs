//! Locks inside this process, one for each key; no node is asked for them. With them, calls in this
//! process exclude each other even while no node answers.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex as TokioMutex, OwnedMutexGuard, watch};

use crate::name::LockKeys;
use crate::quorum::acquire::Loss;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// The local locks of one `Redlock` handle. Callers get a lock in the order of their calls.
#[derive(Debug, Default)]
pub(crate) struct LocalLocks(SyncMutex<HashMap<LockKeys, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    lock: Arc<TokioMutex<()>>,
    /// Last answer of the nodes that a holder of the local lock recorded, and the time of the
    /// answer.
    answer: watch::Sender<Option<(Moment, Loss)>>,
    /// Number of callers that wait for the lock or hold it. The last caller removes the lock's
    /// entry from the map.
    users: usize,
}

/// One caller that waits for a local lock or holds a local lock.
#[derive(Debug)]
pub(crate) struct LocalGuard {
    locks: Arc<LocalLocks>,
    keys: LockKeys,
    /// The held local lock; `None` while the caller waits for it.
    held: Option<OwnedMutexGuard<()>>,
}

impl LocalLocks {
    /// Waits for the local lock of a key.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the next caller in line gets the lock.
    pub(crate) async fn lock(self: &Arc<Self>, keys: &LockKeys) -> LocalGuard {
        let lock = {
            let mut all = self.0.lock();
            let entry = all.entry(keys.clone()).or_default();
            entry.users += 1;
            Arc::clone(&entry.lock)
        };
        // From here on, the drop of `guard` subtracts this caller from the count of callers
        // (`users`) of this local lock.
        let mut guard = LocalGuard { locks: Arc::clone(self), keys: keys.clone(), held: None };
        guard.held = Some(lock.lock_owned().await);
        guard
    }

    /// Returns the last answer of the nodes that was recorded by a holder of the key's local lock,
    /// a lock inside this process. Waits for an answer if the last one was recorded before `since`.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it changes nothing.
    pub(crate) async fn answer(&self, keys: &LockKeys, since: Moment) -> Loss {
        let answers = self.0.lock().get(keys).map(|entry| entry.answer.subscribe());
        if let Some(mut answers) = answers
            && let Ok(answer) =
                answers.wait_for(|answer| answer.as_ref().is_some_and(|(at, _)| *at >= since)).await
            && let Some((_, loss)) = &*answer
        {
            return loss.clone();
        }
        std::future::pending().await
    }
}

impl LocalGuard {
    /// Records the answer of the nodes to the holder of this local lock, for the callers that wait
    /// for the local lock.
    pub(crate) fn answered(&self, at: Moment, answer: Loss) {
        if let Some(entry) = self.locks.0.lock().get(&self.keys) {
            entry.answer.send_replace(Some((at, answer)));
        }
    }
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut all = self.locks.0.lock();
        if let Some(entry) = all.get_mut(&self.keys) {
            entry.users -= 1;
            if entry.users == 0 {
                all.remove(&self.keys);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn an_entry_lives_as_long_as_a_call_waits_or_holds() {
        let locks = Arc::<LocalLocks>::default();
        let (a, b) = (LockKeys::new("a"), LockKeys::new("b"));
        let held = locks.lock(&a).await;
        let other = locks.lock(&b).await;
        let mut second = Box::pin(locks.lock(&a));
        let mut third = Box::pin(locks.lock(&a));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(second);
        assert_eq!(locks.0.lock().len(), 2);
        drop((held, other));
        assert_eq!(locks.0.lock().len(), 1, "the third call has the lock");
        drop(third.await);
        assert!(locks.0.lock().is_empty());
    }

    #[tokio::test]
    async fn the_answer_to_a_holder_is_reported_to_those_who_wait_while_it_is_new() {
        let locks = Arc::<LocalLocks>::default();
        let (key, at) = (LockKeys::new("a"), Moment::from_nanos);
        let held = locks.lock(&key).await;
        let mut answer = Box::pin(locks.answer(&key, at(2)));
        assert!((&mut answer).now_or_never().is_none(), "there is none yet");
        held.answered(at(1), Loss::NoQuorum(Vec::new()));
        assert!((&mut answer).now_or_never().is_none(), "it is too old");
        held.answered(at(2), Loss::NoQuorum(Vec::new()));
        assert_eq!(answer.await, Loss::NoQuorum(Vec::new()));
    }
}
