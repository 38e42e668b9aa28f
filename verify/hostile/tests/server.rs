//! A fake data server that replies correctly, except in one phase of its conversation with a
//! client.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fake::{Command, Fake, array, bulk, command, integer, map, ok, subscribed};
use crate::kinds::Kind;

/// Phase of a conversation in which a server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Connect,
    Hello,
    Client,
    InfoServer,
    InfoReplication,
    InfoMemory,
    Role,
    Load,
    /// A batch without ops. A client sends it to create the marker (the key with the server's data
    /// history), to read the clock, or as a heartbeat.
    Greeting,
    Batch,
    BarrierWrite,
    Wait,
    Subscribe,
    /// The time after the reply to a subscription.
    Pushes,
    /// The time after the reply to a batch.
    Idle,
    /// A request that only the doctor (`palisade doctor`) sends. The next four phases are such
    /// requests, too.
    Time,
    Info,
    Marker,
    Config,
    Acl,
    /// A request that only Sentinels receive. The next five variants are such requests, too.
    MyId,
    Master,
    Address,
    Peers,
    Replicas,
    Quorum,
}

/// Correct replies of a fake server.
pub(crate) trait Honest: Send + Sync + 'static {
    /// Returns the phase of the conversation to which a command belongs, and the correct reply.
    fn answer(&self, command: &Command) -> (Phase, Vec<u8>);
}

/// A listener that replies correctly, except in one phase of its talk with a client. Dropping this
/// value closes the listener.
pub(crate) struct Server {
    fake: Fake,
    pub(crate) at: String,
    shared: Arc<Shared>,
}

struct Shared {
    honest: Box<dyn Honest>,
    /// Phase of the conversation in which the server misbehaves, and kind of the misbehaviour.
    /// `None` for an honest server.
    wrong: Option<(Phase, Arc<Kind>)>,
    struck: AtomicUsize,
}

impl Server {
    pub(crate) fn start(honest: impl Honest, wrong: Option<(Phase, Arc<Kind>)>) -> Self {
        let honest = Box::new(honest);
        let shared = Arc::new(Shared { honest, wrong, struck: AtomicUsize::new(0) });
        let ours = Arc::clone(&shared);
        let fake = Fake::serve(move |socket| serve(socket, Arc::clone(&ours)));
        Self { at: fake.at.clone(), fake, shared }
    }

    /// Returns the number of times that the server misbehaved.
    pub(crate) fn struck(&self) -> usize {
        self.shared.struck.load(Relaxed)
    }

    /// Returns the number of connections that the server has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.fake.connections()
    }
}

async fn serve(socket: TcpStream, shared: Arc<Shared>) -> Option<()> {
    socket.set_nodelay(true).ok()?;
    let (from, mut to) = socket.into_split();
    let mut from = BufReader::new(from);
    let wrong = |phase: Phase| match &shared.wrong {
        Some((at, kind)) if *at == phase => {
            shared.struck.fetch_add(1, Relaxed);
            Some(Arc::clone(kind))
        }
        _ => None,
    };
    if let Some(kind) = wrong(Phase::Connect) {
        kind.strike(&mut to, &vec![b"PING".to_vec()], b"+PONG\r\n").await.ok().filter(|on| *on)?;
    }
    let mut behind = None;
    loop {
        if let Some(phase) = behind.take() {
            let quiet = timeout(Duration::from_millis(30), from.fill_buf()).await.is_err();
            match wrong(phase).filter(|_| quiet) {
                Some(kind) => {
                    let asked = vec![b"PING".to_vec()];
                    kind.strike(&mut to, &asked, b":1\r\n").await.ok().filter(|on| *on)?;
                }
                None if !quiet => behind = Some(phase),
                None => {}
            }
        }
        let asked = command(&mut from).await?;
        let (phase, answer) = shared.honest.answer(&asked);
        if let Some(kind) = wrong(phase) {
            kind.strike(&mut to, &asked, &answer).await.ok().filter(|on| *on)?;
            continue;
        }
        to.write_all(&answer).await.ok()?;
        match phase {
            Phase::Subscribe => behind = Some(Phase::Pushes),
            Phase::Batch => behind = Some(Phase::Idle),
            _ => {}
        }
    }
}

