//! Batches of requests that were sent to a node, and that the node has not answered yet.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::FutureExt as _;

use super::Pending;
use crate::op::{Replies, TimedFacts};
use crate::time::Moment;

pub(super) struct Answered {
    pub(super) requests: Vec<Pending>,
    pub(super) greeting: Option<TimedFacts>,
    pub(super) replies: Replies,
    pub(super) deadline: Moment,
    /// In µs by the node's clock.
    pub(super) not_after: u64,
    pub(super) sent: Moment,
    pub(super) received: Moment,
}

/// Never resolves for an empty list. `FuturesUnordered` would wake the task once more after it has
/// polled all, which the runtime moves to another thread.
pub(super) async fn first_of<F: Future + Unpin>(futures: &mut Vec<F>) -> F::Output {
    poll_fn(|cx| {
        for i in 0..futures.len() {
            if let Poll::Ready(output) = futures[i].poll_unpin(cx) {
                // `remove` keeps the order: a node answers its batches in order.
                drop(futures.remove(i));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn answers_that_are_there_together_are_taken_in_the_order_of_their_batches() {
        let mut all: Vec<_> = (0..4).map(std::future::ready).collect();
        let taken = [(); 4].map(|()| first_of(&mut all).now_or_never());
        assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3)]);
        let mut none: Vec<std::future::Ready<()>> = Vec::new();
        assert_eq!(first_of(&mut none).now_or_never(), None);
        let mut some = vec![std::future::pending().boxed(), std::future::ready(7).boxed()];
        assert_eq!(first_of(&mut some).now_or_never(), Some(7), "a later one may be first");
        assert_eq!((some.len(), first_of(&mut some).now_or_never()), (1, None));
    }
}
