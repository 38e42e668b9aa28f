//! The option `--metrics` serves the counters and the health of a long-running command. A
//! monitoring system reads them.

mod server;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use palisade::Election;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use self::server::Pages;
use crate::codes::{Fail, INTERNAL, USAGE};
use crate::verbs::{Ground, GroundArgs};

/// Histogram buckets for times, in seconds. A round trip on one machine takes about a millisecond.
/// A lease lasts from a few seconds to a day.
const SECONDS: &[f64] = &[
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0,
    60.0, 300.0, 3_600.0,
];
/// Histogram buckets for fractions of a ttl.
const RATIO: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Interval of the exporter's upkeep. The upkeep empties the histograms' buffers. It also runs
/// without scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Options of the monitoring pages.
#[derive(Clone, Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Serve /metrics (Prometheus), /healthz and /readyz at this address, without login; port 0:
    /// any
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Monitoring")]
    metrics: Option<SocketAddr>,
    /// Host name that requests for the pages may use, besides addresses and localhost
    #[arg(long, value_name = "NAME", help_heading = "Monitoring", requires = "metrics")]
    metrics_host: Vec<String>,
}

impl MetricsArgs {
    /// Creates the handle (the client of the nodes) and the other common parts of a command. If
    /// `--metrics` is given, also serves the HTTP pages with the metrics and the health.
    pub(crate) async fn ground(&self, args: GroundArgs) -> Result<Ground, Fail> {
        let Some(address) = self.metrics else { return args.ground() };
        let failed = |e: std::io::Error| Fail::new(USAGE, format!("--metrics {address}: {e}"));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // Install the recorder first. A handle (client of the nodes) uses only a recorder that
        // exists when the handle is built.
        let counted = install().map_err(|e| Fail::new(INTERNAL, format!("no metrics: {e}")))?;
        let ground = args.ground()?;
        let url = format!("http://{address}/metrics");
        ground.say.warn("metrics", json!({ "url": url }), &format!("metrics at {url}"));
        if !address.ip().is_loopback() {
            let text = format!(
                "--metrics {address}: whoever reaches this address can read the pages, without a \
                 login; use 127.0.0.1, or an address that only the monitoring reaches"
            );
            ground.say.warn("metrics_open", json!({ "address": address.to_string() }), &text);
        }
        tokio::spawn(upkeep(counted.clone()));
        let (redlock, hosts) = (ground.redlock.clone(), self.metrics_host.clone());
        let pages = Pages { counted, redlock, hosts, health: Mutex::default() };
        tokio::spawn(server::serve(listener, pages));
        Ok(ground)
    }

    /// Observes the election if `--metrics` is given. The observer counts the time without a
    /// leader.
    pub(crate) fn watch(&self, election: &Election) {
        if self.metrics.is_some() {
            let mut observer = election.observe();
            tokio::spawn(async move { while observer.next().await.is_some() {} });
        }
    }
}

fn install() -> Result<PrometheusHandle, BuildError> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_ratio".to_owned()), RATIO)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(BuildError::FailedToSetGlobalRecorder)?;
    Ok(handle)
}

async fn upkeep(counted: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        counted.run_upkeep();
    }
}
