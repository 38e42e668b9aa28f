//! What the examples share: which nodes to use, from the command line.
// Each example uses a part of it, and nothing in a program can be reached from outside.
#![allow(dead_code, unreachable_pub)]

use std::error::Error;
use std::time::Duration;

use palisade::node::{RedisNode, SentinelNode};
use palisade::{MemoryNode, Redlock, RedlockBuilder};

type Failure = Box<dyn Error + Send + Sync>;

/// The nodes: one vote each. Without any, three nodes in this process's memory.
#[derive(clap::Parser, Clone, Debug)]
pub struct Connect {
    /// A standalone Redis, `redis://[user:password@]host[:port][/db]`; give it once per node
    #[arg(long, value_name = "URL")]
    pub node: Vec<String>,

    /// The Sentinels of a group, `host:port,host:port,…`; give it once per group
    #[arg(long, value_name = "HOST:PORT,…")]
    pub sentinel: Vec<String>,

    /// The name of the group at its Sentinels; give it once per `--sentinel`, in the same order
    #[arg(long, value_name = "NAME")]
    pub master: Vec<String>,

    /// Lease length in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3_000)]
    pub ttl_ms: u64,

    /// Take servers without a history for new ones (tests and first runs only: see `trust_fresh`)
    #[arg(long)]
    pub trust_fresh: bool,
}

impl Connect {
    /// Whether servers were named at all.
    pub fn is_embedded(&self) -> bool {
        self.node.is_empty() && self.sentinel.is_empty()
    }

    /// The handle over the nodes.
    pub fn redlock(&self) -> Result<Redlock, Failure> {
        Ok(self.builder()?.build()?)
    }

    /// The same, with more to be set.
    pub fn builder(&self) -> Result<RedlockBuilder, Failure> {
        if self.sentinel.len() != self.master.len() {
            return Err("each --sentinel needs its --master".into());
        }
        let mut builder = Redlock::builder().ttl(Duration::from_millis(self.ttl_ms));
        for url in &self.node {
            builder = builder.node(RedisNode::builder(url).trust_fresh(self.trust_fresh).build()?);
        }
        for (addresses, name) in self.sentinel.iter().zip(&self.master) {
            let group = SentinelNode::new(name, addresses.split(','))?;
            builder = builder.node(group.trust_fresh(self.trust_fresh));
        }
        if self.is_embedded() {
            builder = (0..3).fold(builder, |b, _| b.node(MemoryNode::new()));
        }
        Ok(builder)
    }
}
