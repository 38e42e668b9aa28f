//! One name, behind which the primary changes, as managed services give it: locks go on after a
//! failover, once nothing that the replaced primary granted can be held any more.
//!
//! Run it with the name of your endpoint and let the service fail over meanwhile. It prints what
//! the node reports, and in the end the longest time without a lock.
//!
//! ```text
//! cargo run -p examples --bin dns_endpoint -- --server redis://localhost --seconds 60
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use palisade::Redlock;
use palisade::node::{NodeEvents, RedisNode};
use tokio::time::sleep;

#[derive(Parser)]
struct Cli {
    /// Name of the endpoint; it is resolved anew for each connection
    #[arg(long, default_value = "redis://localhost")]
    server: String,

    /// L: longest time in seconds for which a primary that was replaced may go on answering; the
    /// service has to say it
    #[arg(long, default_value_t = 5)]
    window: u64,

    /// End after this number of seconds
    #[arg(long, default_value_t = 6)]
    seconds: u64,
}

/// Of each lease, so also the longest that a replaced primary may have granted.
const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cli = Cli::parse();
    let window = Duration::from_secs(cli.window);
    // A trial on a new server, hence `trust_fresh`.
    let node = RedisNode::builder(&cli.server).failover_window(window).trust_fresh(true);
    // 2E has to be shorter than a lease.
    let redlock = Redlock::builder().node(node.build()?).ttl(TTL).max_ttl(TTL);
    let redlock = redlock.clock_error(Duration::from_millis(500)).build()?;
    tokio::spawn(print(redlock.events()));
    println!("a new primary grants nothing for its first {:?}", TTL + window);

    let mutex = redlock.mutex("again and again").build()?;
    let (mut times, mut last, mut longest) = (0_u32, Instant::now(), Duration::ZERO);
    let end = Instant::now() + Duration::from_secs(cli.seconds);
    let mut refused = None;
    while Instant::now() < end {
        match mutex.acquire().await {
            Ok(held) => {
                (times, refused) = (times + 1, None);
                longest = longest.max(last.elapsed());
                // The primary may have gone meanwhile: then the lock ends with its lease.
                if let Err(why) = held.release().await {
                    println!("not released: {why}");
                }
                last = Instant::now();
            }
            // Another deployment's server behind the name is refused, too.
            Err(why) => {
                let why = why.to_string();
                if refused.is_none() {
                    println!("not now: {why}");
                }
                refused = Some(why);
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    println!("{times} times locked, {:.1} s without a lock at most", longest.as_secs_f64());
    refused.map_or(Ok(()), |why| Err(why.into()))
}

async fn print(mut events: NodeEvents) {
    while let Some(named) = events.next().await {
        println!("{}: {:?}", named.node, named.event);
    }
}
