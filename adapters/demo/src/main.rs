//! Sends real invoices through a real broker, while consumers and servers are killed.
//!
//! ```text
//! broker-demo rabbitmq               18,532 invoices, each published one to three times
//! broker-demo rabbitmq --limit 500   only the first 500 invoices
//! broker-demo streams                18,532 invoices, on Redis Streams
//! broker-demo nats                   18,532 invoices, on NATS JetStream
//! broker-demo kafka                  18,532 invoices, on librdkafka's mock cluster (see README)
//! broker-demo crash-points kafka     kills one consumer at each of the five crash points
//! ```
//!
//! Four consumer processes handle the messages. The demo kills them at random moments, and each
//! also aborts itself at one of the five crash points (fetch, claim, effect, complete,
//! acknowledge). The broker and the master of the Sentinel group with the idempotency records are
//! killed once. A ledger books the invoices, refuses old fencing tokens, and is audited at the end.
//! A run fails if no consumer died at one of the crash points. The last line of the output is JSON
//! for programs.

mod brokers;
mod child;
mod crash_points;
mod fleet;
mod group;
#[path = "../../../examples/orders/invoice.rs"]
#[allow(unreachable_pub)]
mod invoice;
mod invoices;
mod ledger;
mod process;
mod report;

#[path = "../../../examples/orders/ledger.rs"]
#[allow(dead_code, unreachable_pub)]
mod books;

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use brokers::{Broker, Kind};
use fleet::Fleet;
use group::Group;
use invoices::Plan;
use ledger::Ledger;
use report::Report;

type Failure = Box<dyn Error + Send + Sync>;

/// Maximum duration of a run for each thousand invoices.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Parser)]
#[command(about = "Real invoices through a real broker, each takes effect once")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs the demo on `RabbitMQ`.
    Rabbitmq(Run),
    /// Runs the demo on Redis Streams.
    Streams(Run),
    /// Runs the demo on NATS `JetStream`.
    Nats(Run),
    /// Runs the demo on librdkafka's mock cluster of Kafka brokers.
    Kafka(Run),
    /// Kills a consumer at each of the five crash points. After each death compares the ledger, the
    /// records and the broker with the expected counts.
    CrashPoints {
        /// Kind of broker to start.
        broker: Kind,
    },
    /// Runs a consumer process. The other commands start it.
    #[command(hide = true)]
    Consumer(child::Args),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Number of invoices, from the beginning of the file. Default: all.
    #[arg(long)]
    limit: Option<usize>,
    /// Seed of the run's random choices: the duplicates, their order, and the deaths of consumers.
    /// Default: a random seed, which is printed.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // With RUST_LOG=palisade::consumer=debug the log shows the reason of each redelivery.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into());
    let filter = filter.from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let done = match args.verb {
        Verb::Rabbitmq(run) => runtime.block_on(demo(Kind::Rabbitmq, &run)),
        Verb::Streams(run) => runtime.block_on(demo(Kind::Streams, &run)),
        Verb::Nats(run) => runtime.block_on(demo(Kind::Nats, &run)),
        Verb::Kafka(run) => runtime.block_on(demo(Kind::Kafka, &run)),
        Verb::CrashPoints { broker } => runtime.block_on(crash_points::run(broker)).map(|()| true),
        Verb::Consumer(args) => runtime.block_on(child::run(args)).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("broker-demo: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo on one broker. Returns true if every order took effect exactly once, consumers
/// died at all crash points, and no message is left on the broker.
async fn demo(kind: Kind, run: &Run) -> Result<bool, Failure> {
    let seed = run.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let begun = Instant::now();
    println!("{}: seed {seed}; starting the broker and a Sentinel group ...", kind.name());
    let mut dice = StdRng::seed_from_u64(seed);
    let plan = Plan::new(&invoices::load(run.limit)?, &mut dice);
    let ledger = Ledger::serve()?;
    let (broker, group) = tokio::try_join!(Broker::start(kind), Group::up())?;
    println!(
        "{:5.1} s  {} messages for {} invoices, {} of them poison",
        begun.elapsed().as_secs_f64(),
        plan.messages.len(),
        plan.invoices,
        plan.poison.len()
    );
    let fleet = Fleet::start(&broker, &group, &ledger, plan.messages.len(), seed)?;
    let limit = PATIENCE * u32::try_from(plan.invoices / 1_000 + 3)?;
    let work = Box::pin(work(&broker, &group, &ledger, &fleet, &plan, &mut dice, begun));
    tokio::time::timeout(limit, work).await.map_err(|_| {
        let executed = ledger.executed();
        format!("not done after {limit:?}: {executed} of {} invoices booked", plan.invoices)
    })??;
    let went = fleet.counts();
    let report = Report::new(kind.name(), &plan, &ledger, &broker.dead_letters().await?, &went);
    let unacknowledged = broker.left().await?;
    report.print(unacknowledged, begun.elapsed(), seed);
    Ok(report.is_good() && unacknowledged == 0)
}

/// Publishes the messages. Meanwhile kills the broker, the Redis master and consumers. Then waits
/// until no message is left.
async fn work(
    broker: &Broker,
    group: &Group,
    ledger: &Ledger,
    fleet: &Fleet,
    plan: &Plan,
    dice: &mut StdRng,
    begun: Instant,
) -> Result<(), Failure> {
    let say = |what: &str| println!("{:5.1} s  {what}", begun.elapsed().as_secs_f64());
    let mut killing = StdRng::seed_from_u64(dice.random());
    let faults = async {
        reached(ledger, plan.invoices * 3 / 10).await;
        broker.restart().await?;
        say(if broker.kind() == Kind::Kafka {
            "the mock cluster answered nothing for a while"
        } else {
            "the broker was killed and started again"
        });
        reached(ledger, plan.invoices * 6 / 10).await;
        group.fail_over().await?;
        say("the master of the Sentinel group was killed, and another one is named");
        Ok::<_, Failure>(())
    };
    let published = broker.publish_all(&plan.messages);
    let busy = async {
        tokio::try_join!(published, faults)?;
        say("all is published and the faults are over");
        reached(ledger, plan.invoices).await;
        // Forgeries are messages with the key of a booked invoice and a different body.
        broker.publish_all(&plan.forgeries).await?;
        say("the forgeries are published");
        while !fleet.counts().is_hard() {
            sleep(Duration::from_millis(50)).await;
        }
        drained(broker).await
    };
    tokio::select! {
        biased;
        done = busy => done?,
        died = fleet.torment(&mut killing) => return Err(died),
        never = progress(ledger, plan.invoices, begun) => match never {},
    }
    // From here on the demo kills no consumer. A stopped consumer finishes its messages or returns
    // them to the broker. So the demo starts new consumers until no message is left.
    loop {
        say("all is drained");
        fleet.stop().await?;
        say("the consumers ended");
        if broker.left().await? == 0 {
            return Ok(());
        }
        fleet.refill()?;
        drained(broker).await?;
    }
}

async fn progress(ledger: &Ledger, of: usize, begun: Instant) -> Infallible {
    loop {
        sleep(Duration::from_secs(10)).await;
        let (at, booked) = (begun.elapsed().as_secs_f64(), ledger.executed());
        println!("{at:5.1} s  {booked} of {of} invoices booked");
    }
}

async fn reached(ledger: &Ledger, invoices: usize) {
    while ledger.executed() < invoices {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the broker has had no message to deliver for two seconds.
async fn drained(broker: &Broker) -> Result<(), Failure> {
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        if broker.left().await? > 0 {
            since = Instant::now();
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
