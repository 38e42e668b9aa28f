//! No output contains a password, for any answer of the server: neither an error, nor `Debug`, nor
//! the log of a failed login. The tests use data servers and Sentinels, with builders and with
//! URLs.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::Duration;

use palisade::node::{MinReplicas, RedisNode, SentinelNode, spi::LockNode};
use palisade::{Config, Redlock};
use tracing_subscriber::filter::LevelFilter;

use crate::support::logs::Log;
use crate::support::server::{Server, free_port};

/// The password as plain text, and its form in a URL.
const SECRET: &str = "s3cr3t/of ours";
const IN_URL: &str = "s3cr3t%2Fof%20ours";
/// A part of both forms. Any output with one of the forms contains this part.
const NEEDLE: &str = "s3cr3t";

#[derive(Default)]
struct Shown(String);

impl Shown {
    fn debug(&mut self, what: &dyn Debug) {
        writeln!(self.0, "{what:?}\n{what:#?}").unwrap();
    }

    /// Collects all output about a node whose login fails.
    async fn failing(&mut self, node: impl LockNode + Debug) -> String {
        self.debug(&node);
        let node = Arc::new(node);
        let (deadline, ttl) = (Duration::from_secs(2), Duration::from_secs(20));
        let redlock = Redlock::builder().node_arc(node.clone()).ttl(ttl).node_deadline(deadline);
        self.debug(&redlock);
        let redlock = redlock.build().unwrap();
        self.debug(&redlock);
        let _: &Config = redlock.config();
        let mut events = redlock.events();
        let e = redlock.mutex("m").build().unwrap().try_acquire().await.expect_err("let in");
        self.debug(&e);
        let reported = e.to_string();
        writeln!(self.0, "{e}").unwrap();
        let calls = redlock.idempotency("n").at_most_once().build().unwrap();
        let e = calls.key("k").run(|_| async { Ok::<_, String>(()) }).await.expect_err("let in");
        writeln!(self.0, "{e} {e:?}").unwrap();
        let e = redlock.election("e").build().unwrap().leader().await.expect_err("let in");
        writeln!(self.0, "{e} {e:?}").unwrap();
        self.debug(&redlock.metrics());
        while let Some(event) = events.try_next() {
            self.debug(&event);
        }
        reported
    }
}

/// Starts servers that refuse a login in different ways. Returns each server with a text that its
/// error must contain.
fn refusing() -> Vec<(Server, &'static str)> {
    vec![
        (Server::start(&["--requirepass", "another"]), "WRONGPASS"),
        // The error of this server repeats the whole command with the password.
        (Server::start(&["--rename-command", "HELLO", ""]), "no command renamed"),
        (
            Server::start(&["--rename-command", "HELLO", "", "--rename-command", "AUTH", ""]),
            "no command renamed",
        ),
    ]
}

#[tokio::test]
async fn a_password_is_never_shown() {
    let log = Log::of_this_thread(LevelFilter::TRACE);
    let mut shown = Shown::default();
    for (server, reason) in &refusing() {
        let url = server.url();
        let builder = RedisNode::builder(&url).password(SECRET);
        shown.debug(&builder);
        let reported = shown.failing(builder.build().unwrap()).await;
        println!("{reported}");
        assert!(reported.contains(reason), "{reason:?} in {reported:?}");
        let addr = server.addr();
        for user in ["", "joe"] {
            let url = format!("redis://{user}:{IN_URL}@{addr}/0");
            let builder = RedisNode::builder(&url);
            shown.debug(&builder);
            shown.failing(builder.build().unwrap()).await;
        }
        let url = format!("unix://{}?user=joe&pass={IN_URL}", server.socket().display());
        shown.failing(RedisNode::new(url).unwrap()).await;
    }
    let nobody = format!("redis://joe:{IN_URL}@127.0.0.1:{}", free_port());
    shown.failing(RedisNode::new(nobody).unwrap()).await;

    let master = Server::start(&["--requirepass", "another"]);
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    let port = master.port().to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", "orders", "127.0.0.1", &port, "1"]), "OK");
    let group = |at: String| {
        let node = SentinelNode::builder("orders", [at]).min_replicas_check(MinReplicas::Require);
        node.sentinel_deadline(Duration::from_millis(500))
    };
    for (to_data, to_sentinels) in [(true, false), (false, true), (true, true)] {
        for at in [sentinel.addr(), master.addr(), format!("127.0.0.1:{}", free_port())] {
            let mut node = group(at);
            if to_data {
                node = node.username("joe").password(SECRET);
            }
            if to_sentinels {
                node = node.sentinel_username("joe").sentinel_password(SECRET);
            }
            shown.debug(&node);
            let node = node.build().unwrap();
            shown.debug(&node.status());
            let node = Arc::new(node);
            let redlock = Redlock::builder().node_arc(node.clone()).build().unwrap();
            let e = redlock.mutex("m").build().unwrap().try_acquire().await.expect_err("let in");
            writeln!(shown.0, "{e} {e:?}").unwrap();
            shown.debug(&node);
            shown.debug(&node.status());
        }
    }
    // These addresses are invalid, and the error comes before anything is sent.
    for bad in ["redis://joe:PW@h:99999", "http://joe:PW@h", "redis://joe:PW@h/x", "redis://:PW"] {
        let e = RedisNode::new(bad.replace("PW", SECRET)).unwrap_err();
        writeln!(shown.0, "{e} {e:?}").unwrap();
    }
    let e = SentinelNode::new("orders", [format!("joe:{SECRET}@h:1")]).unwrap_err();
    writeln!(shown.0, "{e} {e:?}").unwrap();

    let logged = log.text();
    assert!(logged.contains("palisade::node"), "nothing was logged: {logged}");
    for (what, text) in [("shown", &shown.0), ("logged", &logged)] {
        let line = text.lines().find(|l| l.contains(NEEDLE));
        assert_eq!(line, None, "the password was {what}");
    }
}
