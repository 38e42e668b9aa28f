//! Claims that the caller holds itself: claimed now, and completed later.

use std::marker::PhantomData;

use super::run::Granted;
use super::{Call, Context, Outcome};

/// Result of one call of [`claim_many`](super::Idempotency::claim_many).
#[derive(Debug)]
#[must_use = "a claim that is dropped lapses"]
pub enum Claimed<T> {
    /// The key has no result and no other caller runs it: do the work, and pass its result to
    /// [`complete_many`](super::Idempotency::complete_many).
    Ours(Claim<T>),
    /// There is nothing to run. The outcome is any that [`Call::run`] returns, except
    /// [`Executed`](Outcome::Executed).
    Answered(Outcome<T>),
    /// The call at this index, counted from 0, has the same key and fingerprint: its outcome is
    /// also the outcome of this call.
    SameAs(usize),
}

/// A key that is claimed for work of type `T`.
///
/// The claim is renewed as long as this value exists; [`Context::lost`] resolves if renewal failed.
/// Pass each claim to [`complete_many`](super::Idempotency::complete_many), even if the work
/// failed. A claim that is dropped instead is like a handler that is dropped while it runs: the key
/// is not released, so other callers find it in flight until the lease ends, and then a lapsed
/// attempt.
#[derive(Debug)]
#[must_use = "a claim that is dropped lapses"]
pub struct Claim<T> {
    inner: Box<(Call, Granted)>,
    of: PhantomData<fn() -> T>,
}

impl<T> Claim<T> {
    pub(super) fn new(inner: Box<(Call, Granted)>) -> Self {
        Self { inner, of: PhantomData }
    }

    pub(super) fn into_inner(self) -> (Call, Granted) {
        *self.inner
    }

    /// Returns what a handler gets: fencing token, child keys, steps, and the state of the claim.
    pub fn context(&self) -> &Context {
        &self.inner.1.cx
    }
}
