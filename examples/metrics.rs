//! All metrics of palisade in one program: locks, keys, an election and a cron job. The program
//! serves the metrics to Prometheus.
//!
//! ```text
//! cargo run -p examples --bin metrics
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! Without `--node` the nodes are in memory. Some handlers and ticks fail on purpose.

mod common;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use palisade::{Failed, Redlock};
use palisade_cron::{Cron, Job};
use tokio::time::sleep;

/// Buckets of the histograms of times, in seconds.
const SECONDS: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const RATIO: &[f64] = &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    connect: common::Connect,

    /// Address that serves the metrics to Prometheus
    #[arg(long, default_value = "127.0.0.1:9464")]
    listen: SocketAddr,

    /// End after this number of seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let cli = Cli::parse();
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_ratio".into()), RATIO)?
        .with_http_listener(cli.listen)
        .install()?;
    // The recorder was installed before this line, because a `Redlock` uses only a recorder that
    // exists when the `Redlock` is built.
    let ttl = cli.connect.ttl(Duration::from_secs(4));
    let redlock = cli.connect.builder(ttl)?.build()?;
    println!("http://{}/metrics", cli.listen);
    for n in 0..3 {
        tokio::spawn(locks(redlock.clone(), n));
        tokio::spawn(keys(redlock.clone()));
    }
    tokio::spawn(lead(redlock.clone()));
    tokio::spawn(ticks(redlock.clone()));
    sleep(Duration::from_secs(cli.seconds)).await;
    println!("{}", redlock.close(Duration::from_secs(2)).await);
    Ok(())
}

fn millis(least: u64, most: u64) -> Duration {
    Duration::from_millis(rand::random_range(least..most))
}

/// Acquires and releases a lock again and again. Task 0 holds its lock for about ten seconds, and
/// the other tasks hold their locks for a short time.
async fn locks(redlock: Redlock, task: u32) -> Option<()> {
    loop {
        let name = if task == 0 { "long".to_owned() } else { format!("short-{}", task % 2) };
        let mutex = redlock.mutex(name).acquire_timeout(Duration::from_secs(5)).build().ok()?;
        if let Ok(guard) = mutex.acquire().await {
            let work = if task == 0 { millis(8_000, 12_000) } else { millis(20, 200) };
            tokio::select! {
                () = guard.lost() => {}
                () = sleep(work) => drop(guard.release().await),
            }
        }
        sleep(millis(10, 200)).await;
    }
}

/// Makes requests with the current second as the key, so most requests repeat an earlier one. One
/// handler in 40 fails, and its effect remains unknown.
async fn keys(redlock: Redlock) -> Option<()> {
    let payments = redlock.idempotency("payments").at_most_once().build().ok()?;
    loop {
        let now = std::time::SystemTime::now();
        let key = format!("order-{}", now.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs());
        let paid = payments.key(key).created_at(now).run(|_| async {
            sleep(millis(5, 50)).await;
            if rand::random_ratio(1, 40) { Err(Failed::unknown("no answer")) } else { Ok(()) }
        });
        drop(paid.await);
        sleep(millis(200, 800)).await;
    }
}

/// Leads for 30 to 60 s at a time, and observes the election.
async fn lead(redlock: Redlock) -> Option<()> {
    let election = redlock.election("billing").build().ok()?;
    let mut observer = election.observe();
    tokio::spawn(async move { while observer.next().await.is_some() {} });
    loop {
        if let Ok(leadership) = election.campaign("here").await {
            tokio::select! {
                () = leadership.lost() => {}
                () = sleep(millis(30_000, 60_000)) => drop(leadership.resign().await),
            }
        }
        sleep(millis(100, 1_000)).await;
    }
}

/// Runs a job each second. One run in 20 fails.
async fn ticks(redlock: Redlock) {
    let job = Job::new("report", "* * * * * *").late(Duration::from_secs(2));
    let run = |_| async {
        sleep(millis(20, 100)).await;
        if rand::random_ratio(1, 20) { Err("on purpose") } else { Ok(()) }
    };
    if let Err(e) = Cron::new(&redlock).run(job, run).await {
        eprintln!("{e}");
    }
}
