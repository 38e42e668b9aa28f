//! The failover table. It has one row for each fault of a Sentinel group, with the effects of the
//! fault on users. The page `src/manual/what_a_failover_can_do.md` explains the columns.
//!
//! ```text
//! nemesis table                       all rows, for people
//! nemesis table --json                one line of JSON for each row
//! nemesis table --only freeze         one row
//! nemesis table --plain               also the effects on plain writes, under each setting
//! ```

pub(crate) mod client;
mod facts;
mod fault;
mod group;
mod old;
mod plain;
#[cfg(test)]
mod tests;
mod verdict;
pub(crate) mod watch;
mod witness;
pub(crate) mod writer;

use std::fs;
use std::path::Path;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::Signals;
use crate::ledger::Ledger;
use crate::runtime;
use crate::world::Failure;
use fault::Fault;
use group::{Group, Shape, Stop};
use verdict::{Case, Row, judge};

/// Options of the command `nemesis table`.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct Args {
    /// Print one line of JSON for each row instead of a table.
    #[arg(long)]
    json: bool,
    /// Also measure plain writes (without the library) under each setting. This takes seven more
    /// minutes.
    #[arg(long)]
    plain: bool,
    /// Only rows of the table whose name contains this text. Can be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Longest lease of the clients, in milliseconds. The quarantine lasts for this time and the
    /// failover window L.
    #[arg(long, default_value_t = 12_000)]
    max_ttl: u64,
    /// Count a grant only if all replicas have it.
    #[arg(long)]
    all_replicas: bool,
    /// Turn all safety checks off, to test that the check of the event log then finds broken rules.
    #[arg(long, hide = true)]
    defeat: bool,
}

/// Measures all rows of the failover table. Returns true if all rows pass their check.
pub(crate) fn table(args: &Args, out: &Path) -> Result<bool, Failure> {
    fs::create_dir_all(out)?;
    runtime::run(rows(args, out))
}

async fn rows(args: &Args, out: &Path) -> Result<bool, Failure> {
    let mut stop = Stop(Signals::new()?);
    let named = |f: &Fault| args.wants(f.name());
    let guarded = |f: &Fault| plain::SETTINGS.iter().any(|g| args.wants(&g.with(*f)));
    let any = Fault::ALL.iter().any(named) || (args.plain && plain::FAULTS.iter().any(guarded));
    if !any {
        let rows: Vec<_> = Fault::ALL.iter().map(|f| f.name()).collect();
        return Err(format!("no row of that name; there are: {}", rows.join(", ")).into());
    }
    let good = library(args, out, &mut stop).await?;
    let guarded = !args.plain || plain_writes(args, out, &mut stop).await?;
    if !args.json {
        println!("\n{}", if good && guarded { "no promise was broken" } else { "NOT GOOD" });
    }
    Ok(good && guarded)
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|w| name.contains(w.as_str()))
    }
}

async fn library(args: &Args, out: &Path, stop: &mut Stop) -> Result<bool, Failure> {
    let shape = Shape {
        groups: 1,
        clients: 4,
        down_after_ms: 3_000,
        max_lag: 1,
        max_ttl_ms: args.max_ttl,
        all_replicas: args.all_replicas,
        defeat: args.defeat,
    };
    let (mut good, mut first) = (true, !args.json);
    for fault in Fault::ALL.into_iter().filter(|f| args.wants(f.name())) {
        let row = row(fault, shape, out, stop).await?;
        good &= row.is_good();
        if std::mem::take(&mut first) {
            println!("{}", head());
        }
        if args.json {
            println!("{}", serde_json::to_string(&row)?);
        } else {
            println!("{}", line(&row));
        }
        for sentence in row.doubts.iter().chain(&row.broken) {
            eprintln!("    {}: {sentence}", row.fault);
        }
    }
    Ok(good)
}

async fn plain_writes(args: &Args, out: &Path, stop: &mut Stop) -> Result<bool, Failure> {
    let (mut good, mut first) = (true, !args.json);
    for setting in plain::SETTINGS {
        for fault in plain::FAULTS {
            if !args.wants(&setting.with(fault)) {
                continue;
            }
            let row = plain::row(setting, fault, out, stop).await?;
            good &= row.doubts.is_empty();
            if std::mem::take(&mut first) {
                println!("\nplain writes, without the library\n{}", plain::Row::head());
            }
            if args.json {
                println!("{}", serde_json::to_string(&row)?);
            } else {
                println!("{}", row.line());
            }
            for doubt in &row.doubts {
                eprintln!("    {}: {}: {doubt}", row.setting, row.fault);
            }
        }
    }
    Ok(good)
}

async fn row(fault: Fault, shape: Shape, out: &Path, stop: &mut Stop) -> Result<Row, Failure> {
    let file = out.join(format!("table-{}.jsonl", fault.name().replace(' ', "-")));
    let ledger = Ledger::new(&file, StdRng::seed_from_u64(1))?;
    let mut group = Group::up(Shape { groups: fault.groups(), ..shape }, ledger)?;
    fault.prepare(&group).await?;
    group.clients(stop).await?;
    let struck = fault.strike(&mut group, stop).await?;
    // After a cut of the network, the old master remains a master for ten seconds, until the
    // Sentinels make it a replica. With `defeat` (all safety checks are off), rules are broken much
    // earlier.
    let rest = if struck.healed.is_some() && !shape.defeat { 12 } else { 1 };
    stop.wait(Duration::from_secs(rest)).await?;
    let far = if fault.cuts_clients() { group.far() } else { Vec::new() };
    let case = Case {
        fault: fault.name(),
        struck: struck.at,
        healed: struck.healed,
        quiet: fault.is_quiet(),
        window: shape.window(),
        far,
        all_replicas: shape.all_replicas,
        writes_to_old_master: struck.writes_to_old_master,
    };
    let events = group.end().await?;
    let mut row = judge(&case, &events);
    fault.took_place(&case, &events, &mut row);
    Ok(row)
}

fn head() -> String {
    let above =
        ["fault", "wrong", "held", "silent", "known", "grant", "ran out", "to old", "votes"];
    let below = ["", "votes", "twice", "s", "ms", "ms", "", "master", "judged"];
    format!("{}\n{}", cells(above.map(str::to_owned)), cells(below.map(str::to_owned)))
}

fn line(row: &Row) -> String {
    let some = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.0}"));
    let cells = cells([
        row.fault.to_owned(),
        row.wrong_votes.to_string(),
        row.held_twice.to_string(),
        format!("{:.2}", row.seconds_without_grants),
        some(row.reassert_ms),
        some(row.first_grant_ms),
        format!("{}/{}", row.ran_out, row.sitting),
        row.writes_to_old_master.map_or("-".to_owned(), |n| n.to_string()),
        row.votes.to_string(),
    ]);
    format!("{cells}{}", if row.is_good() { "" } else { "  NOT GOOD" })
}

fn cells([first, rest @ ..]: [String; 9]) -> String {
    rest.iter().fold(format!("{first:26}"), |line, cell| format!("{line}{cell:>9}"))
}
