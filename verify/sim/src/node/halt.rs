//! A simulated server that stops inside a batch of requests and later continues with the rest of
//! the batch. The server reads its clock only at the start of the batch. It executes no other batch
//! before the rest.

use palisade::node::spi::Replies;

use super::server::Job;
use super::{Node, State};

/// A batch of ops during which the server has stopped.
pub(super) struct Halted {
    /// Ops of the batch that the server has not executed yet.
    rest: Job,
    /// Clock reading at the start of the batch. `began` is the true time of this start, in
    /// nanoseconds.
    read: u64,
    began: u64,
    done: Replies,
}

impl Node {
    pub(crate) fn halt(&self, at: usize) {
        self.state().servers[at].halts = true;
    }

    /// Cancels a halt that has not begun. Otherwise executes the rest of the halted batch.
    pub(crate) fn resume(&self, at: usize) {
        let mut state = self.state();
        let server = &mut state.servers[at];
        server.halts = false;
        let Some(halted) = server.halted.take() else { return };
        let Halted { rest, read, began, mut done } = halted;
        let Job { client, batch, due, reply } = rest;
        server.clock.reread(Some(read));
        let replies = self.perform(&mut state, at, (client, due, began), batch);
        state.servers[at].clock.reread(None);
        done.facts = replies.facts.or(done.facts);
        done.items.extend(replies.items);
        if let Some(reply) = reply {
            let _ = reply.send(done);
        }
        drop(state);
        self.thaw(at);
    }

    pub(super) fn begin_batch(&self, state: &mut State, at: usize, job: Job) {
        let Job { client, mut batch, due, reply } = job;
        let mut rest = batch.clone();
        batch.ops.truncate(1);
        rest.ops.remove(0);
        let (read, began) = (state.servers[at].clock.wall(), self.world.nanos());
        let done = self.perform(state, at, (client, due, began), batch);
        let server = &mut state.servers[at];
        (server.halts, server.frozen) = (false, server.frozen + 1);
        let rest = Job { client, batch: rest, due, reply };
        server.halted = Some(Halted { rest, read, began, done });
    }

    /// Returns true if a server is frozen and does not read new requests.
    pub(super) fn is_busy(state: &State, at: usize) -> bool {
        let server = &state.servers[at];
        server.frozen > 0
    }
}
