//! The two channels of a node queue: one for extensions of leases, and one for all other requests.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::pending::Pending;
use crate::op::Op;

/// Sending ends of the two channels of a node queue. Extensions are sent before all other requests.
/// An extension cannot overtake the acquire of its lease, because the lease has been granted
/// before. An extension cannot overtake the release, because no extension is submitted after the
/// release (renewal 7).
pub(super) struct Queues {
    extensions: Sender<Pending>,
    others: Sender<Pending>,
}

impl Queues {
    /// Creates the two channels of a node queue, each with `places` places.
    pub(super) fn new(places: usize) -> (Self, Incoming) {
        let ((extensions, first), (others, rest)) = (channel(places), channel(places));
        let incoming = Incoming { extensions: first, others: rest, extension: None, other: None };
        (Self { extensions, others }, incoming)
    }

    /// Returns the channel for this op.
    pub(super) fn of(&self, op: &Op) -> &Sender<Pending> {
        if op.is_extension() { &self.extensions } else { &self.others }
    }
}

/// Receiving ends of the two channels of a node queue. `wait` may already have taken one request
/// out of each channel.
pub(super) struct Incoming {
    extensions: Receiver<Pending>,
    others: Receiver<Pending>,
    extension: Option<Pending>,
    other: Option<Pending>,
}

impl Incoming {
    /// Returns the number of requests that wait to be sent.
    pub(super) fn len(&self) -> usize {
        let taken = usize::from(self.extension.is_some()) + usize::from(self.other.is_some());
        taken + self.extensions.len() + self.others.len()
    }

    /// Returns true if an extension waits to be sent.
    pub(super) fn has_extension(&self) -> bool {
        self.extension.is_some() || !self.extensions.is_empty()
    }

    /// Takes the next request to send: the oldest extension or, without an extension, the oldest
    /// other request.
    pub(super) fn next(&mut self) -> Option<Pending> {
        let extension = self.extension.take().or_else(|| self.extensions.try_recv().ok());
        extension.or_else(|| self.other.take()).or_else(|| self.others.try_recv().ok())
    }

    /// Waits for a request. Returns false if the queue was dropped and no request is left.
    ///
    /// # Cancellation safety
    /// No request is lost, because only the poll that returns takes a request.
    pub(super) async fn wait(&mut self) -> bool {
        if self.extension.is_some() || self.other.is_some() {
            return true;
        }
        tokio::select! {
            biased;
            // Both channels close together. If `extensions` is closed, `others` may still contain
            // releases.
            Some(job) = self.extensions.recv() => self.extension = Some(job),
            job = self.others.recv() => self.other = job,
        }
        self.extension.is_some() || self.other.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::reply_collector::ReplyCollector;
    use crate::name::LockKeys;
    use crate::op::LockMode;
    use crate::time::Moment;
    use crate::token::{FencingToken, OwnerToken};

    fn pending(op: Op) -> Pending {
        Pending::new(op, Moment::default(), 0, &ReplyCollector::new(1))
    }

    fn extension() -> Pending {
        let owner = OwnerToken::from_random(7);
        let (token, ttl) = (FencingToken::new(1), std::time::Duration::from_secs(1));
        let keys = LockKeys::new("k");
        pending(Op::Extend {
            mode: LockMode::Exclusive,
            keys,
            owner,
            ttl,
            token,
            meta: None,
            reassert: None,
        })
    }

    fn look() -> Pending {
        pending(Op::Inspect { keys: LockKeys::new("k"), wait: false })
    }

    #[tokio::test]
    async fn extensions_leave_first_and_the_rest_when_the_handle_is_gone() {
        let (queues, mut incoming) = Queues::new(8);
        let send = |job: Pending| assert!(queues.of(&job.op).try_send(job).is_ok());
        send(look());
        assert!(incoming.wait().await, "it is taken out");
        assert!(!incoming.has_extension());
        [look(), extension(), extension()].into_iter().for_each(send);
        drop(queues);
        assert_eq!((incoming.len(), incoming.has_extension()), (4, true));
        let order = [(); 4].map(|()| incoming.next().map(|pending| pending.op.is_extension()));
        assert_eq!(order, [true, true, false, false].map(Some));
        assert!(!incoming.wait().await, "nothing comes any more");
    }
}
