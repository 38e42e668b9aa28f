//! Claims in the caller's own hands: claimed now, and completed later.

use std::marker::PhantomData;

use super::run::Granted;
use super::{Call, Context, Outcome};

/// What one call of [`claim_many`](super::Idempotency::claim_many) came to.
#[derive(Debug)]
#[must_use = "a claim that is dropped lapses"]
pub enum Claimed<T> {
    /// Nobody has a result, and nobody else runs it: do the work, and hand its result to
    /// [`complete_many`](super::Idempotency::complete_many).
    Ours(Claim<T>),
    /// There is nothing to run. All that [`Call::run`] answers is possible, without
    /// [`Executed`](Outcome::Executed).
    Answered(Outcome<T>),
    /// The key and the fingerprint are those of the call at this place, counted from 0: its outcome
    /// is this call's, too.
    SameAs(usize),
}

/// A key that is claimed for work of type `T`.
///
/// It is renewed as long as it exists; [`Context::lost`] says if that failed. Hand each claim to
/// [`complete_many`](super::Idempotency::complete_many), also if the work failed. A claim that is
/// dropped instead is like a handler that is dropped while it runs: the key is not freed, so others
/// find it in flight until the lease ends, and then a lapsed attempt.
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

    /// What a handler gets: fencing token, child keys, steps, and whether the claim is lost.
    pub fn context(&self) -> &Context {
        &self.inner.1.cx
    }
}
