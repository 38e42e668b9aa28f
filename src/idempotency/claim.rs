//! Claims that [`claim_many`](super::Idempotency::claim_many) returns.

use std::marker::PhantomData;

use super::run::Granted;
use super::{Call, Context, Outcome};

/// Result of [`claim_many`](super::Idempotency::claim_many) for one call.
#[derive(Debug)]
#[must_use = "a claim that is dropped lapses"]
pub enum Claimed<T> {
    /// The key has no result, and no other caller's handler runs under the key. Do the work, and
    /// pass its result to [`complete_many`](super::Idempotency::complete_many).
    Ours(Claim<T>),
    /// There is no work for this call. The outcome is one of the outcomes of [`Call::run`], but
    /// never [`Executed`](Outcome::Executed).
    Answered(Outcome<T>),
    /// This call was not made. The earlier call of the batch at this index (counted from 0) has the
    /// same key and fingerprint. Its outcome is also the outcome of this call.
    SameAs(usize),
}

/// A claim of a key. The holder of the claim may do the work for the key. `T` is the type of the
/// work's result.
///
/// The claim is renewed as long as this value exists. [`Context::lost`] resolves if the claim was
/// lost. Pass each claim to [`complete_many`](super::Idempotency::complete_many), even if the work
/// failed. A dropped claim has the same effect as a handler that is dropped during its run: for
/// other callers the key is in flight until the lease ends, and lapsed after that.
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

    /// Returns the context of the claim, as for a handler.
    pub fn context(&self) -> &Context {
        &self.inner.1.cx
    }
}
