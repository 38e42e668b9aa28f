//! Fates: when a node becomes another server, every held lease learns what became of its last
//! confirmed write there, before anything renews it.
//!
//! Safety does not depend on a fate (durability 7): a lease is held as long as its deadline says,
//! and what may be put back is decided by what nodes confirmed (quarantine 6). A bad one makes the
//! keeper renew at once, so that what was lost is back within a round trip or the guard fails. A
//! claim is renewed at once in any case.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::keeper::Keeper;
use crate::driver::lease::Lease;
use crate::env::Env;
use crate::node::lane::Witness;
use crate::node::lineage::Lineage;
use crate::receipt::{Fate, Receipt, Server, Written};

/// Fates that wait for a holder who does not ask; beyond it the oldest is dropped.
const WAITING: usize = 64;

/// What the lanes report of servers, and the leases that it concerns.
pub(crate) struct Fates {
    names: Vec<Arc<str>>,
    lineage: Lineage,
    /// Held while the leases of a node are judged: who has an answer of its new server waits, or
    /// that would take the place of what is to be judged.
    judging: Vec<Mutex<()>>,
    keeper: Arc<Keeper>,
    env: Arc<dyn Env>,
}

impl Fates {
    pub(crate) fn new(names: Vec<Arc<str>>, keeper: Arc<Keeper>, env: Arc<dyn Env>) -> Self {
        let judging = names.iter().map(|_| Mutex::default()).collect();
        Self { lineage: Lineage::new(names.len()), judging, names, keeper, env }
    }

    /// What became of the lease's last confirmed write on the node, if it has one.
    pub(crate) fn fate(&self, lease: &Lease, node: usize) -> Option<Fate> {
        Some(self.lineage.fate(node, lease.mailbox.written(node)?))
    }

    /// The receipts of a lease, by node.
    pub(crate) fn receipts(&self, lease: &Lease) -> Vec<Receipt> {
        let receipt = |(i, name): (usize, &Arc<str>)| {
            let written = lease.mailbox.written(i)?;
            Some(receipt(Arc::clone(name), written, self.lineage.fate(i, written)))
        };
        self.names.iter().enumerate().filter_map(receipt).collect()
    }

    /// A lease was taken on: a node may have become another server while it was acquired.
    pub(crate) fn judge_new(&self, lease: &Arc<Lease>) {
        if !self.lineage.is_calm() {
            for node in 0..self.names.len() {
                self.judge(lease, node);
            }
        }
    }

    fn judge_all(&self, node: usize) {
        for lease in self.keeper.leases() {
            self.judge(&lease, node);
        }
    }

    fn judge(&self, lease: &Arc<Lease>, node: usize) {
        let Some(written) = lease.mailbox.written(node) else { return };
        let fate = self.lineage.fate(node, written);
        if fate == Fate::Standing || !lease.is_valid(self.env.now()) {
            return;
        }
        let present = self.lineage.present(node);
        let receipt = receipt(Arc::clone(&self.names[node]), written, fate);
        match lease.tell(node, (written, present), receipt) {
            Told::Before => return,
            Told::Again => {}
            // Once for each server: one that does not know that it was replaced confirms again and
            // again what is lost.
            Told::First if fate.is_safe() && !lease.is_claim() => {}
            // A claim's promise counts in a new data history of the node only once it was renewed
            // there: a result that came before would be refused (idempotency 3).
            Told::First => self.keeper.renew_now(lease, self.env.now()),
        }
        let (node, token, offset) = (&self.names[node], lease.token, written.offset);
        let of = lease.resource();
        if fate.is_safe() {
            tracing::info!(%of, %node, %token, %fate, ?offset, "node is another server");
        } else {
            tracing::warn!(%of, %node, %token, %fate, ?offset, "node is another server");
        }
    }
}

fn receipt(node: Arc<str>, written: Written, fate: Fate) -> Receipt {
    Receipt { node, history_id: written.history_id, offset: written.offset, fate }
}

impl Witness for Fates {
    fn hear(&self, node: usize, server: Server) {
        let _judging = self.judging[node].lock().unwrap_or_else(PoisonError::into_inner);
        if self.lineage.hear(node, server) && !self.lineage.is_calm() {
            self.judge_all(node);
        }
    }

    fn late(&self, node: usize, server: Server) {
        if self.lineage.present(node) != server.history_id {
            self.judge_all(node);
        }
    }
}

/// Whether a fate is news.
pub(crate) enum Told {
    Before,
    /// About another write; a bad fate on this server was reported before.
    Again,
    First,
}

/// What was reported to a lease, and what its holder has yet to receive.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// The write and the server of the last fate on a node.
    judged: Vec<(usize, (Written, u64))>,
    /// The server of the last bad fate on a node.
    urged: Vec<(usize, u64)>,
    waiting: VecDeque<Receipt>,
}

impl Notices {
    pub(super) fn tell(&mut self, node: usize, about: (Written, u64), receipt: Receipt) -> Told {
        if self.judged.contains(&(node, about)) {
            return Told::Before;
        }
        self.judged.retain(|(n, _)| *n != node);
        self.judged.push((node, about));
        let first = receipt.fate.is_safe() || !self.urged.contains(&(node, about.1));
        if !receipt.fate.is_safe() {
            self.urged.retain(|(n, _)| *n != node);
            self.urged.push((node, about.1));
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(receipt);
        if first { Told::First } else { Told::Again }
    }

    /// The oldest that was not received yet.
    pub(super) fn next(&mut self) -> Option<Receipt> {
        self.waiting.pop_front()
    }
}
