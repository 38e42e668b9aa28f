//! The HTTP pages of the option `--metrics`: their contents, and clients that try to block them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::ground::Ground;
use crate::scrape::{Watched, ask, wait_for};

const SOON: Duration = Duration::from_secs(20);
const SLEEP: [&str; 3] = ["--", "sleep", "120"];
/// A busy machine neither refuses nor loses such a lock.
const PATIENT: [&str; 4] = ["--ttl", "20s", "--node-deadline", "5s"];

fn lock(ground: &Ground) -> Watched {
    Watched::start(ground, &[&["lock", "hidden-name"][..], &PATIENT, &SLEEP].concat())
}

fn held(watched: &Watched) {
    wait_for("it is held", SOON, || {
        (watched.value("palisade_locks_held{name=\"\"}")? > 0.0).then_some(())
    });
}

#[test]
fn a_lock_is_counted_where_it_is_held() {
    let ground = Ground::new();
    let watched = lock(&ground);
    held(&watched);
    let acquired = "palisade_lock_acquires_total{outcome=\"acquired\",name=\"\"}";
    assert_eq!(watched.value(acquired), Some(1.0));
    let (_, text) = watched.get("/metrics");
    assert!(!text.contains("hidden-name"), "the names of locks are no labels");
    assert!(text.contains("palisade_lease_renewal_margin_ratio_bucket"), "no histogram: {text}");
    let (status, body) = watched.get("/healthz");
    assert_eq!((status, body.as_str()), (200, "alive\n"));
}

#[test]
fn a_follower_is_ready_and_a_handle_that_cannot_lock_is_not_and_says_why() {
    let mut ground = Ground::new();
    let elect = [&["elect", "e"][..], &SLEEP].concat();
    let leading = "palisade_election_leading{name=\"e\"}";
    let leader = Watched::start(&ground, &elect);
    wait_for("a leader", SOON, || (leader.value(leading)? > 0.0).then_some(()));
    let follower = Watched::start(&ground, &elect);
    wait_for("a follower", SOON, || (follower.value(leading)? == 0.0).then_some(()));
    for each in [&leader, &follower] {
        let (status, body) = each.get("/readyz");
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("locks: yes"), "{body}");
    }
    ground.server.kill();
    let why = wait_for("it is not ready", SOON, || {
        let (status, body) = follower.get("/readyz");
        (status == 503).then_some(body)
    });
    assert!(why.contains("locks: no") && why.contains("cannot connect"), "{why}");
    assert_eq!(follower.get("/healthz").0, 200, "a restart would not help");
}

#[test]
fn cron_says_what_became_of_its_ticks() {
    let ground = Ground::new();
    let cron = Watched::start(&ground, &["cron", "* * * * * *", "job", "--", "true"]);
    let done = "palisade_cron_ticks_total{outcome=\"done\",name=\"job\"}";
    wait_for("ticks", SOON, || (cron.value(done)? >= 2.0).then_some(()));
}

#[test]
fn wrong_requests_are_answered_and_strange_ones_end() {
    let ground = Ground::new();
    let watched = lock(&ground);
    let address = &watched.address;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("HEAD /healthz HTTP/1.1\r\n\r\n", 200),
        ("GET /healthz?verbose HTTP/1.0\r\n\r\n", 200),
        ("GET /healthz\r\n\r\n", 400),
        ("\u{0}\u{1}\u{2}\r\n\r\n", 400),
    ] {
        assert_eq!(ask(address, request).0, status, "{request:?}");
    }
    assert_eq!(ask(address, "HEAD /healthz HTTP/1.1\r\n\r\n").1, "");
    // The request line never ends. The server does not read all of it.
    let endless = format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 22));
    assert!(matches!(ask(address, &endless).0, 0 | 431));
    assert_eq!(watched.get("/healthz").0, 200);
}

#[test]
fn clients_that_send_nothing_keep_no_other_one_from_an_answer_and_do_not_pile_up() {
    let ground = Ground::new();
    let watched = lock(&ground);
    held(&watched);
    // `palisade` starts its command just after it has the lock, so the test waits a little.
    std::thread::sleep(Duration::from_millis(300));
    let descriptors =
        || std::fs::read_dir(format!("/proc/{}/fd", watched.pid())).expect("it runs").count();
    let before = descriptors();
    let mut silent = Vec::new();
    for _ in 0..10 {
        for n in 0..30 {
            let mut stream = TcpStream::connect(&watched.address).expect("it listens");
            // Some clients send the beginning of a request and then nothing more.
            if n % 2 == 0 {
                let _ = stream.write_all(b"GET /met");
            }
            silent.push(stream);
        }
        assert_eq!(watched.get("/healthz").0, 200);
        assert_eq!(watched.get("/readyz").0, 200);
    }
    // New connections replace older connections.
    wait_for("most are closed", SOON, || (descriptors() <= before + 64).then_some(()));
    // The remaining connections are closed at their deadline.
    for mut stream in silent {
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let mut byte = [0];
        let read = stream.read(&mut byte);
        assert!(!matches!(read, Ok(1)), "an answer to no question");
        let waited = matches!(&read, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!waited, "it is still open");
    }
    wait_for("all are closed", SOON, || (descriptors() <= before + 1).then_some(()));
}

#[test]
fn a_web_page_whose_name_resolves_to_this_machine_reads_nothing() {
    let ground = Ground::new();
    let lock = ["lock", "a", "--metrics-host", "prober.internal"];
    let watched = Watched::start(&ground, &[&lock[..], &PATIENT, &SLEEP].concat());
    let status = |host: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        ask(&watched.address, &request)
    };
    for host in
        ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "\u{e9}"]
    {
        let (code, body) = status(host);
        assert_eq!(code, 421, "{host:?}: {body}");
        assert!(body.contains("--metrics-host") && !body.contains("palisade_"), "{body}");
    }
    for host in ["127.0.0.1", "[::1]:80", "LOCALHOST:9464", "prober.internal"] {
        assert_eq!(status(host).0, 200, "{host:?}");
    }
}

#[test]
fn an_address_that_others_reach_is_warned_of() {
    let ground = Ground::new();
    let lock = |address: &str| ground.run(&["lock", "a", "--metrics", address, "--", "true"]);
    let (open, closed) = (lock("0.0.0.0:0"), lock("127.0.0.1:0"));
    assert_eq!((open.code, closed.code), (0, 0), "{}", open.err);
    assert!(open.err.contains("without a login"), "{}", open.err);
    assert!(!closed.err.contains("without a login"), "{}", closed.err);
}

#[test]
fn an_address_that_cannot_be_had_is_wrong_use() {
    let ground = Ground::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let run = ground.run(&["lock", "a", "--metrics", &address, "--", "true"]);
    assert_eq!(run.code, 64, "{}", run.err);
    assert!(run.err.contains("--metrics") && run.err.contains(&address), "{}", run.err);
    let run = ground.run(&["lock", "a", "--metrics", "nonsense", "--", "true"]);
    assert_eq!(run.code, 64, "{}", run.err);
}
