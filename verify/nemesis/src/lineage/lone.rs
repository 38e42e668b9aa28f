//! The address of a lone server leads to the server of another deployment, and home again.

use std::time::Duration;

use palisade::{RedisNode, Redlock};
use palisade_ops::{Deployment, init};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::clients::{Client, Log, Request};
use crate::ordinary::server::Server;
use crate::switch::Switch;
use crate::world::Failure;

const TTL: Duration = Duration::from_secs(8);
/// Time for which the address leads elsewhere: longer than a lease, so that a lease which was
/// extended there is over at home.
const AWAY: Duration = Duration::from_secs(10);
const SERVED: Duration = Duration::from_secs(60);

/// Starts a server with a marker.
pub(super) async fn marked(args: &[&str]) -> Result<Server, Failure> {
    let server = block_in_place(|| Server::start(args));
    let made = init(&Deployment::new().node(server.url()), "").await?;
    if made.is_done() { Ok(server) } else { Err(made.to_string().into()) }
}

pub(super) async fn elsewhere(log: &Log) -> Result<(), Failure> {
    let (home, foreign) = (marked(&[]).await?, marked(&[]).await?);
    let address = Switch::to(&home.addr()).await?;
    let client = |name| {
        let node = RedisNode::new(format!("redis://{}", address.addr()))?;
        Client::new(name, Redlock::builder().ttl(TTL).max_ttl(TTL).node(node).build()?, log)
    };
    let (one, two) = (client("one")?, client("two")?);
    let guard = one.long().await?;
    let requests = Request::made(false);
    one.see(&requests).await?;
    two.see(&requests).await?;
    let held = one.held(guard).await?;

    address.lead_to(&foreign.addr());
    two.contest(&held, &requests, Instant::now() + AWAY).await;
    address.lead_to(&home.addr());
    let (begun, end) = (Instant::now(), Instant::now() + TTL);
    tokio::join!(two.contest(&held, &requests, end), one.served(SERVED));
    held.give_up().await;
    two.served(SERVED.saturating_sub(begun.elapsed())).await;
    sleep(Duration::from_millis(100)).await;
    for client in [one, two] {
        client.close().await;
    }
    Ok(())
}