/// A fake master with one replica. It grants every lock except [`TAKEN`], once it has the script.
pub(crate) struct DataServer {
    run_id: String,
    has_script: AtomicBool,
    marker: Mutex<String>,
    writes: Mutex<u64>,
}

/// Data history of every data server.
const HISTORY: &str = "0123456789abcdef0123456789abcdef01234567";

impl DataServer {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        let run_id = format!("{:040x}", COUNT.fetch_add(1, Relaxed));
        let has_script = AtomicBool::new(false);
        Self { run_id, has_script, marker: Mutex::default(), writes: Mutex::default() }
    }

    fn info(&self, section: &str) -> String {
        let server = format!(
            "redis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:{}\r\n\
             uptime_in_seconds:99999\r\n",
            self.run_id
        );
        let none = "0".repeat(40);
        let replication = format!(
            "role:master\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:1\r\n\
             slave0:ip=127.0.0.1,port=1,state=online,offset=100,lag=0\r\n\
             master_replid:{HISTORY}\r\nmaster_replid2:{none}\r\nmaster_repl_offset:100\r\n\
             second_repl_offset:-1\r\nrepl_backlog_active:1\r\n"
        );
        let memory = "used_memory:1\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        match section {
            "SERVER" => server,
            "REPLICATION" => replication,
            "MEMORY" => memory.to_owned(),
            _ => server + &replication + memory,
        }
    }
}

impl Honest for DataServer {
    fn answer(&self, asked: &Command) -> (Phase, Vec<u8>) {
        let section = word(asked, 1);
        match &*word(asked, 0) {
            "HELLO" => (Phase::Hello, map(&[("server", "redis"), ("role", "master")])),
            "CLIENT" | "SELECT" | "AUTH" => (Phase::Client, ok()),
            "INFO" => {
                let phase = match &*section {
                    "SERVER" => Phase::InfoServer,
                    "REPLICATION" => Phase::InfoReplication,
                    "MEMORY" => Phase::InfoMemory,
                    _ => Phase::Info,
                };
                (phase, bulk(self.info(&section)))
            }
            "ROLE" => (Phase::Role, array(&[bulk("master"), integer(100), array(&[])])),
            "SCRIPT" => {
                self.has_script.store(true, Relaxed);
                (Phase::Load, bulk("f".repeat(40)))
            }
            "EVALSHA" if !self.has_script.load(Relaxed) => {
                (Phase::Greeting, b"-NOSCRIPT No matching script.\r\n".to_vec())
            }
            "EVALSHA" => self.batch(asked),
            "SUBSCRIBE" => (Phase::Subscribe, subscribed(&asked[1..])),
            "SET" => (Phase::BarrierWrite, ok()),
            "WAIT" => (Phase::Wait, integer(1)),
            "TIME" => {
                let now = micros();
                let parts = [now / 1_000_000, now % 1_000_000].map(|n| bulk(n.to_string()));
                (Phase::Time, array(&parts))
            }
            "MGET" => (Phase::Marker, b"*2\r\n_\r\n_\r\n".to_vec()),
            "CONFIG" => (Phase::Config, map(&[(&section.to_lowercase(), "1")])),
            "ACL" => (Phase::Acl, if section == "WHOAMI" { bulk("default") } else { ok() }),
            _ => (Phase::Acl, ok()),
        }
    }
}

/// Returns the word at the index `at` of a command, in capital letters.
fn word(command: &Command, at: usize) -> String {
    let word = command.get(at).map_or(&[][..], |word| &word[..]);
    String::from_utf8_lossy(word).to_uppercase()
}

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

/// Name of a lock that another client holds.
pub(crate) const TAKEN: &str = "taken";

