//! An election: one of many candidates leads.
//!
//! Without arguments, the program runs three candidates on three in-memory nodes. The candidates
//! lead in turn, an observer prints each change, and the program ends by itself. With `--node` the
//! program is one candidate. It prints a line of JSON for each event. It resigns at SIGTERM, at
//! Ctrl-C, or after the line `resign` on its standard input. Start two such programs and kill one
//! of them.
//!
//! ```text
//! cargo run -p examples --bin election
//! cargo run -p examples --bin election -- --node redis://127.0.0.1:7001 --value here
//! ```

mod common;

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use palisade::election::Observation;
use palisade::{Election, Redlock};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    connect: common::Connect,

    /// Name of the election
    #[arg(long, default_value = "example")]
    name: String,

    /// Value to proclaim, for example an address
    #[arg(long, default_value = "a candidate")]
    value: String,

    /// End after this number of seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cli = Cli::parse();
    let ttl = cli.connect.ttl(Duration::from_secs(3));
    let redlock = cli.connect.builder(ttl)?.build()?;
    let ended = if cli.connect.is_embedded() {
        demo(&redlock).await
    } else {
        let election = redlock.election(&cli.name).build()?;
        stand(&election, &cli.value, Duration::from_secs(cli.seconds)).await
    };
    // Close the `Redlock` handle even if a signal came in the middle of a campaign. Closing
    // releases what the nodes have already granted to the campaign.
    let closed = redlock.close(Duration::from_secs(5)).await;
    if !closed.is_clean() {
        eprintln!("{closed}");
    }
    ended
}

/// Runs one candidate for the time `life`, or until the process receives a signal to end.
async fn stand(
    election: &Election,
    value: &str,
    life: Duration,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut deaf = false;
    let end = tokio::time::sleep(life);
    tokio::pin!(end);
    loop {
        let leadership = tokio::select! {
            biased;
            _ = term.recv() => return Ok(()),
            _ = int.recv() => return Ok(()),
            () = &mut end => return Ok(()),
            elected = election.campaign(value) => elected?,
        };
        let number = leadership.term().get();
        tell("leading", number);
        let last = loop {
            tokio::select! {
                biased;
                () = leadership.lost() => break None,
                _ = term.recv() => break Some(true),
                _ = int.recv() => break Some(true),
                () = &mut end => break Some(true),
                said = input.next_line(), if !deaf => match said {
                    Ok(Some(said)) if said.trim() == "resign" => break Some(false),
                    Ok(Some(_)) => {}
                    _ => deaf = true,
                },
            }
        };
        let Some(last) = last else {
            tell("lost", number);
            continue;
        };
        tell("resigning", number);
        let outcome = leadership.resign().await;
        tell("resigned", number);
        if last {
            return Ok(outcome?);
        }
        // Wait, so that other candidates can lead. Otherwise this process would often be the first
        // again.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn tell(event: &str, term: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    println!(r#"{{"event":"{event}","term":{term},"at_ms":{:.3}}}"#, now.as_secs_f64() * 1e3);
}

/// Runs three candidates. Each of them leads once.
async fn demo(redlock: &Redlock) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut observer = redlock.election("demo").build()?.observe();
    let watch = tokio::spawn(async move {
        while let Some(seen) = observer.next().await {
            match seen {
                Observation::Leader { leader, .. } => {
                    println!("  observer: {} leads in term {}", leader.value, leader.term);
                }
                Observation::Vacant => println!("  observer: there is no leader"),
                other => println!("  observer: {other:?}"),
            }
        }
    });
    let election = redlock.election("demo").build()?;
    let candidates: Vec<_> = ["Ada", "Grace", "Edsger"]
        .map(|who| {
            let election = election.clone();
            tokio::spawn(async move {
                let leadership = election.campaign(who).await.map_err(|e| e.to_string())?;
                println!("{who} is elected, term {}", leadership.term());
                tokio::time::sleep(Duration::from_millis(200)).await;
                leadership.proclaim(format!("{who} (busy)")).await.map_err(|e| e.to_string())?;
                tokio::time::sleep(Duration::from_millis(200)).await;
                leadership.resign().await.map_err(|e| e.to_string())?;
                println!("{who} has resigned");
                Ok::<(), String>(())
            })
        })
        .into();
    for candidate in candidates {
        candidate.await??;
    }
    // `close` ends the observer.
    drop(redlock.close(Duration::from_secs(5)).await);
    Ok(watch.await?)
}
