//! What every node says of a lock, for people: nothing is decided, and all are waited for.

use std::future::poll_fn;

use crate::driver::Core;
use crate::error::NodeError;
use crate::name::LockKeys;
use crate::node::mailbox::Mailbox;
use crate::op::{Op, Reply};
use crate::token::OwnerToken;

impl Core {
    /// The answer of each node by name; none where it is silent.
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub(crate) async fn look_everywhere(
        &self,
        keys: &LockKeys,
    ) -> Vec<(std::sync::Arc<str>, Option<Result<Reply, NodeError>>)> {
        let mailbox = Mailbox::new(self.n());
        let deadline = self.node_deadline(self.env.now());
        self.send_all(Op::Inspect { keys: keys.clone(), wait: false }, deadline, &mailbox);
        let mut answers: Vec<_> = (0..self.n()).map(|_| None).collect();
        let all = async {
            for _ in 0..self.n() {
                let (node, reply) = poll_fn(|cx| mailbox.poll_recv(cx)).await;
                answers[node] = Some(reply);
            }
        };
        // Who is silent then stays without an answer.
        let _ = tokio::time::timeout(self.patience(), all).await;
        self.names.iter().cloned().zip(answers).collect()
    }

    /// Releases a lock of somebody else on every node.
    pub(crate) fn take_from(&self, keys: &LockKeys, owner: OwnerToken) {
        let op = Op::Release { keys: keys.clone(), owner, words: true };
        let deadline = self.node_deadline(self.env.now());
        self.send_all(op, deadline, &Mailbox::taking_back(self.n()));
    }
}
