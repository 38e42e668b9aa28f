//! Kinds of misbehaviour of a fake server. Each kind is possible in each phase of its conversation
//! with a client.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::sleep;

use crate::fake::{Command, bulk, message};

/// Behaviour of a bad server in place of the right reply.
#[derive(Debug)]
pub(crate) enum Action {
    /// Sends these bytes instead of the right reply.
    Send(Vec<u8>),
    /// Passes the command and the right reply to this function, and sends its result.
    Twist(fn(&Command, &[u8]) -> Vec<u8>),
    /// Closes the connection. With `half`, sends half of the right reply first. With `reset`,
    /// closes the connection by a TCP reset.
    HangUp { half: bool, reset: bool },
    /// Sends no more bytes, and keeps the connection open.
    Silence,
    /// Sends the right reply byte by byte, with this pause in between.
    Slow(Duration),
    /// Sends `head`, and then repeats `piece` without end. The first `burst` bytes are sent at full
    /// speed, the others slowly.
    Flood { head: Vec<u8>, piece: Vec<u8>, burst: usize },
    /// Sends `head`, and then repeats `piece` without end, with a short pause after each piece.
    Drip { head: Vec<u8>, piece: Vec<u8> },
}

#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) action: Action,
    /// True if the sent bytes contain the right reply, so a client may accept them.
    pub(crate) honest: bool,
    /// True if this kind needs many resources. Such a kind runs only in a few phases of the
    /// conversation between client and server.
    pub(crate) rare: bool,
}

/// Result of one misbehaviour: true if the connection to the client stays open.
pub(crate) type Strike = io::Result<bool>;

