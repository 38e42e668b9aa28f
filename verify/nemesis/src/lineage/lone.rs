//! The address of a lone server leads to the server of another deployment: for a while, or from the
//! start of a program on.

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
/// Longer than a node has for an answer.
const LATE: Duration = Duration::from_secs(1);
/// Number of programs that start one after the other, all within a lease.
const STARTS: usize = 4;

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

/// Programs start with one wrong address of three, while the locks are held at the two servers of
/// which such a program knows one.
pub(super) async fn started(log: &Log) -> Result<(), Failure> {
    let foreign = marked(&[]).await?;
    let servers = [(); 3].map(|()| block_in_place(|| Server::start(&[])));
    let nodes = servers.iter().fold(Deployment::new(), |nodes, server| nodes.node(server.url()));
    let made = init(&nodes, "").await?;
    if !made.is_done() {
        return Err(made.to_string().into());
    }
    let client = |name, third: &Server| {
        let mut redlock = Redlock::builder().ttl(TTL).max_ttl(TTL);
        for server in [&servers[0], &servers[1], third] {
            redlock = redlock.node(RedisNode::new(server.url())?);
        }
        Client::new(name, redlock.build()?, log)
    };
    let (one, two) = (client("one", &servers[2])?, client("two", &servers[2])?);
    let requests = Request::made(false);
    one.see(&requests).await?;
    two.see(&requests).await?;
    servers[0].freeze();
    let held = async { one.held(one.long().await?).await }.await;
    // What waits in the frozen server is late then.
    sleep(LATE).await;
    servers[0].resume();
    let held = held?;
    for _ in 0..STARTS {
        if !held.is_valid() {
            log.note().doubts.push("a lease ended before the last program started".to_owned());
        }
        let new = client("new", &foreign)?;
        new.contest(&held, &requests, Instant::now() + TTL / 8).await;
        new.close().await;
    }
    held.give_up().await;
    let new = client("new", &foreign)?;
    tokio::join!(one.served(SERVED), two.served(SERVED), new.served(SERVED));
    for client in [one, two, new] {
        client.close().await;
    }
    Ok(())
}
