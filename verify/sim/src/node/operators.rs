//! Actions of operators and of other programs on the master of a simulated node. They use their own
//! connections.

use std::time::Duration;

use palisade::node::MemoryNode;
use palisade::node::spi::{Op, Reply};
use palisade::test_util::RecordChange;

use super::Node;
use crate::plan::Settings;

/// A record of an idempotency key on one node, as an operator read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenRecord {
    pub(crate) fence: u64,
    /// True if the record has neither a result nor a running claim.
    pub(crate) is_parked: bool,
}

impl Node {
    fn reached(&self) -> Option<MemoryNode> {
        let state = self.state();
        let server = &state.servers[state.master];
        (!state.down && server.frozen == 0).then(|| server.memory.clone())
    }

    pub(crate) fn record(&self, key: &str, settings: &Settings) -> Option<SeenRecord> {
        self.reached()?;
        let retention = Duration::from_millis(settings.retention);
        let lookup = Op::Lookup {
            key: key.into(),
            retention,
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        };
        let Some(Reply::Record { state: Some(state), .. }) = self.ask(lookup, settings) else {
            return None;
        };
        let is_parked = state.record.is_none() && state.lease.is_none() && state.attempt > 0;
        Some(SeenRecord { fence: state.fence, is_parked })
    }

    /// Changes the record of a key if the record's fencing token is still `seen`.
    pub(crate) fn change(&self, key: &str, seen: u64, change: RecordChange) {
        if let Some(memory) = self.reached() {
            memory.change_record(key, seen, change);
        }
    }

    /// Executes `SET key NX PX ttl`, as another program does. Returns `None` if there is no reply.
    pub(crate) fn set_foreign(&self, key: &str, ttl: Duration) -> Option<bool> {
        Some(self.reached()?.set_foreign(key, ttl))
    }

    pub(crate) fn delete_foreign(&self, key: &str) {
        if let Some(memory) = self.reached() {
            memory.delete_foreign(key);
        }
    }
}
