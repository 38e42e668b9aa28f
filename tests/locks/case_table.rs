//! A table of tests: every kind of lock on every kind of node. The nodes are in memory, Redis
//! servers or Sentinel groups. There are one, three or five nodes. They are healthy, or one is
//! frozen, or one is restarted. Each cell (one kind of lock on one number of nodes) checks that
//! conflicting holders exclude each other, that the next holder has a larger fencing token, and
//! that a release frees the lock. It also checks which locks survive the fault, and the error of a
//! call that cannot succeed.
//!
//! The only node of the cells with one node is also the first node of the cells with three and with
//! five nodes. So a fault of this node hits all cells at the same time.

mod kind;
mod nodes;

use std::time::Duration;

use futures_util::future::join_all;
use palisade::{AcquireError, OnUnavailable, Redlock};
use tokio::time::{sleep, timeout};

use kind::{Held, Kind};
use nodes::Nodes;

const TTL: Duration = Duration::from_secs(8);
/// Time that a handle waits for a node's reply. It is long, so that a healthy node replies in time
/// on a busy machine, too.
const NODE_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit of an acquire that must succeed at last. It is long, because no test measures speed.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time limit of an acquire that must fail.
const SHORT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Frozen,
    Restarted,
}

/// One cell of the table: a kind of lock on `n` nodes, which two handles share.
struct Cell {
    kind: Kind,
    n: usize,
    handles: [Redlock; 2],
}

impl Cell {
    /// Acquires the lock by the first of the two `Redlock` handles.
    async fn hold(&self, name: &str) -> Held {
        let held = self.kind.hold(&self.handles, name, PATIENCE).await;
        held.unwrap_or_else(|e| panic!("{self}: {e}"))
    }

    /// Checks that a conflicting holder is refused, because the lock is taken.
    async fn is_exclusive(&self, name: &str, held: &Held) {
        // On a busy machine it is possible that no majority answers in time. Then the check is
        // repeated.
        let taken = loop {
            match self.kind.conflict(&self.handles[1], name).await {
                Err(AcquireError::NoQuorum(_)) => sleep(Duration::from_millis(50)).await,
                taken => break taken,
            }
        };
        assert!(matches!(taken, Ok(true)), "{self}: not taken: {taken:?}");
        assert!(held.guards().iter().all(|guard| guard.is_valid()), "{self}");
    }

    /// Checks that the next caller gets the lock and can release it, and that its tokens are larger
    /// than the tokens `before` of the earlier holder.
    async fn next(&self, name: &str, before: &kind::Tokens) {
        let next = self.kind.next(&self.handles, name, PATIENCE).await;
        let next = next.unwrap_or_else(|e| panic!("{self}: {e}"));
        let tokens = next.tokens();
        let above = before.iter().all(|(slot, token)| tokens.get(slot).is_some_and(|t| t > token));
        assert!(above, "{self}: {tokens:?} after {before:?}");
        next.release().await.unwrap_or_else(|e| panic!("{self}: {e}"));
    }

    async fn healthy(&self) {
        let name = format!("{:?}-healthy", self.kind);
        let held = self.hold(&name).await;
        self.is_exclusive(&name, &held).await;
        for guard in held.guards() {
            guard.extend().await.unwrap_or_else(|e| panic!("{self}: {e}"));
        }
        let tokens = held.tokens();
        held.release().await.unwrap_or_else(|e| panic!("{self}: {e}"));
        self.next(&name, &tokens).await;
    }

    /// Checks the lock `held` while one node is faulty. The other nodes keep the lock alive, if
    /// there are others. On a single node, no other caller gets the lock. Returns the fencing
    /// tokens of `held`.
    async fn faulty(&self, fault: Fault, name: &str, held: Held) -> kind::Tokens {
        let tokens = held.tokens();
        if self.n > 1 {
            // This wait is longer than the lease. So the lock is still held only if the healthy
            // nodes have renewed it.
            sleep(TTL * 3 / 2).await;
            self.is_exclusive(name, &held).await;
            held.release().await.unwrap_or_else(|e| panic!("{self}: {e}"));
            self.next(name, &tokens).await;
            return tokens;
        }
        let [ours, other] = self.handles.clone();
        let refused = self.kind.hold(&[other, ours], name, SHORT).await;
        let typed =
            matches!(&refused, Err(AcquireError::NoQuorum(_) | AcquireError::TimedOut { .. }));
        assert!(typed, "{self}: {refused:?}");
        let degrades = self.goes_on_without_the_lock(name).await;
        if fault == Fault::Frozen {
            assert!(matches!(refused, Err(AcquireError::NoQuorum(_))), "{self}: {refused:?}");
            for guard in held.guards() {
                let lost = timeout(TTL * 2, guard.lost()).await;
                assert!(lost.is_ok() && !guard.is_valid(), "{self}: not lost");
            }
            assert!(held.release().await.is_err(), "{self}: the lease is over");
            assert!(degrades, "{self}: no node answers");
        } else {
            // While the node is in quarantine (the time after a restart), no other caller gets the
            // lock. A call that may run without the lock, if no node answers, does not do so.
            assert!(!degrades, "{self}: a node in quarantine answers");
            // The restart deleted the lock, but a renewal may have stored it again. So the release
            // may succeed or fail.
            let _ = held.release().await;
        }
        tokens
    }

    /// Returns true if a call of a degrading lock (one that permits work without the lock) returns
    /// a guard without a lock. Only a degrading lock has such a call. So each cell of the test
    /// table makes this call on an extra lock, whatever its own kind of lock is.
    async fn goes_on_without_the_lock(&self, name: &str) -> bool {
        let name = format!("{name}-degrading");
        let mutex = self.handles[1].mutex(name).acquire_timeout(SHORT * 2).build().unwrap();
        let mutex = mutex.on_unavailable(OnUnavailable::Proceed);
        mutex.acquire().await.is_ok_and(|guard| guard.is_degraded())
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {} nodes", self.kind, self.n)
    }
}

/// Runs all cells of the table (kinds of lock, each on 1, 3 and 5 nodes) on one kind of node. The
/// cells that are in the same state (healthy, frozen, restarted) run at the same time.
async fn all_cells(mut nodes: Nodes) {
    let mut cells = Vec::new();
    for n in [1, 3, 5] {
        let handles = [nodes.handle(n), nodes.handle(n)];
        cells.extend(Kind::ALL.map(|kind| Cell { kind, n, handles: handles.clone() }));
    }
    join_all(cells.iter().map(Cell::healthy)).await;
    for fault in [Fault::Frozen, Fault::Restarted] {
        let name_of = cells.iter().map(|cell| format!("{:?}-{fault:?}", cell.kind));
        let named: Vec<_> = cells.iter().zip(name_of).collect();
        let held = join_all(named.iter().map(|(cell, name)| cell.hold(name))).await;
        nodes.break_first(fault);
        let of = named.iter().zip(held).map(|((cell, name), held)| cell.faulty(fault, name, held));
        let tokens = join_all(of).await;
        nodes.mend_first(fault);
        let of = named.iter().zip(&tokens).map(|((cell, name), before)| cell.next(name, before));
        join_all(of).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_lock_on_nodes_in_memory() {
    all_cells(Nodes::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_lock_on_servers() {
    all_cells(Nodes::servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_lock_on_groups() {
    all_cells(Nodes::groups()).await;
}
