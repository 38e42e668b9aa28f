//! The first two days of a new user: the README's worker on one server with the defaults of Debian,
//! through restarts, a crash and `FLUSHALL`, with and without `created_at`. The user reads the log
//! alone, and types what it says. Prints a table:
//! `cargo test -p palisade-cli --test first_days -- --nocapture`.

#[path = "../../../tests/support/mod.rs"]
mod support;
mod user;
mod worker;

use std::time::{Duration, Instant};

use support::logs::Log;
use support::server::Server;
use tokio::time::sleep;
use tracing_subscriber::filter::LevelFilter;

use self::user::User;
use self::worker::Worker;

/// The points at which Debian's `redis.conf` has a snapshot taken. It has no append-only file.
const SNAPSHOTS: [&str; 2] = ["--save", "3600 1 300 100 60 10000"];
const APPENDS: [&str; 2] = ["--appendonly", "yes"];
/// Longest time after which new orders run again.
const WORKS_AGAIN: Duration = Duration::from_secs(120);
/// Longest time after which no order waits any more.
const ALL_DONE: Duration = Duration::from_secs(240);
/// Time for which the worker runs before the event.
const BEFORE: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    FirstStart,
    CleanRestart,
    Kill,
    FlushAll,
}

impl Event {
    fn happens(self, server: &mut Server) {
        match self {
            Self::FirstStart => {}
            Self::CleanRestart => {
                server.cli(&["SHUTDOWN"]);
                server.kill();
                server.again();
            }
            Self::Kill => server.restart(),
            Self::FlushAll => assert_eq!(server.cli(&["FLUSHALL"]), "OK"),
        }
    }
}

/// One row of the table.
struct Row {
    event: Event,
    appends: bool,
    births: bool,
    /// Time until an order that was made after the event was executed.
    works: Duration,
    /// Time until no order waited any more.
    done: Duration,
    /// Each time that the user typed one.
    commands: Vec<String>,
    /// How many of these were typed again, because the busy server did not answer in time.
    again: usize,
    orders: usize,
    doubles: usize,
    lost: usize,
}

async fn row(event: Event, appends: bool, births: bool) -> Row {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let args = if appends { [SNAPSHOTS, APPENDS].concat() } else { SNAPSHOTS.to_vec() };
    let mut server = Server::start(&args);
    let mut user = User::new(log.clone());
    if event != Event::FirstStart {
        user.types(&format!("palisade init --new --node {}", server.url())).await;
    }
    let mut worker = Worker::new(&server.url(), births);
    if event != Event::FirstStart {
        worker.work_for(BEFORE).await;
        assert!(worker.executed() > 3, "{event:?}: {}", log.text());
    }
    user.begins();
    event.happens(&mut server);
    let began = Instant::now();
    let first = worker.next_order();
    let mut works = None;
    while works.is_none() || !worker.is_done() {
        worker.turn(works.is_none()).await;
        if works.is_none() && worker.ran_since(first) {
            works = Some(began.elapsed());
        }
        user.looks(event == Event::FirstStart, &mut worker).await;
        let limit = if works.is_none() { WORKS_AGAIN } else { ALL_DONE };
        let late = || format!("{event:?}, {appends}, {births}: {:?}\n{}", user.typed(), log.text());
        assert!(began.elapsed() < limit, "{}", late());
        sleep(Duration::from_millis(10)).await;
    }
    let (orders, doubles, lost) = worker.ledger();
    let (commands, again) = (user.typed().to_vec(), user.again());
    let (works, done) = (works.expect("an order ran"), began.elapsed());
    Row { event, appends, births, works, done, commands, again, orders, doubles, lost }
}

#[test]
fn the_log_alone_leads_a_new_user_to_work_again_without_a_double_or_a_loss() {
    let mut rows = Vec::new();
    for (event, appends) in [
        (Event::FirstStart, false),
        (Event::CleanRestart, false),
        (Event::CleanRestart, true),
        (Event::Kill, false),
        (Event::Kill, true),
        (Event::FlushAll, false),
    ] {
        for births in [false, true] {
            rows.push(std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(row(event, appends, births))
            }));
        }
    }
    println!(
        "| event | AOF | `created_at` | new orders run | nothing waits | commands typed | of these \
         again | doubles | lost |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let rows: Vec<Row> = rows.into_iter().map(|row| row.join().expect("no panic")).collect();
    for row in &rows {
        let [works, done] = [row.works, row.done].map(|span| span.as_secs_f64());
        println!(
            "| {:?} | {} | {} | {works:.1} s | {done:.1} s | {} | {} | {} of {} | {} |",
            row.event,
            row.appends,
            row.births,
            row.commands.len(),
            row.again,
            row.doubles,
            row.orders,
            row.lost
        );
    }
    for row in &rows {
        let of = format!("{:?}, {}, {}", row.event, row.appends, row.births);
        assert_eq!((row.doubles, row.lost), (0, 0), "{of}: {:?}", row.commands);
        // With `created_at` new orders run without a command, when the quarantine is over.
        if row.births && row.event != Event::FirstStart {
            assert!(row.works < Duration::from_secs(60), "{of}: {:?}", row.works);
        }
        assert!(row.commands.len() - row.again <= 6, "{of}: {:?}", row.commands);
    }
}
