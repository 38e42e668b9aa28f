//! So that client and server work at the same time. Callers that get their answers in one batch
//! send their next requests together: on a runtime with one thread, client and server would take
//! turns. After `IN_STEP` such batches, the queue sends half of the requests first.

use std::task::Poll;

/// For fewer ops, a second batch costs more than it saves.
const MANY: usize = 16;
/// A single large batch of one caller is not split.
const IN_STEP: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Pace(u32);

impl Pace {
    pub(super) fn most(&mut self, waiting: usize, alone: bool) -> usize {
        match (waiting, alone) {
            (0, _) => return usize::MAX,
            (MANY.., true) => self.0 += 1,
            _ => self.0 = 0,
        }
        if self.0 > IN_STEP { waiting.div_ceil(2) } else { usize::MAX }
    }
}

/// This task wakes itself at once and is queued behind them; `tokio::task::yield_now` would also
/// wait for the IO driver.
pub(super) async fn let_others_run() {
    let mut woken = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_in_step_are_parted_and_others_are_not() {
        let mut pace = Pace::default();
        for _ in 0..IN_STEP {
            assert_eq!(pace.most(65, true), usize::MAX);
            assert_eq!(pace.most(0, true), usize::MAX);
        }
        assert_eq!(pace.most(65, true), 33);
        assert_eq!(pace.most(32, false), usize::MAX);
        assert_eq!(pace.most(33, false), usize::MAX);
        assert_eq!(pace.most(65, true), usize::MAX);
        for _ in 0..=2 * IN_STEP {
            assert_eq!(pace.most(MANY - 1, true), usize::MAX);
            assert_eq!(pace.most(100, false), usize::MAX);
        }
    }
}
