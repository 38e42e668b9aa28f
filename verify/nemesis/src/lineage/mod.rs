//! Clients that meet data which are not those they used, and data that were only renamed, on real
//! servers on loopback. The rules are *quarantine 1, 2 and 13 to 22*.
//!
//! ```text
//! nemesis lineage --runs 20                    each history twenty times
//! nemesis lineage --runs 5 --only returning    those whose name contains this
//! nemesis lineage --json                       a line of JSON for each run
//! ```
//!
//! In each run a client holds two locks and leads an election, and its requests have results that
//! another client has seen. Others contest all of it while the servers change. Two of them that are
//! valid at one moment, a second run of a handler, or a client that is not served in the end fail
//! the run. Backups lose nothing, so a refusal or a parked key fails their run.

mod clients;
mod group;
mod lone;
mod nights;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Signals;
use crate::names::names;
use crate::world::Failure;
use clients::{Log, Shown};
use nights::Nights;

/// Options of `nemesis lineage`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Number of runs of each history.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// Only histories whose name contains this text. Can be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Print one line of JSON for each run.
    #[arg(long)]
    json: bool,
    /// Number of runs at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

names! {
    /// A history of the servers.
    enum History {
        ReturnAlone = "returning master, the third has priority 0",
        ReturnBoth = "returning master, the third dies too",
        Elsewhere = "address of another deployment",
        ElsewhereGroup = "a group's address of another group",
        Started = "program that starts with one wrong address",
        Copied = "replicas that copied another deployment",
        Nights = "seven nights with a backup",
        NightsGroup = "seven nights with a group's backup",
    }
}

/// The facts about one run.
enum Ran {
    Data(Shown),
    Nights(Nights),
}

impl Ran {
    fn is_good(&self) -> bool {
        match self {
            Self::Data(shown) => shown.violations() == 0,
            Self::Nights(nights) => nights.is_good(),
        }
    }
}

/// Runs all histories. Returns true if each of them came about and no run broke a promise.
pub(crate) fn lineage(args: &Args) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(all(args))
}

async fn all(args: &Args) -> Result<bool, Failure> {
    let wants = |h: &History| {
        args.only.is_empty() || args.only.iter().any(|only| h.name().contains(only.as_str()))
    };
    let wanted: Vec<_> = History::ALL.into_iter().filter(wants).collect();
    if wanted.is_empty() {
        let all = History::ALL.map(History::name).join("; ");
        return Err(format!("no history of that name; there are: {all}").into());
    }
    let mut signals = Signals::new()?;
    let (places, mut running) = (Arc::new(Semaphore::new(args.jobs.max(1))), JoinSet::new());
    for run in 0..args.runs {
        for history in wanted.iter().copied() {
            let places = Arc::clone(&places);
            running.spawn(async move {
                let _place = places.acquire().await;
                (history, run, Box::pin(one(history)).await)
            });
        }
    }
    let mut done = Vec::new();
    loop {
        let ended = tokio::select! {
            biased;
            () = signals.any() => return Err("interrupted; everything is taken down".into()),
            ended = running.join_next() => ended,
        };
        let Some(ended) = ended else { break };
        let (history, run, ran) = ended?;
        tell(args, history, run, &ran)?;
        done.push((history, ran));
    }
    Ok(sum(args, &wanted, &done))
}

async fn one(history: History) -> Result<Ran, Failure> {
    let log = Log::default();
    match history {
        History::ReturnAlone => Box::pin(group::returning(false, &log)).await?,
        History::ReturnBoth => Box::pin(group::returning(true, &log)).await?,
        History::Elsewhere => Box::pin(lone::elsewhere(&log)).await?,
        History::ElsewhereGroup => Box::pin(group::elsewhere(&log)).await?,
        History::Started => Box::pin(lone::started(&log)).await?,
        History::Copied => Box::pin(group::copied(&log)).await?,
        History::Nights => return Ok(Ran::Nights(nights::nights().await?)),
        History::NightsGroup => return Ok(Ran::Nights(group::nights().await?)),
    }
    let shown = log.note().clone();
    Ok(Ran::Data(shown))
}

fn tell(
    args: &Args,
    history: History,
    run: usize,
    ran: &Result<Ran, Failure>,
) -> Result<(), Failure> {
    let facts = match ran {
        Ok(Ran::Data(shown)) => serde_json::to_string(shown)?,
        Ok(Ran::Nights(nights)) => serde_json::to_string(nights)?,
        Err(e) => serde_json::to_string(&format!("did not come about: {e}"))?,
    };
    if args.json {
        println!("{{\"history\":{:?},\"run\":{run},\"facts\":{facts}}}", history.name());
    } else {
        println!("{}: run {run}: {facts}", history.name());
    }
    Ok(())
}

/// Prints the sums. Returns true if no promise was broken, and at least half of the runs of each
/// history came about.
fn sum(args: &Args, wanted: &[History], done: &[(History, Result<Ran, Failure>)]) -> bool {
    let mut good = true;
    for history in wanted {
        let runs = || done.iter().filter(move |(h, _)| h == history);
        let failed = runs().filter(|(_, ran)| ran.as_ref().is_ok_and(|r| !r.is_good())).count();
        let vain = |ran: &Result<Ran, Failure>| match ran {
            Ok(Ran::Data(shown)) => !shown.doubts.is_empty(),
            Ok(Ran::Nights(_)) => false,
            Err(_) => true,
        };
        let vain = runs().filter(|(_, ran)| vain(ran)).count();
        good &= failed == 0 && 2 * vain <= runs().count();
        if !args.json {
            println!(
                "{:44} {:3} runs, {vain} of them came to nothing, {failed} broke a promise",
                history.name(),
                runs().count()
            );
        }
    }
    good
}
