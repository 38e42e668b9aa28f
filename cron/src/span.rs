//! The `tracing` span of a tick, with the target and the fields of the spans of palisade's calls.

use tracing::Span;
use tracing::field::Empty;

use super::tick::Run;

/// Dropped before `over`, it records the outcome `dropped`.
#[derive(Debug)]
pub(crate) struct TickSpan {
    span: Span,
    over: bool,
}

impl TickSpan {
    pub(crate) fn new(job: &str, tick: i64) -> Self {
        let span = tracing::debug_span!(
            target: "palisade::verb",
            "tick",
            job = %job,
            tick,
            token = Empty,
            attempts = Empty,
            outcome = Empty,
        );
        Self { span, over: false }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn ran(&self, run: &Run) {
        self.span.record("token", run.token);
        self.span.record("attempts", run.attempt);
    }

    pub(crate) fn over(mut self, outcome: &'static str) {
        self.over = true;
        self.span.record("outcome", outcome);
    }
}

impl Drop for TickSpan {
    fn drop(&mut self) {
        if !self.over {
            self.span.record("outcome", "dropped");
        }
    }
}
