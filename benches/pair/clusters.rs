//! A cluster of three masters, compared with three lone masters behind three handles, each of which
//! has a third of the names. With one task also a lone caller on a cluster and on a single server.

use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use palisade::Redlock;
use palisade::node::ClusterNode;

use super::Args;
use super::case::{Case, Run, run};
use super::cluster::Cluster;
use super::contenders::{Contender, Ours, TTL};
use super::row::Row;
use super::server::Server;
use super::stats::{Spread, quantile_us};

const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Three handles, each with a server of its own.
struct Handles([Ours; 3]);

impl Contender for Handles {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.0[(hasher.finish() % 3) as usize].pair(name)
    }
}

fn on_cluster(cluster: &Cluster) -> Arc<dyn Contender> {
    let node = ClusterNode::builder(cluster.addresses()).trust_fresh(true).build();
    let redlock = Redlock::builder().ttl(TTL).node(node.expect("a node")).build();
    Arc::new(Ours(redlock.expect("a handle")))
}

pub(crate) async fn measure(args: &Args, runtime: &str) {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0, NODE_TIMEOUT));
    let lone: Vec<Server> = (0..3).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = lone.iter().map(Server::url).collect();
    for tasks in [1, 8, 64, 512] {
        if args.tasks.is_some_and(|only| only != tasks) {
            continue;
        }
        let handle = |n: usize| Ours::connect(&urls[n..=n]);
        let others: Arc<dyn Contender> = if tasks == 1 {
            Arc::new(handle(0))
        } else {
            Arc::new(Handles([handle(0), handle(1), handle(2)]))
        };
        let all = [(on_cluster(&cluster), &cluster.servers), (others, &lone)];
        let case = Case { nodes: 3, tasks, frozen: false, delay: Duration::ZERO };
        let span = Duration::from_secs_f64(args.seconds);
        let mut rounds = Vec::new();
        // The first round warms up.
        for round in 0..=args.rounds {
            let mut of = [const { None::<Run> }; 2];
            for n in 0..2 {
                let n = (n + round) % 2;
                let (who, servers) = &all[n];
                of[n] = Some(run(who, "pair", case, servers, span).await);
            }
            rounds.push(of.map(|run| run.expect("both ran")));
        }
        row(args, (runtime, tasks), &rounds[1..]);
    }
}

fn row(args: &Args, (runtime, tasks): (&str, usize), rounds: &[[Run; 2]]) {
    let over =
        |of: fn(&Run) -> f64| Spread::of(rounds.iter().map(|r| of(&r[0]) / of(&r[1])).collect());
    let median = |of: fn(&Run) -> f64, n: usize| {
        Spread::of(rounds.iter().map(|r| of(&r[n])).collect()).median
    };
    let other = if tasks == 1 { "one server" } else { "three handles" };
    Row::default()
        .value("runtime", "runtime", runtime)
        .value("tasks", "tasks", tasks)
        .value("beside", "beside", other)
        .figure("cluster's pairs/s", "cluster_pairs_per_s", 0, median(|r| r.per_s, 0))
        .figure("pairs/s", "other_pairs_per_s", 0, median(|r| r.per_s, 1))
        .spread("over", "cluster_over_other", 3, over(|r| r.per_s))
        .spread("p50 over", "p50_over_other", 3, over(Run::p50))
        .figure("p50 µs", "cluster_p50_us", 0, median(Run::p50, 0))
        .figure("p99 µs", "cluster_p99_us", 0, median(|r| quantile_us(&r.latencies, 0.99), 0))
        .print(args.json);
}
