//! What receipts cost: ours beside ours as a user that may not ask for the role and so has none.

use std::sync::Arc;
use std::time::Duration;

use super::Args;
use super::case::{Case, run};
use super::contenders::{Contender, Ours};
use super::server::Server;
use super::stats::{Spread, cpu};

/// Alternates the two on the same servers; the ratio is taken per round.
pub(crate) async fn compare(args: &Args, case: Case) {
    let servers: Vec<Server> = (0..case.nodes).map(|_| Server::start(&[])).collect();
    let blind: Vec<String> = servers
        .iter()
        .map(|s| {
            s.cli(&["acl", "setuser", "blind", "on", ">blind", "~*", "&*", "+@all", "-role"]);
            s.url().replace("redis://", "redis://blind:blind@")
        })
        .collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let with: Arc<dyn Contender> = Arc::new(Ours::connect(&urls));
    let without: Arc<dyn Contender> = Arc::new(Ours::connect(&blind));
    let span = Duration::from_secs_f64(args.seconds);
    let spent = || (cpu(std::process::id()), servers.iter().map(|s| cpu(s.pid())).sum::<f64>());
    let mut rows: [Vec<[f64; 3]>; 2] = [Vec::new(), Vec::new()];
    for who in [&with, &without] {
        run(who, "warm", case, &[], span / 4).await;
    }
    for _ in 0..args.rounds {
        for (who, rows) in [&with, &without].into_iter().zip(&mut rows) {
            let before = spent();
            let done = run(who, "receipts", case, &[], span).await;
            let (after, pairs) = (spent(), done.latencies.len() as f64);
            let (client, server) = (after.0 - before.0, after.1 - before.1);
            rows.push([done.per_s, client / pairs, server / pairs]);
        }
    }
    let mid = |rows: &[[f64; 3]], i: usize| Spread::of(rows.iter().map(|r| r[i]).collect()).median;
    let pace = rows[0].iter().zip(&rows[1]).map(|(a, b)| a[0] / b[0]).collect();
    let (a, b) = (&rows[0], &rows[1]);
    println!(
        "{} nodes, {} tasks: with receipts {:.0} pairs/s, without {:.0}, ratio {:.3}; client \
         {:.2} and {:.2} µs a pair, servers {:.2} and {:.2} µs",
        case.nodes,
        case.tasks,
        mid(a, 0),
        mid(b, 0),
        Spread::of(pace).median,
        mid(a, 1),
        mid(b, 1),
        mid(a, 2),
        mid(b, 2)
    );
}
