//! The contract suite: the rules of [`Op`] as cases that every kind of node passes.
//!
//! [`Op`]: palisade::node::spi::Op
//!
//! Each case uses new random names, so all cases can run at the same time on one shared server.
//! Times are only waited for, never measured: a slow machine makes a case slow, not wrong.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use std::sync::Arc;
//! use palisade::MemoryNode;
//! use palisade_testing::contract;
//! let node = Arc::new(MemoryNode::new());
//! let case = contract::cases().into_iter().find(|c| c.name() == "free_lock_is_granted").unwrap();
//! assert!(case.run(node, &contract::Hooks::default()).await);
//! # });
//! ```

// All cases use the same short names: b is the bench, k a lock's keys, r a record's key, a and c
// are owners, t is a token.
#![expect(clippy::many_single_char_names)]

mod barriers;
mod batches;
mod bench;
mod claims;
mod completes;
mod crash;
mod deadlines;
mod extends;
mod hand_over;
mod handover;
mod hints;
mod lists;
mod locks;
mod many;
mod memory;
mod ops;
mod readers;
mod reservations;
mod results;
mod runs;
mod steps;
mod takeovers;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use palisade::node::spi::{BoxFuture, LockNode};

use self::bench::Bench;

type Hook = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
type ForeignHook = Arc<dyn Fn(String, Option<Duration>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Actions on the server that only its owner can do. Cases that need a missing hook are skipped.
#[derive(Clone, Default)]
pub struct Hooks {
    restart_empty: Option<Hook>,
    restart_keeping: Option<Hook>,
    flush: Option<Hook>,
    close: Option<Hook>,
    hand_over: Option<Hook>,
    put_foreign: Option<ForeignHook>,
}

impl Hooks {
    /// Sets the hook that restarts the server without its data. The hook returns when the server
    /// answers again.
    #[must_use]
    pub fn restart_empty<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.restart_empty = Some(Arc::new(move || Box::pin(hook())));
        self
    }

    /// Sets the hook that restarts the server with all its data. The hook returns when the server
    /// answers again.
    #[must_use]
    pub fn restart_keeping<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.restart_keeping = Some(Arc::new(move || Box::pin(hook())));
        self
    }

    /// Sets the hook that deletes all data of the running server.
    #[must_use]
    pub fn flush<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.flush = Some(Arc::new(move || Box::pin(hook())));
        self
    }

    /// Sets the hook that closes the server as for a planned handover, for one to three seconds,
    /// and does nothing else.
    #[must_use]
    pub fn close<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.close = Some(Arc::new(move || Box::pin(hook())));
        self
    }

    /// Sets the hook that makes another process take over as planned, with all the data. The hook
    /// returns when that process answers.
    #[must_use]
    pub fn hand_over<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        self.hand_over = Some(Arc::new(move || Box::pin(hook())));
        self
    }

    /// Sets the hook that writes another program's value (of another type) under a lock's main key,
    /// for the given time or without an end.
    #[must_use]
    pub fn put_foreign<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl Fn(String, Option<Duration>) -> F + Send + Sync + 'static,
    ) -> Self {
        self.put_foreign = Some(Arc::new(move |key, ttl| Box::pin(hook(key, ttl))));
        self
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("restart_empty", &self.restart_empty.is_some())
            .field("restart_keeping", &self.restart_keeping.is_some())
            .field("flush", &self.flush.is_some())
            .field("close", &self.close.is_some())
            .field("hand_over", &self.hand_over.is_some())
            .field("put_foreign", &self.put_foreign.is_some())
            .finish()
    }
}

/// The hook that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    Foreign,
    RestartEmpty,
    RestartKeeping,
    Flush,
    Close,
    HandOver,
}

/// A case of the contract: one rule, or a few related rules.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    need: Need,
    run: fn(Bench) -> BoxFuture<'static, ()>,
}

impl Case {
    /// Returns the rule, in short.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if the case puts the whole node into quarantine. Such a case must run alone,
    /// and after the cases that do not: those request a longer quarantine, and the longest one
    /// requested counts.
    pub fn disturbs(&self) -> bool {
        !matches!(self.need, Need::Nothing | Need::Foreign)
    }

    /// Runs the case. Returns false if it was skipped because a hook is missing.
    ///
    /// # Panics
    /// If the node breaks a rule; the message names the case and the rule.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the names of the case stay on the node until they expire.
    pub async fn run(&self, node: Arc<dyn LockNode>, hooks: &Hooks) -> bool {
        let has = match self.need {
            Need::Nothing => true,
            Need::Foreign => hooks.put_foreign.is_some(),
            Need::RestartEmpty => hooks.restart_empty.is_some(),
            Need::RestartKeeping => hooks.restart_keeping.is_some(),
            Need::Flush => hooks.flush.is_some(),
            Need::Close => hooks.close.is_some(),
            Need::HandOver => hooks.hand_over.is_some(),
        };
        if has {
            let bench = Bench::new(self.name, self.disturbs(), node.clone(), hooks.clone());
            bench.settle().await;
            let after = Bench::new(self.name, self.disturbs(), node, hooks.clone());
            let before = after.facts().await.quarantine_len;
            (self.run)(bench).await;
            if matches!(self.need, Need::HandOver) {
                // The node is not handed over again before it has settled: it settles for the
                // length that counted at the handover, which may be shorter by now.
                tokio::time::sleep(after.facts().await.quarantine_len.max(before)).await;
            }
        }
        has
    }
}

/// Returns all cases. Those that disturb the node come after the others, and those after which
/// another server may be the node's master come last.
pub fn cases() -> Vec<Case> {
    let mut all = locks::cases();
    all.extend(extends::cases());
    all.extend(hints::cases());
    all.extend(lists::cases());
    all.extend(reservations::cases());
    all.extend(readers::cases());
    all.extend(takeovers::cases());
    all.extend(hand_over::cases());
    all.extend(many::cases());
    all.extend(batches::cases());
    all.extend(runs::cases());
    all.extend(barriers::cases());
    all.extend(claims::cases());
    all.extend(completes::cases());
    all.extend(steps::cases());
    all.extend(crash::cases());
    all.extend(deadlines::cases());
    all.extend(handover::cases());
    all.extend(memory::cases());
    all.extend(results::cases());
    all.sort_by_key(|case| match case.need {
        Need::Nothing | Need::Foreign => 0,
        Need::RestartEmpty | Need::RestartKeeping | Need::Flush => 1,
        Need::Close => 2,
        Need::HandOver => 3,
    });
    all
}

/// Runs all cases, one after the other, and returns the number of cases that ran.
///
/// # Panics
/// Panics at the first rule that the node breaks.
///
/// # Cancellation safety
/// The same as for [`Case::run`].
pub async fn run(node: Arc<dyn LockNode>, hooks: &Hooks) -> usize {
    let mut ran = 0;
    for case in cases() {
        ran += usize::from(case.run(node.clone(), hooks).await);
    }
    ran
}

/// Makes a list of `Case`s from async functions of one `Bench`.
macro_rules! list {
    ($($need:ident: $name:ident),* $(,)?) => {
        vec![$(super::Case {
            name: stringify!($name),
            need: super::Need::$need,
            run: |bench| Box::pin($name(bench)),
        }),*]
    };
}
use list;
