//! The `tracing` span of one call of an operation, with the target `palisade::verb`. When the call
//! ends, the span records the fencing token, the number of attempts and the outcome.
//!
//! A span without a subscriber costs one comparison, and its fields are not formatted. The fields
//! contain names, tokens, numbers and words of this crate. They contain no stored values and no
//! secrets.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::Span;

use crate::token::FencingToken;

/// Creates the span of a call, with this name and these fields.
macro_rules! operation {
    ($name:literal, $($fields:tt)*) => {
        $crate::span::Call::new(tracing::debug_span!(
            target: "palisade::verb",
            $name,
            $($fields)*,
            token = tracing::field::Empty,
            attempts = tracing::field::Empty,
            outcome = tracing::field::Empty,
        ))
    };
}
pub(crate) use operation;

/// Span of a call that has not ended yet. If this value is dropped before `over` was called, the
/// span records the outcome `dropped`.
#[derive(Debug)]
pub(crate) struct Call {
    span: Span,
    attempts: AtomicU32,
    over: bool,
}

impl Call {
    pub(crate) fn new(span: Span) -> Self {
        Self { span, attempts: AtomicU32::new(0), over: false }
    }

    /// Returns the span. The work of the call runs in this span.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Counts one more attempt of the call.
    pub(crate) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of attempts that the call has made.
    pub(crate) fn attempts(&self, n: u32) {
        self.attempts.store(n, Ordering::Relaxed);
    }

    pub(crate) fn token(&self, token: FencingToken) {
        self.span.record("token", token.get());
    }

    pub(crate) fn over(mut self, outcome: &'static str) {
        self.over = true;
        self.record(outcome);
    }

    fn record(&self, outcome: &'static str) {
        if self.span.is_disabled() {
            return;
        }
        let attempts = self.attempts.load(Ordering::Relaxed);
        if attempts > 0 {
            self.span.record("attempts", attempts);
        }
        self.span.record("outcome", outcome);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.over {
            self.record("dropped");
        }
    }
}
