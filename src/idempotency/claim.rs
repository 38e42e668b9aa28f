//! Claims that [`claim_many`](super::Idempotency::claim_many) hands to the caller, who does the
//! work itself and stores the results later.

use std::marker::PhantomData;

use super::run::Granted;
use super::{Call, Context, Outcome};

/// Answer of [`claim_many`](super::Idempotency::claim_many) to one of the calls that were passed to
/// it.
#[derive(Debug)]
#[must_use = "a claim that is dropped lapses"]
pub enum Claimed<T> {
    /// The key has no result and no other caller's handler runs under it: do the work, and pass its
    /// result to [`complete_many`](super::Idempotency::complete_many).
    Ours(Claim<T>),
    /// There is nothing to run for this call. The outcome is one of those of [`Call::run`], but
    /// never [`Executed`](Outcome::Executed).
    Answered(Outcome<T>),
    /// This call was not made, because an earlier call of the batch, at this index (counted from
    /// 0), has the same key and fingerprint. The outcome of the earlier call is also the outcome of
    /// this one.
    SameAs(usize),
}

/// A claim of a key, under which the caller may do the work; `T` is the type of the work's result.
///
/// The claim is renewed as long as this value exists; [`Context::lost`] resolves if renewal failed.
/// Pass each claim to [`complete_many`](super::Idempotency::complete_many), even if the work
/// failed. A claim that is dropped instead is like a handler that is dropped while it runs: the key
/// is not released, so other callers find it in flight until the lease ends, and from then on they
/// find an attempt that left no result.
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

    /// Returns the context that a handler would get: it has the fencing token, the child keys and
    /// the steps, and tells whether the claim is still held.
    pub fn context(&self) -> &Context {
        &self.inner.1.cx
    }
}
