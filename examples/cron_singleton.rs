//! A cron job that runs once per tick among three processes. In this example the processes are
//! tasks. The first process dies in the middle of a run, after the effect and before the result is
//! stored. Then another process runs the tick again. The downstream system recognises the tick by
//! its key, so the tick has only one effect.
//!
//! ```text
//! cargo run -p examples --bin cron_singleton
//! cargo run -p examples --bin cron_singleton -- --node redis://127.0.0.1
//! ```

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser as _;
use palisade_cron::{Cron, Job, Overlap, Tick};
use tokio::time::{sleep, timeout};

type Failure = Box<dyn Error + Send + Sync>;
/// A downstream system that recognises repetitions. For each key it stores the tick and the writer
/// of the first effect.
type Ledger = Mutex<BTreeMap<String, (i64, &'static str)>>;

/// Runs the job. If `dies` is true, simulates a process that is killed right after its effect.
async fn report(tick: Tick, ledger: Arc<Ledger>, me: &'static str, dies: bool) {
    let key = tick.child_key("report");
    let first =
        *ledger.lock().expect("no one panics").entry(key).or_insert((tick.unix_seconds(), me));
    let (at, attempt, token) = (tick.unix_seconds(), tick.attempt(), tick.fencing_token());
    println!("  {me}: tick {at}, attempt {attempt}, token {token}, written by {}", first.1);
    if dies {
        println!("  {me} dies");
        std::future::pending::<()>().await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let connect = common::Connect::parse();
    let lease = connect.ttl(Duration::from_millis(1_500));
    let prefix = format!("cron-example-{:08x}:", rand::random::<u32>());
    let ledger = Arc::new(Ledger::default());
    let redlock = connect.builder(lease)?.prefix(prefix).build()?;
    common::ready(&redlock).await?;
    let process = |me: &'static str, dies: bool| {
        let (redlock, ledger) = (redlock.clone(), Arc::clone(&ledger));
        async move {
            // A real process needs only the code of this block. Some ticks are due while the lease
            // of the dead process still blocks the other processes. With `late` these ticks count
            // as on time, so another process runs them afterwards. A tick that is due during one of
            // these runs follows it.
            let job = Job::new("report", "*/2 * * * * *").zone("Europe/Zurich");
            let job = job.late(Duration::from_secs(30)).overlap(Overlap::BufferOne);
            let cron = Cron::new(&redlock);
            let ran = cron.run(job, |tick| {
                let ledger = Arc::clone(&ledger);
                async move {
                    report(tick, ledger, me, dies).await;
                    Ok::<_, Failure>(())
                }
            });
            ran.await?;
            Ok::<_, Failure>(())
        }
    };
    // The process Ada runs first and dies in her first run: the timeout drops her task with all its
    // values.
    let _ = timeout(Duration::from_secs(6), process("Ada", true)).await;
    let others = ["Grace", "Edsger"].map(|me| tokio::spawn(process(me, false)));
    // Returns the ticks from the first one on of which none is missing yet.
    let whole = || {
        let mut ticks: Vec<_> = ledger.lock().expect("no one panics").values().copied().collect();
        ticks.sort_unstable();
        let gap = ticks.windows(2).position(|two| two[1].0 != two[0].0 + 2);
        ticks.truncate(gap.map_or(ticks.len(), |last| last + 1));
        ticks
    };
    let seven = async {
        while whole().len() < 7 {
            sleep(Duration::from_millis(200)).await;
        }
    };
    let in_time = timeout(Duration::from_secs(90), seven).await;
    others.iter().for_each(tokio::task::JoinHandle::abort);
    // `close` releases the locks of the dropped tasks. Otherwise these locks would stay until the
    // end of their ttl.
    drop(redlock.close(Duration::from_secs(2)).await);
    assert!(in_time.is_ok(), "a tick was lost after {:?}: {:?}", whole().last(), ledger.lock());
    println!("{} ticks, each took effect once", whole().len());
    Ok(())
}
