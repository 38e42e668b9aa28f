//! Reads for people, with one exception: while too few permits are free, no attempt to acquire
//! several is made (semaphore 10).

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::round::Inbox;
use crate::durability::Durability;
use crate::error::{NodeOutcome, Taken};
use crate::name::LockKeys;
use crate::op::{Enlist, Op, Reply};
use crate::quorum::acquire::Loss;
use crate::quorum::candidates::{Candidate, Listing};
use crate::quorum::{Answer, majority};

impl Core {
    pub(crate) async fn inspect_each(
        &self,
        keys: &LockKeys,
        enough: usize,
    ) -> Vec<(Arc<str>, Option<Answer>)> {
        let answers = match self.timer() {
            Ok(_) => {
                let op = Op::Inspect { keys: keys.clone(), wait: false };
                self.answers(op, enough, &Inbox::new(self.n())).await
            }
            Err(outcomes) => {
                let answer = |outcome| match outcome {
                    NodeOutcome::Failed(e) => Some(Err(e)),
                    _ => None,
                };
                outcomes.into_iter().map(answer).collect()
            }
        };
        self.names.iter().cloned().zip(answers).collect()
    }

    pub(crate) async fn look_at_lock(&self, keys: &LockKeys) -> Loss {
        let answers = self.inspect_each(keys, majority(self.n())).await;
        let decided = answers.iter().filter_map(|(_, answer)| answer.as_ref());
        let decided = decided.filter(|answer| decides(answer)).filter_map(|a| a.as_ref().ok());
        let decided: Vec<&Reply> = decided.collect();
        if decided.len() < majority(self.n()) {
            let outcome = |(_, answer): (_, Option<Answer>)| {
                answer.map_or_else(NodeOutcome::no_answer, |answer| NodeOutcome::of(&answer))
            };
            return Loss::NoQuorum(answers.into_iter().map(outcome).collect());
        }
        let mut foreign = false;
        let left = decided.iter().map(|reply| match reply {
            Reply::Holder(Some(holder)) => {
                foreign |= holder.owner.is_none();
                holder.remaining.unwrap_or(Duration::MAX)
            }
            Reply::Readers(readers) => {
                readers.listed.first().map_or(Duration::ZERO, |reader| reader.remaining)
            }
            _ => Duration::ZERO,
        });
        let mut left: Vec<Duration> = left.collect();
        left.sort_unstable();
        let left = left[majority(self.n()) - 1];
        let retry_after = (left != Duration::MAX).then_some(left);
        Loss::Taken(Taken { retry_after, foreign, queued: None })
    }

    pub(super) async fn answers(
        &self,
        op: Op,
        enough: usize,
        inbox: &Arc<Inbox>,
    ) -> Vec<Option<Answer>> {
        self.send_all(op, self.node_deadline(self.env.now()), inbox);
        let mut answers: Vec<_> = (0..self.n()).map(|_| None).collect();
        let all = async {
            let mut counted = 0;
            for _ in 0..self.n() {
                let (node, reply) = poll_fn(|cx| inbox.poll_recv(cx)).await;
                counted += usize::from(decides(&reply));
                answers[node] = Some(reply);
                if counted == enough {
                    break;
                }
            }
        };
        // A node that does not answer in time stays `None`.
        let _ = tokio::time::timeout(self.patience(), all).await;
        answers
    }

    pub(crate) async fn enlist<W>(
        &self,
        op: Enlist,
        read: impl Fn(&[u8]) -> Option<(u64, W)>,
    ) -> Result<Vec<Candidate<W>>, Vec<NodeOutcome>> {
        let decides = |n, by| Listing::new(n, by, read);
        self.read(Op::Enlist(op), Durability::Primary, Duration::ZERO, decides).await?
    }

    /// Does not wait for answers, and needs no runtime, because `Drop` calls it.
    pub(crate) fn strike(&self, op: Enlist) {
        let deadline = self.node_deadline(self.env.now());
        self.send_all(Op::Enlist(op), deadline, &Inbox::new(self.n()));
    }
}

fn decides(answer: &Answer) -> bool {
    matches!(answer, Ok(reply) if !matches!(reply, Reply::Quarantined { .. }))
}
