//! The watcher: every few milliseconds it sends plain Redis requests to each Sentinel and each
//! server, and logs their replies. Of the library it uses only the name and the format of the
//! marker.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::event::{EventKind, Nanos, TaskId, WriteReply, now};
use crate::runtime;
use crate::wire::Ledger;

/// Interval between two requests to a server or a Sentinel. It is the precision of all
/// measurements.
const EVERY: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_millis(250);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Arguments of the watcher, the process that asks servers and Sentinels for their state.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Socket of the ledger, the process that logs all events.
    #[arg(long)]
    ledger: PathBuf,
    /// Name of the group in the configuration of the Sentinels.
    #[arg(long)]
    group: String,
    /// Address of a server, `host:port`. Repeated for each server.
    #[arg(long)]
    server: Vec<String>,
    #[arg(long)]
    sentinel: Vec<String>,
    /// Only record the commands of this server, `host:port`, in a file.
    #[arg(long)]
    monitor: Option<String>,
    #[arg(long)]
    into: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    runtime::run(watch(args))
}

async fn watch(args: &Args) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let ledger = |task| Ledger::connect(&args.ledger, TaskId { client: 0, life: 0, task });
    for (n, addr) in (1_u8..).zip(&args.sentinel) {
        let (ledger, group, addr) = (ledger(10 + n).await?, args.group.clone(), addr.clone());
        tasks.spawn_local(sentinel(ledger, n, group, addr));
    }
    for (n, addr) in (1_u8..).zip(&args.server) {
        tasks.spawn_local(server(ledger(20 + n).await?, addr.as_str().into()));
    }
    if let (Some(addr), Some(file)) = (&args.monitor, &args.into) {
        tasks.spawn_local(monitor(addr.clone(), File::create(file)?));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn monitor(addr: String, mut file: File) -> io::Result<()> {
    loop {
        if let Ok(mut stream) = TcpStream::connect(&addr).await
            && stream.write_all(b"MONITOR\r\n").await.is_ok()
        {
            let mut bytes = vec![0; 65_536];
            while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                file.write_all(&bytes[..n])?;
            }
        }
        sleep(EVERY).await;
    }
}

/// Reports to the ledger the masters that this Sentinel returns.
async fn sentinel(mut ledger: Ledger, n: u8, group: String, addr: String) -> io::Result<()> {
    let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {group}");
    let (mut line, mut before) = (Line::to(&addr), String::new());
    loop {
        if let Some(Reply::List(words)) = line.ask(&question).await {
            let master = words.join(":");
            if master != before {
                let named = EventKind::Named { sentinel: n, master: master.as_str().into() };
                ledger.report(named).await?;
                before = master;
            }
        }
        sleep(EVERY).await;
    }
}

/// Reports to the ledger this server's replies to plain writes, and its marker.
async fn server(mut ledger: Ledger, addr: Arc<str>) -> io::Result<()> {
    let mut line = Line::to(&addr);
    let (mut before, mut last_yes) = (None, 0);
    let mut marker = Marker { server: Arc::clone(&addr), replid: None, text: String::new() };
    for n in 0_u64.. {
        let reply = line.ask(&format!("SET table.plain {n}")).await;
        let at = now();
        let to_write = match &reply {
            Some(Reply::Ok(_)) => WriteReply::Yes,
            Some(Reply::Error(e)) if e.starts_with("READONLY") => WriteReply::Replica,
            Some(_) => WriteReply::No,
            None => WriteReply::Silent,
        };
        if before != Some(to_write) {
            let since = if before == Some(WriteReply::Yes) { last_yes + 1 } else { at };
            let server = Arc::clone(&addr);
            ledger.report_at(since, EventKind::Answers { server, to_write }).await?;
            marker.replid = None;
            before = Some(to_write);
        }
        if to_write == WriteReply::Yes {
            last_yes = at;
            marker.look(&mut line, &mut ledger).await?;
        }
        sleep(EVERY).await;
    }
    Ok(())
}

/// Marker of a server, and its current data history.
struct Marker {
    server: Arc<str>,
    /// Data history of the server (its replication id). `None` until it is read.
    replid: Option<String>,
    /// Text of the server's marker when it was last read.
    text: String,
}

