//! Wake-ups of the callers that wait for one key, the longest wait first. A caller keeps its place
//! when it is woken in vain; otherwise it would always be behind callers that got the lock and call
//! again at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::sync::SyncMutex;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) is_back: bool,
    pub(super) since: Moment,
    pub(super) number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Turns(SyncMutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<Order, Arc<Notify>>,
    /// The next caller that begins to wait is woken at once.
    stored: bool,
}

struct Caller<'a> {
    turns: &'a Turns,
    order: Order,
    is_done: bool,
}

impl Turns {
    pub(super) fn wake(&self) {
        let mut state = self.0.lock();
        match state.waiting.pop_first() {
            Some((_, caller)) => caller.notify_one(),
            None => state.stored = true,
        }
    }

    /// To the next caller that has not stepped back, so that callers that cannot succeed do not
    /// wake each other again and again.
    pub(super) fn pass(&self) {
        let mut state = self.0.lock();
        match state.waiting.first_entry() {
            Some(first) if !first.key().is_back => first.remove().notify_one(),
            _ => state.stored = true,
        }
    }

    pub(super) fn forget(&self) {
        self.0.lock().stored = false;
    }

    pub(super) fn wake_all(&self) {
        let all = std::mem::take(&mut self.0.lock().waiting);
        for caller in all.into_values() {
            caller.notify_one();
        }
    }

    pub(super) async fn turn(&self, order: Order) {
        let woken = Arc::new(Notify::new());
        {
            let mut state = self.0.lock();
            // A caller that stepped back leaves the stored wake-up to others.
            if !order.is_back && std::mem::take(&mut state.stored) {
                return;
            }
            state.waiting.insert(order, Arc::clone(&woken));
        }
        let mut caller = Caller { turns: self, order, is_done: false };
        woken.notified().await;
        caller.is_done = true;
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let waits = !self.is_done && self.turns.0.lock().waiting.remove(&self.order).is_some();
        if !self.is_done && !waits {
            self.turns.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn order(number: u64) -> Order {
        Order { is_back: false, since: Moment::from_nanos(number), number }
    }

    #[tokio::test]
    async fn the_caller_that_has_waited_longest_is_woken_first() {
        let turns = Turns::default();
        let mut second = Box::pin(turns.turn(order(2)));
        let mut first = Box::pin(turns.turn(order(1)));
        assert!((&mut second).now_or_never().is_none() && (&mut first).now_or_never().is_none());
        turns.wake();
        assert!((&mut second).now_or_never().is_none());
        first.await;
        let mut first = Box::pin(turns.turn(order(1)));
        assert!((&mut first).now_or_never().is_none());
        turns.wake();
        first.await;
        turns.wake();
        second.await;
    }

    #[tokio::test]
    async fn a_wake_up_is_not_lost() {
        let turns = Turns::default();
        turns.wake();
        turns.wake();
        turns.turn(order(1)).await;
        let mut first = Box::pin(turns.turn(order(1)));
        assert!((&mut first).now_or_never().is_none(), "two that no caller awaits are one");
        let mut second = Box::pin(turns.turn(order(2)));
        assert!((&mut second).now_or_never().is_none());
        turns.wake();
        drop(first);
        second.await;
        let mut third = Box::pin(turns.turn(order(3)));
        assert!((&mut third).now_or_never().is_none());
        drop(third);
        let mut fourth = Box::pin(turns.turn(order(4)));
        assert!((&mut fourth).now_or_never().is_none());
        turns.wake_all();
        fourth.await;
        assert!(turns.turn(order(5)).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_caller_that_stepped_back_gets_no_wake_up_that_is_passed_on() {
        let turns = Turns::default();
        let back = |number| Order { is_back: true, ..order(number) };
        let mut first = Box::pin(turns.turn(back(1)));
        assert!((&mut first).now_or_never().is_none());
        turns.pass();
        assert!((&mut first).now_or_never().is_none(), "it is for one that has not stepped back");
        assert!(turns.turn(back(2)).now_or_never().is_none());
        let mut third = Box::pin(turns.turn(order(3)));
        (&mut third).await;
        let mut third = Box::pin(turns.turn(order(3)));
        assert!((&mut third).now_or_never().is_none());
        turns.pass();
        third.await;
        turns.wake();
        first.await;
    }
}