impl DataServer {
    /// Replies as the script does: executes a batch only under the marker that is there.
    fn batch(&self, asked: &Command) -> (Phase, Vec<u8>) {
        let text = |at: usize| asked.get(at).map_or("", |w| std::str::from_utf8(w).unwrap_or(""));
        let first = 3 + text(2).parse::<usize>().unwrap_or(0);
        let (expected, write) = (text(first), text(first + 4));
        let now = micros();
        let (mut marker, mut writes) = (self.marker.lock().unwrap(), self.writes.lock().unwrap());
        if *marker != expected || expected.is_empty() && write.is_empty() {
            let note = note(&marker, *writes, now);
            let zeros = [0; 4].map(integer);
            let news = [bulk("news"), integer(now), bulk(&*marker), bulk(note), bulk(HISTORY)];
            let parts = [&news[..], &zeros, &[bulk(&self.run_id)]].concat();
            return (Phase::Greeting, array(&parts));
        }
        if !write.is_empty() {
            write.clone_into(&mut marker);
        }
        *writes += 1;
        let is_taken = asked[3..first.min(asked.len())].iter().any(|key| key == TAKEN.as_bytes());
        let codes = codes(&asked[asked.len().min(first + 6)..], is_taken);
        let phase = if codes.is_empty() { Phase::Greeting } else { Phase::Batch };
        let head = [integer(now), bulk(note(&marker, *writes, now))];
        (phase, array(&[&head[..], &codes].concat()))
    }
}

/// The last write that counts, of the data history in the marker.
fn note(marker: &str, writes: u64, now: u128) -> String {
    let history = marker.get(3..26).unwrap_or_default();
    format!("{history} {writes:012} {now:016} {:013}", 0)
}

/// Replies to the ops of a batch: another client holds the lock [`TAKEN`], and everything else is
/// done as asked.
fn codes(ops: &[Vec<u8>], is_taken: bool) -> Vec<Vec<u8>> {
    let text = |at: usize| ops.get(at).map_or("", |w| std::str::from_utf8(w).unwrap_or(""));
    let number = |at: usize| text(at).parse::<usize>().unwrap_or(0);
    let (mut codes, mut at) = (Vec::new(), 0);
    while at < ops.len() {
        let op = text(at);
        let (code, skip): (Option<i64>, _) = match op {
            "A" if is_taken => {
                codes.extend((0..number(at + 1)).flat_map(|_| held(1)));
                (None, 4 + 2 * number(at + 1))
            }
            "A" => (Some(-9), 4 + 2 * number(at + 1)),
            "D" | "Q" => (Some(-9), 2 + number(at + 1)),
            "R" => (Some(1), 3),
            "X" => (Some(1), 7),
            "I" => (Some(-1), 2),
            // A conditional write that shows no value says how many words follow.
            write if write.len() >= 7 && !write[7..].contains('V') => {
                let digit = |at: usize| usize::from(write.as_bytes()[at]).saturating_sub(48);
                let is_refused = is_taken && write.starts_with('g');
                if is_refused {
                    codes.extend(held(digit(4)));
                }
                ((!is_refused).then_some(-9), 1 + digit(2) + 64 * digit(3))
            }
            // The reply to an unknown op is a fault. The ops after the unknown op are not parsed.
            _ => (Some(-5), 0),
        };
        codes.extend(code.into_iter().map(integer));
        at = if skip == 0 { ops.len() } else { at + skip };
    }
    codes
}

/// Another client has the lock for nine seconds. Shows the parts of it that are asked for.
fn held(extent: usize) -> Vec<Vec<u8>> {
    let nil = || b"_\r\n".to_vec();
    let mut shown = vec![integer(2), bulk("another client"), integer(9_000), nil()];
    for (part, empty) in [(4, nil()), (8, nil()), (16, bulk(""))] {
        shown.extend((extent & part != 0).then_some(empty));
    }
    shown
}