impl Kind {
    pub(crate) async fn strike(
        &self,
        to: &mut OwnedWriteHalf,
        command: &Command,
        honest: &[u8],
    ) -> Strike {
        match &self.action {
            Action::Send(bytes) => to.write_all(bytes).await?,
            Action::Twist(twist) => to.write_all(&twist(command, honest)).await?,
            Action::HangUp { half, reset } => {
                let sent = if *half { &honest[..honest.len() / 2] } else { &[] };
                to.write_all(sent).await?;
                if *reset {
                    // A socket with unread bytes and a linger time of zero sends a reset when it
                    // closes.
                    to.as_ref().set_zero_linger()?;
                }
                return Ok(false);
            }
            Action::Silence => std::future::pending().await,
            Action::Slow(pause) => {
                for byte in honest {
                    to.write_all(&[*byte]).await?;
                    sleep(*pause).await;
                }
            }
            Action::Flood { head, piece, burst } => {
                to.write_all(head).await?;
                let mut sent = 0;
                loop {
                    to.write_all(piece).await?;
                    sent += piece.len();
                    if sent >= *burst {
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            Action::Drip { head, piece } => {
                to.write_all(head).await?;
                loop {
                    to.write_all(piece).await?;
                    sleep(Duration::from_millis(5)).await;
                }
            }
        }
        Ok(true)
    }
}

pub(crate) fn all() -> Vec<Kind> {
    let mut all = Vec::new();
    let mut add = |name: &str, action: Action| {
        all.push(Kind { name: name.to_owned(), action, honest: false, rare: false });
    };
    for half in [false, true] {
        for reset in [false, true] {
            add(&format!("hangs up: half {half}, reset {reset}"), Action::HangUp { half, reset });
        }
    }
    add("silence", Action::Silence);
    add("a byte a second", Action::Slow(Duration::from_secs(1)));
    for (name, text) in TEXTS {
        add(name, Action::Send(text.as_bytes().to_vec()));
    }
    for (name, bytes) in BYTES {
        add(name, Action::Send(bytes.to_vec()));
    }
    for code in CODES {
        add(&format!("error {code}"), Action::Send(format!("-{code} no\r\n").into_bytes()));
    }
    for (name, mark) in [("arrays", "*"), ("attributes", "|"), ("maps", "%"), ("sets", "~")] {
        add(
            &format!("{name} in each other"),
            Action::Send(format!("{mark}1\r\n").repeat(50_000).into()),
        );
        let few = format!("{}:1\r\n", format!("{mark}1\r\n").repeat(15));
        add(&format!("a few {name} in each other"), Action::Send(few.into()));
    }
    let long = |n: usize| format!("-ERR {}\r\n", "x".repeat(n));
    add("a long error", Action::Send(long(60_000).into()));
    add("a longer error", Action::Send(long(1_000_000).into()));
    add("a long code", Action::Send(format!("-{} no\r\n", "Z".repeat(60_000)).into()));
    add(
        "a forged log line",
        Action::Send(blob_error("ERR no\n2026 ERROR forged\x1b[31m\x07").into()),
    );
    add("a hidden line", Action::Send(blob_error("ERR no\u{202e}\u{200b}\u{2028}hidden").into()));
    floods(&mut add);
    twists(&mut all);
    let text = blob_error(&long(900_000)).into_bytes();
    let action = Action::Send(text);
    all.push(Kind { name: "a long error as a text".to_owned(), action, honest: false, rare: true });
    all.push(many("many values"));
    all
}

/// Returns the kinds of bad servers that reply to a batch with as many bytes as a client accepts.
pub(crate) fn largest() -> Vec<Kind> {
    let (head, piece) = (b"$9999990\r\n".to_vec(), vec![b'a'; 1 << 16]);
    let action = Action::Flood { head, piece, burst: 12 << 20 };
    let text = Kind { name: "as large as may be".to_owned(), action, honest: false, rare: false };
    vec![text, many("as many as may be")]
}

fn many(name: &str) -> Kind {
    let (head, piece) = (b"*65000\r\n".to_vec(), b"_\r\n".repeat(4096));
    let action = Action::Flood { head, piece, burst: 1 << 20 };
    Kind { name: name.to_owned(), action, honest: false, rare: true }
}

fn blob_error(text: &str) -> String {
    format!("!{}\r\n{text}\r\n", text.len())
}

fn floods(add: &mut impl FnMut(&str, Action)) {
    let flood =
        |head: &[u8], piece: Vec<u8>| Action::Flood { head: head.to_vec(), piece, burst: 300_000 };
    let text = || vec![b'a'; 1 << 16];
    add("a line without end", flood(b"+", text()));
    add("an error without end", flood(b"-ERR ", text()));
    add("a text without end", flood(b"$9223372036854775807\r\n", text()));
    add("a negative text without end", flood(b"=-1\r\n", text()));
    add("values without end", flood(b"*9223372036854775807\r\n", b"_\r\n".repeat(700)));
    add("answers without end", flood(b"", b":1\r\n".repeat(500)));
    add("a hidden answer without end", flood(b"!-1\r\n", b":1\r\n".repeat(500)));
    let hint = message("palisade:changed", "held");
    add("hints without end", flood(b"", hint.repeat(30)));
    add("hints of long names without end", flood(b"", message("palisade:changed", text())));
    let event = message("+sdown", "master orders 127.0.0.1 1");
    add("events without end", flood(b"", event.repeat(30)));
    add("unknown pushes without end", flood(b"", b">2\r\n+x\r\n:1\r\n".repeat(100)));
    add(
        "pushes in attributes without end",
        flood(b"", b"|1\r\n+a\r\n:1\r\n>1\r\n+x\r\n".repeat(60)),
    );
    let drip =
        |head: &[u8], piece: &[u8]| Action::Drip { head: head.to_vec(), piece: piece.to_vec() };
    add("drips of a text", drip(b"$1000000\r\n", b"a"));
    add("drips of values", drip(b"*60000\r\n", b":1\r\n"));
    add("drips of a line", drip(b"+", b"a"));
    add("drips of pushes", drip(b"", b">2\r\n+x\r\n:1\r\n"));
    add("drips of hints", drip(b"", &hint));
}

/// Returns all words of the command as the reply, including the password.
fn echo(command: &Command) -> Vec<u8> {
    command.join(&b' ')
}

fn twists(all: &mut Vec<Kind>) {
    let mut add = |name: &str, honest: bool, twist: fn(&Command, &[u8]) -> Vec<u8>| {
        all.push(Kind { name: name.to_owned(), action: Action::Twist(twist), honest, rare: false });
    };
    add("echoes it as an error", false, |c, _| {
        let text = String::from_utf8_lossy(&echo(c)).replace(['\r', '\n'], " ");
        let text: String = text.chars().take(5_000).collect();
        format!("-ERR wrong arguments: {text}\r\n").into_bytes()
    });
    add("echoes it as it is", false, |c, _| {
        let text = [b"ERR wrong ", &echo(c)[..]].concat();
        [format!("!{}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat()
    });
    add("echoes it as a code", false, |c, _| {
        let text = String::from_utf8_lossy(&echo(c)).replace([' ', '\r', '\n'], "_");
        let text: String = text.chars().take(5_000).collect();
        format!("-{text}\r\n").into_bytes()
    });
    add("echoes it as a value", false, |c, _| bulk(echo(c)));
    add("echoes it as garbage", false, |c, _| [b"*1\r\n:", &echo(c)[..], b"\r\n"].concat());
    add("answers twice", true, |_, honest| honest.repeat(2));
    add("answers with more", true, |_, h| [h, &b":1\r\n".repeat(50)].concat());
    add("answers others first", false, |_, h| [&b":1\r\n".repeat(50), h].concat());
    add("answers behind pushes", true, |_, h| {
        [&message("palisade:changed", "held").repeat(300), h].concat()
    });
    add("answers with attributes", true, |_, h| [b"|1\r\n+a\r\n+b\r\n", h].concat());
    add("answers in an array", false, |_, h| [b"*1\r\n", h].concat());
    add("answers with one too many", false, |_, h| match h {
        [b'*', ..] => {
            let end = h.iter().position(|b| *b == b'\n').unwrap_or(0);
            let count: usize = std::str::from_utf8(&h[1..end - 1]).unwrap().parse().unwrap();
            [format!("*{}\r\n", count + 1).as_bytes(), &h[end + 1..], b":1\r\n"].concat()
        }
        _ => [b"*2\r\n", h, b":1\r\n"].concat(),
    });
}

const CODES: &[&str] = &[
    "ERR",
    "MOVED",
    "ASK",
    "LOADING",
    "BUSY",
    "MISCONF",
    "OOM",
    "NOSCRIPT",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "EXECABORT",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "UNKILLABLE",
    "UNBLOCKED",
    "HANDOVER",
    "NOSUB",
    "NOTBUSY",
    "WRONGTYPE",
    "NOPROTO",
    "IOERR",
    "PALISADE",
];

const TEXTS: &[(&str, &str)] = &[
    ("a text of 2^31", "$2147483648\r\nabc"),
    ("a text of 2^63", "$9223372036854775807\r\nabc"),
    ("a text of too many digits", "$99999999999999999999999\r\n"),
    ("a text of less than nothing", "$-5\r\n"),
    ("values of 2^31", "*2147483647\r\n"),
    ("values of 2^63", "*9223372036854775807\r\n"),
    ("values of less than nothing", "*-7\r\n"),
    ("pairs of 2^63", "%9223372036854775807\r\n"),
    ("attributes of 2^63", "|9223372036854775807\r\n"),
    ("a push of 2^63", ">9223372036854775807\r\n"),
    ("a set of 2^63", "~9223372036854775807\r\n"),
    ("many announced in each other", "*4000\r\n*4000\r\n*4000\r\n*4000\r\n*4000\r\n*4000\r\n"),
    ("hidden values of 2^63", "+a\n$22\r\nx\r\n*9223372036854775807\r\n\r\n"),
    ("a number", ":5\r\n"),
    ("the largest number", ":9223372036854775807\r\n"),
    ("the smallest number", ":-9223372036854775808\r\n"),
    ("a number that is too large", ":99999999999999999999\r\n"),
    ("nothing", "$-1\r\n"),
    ("null", "_\r\n"),
    ("an empty text", "$0\r\n\r\n"),
    ("OK", "+OK\r\n"),
    ("no values", "*0\r\n"),
    ("no pairs", "%0\r\n"),
    ("a truth", "#t\r\n"),
    ("not a number", ",nan\r\n"),
    ("infinity", ",inf\r\n"),
    ("a push", ">2\r\n+foo\r\n+bar\r\n"),
    ("an empty push", ">0\r\n"),
    ("a push without a name", ">2\r\n:1\r\n:2\r\n"),
    ("an empty error", "-\r\n"),
    ("an old server", "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' \r\n"),
    ("another protocol", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    ("values of all types", "*6\r\n:1\r\n$1\r\na\r\n*0\r\n_\r\n#t\r\n,1.5\r\n"),
    (
        "large numbers",
        "*6\r\n:9007199254740993\r\n:-1\r\n:9223372036854775807\r\n:1\r\n:1\r\n:1\r\n",
    ),
];

const BYTES: &[(&str, &[u8])] = &[
    ("a text that is none", b"$4\r\n\xff\xfe\x00\x01\r\n"),
    ("an error that is no text", b"-ERR \xff\xfe\r\n"),
    ("a line that is no text", b"+\xff\xfe\r\n"),
    ("a TLS record", b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    ("zeros", &[0; 5_000]),
];
