//! One of three Sentinels lies, talks nonsense or says nothing: the other two decide, at once and
//! again and again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use palisade::node::{MinReplicas, SentinelNode};
use palisade::{LockGuard, Redlock};

use crate::support::server::Server;

const NAME: &str = "orders";

/// How a Sentinel lies.
#[derive(Clone, Debug)]
enum Lie {
    /// Names this master under an epoch that grows with every question.
    Master(String),
    /// Answers with what no Sentinel says.
    Nonsense,
    /// Takes questions and answers none.
    Silence,
    /// Names the right master, and Sentinels that do not exist, of which it knows many more.
    Crowd(String),
}

/// Listens until the test ends.
fn liar(lie: Lie) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let at = listener.local_addr().expect("it is bound").to_string();
    let epoch = Arc::new(AtomicU64::new(1_000));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (lie, epoch) = (lie.clone(), epoch.clone());
            std::thread::spawn(move || serve(client, &lie, &epoch));
        }
    });
    at
}

fn serve(mut client: TcpStream, lie: &Lie, epoch: &AtomicU64) {
    let mut asked = BufReader::new(client.try_clone().expect("a socket"));
    while let Some(words) = command(&mut asked) {
        let answer = answer(&words, lie, epoch);
        if client.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The next command, as its words.
fn command(from: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut number = |mark: char| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let n = line.trim_end().strip_prefix(mark)?.parse::<usize>().ok()?;
        if mark == '*' {
            return Some((n, String::new()));
        }
        let mut word = vec![0; n + 2];
        from.read_exact(&mut word).ok()?;
        word.truncate(n);
        Some((n, String::from_utf8(word).ok()?))
    };
    let (n, _) = number('*')?;
    (0..n).map(|_| number('$').map(|(_, word)| word)).collect()
}

fn answer(words: &[String], lie: &Lie, epoch: &AtomicU64) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match (&words[..], lie) {
        (["HELLO", ..], _) => map(&[("server", "redis"), ("mode", "sentinel")]),
        (["SUBSCRIBE", channels @ ..], _) => {
            let reported = channels.iter().enumerate();
            let reported = reported
                .map(|(i, c)| format!(">3\r\n{}{}:{}\r\n", bulk("subscribe"), bulk(c), i + 1));
            reported.collect()
        }
        (["SENTINEL", "MYID"], _) => bulk(&"f".repeat(40)),
        (["SENTINEL", ..], Lie::Silence) => String::new(),
        (["SENTINEL", ..], Lie::Nonsense) => map(&[("ip", "…"), ("ip", "%0")]),
        (["SENTINEL", "MASTER", _], Lie::Master(at)) => master(at, epoch.fetch_add(1, SeqCst), "2"),
        (["SENTINEL", "MASTER", _], Lie::Crowd(at)) => master(at, 0, "1000"),
        (["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _], Lie::Master(at) | Lie::Crowd(at)) => {
            let (host, port) = at.rsplit_once(':').expect("host:port");
            format!("*2\r\n{}{}", bulk(host), bulk(port))
        }
        (["SENTINEL", "SENTINELS", _], Lie::Crowd(_)) => {
            let peer = |i| {
                let (port, id) = (format!("{}", 1 + i), format!("{i:040}"));
                map(&[("ip", "127.0.0.1"), ("port", &port), ("runid", &id)])
            };
            format!("*12\r\n{}", (0..12).map(peer).collect::<String>())
        }
        (["SENTINEL", ..], _) => "*0\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn map(pairs: &[(&str, &str)]) -> String {
    let all: String = pairs.iter().map(|(k, v)| bulk(k) + &bulk(v)).collect();
    format!("%{}\r\n{all}", pairs.len())
}

fn master(at: &str, epoch: u64, others: &str) -> String {
    let (host, port) = at.rsplit_once(':').expect("host:port");
    map(&[
        ("name", NAME),
        ("ip", host),
        ("port", port),
        ("flags", "master"),
        ("config-epoch", &epoch.to_string()),
        ("num-slaves", "0"),
        ("num-other-sentinels", others),
        ("quorum", "2"),
        ("down-after-milliseconds", "30000"),
    ])
}

/// A Sentinel that does not lie.
fn honest(master: &Server) -> Server {
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    let port = master.port().to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", NAME, "127.0.0.1", &port, "2"]), "OK");
    sentinel
}

async fn grant(redlock: &Redlock, name: &str) -> LockGuard {
    let wait = redlock.mutex(name).acquire_timeout(Duration::from_secs(10)).build().unwrap();
    wait.acquire().await.unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_prevents_nothing() {
    let (master, foreign) = (Server::start(&[]), Server::start(&[]));
    let sentinels = [honest(&master), honest(&master)];
    let lies = [
        Lie::Master(foreign.addr()),
        Lie::Master(master.addr()),
        Lie::Nonsense,
        Lie::Silence,
        Lie::Crowd(master.addr()),
    ];
    let trials = lies.into_iter().map(|lie| {
        let all = [liar(lie.clone()), sentinels[0].addr(), sentinels[1].addr()];
        let node =
            SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off).trust_fresh(true);
        let node = node.poll_every(Duration::from_millis(200)).build();
        let node = Arc::new(node.expect("addresses and a range"));
        let (expected, what) = (master.addr(), format!("{lie:?}"));
        async move {
            let redlock = Redlock::builder().node_arc(node.clone()).build().expect("a handle");
            let held = grant(&redlock, &format!("{what} held")).await;
            let begun = Instant::now();
            // Over some polls, because a lie may take effect only once it is remembered.
            while begun.elapsed() < Duration::from_secs(3) {
                drop(grant(&redlock, &what).await);
                let status = node.status();
                assert_eq!(status.master.as_deref(), Some(&*expected), "{what}: {status:?}");
                assert_eq!(status.epoch, Some(0), "{what}: {status:?}");
                assert_eq!(status.last_error, None, "{what}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            held.release().await.unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    });
    futures_util::future::join_all(trials).await;
    assert_eq!(foreign.cli(&["DBSIZE"]), "0", "nothing was ever asked of a foreign master");
}
