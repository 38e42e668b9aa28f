//! `palisade doctor` examines only servers that a majority of the Sentinels reports, and keeps to
//! its deadline.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::Settings;
use palisade_ops::Deployment;
use palisade_ops::doctor::{Doctor, Report, Verdict};

use crate::support::fake::{Fake, NAME, View, sentinel};
use crate::support::server::Server;

const PASSWORD: &str = "S3CRETPW";

fn closed() -> Fake {
    Fake::start(|_| b"-WRONGPASS no\r\n".to_vec())
}

async fn examine(sentinels: &[&Fake], within: Duration) -> Report {
    let at: Vec<_> = sentinels.iter().map(|s| s.at.as_str()).collect();
    let group = format!("sentinel://{}/{NAME}", at.join(","));
    let mut settings = Settings::new([group]);
    settings.password = Some(PASSWORD.into());
    settings.sentinel_password = Some(PASSWORD.into());
    let deployment = Deployment::of(settings).timeout(within);
    Doctor::new(deployment).trial(false).examine().await.expect("it makes sense")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_alone_does_not_say_where_to_log_in() {
    let server = Server::start(&[]);
    let lured: Vec<Fake> = (0..4).map(|_| closed()).collect();
    let honest = Arc::new(Mutex::new(View { master: server.addr(), ..View::default() }));
    let liar = View {
        master: lured[0].at.clone(),
        epoch: 99,
        replicas: vec![lured[1].at.clone(), "127.0.0.1;touch${IFS}x:7".into()],
        others: vec![lured[2].at.clone(), lured[3].at.clone()],
        ..View::default()
    };
    let liar = Arc::new(Mutex::new(liar));
    let all = [sentinel('a', &honest), sentinel('b', &honest), sentinel('c', &liar)];
    let [a, b, c] = &all;
    let report = examine(&[a, b, c], Duration::from_secs(2)).await;
    for (i, lured) in lured.iter().enumerate() {
        assert_eq!(lured.connections(), 0, "nobody was to be visited at the address {i}");
        let text = report.to_json();
        assert!(text.contains(&lured.at), "{i} is listed: {report}");
        let commands = report.findings.iter().flat_map(|f| &f.fix);
        let (_, port) = lured.at.rsplit_once(':').expect("host:port");
        let bad: Vec<_> = commands.filter(|m| m.contains(port) || m.contains("touch")).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
    let skipped = |f: &&palisade_ops::doctor::Finding| f.message.contains("not examined");
    let skipped = report.findings.iter().find(skipped).expect("it is said");
    assert_eq!((skipped.check, skipped.verdict), ("unreachable", Verdict::Unknown));
    // The report contains the address of the server that the two honest Sentinels reported.
    assert!(report.to_json().contains(&server.addr()), "{report}");
    // If the user names only one Sentinel, this Sentinel alone is a majority. So the doctor
    // connects to the servers that it reports.
    let _ = examine(&[c], Duration::from_secs(2)).await;
    let visits: Vec<usize> = lured.iter().map(Fake::connections).collect();
    assert!(visits.iter().all(|n| *n > 0), "{visits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_named_servers_do_not_move_the_deadline() {
    let replicas: Vec<String> = (0..5_000).map(|i| format!("127.0.0.1:{}", 20_000 + i)).collect();
    let master = closed();
    let view = View { master: master.at.clone(), replicas, ..View::default() };
    let view = Arc::new(Mutex::new(view));
    let all = [sentinel('a', &view), sentinel('b', &view), sentinel('c', &view)];
    let [a, b, c] = &all;
    let (begun, within) = (Instant::now(), Duration::from_secs(20));
    let report = examine(&[a, b, c], within).await;
    let took = begun.elapsed();
    // The doctor asks all Sentinels at the same time, and then all servers at the same time. One by
    // one, the requests would take hours.
    assert!(took < 4 * within, "{took:?}");
    assert!(master.connections() > 0, "no number of replicas crowds out the master");
    let (text, json) = (report.to_string(), report.to_json());
    assert!(text.contains("not examined") && text.contains("more"), "{text}");
    assert!(json.len() < 400_000, "{} bytes", json.len());
}
