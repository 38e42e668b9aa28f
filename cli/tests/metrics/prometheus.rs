//! A real Prometheus server. On Debian its package is `prometheus`. `scripts/need prometheus`
//! installs it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::scrape::{ask, wait_for};
use crate::support::server::free_port;

const START: Duration = Duration::from_secs(20);

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs `promtool` with `input` on its standard input. Returns the output of `promtool`.
pub(crate) fn promtool(args: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new("promtool");
    let ran = crate::ground::fed(command.args(args), input);
    let said = format!("{}{}", ran.out, ran.err);
    if ran.code == 0 { Ok(said) } else { Err(said) }
}

/// A Prometheus server. Dropping the value kills the server.
pub(crate) struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts a Prometheus server. It scrapes the targets and evaluates the rules five times a
    /// second.
    pub(crate) fn start(dir: &Path, rules: &str, targets: &[&str]) -> Self {
        let rules_file = dir.join("alerts.yml");
        std::fs::write(&rules_file, rules).expect("a file");
        let mut config = format!(
            "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  \
             evaluation_interval: 200ms\nrule_files: [{:?}]\nscrape_configs:\n  \
             - job_name: palisade\n    static_configs:\n      - targets:\n",
            rules_file.display().to_string()
        );
        for target in targets {
            writeln!(config, "          - {target}").expect("a string");
        }
        let config_file = dir.join("prometheus.yml");
        std::fs::write(&config_file, &config).expect("a file");
        // Another process may take the port before Prometheus starts. Then the test tries another
        // port.
        for _ in 0..5 {
            let address = format!("127.0.0.1:{}", free_port());
            let mut child = Command::new("prometheus")
                .arg(format!("--config.file={}", config_file.display()))
                .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(dir.join("prometheus.log")).expect("a file"))
                .spawn()
                .expect("no `prometheus` here: run `scripts/need prometheus`");
            let end = Instant::now() + START;
            while child.try_wait().expect("a child").is_none() {
                if std::net::TcpStream::connect(&address).is_ok() {
                    let server = Self { child, address };
                    wait_for("prometheus is ready", START, || {
                        (server.get("/-/ready").0 == 200).then_some(())
                    });
                    return server;
                }
                assert!(Instant::now() < end, "prometheus does not listen");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let log = std::fs::read_to_string(dir.join("prometheus.log")).unwrap_or_default();
        panic!("prometheus does not run: {log}");
    }

    fn get(&self, path: &str) -> (u32, String) {
        ask(&self.address, &format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n"))
    }

    fn data(&self, path: &str) -> Option<Value> {
        let (status, body) = self.get(path);
        let body: Value = serde_json::from_str(&body).ok()?;
        assert_eq!((status, &body["status"]), (200, &Value::from("success")), "{path}: {body}");
        Some(body["data"].clone())
    }

    /// Returns the series of a query, each with its labels.
    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in query.bytes() {
            write!(path, "%{byte:02X}").expect("a string");
        }
        let data = self.data(&path).expect("an answer");
        data["result"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the alerts that fire now, each with its label `name` or `kind`.
    pub(crate) fn firing(&self) -> Vec<(String, String)> {
        let data = self.data("/api/v1/alerts").expect("an answer");
        let all = data["alerts"].as_array().cloned().unwrap_or_default();
        let text = |alert: &Value, label: &str| {
            alert["labels"][label].as_str().unwrap_or_default().to_owned()
        };
        let firing = all.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| (text(alert, "alertname"), text(alert, "name"))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
