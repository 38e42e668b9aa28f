//! What changes a simulated node's data, their name or its address behind the clients' backs.

use std::sync::Arc;

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{Batch, Lineage};

use super::{Job, Node, Server, State};
use crate::plan::{Copy, Ms};
use crate::trace::Event;

impl Node {
    /// Gives the master's data another name, without a loss.
    pub(crate) fn rename(&self) {
        let state = self.state();
        state.servers[state.master].memory.rename_data();
    }

    /// Puts back data of the time `age` ago before the next batch of a client that has seen the
    /// newest data. No server could notice it if another client came first.
    pub(crate) fn put_back(&self, age: Ms, whole: bool) {
        self.state().puts_back = Some((age, whole));
    }

    pub(super) fn put_back_before(&self, state: &mut State, at: usize, batch: &Batch) {
        let Some((age, whole)) = state.puts_back else { return };
        let server = &state.servers[at];
        let write = |l: Lineage| (l.generation, l.history, l.seq);
        let newest = server.memory.lineage().map(write);
        if server.fresh.is_some() || newest != Some(write(batch.remembers.newest)) {
            return;
        }
        let (since, data) = state.copies.behind(self.world.nanos(), age);
        if data.lineage().map(write) == newest {
            return;
        }
        if whole {
            server.memory.put_back_whole(data);
        } else {
            server.memory.put_back(data);
        }
        state.puts_back = None;
        // Process and name of the data stay, so a confirmation under way comes all the same.
        let granted = std::mem::take(&mut state.granted);
        state.begin(at);
        state.granted = granted;
        self.world.tell(Event::Lost { node: self.index, since: since / 1_000 });
    }

    pub(crate) fn detour(&self, copy: Copy, reset: bool) {
        let mut state = self.state();
        let at = state.master;
        let server = &state.servers[at];
        if state.down || server.frozen > 0 {
            return;
        }
        let (since, data) = state.data(copy, self.world.nanos());
        let nothing = || Server::empty_memory(self.index, &server.clock).snapshot();
        server.memory.follow(data.unwrap_or_else(nothing));
        if reset {
            server.memory.reset_counters();
        }
        state.begin(at);
        drop(state);
        self.world.tell(Event::Lost { node: self.index, since });
    }

    /// Lets the master delete all locks and records, because its memory is full.
    pub(crate) fn evict(&self) {
        let mut state = self.state();
        let at = state.master;
        let server = &state.servers[at];
        if state.down || server.frozen > 0 || server.halted.is_some() {
            return;
        }
        server.memory.evict();
        // The replicas have the earlier grants, as after a `FLUSHALL`.
        let granted = std::mem::take(&mut state.granted);
        state.begin(at);
        state.granted = granted;
        drop(state);
        self.world.tell(Event::Lost { node: self.index, since: 0 });
    }

    pub(crate) fn lead_to(&self, other: Option<Arc<Node>>) {
        self.state().astray = other;
    }

    /// Delivers a request at the wrong node. A client that remembers no vote cannot know that this
    /// is another node of its own deployment, nor can one whose node has no name; they find no
    /// server there.
    pub(super) fn arrive_at(other: &Node, job: Job) {
        let theirs = {
            let state = other.state();
            state.servers[state.master].memory.lineage().map_or(0, |lineage| lineage.vote)
        };
        let ours = job.batch.remembers.newest.vote;
        let knows_better = other.is_foreign || ours != 0 && ours != theirs;
        if theirs == 0 || !knows_better {
            return job.refuse(&NodeError::not_executed(NodeFault::Unreachable, "no server"));
        }
        other.deliver(job);
    }
}
