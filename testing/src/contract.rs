//! The contract suite: test cases for the rules of [`Op`]. Every kind of node has to pass them.
//!
//! [`Op`]: palisade::node::spi::Op
//!
//! Each case uses new random names, so all cases can run at the same time on one shared server.
//! Cases wait for events, so a slow machine makes a case slow, but does not make it fail.
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

// In all cases b is the bench, k has the keys of a lock, r is the key of a record, a and c are
// owners, t is a fencing token.
#![expect(clippy::many_single_char_names)]

mod barriers;
mod batches;
mod bench;
mod claims;
mod completes;
mod crash;
mod deadlines;
mod extends;
mod fair;
mod hand_over;
mod handover;
mod hints;
mod lists;
mod lives;
mod locks;
mod many;
mod memory;
mod ops;
mod readers;
mod reservations;
mod results;
mod runs;
mod semaphores;
mod slots;
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

/// Actions on the server under test, provided by the caller of the suite. A case is skipped if the
/// hook that it needs is missing.
#[derive(Clone, Default)]
pub struct Hooks {
    restart_empty: Option<Hook>,
    restart_keeping: Option<Hook>,
    flush: Option<Hook>,
    close: Option<Hook>,
    hand_over: Option<Hook>,
    put_foreign: Option<ForeignHook>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name<F: Future<Output = ()> + Send + 'static>(
            mut self,
            hook: impl Fn() -> F + Send + Sync + 'static,
        ) -> Self {
            self.$name = Some(Arc::new(move || Box::pin(hook())));
            self
        }
    )*};
}

impl Hooks {
    setters! {
        /// Sets the hook that restarts the server without its data. The hook returns when the
        /// server answers again.
        restart_empty

        /// Sets the hook that restarts the server with all its data. The hook returns when the
        /// server answers again.
        restart_keeping

        /// Sets the hook that deletes all data of the running server.
        flush

        /// Sets the hook that closes the server for one to three seconds: it answers no request, as
        /// at the beginning of a planned handover. The hook does nothing else.
        close

        /// Sets the hook that hands the node over to another server process with all the data. The
        /// hook returns when the other process answers.
        hand_over
    }

    /// Sets the hook that writes a value of another program under a lock's main key. The value has
    /// another type than a lock. It expires after the given time; with `None` it never expires.
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

/// A test case of the contract suite: one rule, or a few related rules.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    need: Need,
    run: fn(Bench) -> BoxFuture<'static, ()>,
}

impl Case {
    /// Returns the name of the case, which is a short form of the tested rule.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if the case puts the whole node into quarantine. Such a case must run alone,
    /// and after all other cases: those request a longer quarantine, and a node uses the longest
    /// one that any client requests.
    pub fn disturbs(&self) -> bool {
        !matches!(self.need, Need::Nothing | Need::Foreign)
    }

    /// Runs the case. Returns false if the case was skipped because its hook is missing.
    ///
    /// # Panics
    /// The node breaks a rule. The message contains the name of the case and the rule.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the keys of the case stay on the node until they expire.
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
                // The next handover has to wait until the node has settled, for the length of the
                // quarantine at the time of this one.
                tokio::time::sleep(after.facts().await.quarantine_len.max(before)).await;
            }
        }
        has
    }
}

/// Returns all cases. The cases that put the node into quarantine come after the other cases. The
/// cases of a planned handover come last, because they may change the node's master.
pub fn cases() -> Vec<Case> {
    let mut all = locks::cases();
    all.extend(extends::cases());
    all.extend(fair::cases());
    all.extend(hints::cases());
    all.extend(lists::cases());
    all.extend(lives::cases());
    all.extend(reservations::cases());
    all.extend(readers::cases());
    all.extend(semaphores::cases());
    all.extend(slots::cases());
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
/// The node breaks a rule. No further case runs.
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
