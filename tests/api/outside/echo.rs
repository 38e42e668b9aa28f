//! Tests with a fake server that repeats the data that it receives, or sends text that could forge
//! lines of a log.

use std::fmt::{Debug, Write as _};
use std::time::Duration;

use palisade::node::{RedisNode, SentinelNode, spi::LockNode};
use palisade::{Redlock, Settings};
use tracing_subscriber::filter::LevelFilter;

use crate::support::fake::{Fake, bulk};
use crate::support::logs::Log;

const USER: &str = "svc-of-orders";
const PASSWORD: &str = "S3CRETPW~0f#ours";

/// The kinds of misbehaviour of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Echo {
    /// Refuses the login. The error repeats the login.
    Login,
    /// Accepts the login. Every later error repeats the login.
    Later,
    /// Refuses the login. The error repeats only parts of the password.
    Parts,
    /// Sends an error of several lines with escape sequences.
    Lines,
    /// Sends an error of a megabyte.
    Long,
    /// Answers every command with a text that contains the password.
    Text,
    /// Answers every command with a text in the form of `INFO` that contains the password.
    Info,
}

const ALL: [Echo; 7] =
    [Echo::Login, Echo::Later, Echo::Parts, Echo::Lines, Echo::Long, Echo::Text, Echo::Info];

fn server(how: Echo) -> Fake {
    Fake::start(move |words| how.answer(words).into())
}

impl Echo {
    fn answer(self, words: &[&str]) -> String {
        let hello = words[0] == "HELLO";
        match self {
            Self::Login if hello => format!("-ERR what is {}\r\n", words.join(" ")),
            Self::Parts => {
                let parts = (&PASSWORD[..7], &PASSWORD[5..]);
                format!("-ERR {} then {} of {USER}\r\n", parts.0, parts.1)
            }
            Self::Lines => {
                let text = format!("ERR no\r\nFORGED {USER} {PASSWORD}\x1b[2J\u{202e}\u{200b}");
                format!("!{}\r\n{text}\r\n", text.len())
            }
            Self::Long => {
                let text = format!("ERR {}", "long ".repeat(200_000));
                format!("!{}\r\n{text}\r\n", text.len())
            }
            Self::Text if !hello => format!("+{PASSWORD}\r\n"),
            Self::Info if !hello => {
                let lines = ["role", "redis_version", "run_id", "redis_mode", "maxmemory_policy"];
                let all = lines.map(|name| format!("{name}:{PASSWORD}\x1b[2J\r\n")).concat();
                String::from_utf8(bulk(format!("{all}maxmemory:1\r\n"))).expect("text")
            }
            _ if hello => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            _ => format!("-ERR not for {USER} with {PASSWORD}\r\n"),
        }
    }
}

/// Asserts that the text contains no part of the password, and no characters that move a cursor or
/// begin a forged line.
#[track_caller]
fn is_clean(what: &str, text: &str) {
    for part in PASSWORD.as_bytes().windows(4) {
        let part = std::str::from_utf8(part).unwrap();
        let line = text.lines().find(|line| line.contains(part));
        assert_eq!(line, None, "{what}");
    }
    let odd = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{200b}".contains(c);
    let line = text.lines().find(|line| line.contains(odd) || line.trim().starts_with("FORGED"));
    assert_eq!(line, None, "{what}");
}

async fn shown(node: impl LockNode + Debug) -> String {
    let mut all = format!("{node:?}\n");
    let redlock = Redlock::builder().node(node).node_deadline(Duration::from_secs(1));
    let redlock = redlock.build().unwrap();
    let mut events = redlock.events();
    let e = redlock.mutex("m").acquire_timeout(Duration::ZERO).await.expect_err("let in");
    assert!(e.to_string().chars().count() < 1_500, "{} characters", e.to_string().len());
    writeln!(all, "{e}\n{e:?}").unwrap();
    assert!(!all.contains(USER), "the user name is in {all}");
    let calls = redlock.idempotency("n").at_most_once().build().unwrap();
    let e = calls.key("k").run(|_| async { Ok::<_, String>(()) }).await.expect_err("let in");
    writeln!(all, "{e}\n{e:?}").unwrap();
    while let Some(event) = events.try_next() {
        writeln!(all, "{event:?}").unwrap();
    }
    all
}

async fn examined(at: &str) -> String {
    use palisade_ops::Deployment;
    use palisade_ops::doctor::Doctor;
    let login = |url: String| {
        let mut settings = Settings::new([url]);
        settings.username = Some(USER.into());
        settings.password = Some(PASSWORD.into());
        settings.sentinel_username = Some(USER.into());
        settings.sentinel_password = Some(PASSWORD.into());
        Deployment::of(settings).timeout(Duration::from_millis(500))
    };
    let mut all = String::new();
    let lone = login(format!("redis://{at}"));
    let group = login(format!("sentinel://{at}/orders"));
    for deployment in [lone, group] {
        let report = Doctor::new(deployment).examine().await.unwrap();
        writeln!(all, "{report}\n{}", report.to_json()).unwrap();
    }
    all
}

#[tokio::test]
async fn what_was_sent_never_comes_back_into_sight() {
    let log = Log::of_this_thread(LevelFilter::TRACE);
    for how in ALL {
        let server = server(how);
        let url = format!("redis://{}", server.at);
        let node = RedisNode::builder(url).username(USER).password(PASSWORD).build().unwrap();
        is_clean(&format!("{how:?}, a server"), &shown(node).await);
        let node = SentinelNode::builder("orders", [server.at.clone()]);
        let node = node.sentinel_username(USER).sentinel_password(PASSWORD).build().unwrap();
        is_clean(&format!("{how:?}, a Sentinel"), &shown(node).await);
        is_clean(&format!("{how:?}, the doctor"), &examined(&server.at).await);
    }
    let logged = log.text();
    assert!(logged.contains("palisade::node"), "nothing was logged: {logged}");
    is_clean("the log", &logged);
}
