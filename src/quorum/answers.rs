//! The nodes' answers so far, for a machine that only counts them.

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::Reply;
use crate::quorum::{Answer, majority};

#[derive(Clone, Debug)]
pub(super) struct Answers(Vec<Option<Answer>>);

impl Answers {
    pub(super) fn new(n: usize) -> Self {
        Self(vec![None; n])
    }

    pub(super) fn put(&mut self, node: usize, answer: &Answer) {
        self.0[node] = Some(answer.clone());
    }

    /// A reply for which `fits` returns false counts as an error: it is no answer to this request.
    pub(super) fn put_read(&mut self, node: usize, answer: &Answer, fits: impl Fn(&Reply) -> bool) {
        let wrong = matches!(answer, Ok(reply) if !fits(reply));
        let detail = "the reply is of another kind than the request";
        let error = || Err(NodeError::not_executed(NodeFault::Protocol, detail));
        self.0[node] = Some(if wrong { error() } else { answer.clone() });
    }

    pub(super) fn has(&self, node: usize) -> bool {
        self.0[node].is_some()
    }

    pub(super) fn n(&self) -> usize {
        self.0.len()
    }

    pub(super) fn need(&self) -> usize {
        majority(self.n())
    }

    pub(super) fn each(&self) -> impl Iterator<Item = Option<&Answer>> {
        self.0.iter().map(Option::as_ref)
    }

    pub(super) fn replies(&self) -> impl Iterator<Item = &Reply> {
        self.each().filter_map(|answer| answer?.as_ref().ok())
    }

    pub(super) fn count(&self, is: impl Fn(&Reply) -> bool) -> usize {
        self.replies().filter(|reply| is(reply)).count()
    }

    /// The largest number of claims that a majority may have counted (idempotency 5). `counted`
    /// reads a node's count, and whether the node certainly has every claim. A node that has lost
    /// claims may have counted any number, and so may one without such a reply; `heard` leaves out
    /// those that have not answered.
    pub(super) fn attempts(
        &self,
        heard: bool,
        counted: impl Fn(&Reply) -> Option<(u32, bool)>,
    ) -> u32 {
        let counts = || self.replies().filter_map(&counted);
        let sure = |least: u32| counts().filter(|(n, sure)| *sure && *n >= least).count();
        let silent = if heard { self.silent() } else { 0 };
        let unknown = self.n() - sure(0) - silent;
        let may_be = |count: &u32| sure(*count) + unknown >= self.need();
        counts().map(|(count, _)| count).filter(may_be).max().unwrap_or(0)
    }

    pub(super) fn silent(&self) -> usize {
        self.each().filter(Option::is_none).count()
    }

    pub(super) fn failed(&self) -> usize {
        self.each().filter(|answer| matches!(answer, Some(Err(_)))).count()
    }

    pub(super) fn outcomes(&self, silent: &NodeOutcome) -> Vec<NodeOutcome> {
        self.each().map(|answer| answer.map_or_else(|| silent.clone(), NodeOutcome::of)).collect()
    }
}
