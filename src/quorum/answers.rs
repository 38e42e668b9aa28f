//! The nodes' answers so far, for a machine that only counts them.

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::Reply;
use crate::quorum::{Answer, majority};

/// Returns the largest number of claims of a key that a majority may have counted, of `n` nodes or
/// of one node fewer, which another process may use (idempotency 5). `counts` has the count of each
/// node, and whether the node certainly has every claim. One that does not may have counted any
/// number, and so may the nodes that are `unknown`.
pub fn attempts(counts: &[(u32, bool)], unknown: usize, n: usize) -> u32 {
    let sure = |least: u32| counts.iter().filter(|(n, sure)| *sure && *n >= least).count();
    let unknown = unknown + counts.len() - sure(0);
    let may_be = |count: &u32| sure(*count) + unknown >= majority(n - 1);
    counts.iter().map(|(count, _)| *count).filter(may_be).max().unwrap_or(0)
}

#[derive(Clone, Debug)]
pub(super) struct Answers(Vec<Option<Answer>>);

impl Answers {
    pub(super) fn new(n: usize) -> Self {
        Self(vec![None; n])
    }

    pub(super) fn put(&mut self, node: usize, answer: &Answer) {
        self.0[node] = Some(answer.clone());
    }

    /// A reply for which `fits` returns false counts as an error.
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

    /// `counted` reads the count of a node, and whether it certainly has every claim. `heard`
    /// leaves out nodes that have not answered.
    pub(super) fn attempts(
        &self,
        heard: bool,
        counted: impl Fn(&Reply) -> Option<(u32, bool)>,
    ) -> u32 {
        let counts: Vec<(u32, bool)> = self.replies().filter_map(&counted).collect();
        let silent = if heard { self.silent() } else { 0 };
        attempts(&counts, self.n() - counts.len() - silent, self.n())
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
