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
    /// The answer of each node by name; none where it is silent.
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
        // Who is silent then stays without an answer.
        let _ = tokio::time::timeout(self.patience(), all).await;
        self.names.iter().cloned().zip(answers).collect()
    }

    /// Writes a candidate's entry, or takes it out, and reads the list. `read` is as for
    /// [`Listing`].
    ///
    /// # Cancellation safety
    /// Dropped, the entry may have been written, and ends with its ttl.
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

    /// Takes a candidate's entry out of the list. Nobody waits for it: what is left where it does
    /// not arrive ends with its ttl. Needs no runtime: it is what `Drop` calls.
    pub(crate) fn strike(&self, op: Enlist) {
        let deadline = self.node_deadline(self.env.now());
        self.send_all(Op::Enlist(op), deadline, &ReplyCollector::taking_back(self.n()));
    }
}
