//! Compares the replay of a stored result with one raw `GET`.

use std::time::{Duration, Instant, SystemTime};

use super::Args;
use super::contenders::{Ours, Raw};
use super::row::Row;
use super::server::Server;
use super::stats::{Spread, quantile_us};

pub(crate) async fn measure(args: &Args, runtime: &str) {
    let server = Server::start(&[]);
    let urls = [server.url()];
    let (ours, raw) = (Ours::connect(&urls), Raw::connect(&urls).await);
    let orders = ours.0.idempotency("bench").at_most_once().build();
    let orders = orders.expect("a namespace");
    let born = SystemTime::now();
    let result = "the result of an order: 32 bytes";
    let call = async || {
        let call = orders.key("order-1").created_at(born);
        let done = call.run(|_| async { Ok::<_, String>(result.to_owned()) }).await;
        done.expect("a result").value().is_some()
    };
    assert!(call().await, "executed");
    server.cli(&["set", "raw", result]);
    let span = Duration::from_secs_f64(args.seconds);
    let (mut ratios, mut p50s) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let p50 = async |ours: bool| {
            let (began, mut took) = (Instant::now(), Vec::new());
            while began.elapsed() < span {
                let one = Instant::now();
                let found = if ours { call().await } else { raw.get("raw").await };
                assert!(found, "a result");
                took.push(one.elapsed());
            }
            took.sort_unstable();
            quantile_us(&took, 0.5)
        };
        let (ours, raw) = (p50(true).await, p50(false).await);
        ratios.push(ours / raw);
        p50s.push(ours);
    }
    let (over, p50) = (Spread::of(ratios), Spread::of(p50s).median);
    Row::default()
        .value("runtime", "runtime", runtime)
        .figure("a result replayed p50 µs", "replay_p50_us", 0, p50)
        .spread("over one raw GET", "replay_over_get", 3, over)
        .print(args.json);
}
