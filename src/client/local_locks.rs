//! With these locks calls in this process exclude each other even while no node answers.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex as TokioMutex, OwnedMutexGuard, watch};

use crate::durability::Durability;
use crate::error::Taken;
use crate::name::LockKeys;
use crate::quorum::acquire::Loss;
use crate::sync::SyncMutex;
use crate::time::Moment;

#[derive(Debug, Default)]
pub(crate) struct LocalLocks(SyncMutex<HashMap<LockKeys, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    lock: Arc<TokioMutex<()>>,
    answer: watch::Sender<Option<Answered>>,
    users: usize,
}

#[derive(Debug)]
pub(crate) struct LocalGuard {
    locks: Arc<LocalLocks>,
    keys: LockKeys,
    held: Option<OwnedMutexGuard<()>>,
}

impl LocalLocks {
    pub(crate) async fn lock(self: &Arc<Self>, keys: &LockKeys) -> LocalGuard {
        let lock = {
            let mut all = self.0.lock();
            let entry = all.entry(keys.clone()).or_default();
            entry.users += 1;
            Arc::clone(&entry.lock)
        };
        // Its drop subtracts this caller from `users`.
        let mut guard = LocalGuard { locks: Arc::clone(self), keys: keys.clone(), held: None };
        guard.held = Some(lock.lock_owned().await);
        guard
    }

    /// Waits for the next refusal if the last one is from before `since`, or reports too few votes
    /// for another level.
    pub(crate) async fn answer(
        &self,
        keys: &LockKeys,
        level: Durability,
        (since, now): (Moment, Moment),
    ) -> Loss {
        let answers = self.0.lock().get(keys).map(|entry| entry.answer.subscribe());
        let counts = |answer: &Option<Answered>| {
            answer.as_ref().is_some_and(|answer| {
                answer.at >= since
                    && (answer.level == level || matches!(answer.loss, Loss::Taken(_)))
            })
        };
        if let Some(mut answers) = answers
            && let Ok(answer) = answers.wait_for(counts).await
            && let Some(answer) = &*answer
        {
            return answer.loss_at(now);
        }
        std::future::pending().await
    }
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) at: Moment,
    pub(crate) level: Durability,
    pub(crate) loss: Loss,
}

impl Answered {
    fn loss_at(&self, now: Moment) -> Loss {
        match &self.loss {
            Loss::Taken(taken) => {
                let age = now.since(self.at);
                let retry_after = taken.retry_after.map(|left| left.saturating_sub(age));
                Loss::Taken(Taken { retry_after, ..taken.clone() })
            }
            loss @ Loss::NoQuorum(_) => loss.clone(),
        }
    }
}

impl LocalGuard {
    pub(crate) fn answered(&self, answer: Answered) {
        if let Some(entry) = self.locks.0.lock().get(&self.keys) {
            entry.answer.send_replace(Some(answer));
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
    use std::time::Duration;

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
        let (none, level) = (Loss::NoQuorum(Vec::new()), Durability::Primary);
        let refused = |nanos, level, loss: &Loss| {
            held.answered(Answered { at: at(nanos), level, loss: loss.clone() });
        };
        let mut answer = Box::pin(locks.answer(&key, level, (at(2), at(5))));
        assert!((&mut answer).now_or_never().is_none(), "there is none yet");
        refused(1, level, &none);
        assert!((&mut answer).now_or_never().is_none(), "it is too old");
        refused(2, Durability::AllReplicas, &none);
        assert!((&mut answer).now_or_never().is_none(), "it is about another durability");
        refused(2, level, &none);
        assert_eq!(answer.await, none);
        let taken = |nanos| {
            let retry_after = Some(Duration::from_nanos(nanos));
            Loss::Taken(Taken { retry_after, foreign: false, queued: None })
        };
        refused(3, Durability::AllReplicas, &taken(10));
        assert_eq!(locks.answer(&key, level, (at(2), at(5))).await, taken(8));
    }
}
