//! The `tracing` span of one call, with the target `palisade::verb`. Its fields have names, tokens,
//! numbers and words of this crate; no stored values and no secrets.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::Span;

use crate::token::FencingToken;

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

/// Dropped before `over`, it records the outcome `dropped`.
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

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

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
