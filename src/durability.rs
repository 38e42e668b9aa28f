//! Durability levels: how many replicas must have a grant before it counts, and how many had it.
//!
//! A Redis master answers before its replicas have the write. So a grant is lost if a replica that
//! does not have it is promoted. Then the quarantine prevents a second grant of the same lock, and
//! a durability level (durability 1) prevents even the loss.

use std::fmt;
use std::sync::Arc;

use crate::error::ConfigError;

/// The number of replicas that must have a grant, a renewal or a result before a node's vote
/// counts.
///
/// - **`Primary`** costs nothing and prevents no loss. A failover loses the grants of the last
///   moments before it; a manual failover under load lost about 5 000 grants.
/// - **`Replicas(k)`**: a grant survives the death of the master if a replica that has the grant is
///   promoted. But a failover does not consider which replica confirmed which grant. A manual
///   failover still lost about 400 grants that one of two replicas had; when the master and this
///   replica were cut off from all others, 11 996 of 11 999 grants were lost.
/// - **`AllReplicas`**: a grant survives each failover to a replica that the node knows of, because
///   every such replica has the grant; in both tests none was lost. In return one replica that is
///   down or frozen stops all grants of this node, though a majority of several nodes goes on.
///
/// The time of waiting for replicas is lost from the validity of a lock, which counts from the
/// moment of sending. Each wait ends at the node's deadline
/// ([`Config::node_deadline`](crate::Config)). If too few replicas have confirmed by then, the
/// node's answer is [`NodeFault::NotDurable`](crate::error::NodeFault::NotDurable), which is no
/// vote, and its grant is rolled back.
///
/// The figures were measured on real servers, one master with two replicas; the
/// [manual](crate::manual::durability) has all of them. No level prevents a loss that the replicas
/// share, such as `FLUSHALL` or a restart of all servers at once without persistence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant counts as soon as the master has executed it.
    #[default]
    Primary,
    /// A grant counts when at least this many replicas have confirmed it, whichever these are. At
    /// least 1.
    Replicas(u32),
    /// A grant counts when all replicas have confirmed it, including those that are down, because
    /// any of them may be promoted later. How many there are depends on the kind of node:
    /// [`SentinelNode`](crate::SentinelNode) asks the Sentinels, [`RedisNode`](crate::RedisNode)
    /// uses the configured number or the number of connected replicas,
    /// [`MemoryNode`](crate::MemoryNode) has none. Without replicas the level is always reached.
    AllReplicas,
}

impl Durability {
    /// Checks that the level requires at least one replica.
    ///
    /// # Errors
    /// [`ConfigError`] for `Replicas(0)`, with the field, its value and the rule.
    pub fn check(self) -> Result<(), ConfigError> {
        if self == Self::Replicas(0) {
            let rule = "at least 1 replica; to wait for none use Durability::Primary";
            return Err(ConfigError::new("durability", "Replicas(0)", rule));
        }
        Ok(())
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Replicas(k) => write!(f, "at least {k} replicas"),
            Self::AllReplicas => f.write_str("all replicas"),
        }
    }
}

/// The durability of a grant or a result: the level that was required, and the number of replicas
/// that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Achieved {
    /// The level that was required, and that was reached on every node whose vote counted.
    pub level: Durability,
    /// Smallest number of replicas that had the grant or result, of all nodes whose vote counted,
    /// at the time of the decision. Zero if the level is `Primary`, or if a node has no replicas.
    pub replicas: u32,
}

impl Achieved {
    /// Returns the durability that a level guarantees if the replicas are not counted: `k` replicas
    /// for `Replicas(k)`, else zero.
    pub(crate) fn at_least(level: Durability) -> Self {
        let replicas = if let Durability::Replicas(k) = level { k } else { 0 };
        Self { level, replicas }
    }
}

impl fmt::Display for Achieved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} or more on each node that counted)", self.level, self.replicas)
    }
}

/// Point up to which a barrier (a wait for replicas) confirms writes: all writes that this server
/// process had executed in this data history when it reported both in its
/// [`Facts`](crate::op::Facts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierPoint {
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Identifier of the data history. The process alone is not enough: a master may be demoted and
    /// promoted again, and lose its grants in between, without a restart.
    pub history_id: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_asks_for_nothing_is_refused() {
        let e = Durability::Replicas(0).check().unwrap_err();
        let text = "`durability` is Replicas(0): at least 1 replica; to wait for none use \
                     Durability::Primary";
        assert_eq!(e.to_string(), text);
        assert!(Durability::Replicas(1).check().is_ok() && Durability::Primary.check().is_ok());
    }
}
