//! State of a lock or an election as nodes report it, for people: nothing is decided by it.

use std::future::poll_fn;

use crate::client::Core;
use crate::client::reply_collector::ReplyCollector;
use crate::client::round::Round;
use crate::error::{NodeError, NodeOutcome};
use crate::name::LockKeys;
use crate::op::{Enlist, Op, Reply};
use crate::quorum::candidates::{Candidate, Listing};

impl Core {
    /// Returns the answer of each node by name; `None` if the node is silent.
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub(crate) async fn inspect_each(
        &self,
        keys: &LockKeys,
    ) -> Vec<(std::sync::Arc<str>, Option<Result<Reply, NodeError>>)> {
        let replies = ReplyCollector::new(self.n());
        let deadline = self.node_deadline(self.env.now());
        self.send_all(Op::Inspect { keys: keys.clone(), wait: false }, deadline, &replies);
        let mut answers: Vec<_> = (0..self.n()).map(|_| None).collect();
        let all = async {
            for _ in 0..self.n() {
                let (node, reply) = poll_fn(|cx| replies.poll_recv(cx)).await;
                answers[node] = Some(reply);
            }
        };
        // A node that is silent until then has no answer.
        let _ = tokio::time::timeout(self.patience(), all).await;
        self.names.iter().cloned().zip(answers).collect()
    }

    /// Writes a candidate's entry or removes it, and reads the list. `read` is as for [`Listing`].
    ///
    /// # Cancellation safety
    /// Dropped, the entry may have been written; it ends with its ttl.
    pub(crate) async fn enlist<W>(
        &self,
        op: Enlist,
        read: impl Fn(&[u8]) -> Option<(u64, W)>,
    ) -> Result<Vec<Candidate<W>>, Vec<NodeOutcome>> {
        let timer = self.timer()?;
        let now = self.env.now();
        let by = self.node_deadline(now);
        let replies = ReplyCollector::new(self.n());
        self.send_all(Op::Enlist(op), by, &replies);
        let round = Round { replies: &replies, timer, until: by, of: None };
        self.run(now, &mut Listing::new(self.n(), by, read), round).await
    }

    /// Removes a candidate's entry from the list, without waiting for answers: an entry that the
    /// request does not reach ends with its ttl. Needs no runtime, because `Drop` calls it.
    pub(crate) fn strike(&self, op: Enlist) {
        let deadline = self.node_deadline(self.env.now());
        self.send_all(Op::Enlist(op), deadline, &ReplyCollector::taking_back(self.n()));
    }
}
