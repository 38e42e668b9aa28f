//! Failovers of a simulated group, and what each client was told of them by the Sentinels.

use palisade::error::{NodeError, NodeFault};

use super::server::{Role, Server};
use super::{Node, State};
use crate::plan::Copy;
use crate::trace::Event;

impl Node {
    /// Promotes another server with a copy of the master's data. Returns the replaced master.
    /// Returns `None` if no server was promoted.
    pub(crate) fn fail_over(&self, to: usize, copy: Copy, old: u64) -> Option<usize> {
        let mut state = self.state();
        let from = state.master;
        // A Sentinel promotes only a server that replies.
        if to == from || state.servers[to].frozen > 0 {
            return None;
        }
        // A server that calls itself master executes nothing when it is promoted.
        let own = match state.servers[to].role {
            Role::Former(until) if copy == Copy::Own => Some(until),
            _ => None,
        };
        let (since, data) = state.data(copy, self.world.nanos());
        let since = own.map_or(since, |_| state.servers[to].replaced);
        let replaced = &mut state.servers[from];
        replaced.replaced = self.world.micros();
        // The failover window is the configured time for which the replaced master still grants.
        // The real time may be shorter by the drift of its clock.
        let drift = u64::from(self.drift_ppm);
        let window = replaced.window.as_nanos() as u64 / 1_000_000 * (1_000_000 - drift);
        let until = if self.is_declared { 0 } else { replaced.clock.wall() + window };
        replaced.role = Role::Former(until);
        let memory = &state.servers[to].memory;
        let nothing = || Server::empty_memory(self.index, &state.servers[to].clock).snapshot();
        if own.is_none() {
            memory.restore(data.unwrap_or_else(nothing));
        }
        state.servers[to].role = Role::Master;
        state.master = to;
        state.down = false;
        let whole = self.is_declared && state.whole && copy == Copy::Behind(0);
        state.begin(to);
        state.whole = whole;
        let epoch = state.epoch + 1;
        state.servers[to].stale = own.map(|until| (until, epoch));
        state.promoted(to, old);
        drop(state);
        self.world.tell(Event::Lost { node: self.index, since });
        Some(from)
    }

    /// Raises the epoch of the Sentinels, and nothing else changes. The clients in `old` are not
    /// told.
    pub(crate) fn raise_epoch(&self, old: u64) {
        let mut state = self.state();
        let at = state.master;
        let server = &state.servers[at];
        // The clock may be slow by its drift.
        let window = server.window.as_nanos() as u64 / 1_000_000;
        let until = server.clock.wall() + window * (1_000_000 - u64::from(self.drift_ppm));
        let granted = std::mem::take(&mut state.granted);
        state.begin(at);
        state.granted = granted;
        state.servers[at].stale = Some((until, state.epoch + 1));
        state.promoted(at, old);
    }
}

impl State {
    /// Returns an error if a server refuses requests.
    pub(super) fn refusal(&mut self, at: usize) -> Option<NodeError> {
        let server = &mut self.servers[at];
        let (fault, why) = match server.role {
            Role::Master => return None,
            Role::Former(until) if server.clock.wall() <= until => return None,
            Role::Former(_) => (NodeFault::NoReplicas, "no replica follows it any more"),
            Role::Replica => (NodeFault::NotMaster, "a replica"),
        };
        server.role = Role::Replica;
        Some(NodeError::not_executed(fault, why))
    }

    /// Raises the epoch of the Sentinels. The clients in `old` are not told of the server that was
    /// promoted, unless it closed their connections.
    pub(super) fn promoted(&mut self, to: usize, old: u64) {
        self.epoch += 1;
        let is_closed = self.servers[to].stale.is_none();
        for client in 0..self.views.len() {
            if old >> client & 1 == 0 || self.views[client] == to && is_closed {
                self.ask(client);
            }
        }
    }

    pub(super) fn ask(&mut self, client: usize) {
        self.told[client] = self.named(self.told[client]);
        (self.views[client], self.asked[client]) = (self.master, self.epoch);
    }

    /// Returns the epoch in which two of three Sentinels name the master to a client that has
    /// decided on `seen` before. One of them has heard of no promotion.
    fn named(&self, seen: u64) -> u64 {
        let (leader, deaf) = ((self.master, self.epoch), (0, 0));
        let agree = deaf == leader;
        // Where they differ, the client waits for the third one, which says what the leader does.
        if agree && deaf.1 >= seen { deaf.1 } else { leader.1 }
    }

    /// Returns an error if the client's question to the Sentinels is too old.
    pub(super) fn too_long_ago(&self, at: usize, client: usize) -> Option<NodeError> {
        let server = &self.servers[at];
        let (until, epoch) = server.stale?;
        let is_over = self.asked[client] < epoch && server.clock.wall() > until;
        let why = "the Sentinels were asked too long ago";
        is_over.then(|| NodeError::not_executed(NodeFault::NoSentinel, why))
    }
}