impl Marker {
    async fn look(&mut self, line: &mut Line, ledger: &mut Ledger) -> io::Result<()> {
        let Some(Reply::Ok(text)) = line.ask("GET palisade:generation").await else {
            return Ok(());
        };
        // A new master may still have a copy of the old master's marker. The quarantine in this
        // copy does not apply to the new master.
        let of_this = |id: &Option<String>| id.as_deref() == text.split(' ').nth(REPLID);
        if self.replid.is_none() || (text != self.text && !of_this(&self.replid)) {
            let Some((replid, run_id)) = line.who().await else { return Ok(()) };
            let (server, run_id) = (Arc::clone(&self.server), run_id.as_str().into());
            ledger.report(EventKind::Process { server, run_id }).await?;
            self.replid = Some(replid);
        }
        if beginning(&text) != beginning(&self.text)
            && of_this(&self.replid)
            && let Some((from, ends)) = quarantine(&text)
        {
            let server = Arc::clone(&self.server);
            ledger.report(EventKind::Quarantine { server, from, ends }).await?;
        }
        self.text = text;
        Ok(())
    }
}

/// Numbers of words in a marker.
const REPLID: usize = 3;
const SINCE: usize = 6;
const LENGTH: usize = 13;

fn beginning(marker: &str) -> (Option<&str>, Option<&str>) {
    (marker.split(' ').nth(SINCE), marker.split(' ').nth(LENGTH))
}

/// Returns the beginning and the end of the quarantine in a server's marker, by this process's
/// clock. All servers run on this machine and share its wall clock.
fn quarantine(marker: &str) -> Option<(Nanos, Nanos)> {
    let words: Vec<&str> = marker.split(' ').collect();
    let (since, length): (u64, u64) =
        (words.get(SINCE)?.parse().ok()?, words.get(LENGTH)?.parse().ok()?);
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let at = |ms: u64| {
        let ahead = i128::from(ms) * 1_000_000 - i128::try_from(wall.as_nanos()).ok()?;
        Nanos::try_from(i128::from(now()) + ahead).ok()
    };
    Some(if since == 0 { (0, 0) } else { (at(since)?, at(since + length)?) })
}

/// Reply of a server to one command.
#[derive(Debug)]
pub(super) enum Reply {
    Ok(String),
    Error(String),
    List(Vec<String>),
}

/// A connection to a server. The connection is replaced if a reply is late or malformed.
pub(super) struct Line {
    addr: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Line {
    pub(super) fn to(addr: &str) -> Self {
        Self { addr: addr.to_owned(), stream: None }
    }

    /// Sends one command, given as words with spaces in between. Returns `None` if no reply arrives
    /// in time.
    pub(super) async fn ask(&mut self, command: &str) -> Option<Reply> {
        let done = timeout(PATIENCE, self.round(command)).await;
        if let Ok(Ok(reply)) = done {
            return Some(reply);
        }
        self.stream = None;
        None
    }

    async fn who(&mut self) -> Option<(String, String)> {
        let Some(Reply::Ok(info)) = self.ask("INFO everything").await else { return None };
        let field = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.map(|v| v.trim().to_owned())
        };
        Some((field("master_replid")?, field("run_id")?))
    }

    async fn round(&mut self, command: &str) -> io::Result<Reply> {
        let stream = if let Some(stream) = &mut self.stream {
            stream
        } else {
            let stream = TcpStream::connect(&self.addr).await?;
            stream.set_nodelay(true)?;
            self.stream.insert(BufReader::new(stream))
        };
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).await?;
        match read(stream).await? {
            Piece::Text(text) => Ok(Reply::Ok(text)),
            Piece::Error(text) => Ok(Reply::Error(text)),
            Piece::List(n) => {
                let mut words = Vec::new();
                for _ in 0..n {
                    if let Piece::Text(word) = read(stream).await? {
                        words.push(word);
                    }
                }
                Ok(Reply::List(words))
            }
        }
    }
}

enum Piece {
    Text(String),
    Error(String),
    List(usize),
}

async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Piece> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let strange = || io::Error::other("no Redis protocol");
    let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
    match kind {
        "+" | ":" => Ok(Piece::Text(rest.to_owned())),
        "-" => Ok(Piece::Error(rest.to_owned())),
        "*" => Ok(Piece::List(rest.parse().unwrap_or(0))),
        "$" => {
            let Ok(length) = rest.parse::<usize>() else { return Ok(Piece::Text(String::new())) };
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes).await?;
            bytes.truncate(length);
            Ok(Piece::Text(String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => Err(strange()),
    }
}
