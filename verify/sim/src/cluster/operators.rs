//! Faults of a simulated cluster, and what its operators do.

use std::sync::Arc;

use palisade::internal::model::SlotKeys;
use palisade::node::spi::NodeSignal;
use tokio::sync::broadcast;

use super::{Cluster, State};
use crate::plan::{MoveEnd, Ms, Shift};
use crate::trace::Event;

/// What ends later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Split(u64, u64),
    Thaw(usize),
    Restart(usize, bool),
    Move { slot: u16, from: usize, to: usize, end: MoveEnd },
    Foreign(usize),
}

const KEYS: [SlotKeys; 4] = [SlotKeys::Marker, SlotKeys::Note, SlotKeys::Stays, SlotKeys::Names];

impl Cluster {
    pub(crate) fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.events.subscribe()
    }

    /// Begins a fault. Returns what ends it, and when.
    pub(crate) fn begin(&self, shift: Shift) -> Option<(Ms, Ending)> {
        let mut state = self.state();
        let count = state.servers.len();
        match shift {
            Shift::Split { servers, clients, span } => {
                state.splits.push((servers, clients));
                Some((span, Ending::Split(servers, clients)))
            }
            Shift::Freeze { server, span } => {
                let server = server % count;
                state.servers[server].frozen += 1;
                Some((span, Ending::Thaw(server)))
            }
            Shift::Restart { server, is_empty, down } => {
                let server = server % count;
                state.servers[server].frozen += 1;
                Some((down, Ending::Restart(server, is_empty)))
            }
            Shift::Promote { server, how } => {
                self.promote(&mut state, server % count, how);
                None
            }
            Shift::Move { slot, to, takes, first, end } => {
                self.begin_move(&mut state, (slot % self.plan.slots, to), (takes, first, end))
            }
            Shift::Bump { server } => {
                let view = &mut state.servers[server].view;
                if view.follows[server].is_none() {
                    view.bump(server);
                }
                None
            }
            Shift::Foreign { server, span } => {
                state.servers[server].astray += 1;
                Some((span, Ending::Foreign(server)))
            }
        }
    }

    fn begin_move(
        &self,
        state: &mut State,
        (slot, to): (u16, usize),
        (takes, first, end): (Ms, u8, MoveEnd),
    ) -> Option<(Ms, Ending)> {
        let from = state.owner(slot)?;
        let part = usize::from(slot);
        let can = |at: usize| state.servers[at].frozen == 0 && !state.servers[at].moving[part];
        let knows = state.servers[to].view.owners[part] == Some(from);
        let is_master = state.servers[to].view.follows[to].is_none();
        if from == to || !can(from) || !can(to) || !knows || !is_master || !state.connects(from, to)
        {
            return None;
        }
        let ending = Ending::Move { slot, from, to, end };
        if end == MoveEnd::AtOnce {
            let [source, target] = [from, to].map(|at| state.servers[at].parts[part].clone());
            let data = source.snapshot();
            for keys in KEYS {
                source.migrate(&target, keys);
            }
            source.put_back(data);
            self.takes_over(state, slot, to);
            return None;
        }
        state.servers[from].moving[part] = true;
        state.servers[to].moving[part] = true;
        let target = state.servers[to].parts[part].clone();
        for (_, keys) in KEYS.into_iter().enumerate().filter(|(n, _)| first >> n & 1 == 1) {
            state.servers[from].parts[part].migrate(&target, keys);
        }
        Some((takes, ending))
    }

    fn takes_over(&self, state: &mut State, slot: u16, to: usize) {
        let server = &mut state.servers[to];
        server.view.owners[usize::from(slot)] = Some(to);
        server.view.bump(to);
        let epoch = server.view.epochs[to];
        self.world.tell(Event::Leads { server: to, slot, epoch });
    }

    pub(crate) fn end(&self, what: Ending) {
        let mut state = self.state();
        match what {
            Ending::Split(servers, clients) => {
                let at = state.splits.iter().position(|split| *split == (servers, clients));
                at.map(|at| state.splits.remove(at));
            }
            Ending::Thaw(server) => self.thaw(&mut state, server),
            Ending::Restart(..) if state.healed => {}
            Ending::Restart(server, is_empty) => {
                let own = &mut state.servers[server];
                own.queue.clear();
                for part in &own.parts {
                    if is_empty { part.restart_empty() } else { part.restart_keeping() }
                }
                self.thaw(&mut state, server);
            }
            Ending::Move { slot, from, to, end } => {
                self.end_move(&mut state, slot, (from, to), end);
            }
            Ending::Foreign(server) => {
                let own = &mut state.servers[server];
                own.astray = own.astray.saturating_sub(1);
            }
        }
    }

    fn end_move(&self, state: &mut State, slot: u16, (from, to): (usize, usize), end: MoveEnd) {
        let part = usize::from(slot);
        let still = |at: usize, state: &State| {
            let server = &state.servers[at];
            server.moving[part] && server.frozen == 0 && server.view.follows[at].is_none()
        };
        let (source, target) = (still(from, state), still(to, state));
        let both = source && target && state.connects(from, to);
        let parts = [from, to].map(|at| state.servers[at].parts[part].clone());
        let moves = |from: usize, to: usize| {
            for keys in KEYS {
                parts[from].migrate(&parts[to], keys);
            }
        };
        for at in [from, to] {
            state.servers[at].moving[part] = false;
        }
        match end {
            MoveEnd::Done | MoveEnd::AtOnce if both => {
                moves(0, 1);
                self.takes_over(state, slot, to);
                // `SETSLOT` tells all masters.
                for other in 0..state.servers.len() {
                    let hears = state.connects(to, other) && state.servers[other].frozen == 0;
                    let view = &mut state.servers[other].view;
                    if hears && view.follows[other].is_none() {
                        view.owners[part] = Some(to);
                    }
                }
            }
            MoveEnd::BrokenOff => parts[1].flush_all(),
            // A move that cannot be ended is turned back by its operators.
            _ => moves(1, 0),
        }
    }

    fn thaw(&self, state: &mut State, server: usize) {
        let own = &mut state.servers[server];
        own.frozen = own.frozen.saturating_sub(1);
        if own.frozen == 0 {
            for request in std::mem::take(&mut own.queue) {
                self.execute(state, request);
            }
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(self: &Arc<Self>) {
        let mut state = self.state();
        state.healed = true;
        state.splits.clear();
        for server in 0..state.servers.len() {
            state.servers[server].astray = 0;
            while state.servers[server].frozen > 0 {
                self.thaw(&mut state, server);
            }
        }
    }
}
