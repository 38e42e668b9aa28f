//! A client process of `nemesis locks`: one handle, and tasks that work under locks of each kind.

use std::path::PathBuf;
use std::rc::Rc;

use palisade::{RedisNode, Redlock};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use super::record::{Journal, Log};
use super::work::{Pace, TICKET, Task};
use super::{CLOCK_ERROR, Kind, NODE_DEADLINE, TTL};
use crate::event::TaskId;
use crate::runtime;
use crate::world::Failure;

/// Number of tasks of a client for each kind of lock.
const TASKS: u8 = 2;
/// Pace of the tasks.
const PACE: Pace = Pace { rest: (0, 15), long: 1 };

/// Arguments of a client.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    pub(super) id: u8,
    #[arg(long)]
    pub(super) life: u16,
    #[arg(long)]
    pub(super) seed: u64,
    /// Folder for the file of this process and for tickets.
    #[arg(long)]
    pub(super) dir: PathBuf,
    /// URL of a server. Repeated for each server.
    #[arg(long)]
    pub(super) node: Vec<String>,
    /// Kind of locks that the client uses. Repeated for each kind.
    #[arg(long)]
    pub(super) kind: Vec<Kind>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    runtime::run(work(args))
}

async fn work(args: &Args) -> Result<(), Failure> {
    let mut builder = Redlock::builder()
        .ttl(TTL)
        .max_ttl(TTL)
        .clock_error(CLOCK_ERROR)
        .node_deadline(NODE_DEADLINE)
        .prefix("demo:");
    for url in &args.node {
        builder = builder.node(RedisNode::new(url)?);
    }
    let redlock = builder.build()?;
    let log = Log::create(&args.dir.join(format!("client-{}-{}.jsonl", args.id, args.life)))?;
    let log = Rc::new(log);
    let mut tasks = JoinSet::new();
    for (n, (kind, half)) in
        args.kind.iter().flat_map(|kind| (0..TASKS).map(move |half| (*kind, half))).enumerate()
    {
        let who = TaskId { client: args.id, life: args.life, task: n as u8 };
        let place = u64::from(args.id) << 40 | u64::from(args.life) << 8 | n as u64;
        let task = Task {
            who,
            kind,
            half,
            pace: PACE,
            journal: Journal::File(Rc::clone(&log)),
            dice: StdRng::seed_from_u64(args.seed ^ place),
            redlock: redlock.clone(),
            ticket: args.dir.join(TICKET),
        };
        tasks.spawn_local(task.work());
    }
    // A task ends only after an error that no fault of the demo explains.
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
