//! The command-line arguments for the nodes. All examples use this module.
// Each example uses only a part of this module, and no other crate can use an item of a program. So
// the lints against unused and unreachable items are off.
#![allow(dead_code, unreachable_pub)]

use std::error::Error;
use std::time::Duration;

use palisade::{Redlock, RedlockBuilder, Settings, TryAcquire};

type Failure = Box<dyn Error + Send + Sync>;

/// The nodes. Each node has one vote. By default, there are three nodes in the memory of this
/// process.
#[derive(clap::Parser, Clone, Debug)]
pub struct Connect {
    /// A node: `redis://[user:password@]host[:port][/db]`, or a group as
    /// `sentinel://host,host,host/master`; give it once per node
    #[arg(long, value_name = "URL")]
    pub node: Vec<String>,

    /// Lease length in milliseconds; each example has its own default
    #[arg(long, value_name = "MS")]
    pub ttl_ms: Option<u64>,
}

impl Connect {
    /// Returns true if no servers were given.
    pub fn is_embedded(&self) -> bool {
        self.node.is_empty()
    }

    /// Returns the lease length from the command line, or else the default of the example.
    pub fn ttl(&self, default: Duration) -> Duration {
        self.ttl_ms.map_or(default, Duration::from_millis)
    }

    /// Returns a builder of a client (`Redlock` handle) of these nodes, with this lease length.
    pub fn builder(&self, ttl: Duration) -> Result<RedlockBuilder, Failure> {
        let mut settings = if self.is_embedded() {
            Settings::new(["memory://"; 3])
        } else {
            Settings::new(&self.node)
        };
        settings.ttl = Some(ttl);
        // The deadline of a request to a node is short, so that even a short lease has time for two
        // attempts.
        settings.node_deadline = Some((ttl / 5).min(Duration::from_millis(500)));
        Ok(settings.builder()?)
    }
}

/// Maximum time for the servers to become ready.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until the servers grant locks. A server without data grants nothing for some time, because
/// it may be new or may have lost its data. In the second case, locks that it granted before may
/// still be held.
pub async fn ready(redlock: &Redlock) -> Result<(), Failure> {
    let trial = redlock
        .mutex(format!("ready-{:08x}", rand::random::<u32>()))
        .acquire_timeout(PATIENCE)
        .build()?;
    let held = match trial.try_acquire().await {
        Ok(TryAcquire::Acquired(held)) => held,
        refused => {
            let why = refused.err().map(|e| e.to_string()).unwrap_or_default();
            println!(
                "not yet: {why}\nwaiting; in a trial, `?trust_fresh=true` behind each address \
                 takes servers without data for new ones."
            );
            trial.acquire().await?
        }
    };
    held.release().await?;
    Ok(())
}
