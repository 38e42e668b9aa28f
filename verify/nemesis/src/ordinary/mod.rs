//! Ordinary deployments and ordinary events, on real servers on loopback. The tables show the time
//! without new locks, the time without new keys, and the number of parked keys. The page
//! `src/manual/ordinary_deployments.md` contains and explains the figures.
//!
//! ```text
//! nemesis ordinary                            all of them, ten tables
//! nemesis ordinary --json                     four lines of JSON for each event in a deployment
//! nemesis ordinary --only "one group: plan"   those whose name contains this
//! ```
//!
//! Each cell of the tables uses a new deployment. Cells share only the machine, so several cells
//! run at the same time.

/// Real clusters, shared with the library's own tests.
#[path = "../../../../tests/support/cluster.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
pub(crate) mod cluster;
mod event;
mod fleet;
mod load;
mod row;
/// Server processes, shared with the library's own tests. They end with this process, even if it is
/// killed.
#[path = "../../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub)]
pub(crate) mod server;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Signals;
use crate::world::Failure;
use event::Happening;
use fleet::{Fleet, Kind};
use load::{Kind as Request, Load, STRICT};
use row::{Row, tables};

/// Minimum time of observation. A shorter time could be over before the library detects a crash.
const LOOK: Duration = Duration::from_secs(15);
/// Maximum time until a deployment works well again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options of `nemesis ordinary`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one line of JSON for each event, deployment and kind of key instead of tables.
    #[arg(long)]
    json: bool,
    /// Only cells whose name contains this text, for example `one group: planned handover`. A cell
    /// is one event in one deployment. Can be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Number of cells that run at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

/// Measures all cells of the tables: each ordinary event in each deployment. Returns true if no
/// cell failed.
pub(crate) fn ordinary(args: &Args) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(cells(args))
}

async fn cells(args: &Args) -> Result<bool, Failure> {
    let wanted = wanted(args)?;
    let mut signals = Signals::new()?;
    let jobs = Arc::new(Semaphore::new(args.jobs.max(1)));
    let mut running = JoinSet::new();
    for (n, (kind, what)) in wanted.iter().copied().enumerate() {
        let jobs = Arc::clone(&jobs);
        running.spawn(async move {
            let _turn = jobs.acquire().await;
            (n, cell(kind, what).await)
        });
    }
    let mut done: Vec<Option<Vec<Row>>> = wanted.iter().map(|_| None).collect();
    let mut good = true;
    loop {
        let ended = tokio::select! {
            biased;
            () = signals.any() => return Err("interrupted; everything is taken down".into()),
            ended = running.join_next() => ended,
        };
        let Some(ended) = ended else { break };
        let (n, rows) = ended?;
        let (kind, what) = wanted[n];
        match rows {
            Ok(rows) => {
                eprintln!("{}: {}: done", kind.name(), what.name());
                done[n] = Some(rows);
            }
            Err(e) => {
                good = false;
                eprintln!("{}: {}: NOT GOOD: {e}", kind.name(), what.name());
            }
        }
    }
    let rows: Vec<Row> = done.into_iter().flatten().flatten().collect();
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        print!("{}", tables(&rows));
    }
    Ok(good)
}

fn wanted(args: &Args) -> Result<Vec<(Kind, Happening)>, Failure> {
    let all = Kind::ALL.into_iter().flat_map(|kind| {
        Happening::ALL.into_iter().filter(move |w| w.happens_to(kind)).map(move |w| (kind, w))
    });
    let named = |(kind, what): &(Kind, Happening)| {
        let name = format!("{}: {}", kind.name(), what.name());
        args.only.is_empty() || args.only.iter().any(|only| name.contains(only.as_str()))
    };
    let all: Vec<_> = all.filter(named).collect();
    if all.is_empty() {
        let kinds = Kind::ALL.map(Kind::name).join(", ");
        let events = Happening::ALL.map(Happening::name).join(", ");
        return Err(format!("no cell of that name; there are: {kinds}; each: {events}").into());
    }
    Ok(all)
}

/// Lets one ordinary event, such as a crash, happen to a new deployment. Returns one row for each
/// kind of request.
async fn cell(kind: Kind, what: Happening) -> Result<Vec<Row>, Failure> {
    let mut fleet = Fleet::up(kind, what).await?;
    let redlock = fleet.redlock()?;
    let rival = fleet.redlock()?;
    let load = || Load::begin(&redlock, &rival, kind.durability());
    let mut made = SystemTime::now();
    let (begun, load) = if what.is_first() {
        let begun = Instant::now();
        // The event is the first start of the deployment, so it comes before the first request.
        fleet.happen(what).await?;
        (begun, load()?)
    } else {
        fleet.init().await?;
        let load = load()?;
        load.until_well(PATIENCE).await?;
        sleep(Duration::from_secs(1)).await;
        fleet.prepare(what).await?;
        made = SystemTime::now();
        let begun = Instant::now();
        fleet.happen(what).await?;
        (begun, load)
    };
    sleep_until(begun + LOOK).await;
    load.until_well(PATIENCE).await?;
    load.deliver_again().await;
    let parked = load.deliver_backlog(made).await?;
    let health = redlock.health().await;
    let proved = health.nodes.first().and_then(|node| node.losses.last().copied());
    let seen = load.end().await;
    // After the last result, or one that came meanwhile counted as lost.
    let stored = fleet.stored(STRICT, &seen.strict_keys()).await?;
    if let Some(first) = seen.broken.first() {
        return Err(format!("{} promises broken, the first: {first}", seen.broken.len()).into());
    }
    let lost = Request::ALL.iter().filter(|kind| !kind.accepts);
    let lost: Vec<_> = lost.flat_map(|kind| seen.lost(*kind, &stored)).collect();
    // The loss ends with the last result that is missing: a server that was promoted in the middle
    // of the event may have stored results which are lost with it.
    let (first, end) = (lost.iter().min(), lost.iter().max().copied().max(Some(begun)));
    let lost = first.zip(end).map_or(Duration::ZERO, |(first, end)| end - *first);
    let all = Request::ALL.into_iter().zip(parked);
    let row = |(of, parked)| Row::of((kind, what), of, &seen, begun).with(parked, proved, lost);
    let rows: Vec<Row> = all.map(row).collect();
    if let Some(cost) = rows.iter().find(|row| what.is_free() && row.costs()) {
        return Err(format!("nothing was lost, but: {}", serde_json::to_string(cost)?).into());
    }
    Ok(rows)
}
