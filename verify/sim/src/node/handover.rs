//! A planned handover of a simulated group of servers, in the same steps as `palisade handover`.

use std::time::Duration;

use palisade::node::spi::{Batch, Remembered, Terms};

use super::Node;
use super::server::{Role, at_once};
use crate::plan::Ms;

/// A closed master: during a planned handover it answers no request for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    server: usize,
    /// Number of the closed master's data history.
    life: u64,
    /// End of the time for which the master is closed. A copy of the master's data has this time
    /// only if it was taken after the closing.
    till: u64,
    /// True if the closed master has lost nothing.
    whole: bool,
}

impl Node {
    /// Closes the master for the time `span`. Returns `None` if the master cannot be closed now.
    pub(crate) fn close(&self, span: Duration) -> Option<Closing> {
        let state = self.state();
        let server = &state.servers[state.master];
        let begins = server.fresh.is_some() && server.stale.is_none();
        if state.down || server.frozen > 0 || begins {
            return None;
        }
        let terms = Terms { max_ttl: self.least_lease, clock_error: self.error };
        let look =
            Batch { terms, not_after: None, remembers: Remembered::default(), ops: Vec::new() };
        server.memory.set_epoch(None);
        let facts = at_once(&server.memory, look).facts?;
        server.memory.set_epoch(Some(state.epoch));
        if !facts.quarantine.is_zero() || !server.memory.close(span) {
            return None;
        }
        let till = server.memory.closing()?;
        Some(Closing { server: state.master, life: server.life, till, whole: state.whole })
    }

    /// Opens a server that is closed before this time ends, as an operator does. Has an effect only
    /// if the server's data state that it is closed by `closing`.
    pub(crate) fn open(&self, at: usize, closing: Closing) {
        self.state().servers[at].memory.open(closing.till);
    }

    /// Opens the old master again, so that it accepts requests before its closed time has ended.
    pub(crate) fn reopen(&self, closing: Closing) {
        self.open(closing.server, closing);
    }

    /// Promotes another server, as a Sentinel does.
    ///
    /// If `behind` is `None`, the promoted server has all data of the closed master. Otherwise it
    /// lacks the writes of the last `behind` milliseconds. If `is_demoted` is true, the old master
    /// becomes a replica. Returns false if no server was promoted.
    pub(crate) fn promote(
        &self,
        to: usize,
        closing: Closing,
        (behind, is_demoted): (Option<Ms>, bool),
    ) -> bool {
        let mut state = self.state();
        let from = state.master;
        let is_same = state.servers[from].life == closing.life && !state.down;
        if to == from || !is_same || state.servers[from].frozen > 0 || state.servers[to].frozen > 0
        {
            return false;
        }
        let copy = behind.map(|span| state.copies.behind(self.world.nanos(), span).1);
        let data = copy.unwrap_or_else(|| state.servers[from].memory.snapshot());
        let replaced = &mut state.servers[from];
        let window = replaced.window.as_nanos() as u64 / 1_000_000;
        let window = window * (1_000_000 - u64::from(self.drift_ppm));
        let until = replaced.clock.wall() + window;
        replaced.replaced = self.world.micros();
        replaced.role = if is_demoted { Role::Replica } else { Role::Former(until) };
        state.servers[to].memory.restore(data);
        state.servers[to].role = Role::Master;
        state.master = to;
        // Closing the old master was its last write. A replica that has this write also has all
        // earlier writes, so the grants of the old master can still be confirmed.
        let granted = std::mem::take(&mut state.granted);
        state.begin(to);
        state.promoted(to, u64::MAX);
        if behind.is_none() {
            state.granted = granted;
        }
        true
    }

    /// Ends the handover. The promoted server continues the old data history if its data contain
    /// the write that closed the old master, and enough of the closed time is left. Otherwise the
    /// server is opened, and begins a new history with a quarantine.
    pub(crate) fn finish(&self, to: usize, closing: Closing) {
        let mut state = self.state();
        if state.master != to || state.down || state.servers[to].frozen > 0 {
            return;
        }
        let epoch = state.epoch;
        let server = &mut state.servers[to];
        server.memory.set_epoch(Some(epoch));
        if server.memory.finish_handover(closing.till, 2 * self.error) {
            server.fresh = None;
            state.whole = closing.whole;
        } else {
            server.memory.open(closing.till);
        }
    }
}
