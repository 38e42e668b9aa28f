//! A planned handover of a group, as `palisade handover` makes it.

use palisade::node::spi::{Batch, Terms};

use super::Node;
use super::server::{Role, at_once};
use crate::plan::{Ms, ms};

impl Node {
    /// Closes the master, for long enough to hand it over after `takes`; which data history that
    /// is. None: not now.
    pub(crate) fn close(&self, takes: Ms) -> Option<u64> {
        let state = self.state();
        let server = &state.servers[state.master];
        if state.down || server.frozen > 0 || server.fresh.is_some() {
            return None;
        }
        let terms = Terms { max_ttl: self.least_lease, clock_error: self.error };
        let look = Batch { terms, not_after: None, ops: Vec::new() };
        let facts = at_once(&server.memory, look).facts?;
        if !facts.quarantine.is_zero() {
            return None;
        }
        server.memory.close(ms(takes) + 4 * self.error + ms(20)).then_some(server.life)
    }

    /// Another server goes on, unless something else happened to the master since it was closed.
    pub(crate) fn hand_over(&self, to: usize, life: u64) {
        let mut state = self.state();
        let from = state.master;
        let is_same = state.servers[from].life == life && !state.down;
        if to == from || !is_same || state.servers[from].frozen > 0 || state.servers[to].frozen > 0
        {
            return;
        }
        let data = state.servers[from].memory.snapshot();
        state.servers[from].role = Role::Replica;
        let next = &mut state.servers[to];
        next.memory.restore(data);
        next.memory.hand_over();
        next.role = Role::Master;
        state.master = to;
        // Replicas had everything before it was handed over.
        let granted = std::mem::take(&mut state.granted);
        state.begin(to);
        (state.granted, state.servers[to].fresh) = (granted, None);
    }
}
