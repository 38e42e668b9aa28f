//! The crontab leader: one of several hosts runs the crontab, and this host resigns if it cannot
//! run the crontab.
//!
//! The leader runs the jobs that are due, as long as it leads. Each write has a fencing token. So a
//! paused host that continues too late changes nothing. If the leader's disk is full, the leader
//! resigns, and another host continues. If a host loses its leadership, its work is stopped, and
//! the host campaigns again.
//!
//! ```text
//! cargo run -p examples --bin crontab_leader
//! cargo run -p examples --bin crontab_leader -- --node redis://127.0.0.1
//! ```

mod common;

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser as _;
use palisade::election::CampaignError;
use palisade::{Election, FencingToken, WorkError};
use tokio::time::{sleep, timeout};

type Failure = Box<dyn Error + Send + Sync>;
const EVERY: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_millis(900);
const TICKS: usize = 12;

/// The resource to which the jobs of the crontab write. It refuses a fencing token that is smaller
/// than an earlier one.
#[derive(Default)]
struct Ledger(Mutex<Vec<(FencingToken, &'static str)>>);

impl Ledger {
    fn write(&self, term: FencingToken, host: &'static str) -> Result<usize, Failure> {
        let mut lines = self.0.lock().map_err(|e| e.to_string())?;
        if lines.last().is_some_and(|(last, _)| term < *last) {
            return Err("refused: a later leader has written".into());
        }
        lines.push((term, host));
        Ok(lines.len())
    }

    fn len(&self) -> usize {
        self.0.lock().map_or(0, |lines| lines.len())
    }
}

/// A host that runs the crontab while it leads.
struct Host {
    name: &'static str,
    ledger: Arc<Ledger>,
    /// Number of ticks that the host can run before its disk is full.
    room: usize,
}

impl Host {
    /// Runs jobs for ever. Returns an error if the host cannot run the jobs.
    async fn do_crontab(&self, term: FencingToken) -> Result<Infallible, Failure> {
        for _ in 0..self.room {
            sleep(EVERY).await;
            let tick = self.ledger.write(term, self.name)?;
            println!("  {}: tick {tick}, term {term}", self.name);
        }
        Err("no space left on the disk".into())
    }
}

// The glue begins here.
async fn crontab_leader(
    election: &Election,
    host: &Host,
) -> Result<Infallible, WorkError<Result<Infallible, Failure>, CampaignError>> {
    loop {
        let work = async |leads: Arc<palisade::Leadership>| host.do_crontab(leads.term()).await;
        let Err(why) = election.lead(host.name, work).await?;
        println!("{} has resigned: {why}", host.name);
        sleep(LEASE).await; // another candidate comes first
    }
}
// The glue ends here.

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let connect = common::Connect::parse();
    let lease = connect.ttl(LEASE);
    let prefix = format!("crontab-example-{:08x}:", rand::random::<u32>());
    let redlock = connect.builder(lease)?.prefix(prefix).build()?;
    common::ready(&redlock).await?;
    let ledger = Arc::new(Ledger::default());
    let hosts = [("Ada", 3), ("Grace", 4), ("Edsger", 5)].map(|(name, room)| {
        let (election, ledger) = (redlock.election("crontab").build(), Arc::clone(&ledger));
        tokio::spawn(async move {
            let host = Host { name, ledger, room };
            match crontab_leader(&election.expect("a good name"), &host).await {
                Ok(never) => match never {},
                Err(why) => println!("{name}: {why}"),
            }
        })
    });
    let done = async {
        while ledger.len() < TICKS {
            sleep(EVERY).await;
        }
    };
    timeout(Duration::from_secs(120), done).await?;
    hosts.iter().for_each(tokio::task::JoinHandle::abort);
    println!("{}", redlock.close(LEASE * 5).await);

    let lines = ledger.0.lock().map_err(|e| e.to_string())?.clone();
    assert!(lines.is_sorted_by_key(|(term, _)| *term), "a leader of before wrote");
    let one_host = |two: &[(FencingToken, &str)]| two[0].0 != two[1].0 || two[0].1 == two[1].1;
    assert!(lines.windows(2).all(one_host), "two hosts led one term: {lines:?}");
    let mut terms: Vec<_> = lines.iter().map(|(term, _)| *term).collect();
    terms.dedup();
    assert!(terms.len() > 2, "no leader resigned: {lines:?}");
    println!("{} ticks by {} leaders, one at a time", lines.len(), terms.len());
    Ok(())
}
