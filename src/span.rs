//! One call of an operation as `tracing` shows it: a span of the target `palisade::verb`, which
//! says at its end with which token, after how many attempts and how the call ended.
//!
//! A span that nobody collects costs one look at a number, and its fields are not put together.
//! Fields are names, tokens, numbers and text of this crate: no values, no secrets.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::Span;

use crate::token::FencingToken;

/// Begins a span of this name with these fields.
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

/// A call under way. Dropped before it is over, its outcome is `dropped`.
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

    /// For what the call does.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// The nodes are asked once more.
    pub(crate) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// So many attempts there were.
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
