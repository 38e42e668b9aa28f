//! A plain writer without locks. It sends one `SET` after another to one server, each with a new
//! key. If replicas must have the write, a `WAIT` follows. At the end, the writer checks which
//! acknowledged writes the new master has.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{Nanos, now};

/// Arguments of the process that writes without locks.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// First master, `host:port`. The writer stays connected to it, like a client that does not use
    /// Sentinel.
    #[arg(long)]
    server: String,
    /// Number of replicas that must have a write before it counts as acknowledged.
    #[arg(long, default_value_t = 0)]
    wait: u8,
}

/// Number of writes for each result, at the end of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fates {
    pub(super) acked: usize,
    pub(super) lost: usize,
    pub(super) refused: usize,
    /// Time of the last acknowledged write.
    pub(super) last: Nanos,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends plain writes to a server until an input line arrives. This line contains the address of
/// the server to check for lost writes. Then prints the result.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (say, lines) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if say.send(line).is_err() {
                return;
            }
        }
    });
    let mut fates = Fates::default();
    let (acked, master) = write(args, &lines, &mut fates)?;
    fates.acked = acked.len();
    fates.lost = missing(&master, &acked)?;
    println!("{}", serde_json::to_string(&fates)?);
    Ok(())
}

fn write(
    args: &Args,
    lines: &Receiver<String>,
    fates: &mut Fates,
) -> Result<(Vec<u64>, String), Failure> {
    let (mut acked, mut connection) = (Vec::new(), None);
    for n in 0_u64.. {
        match lines.try_recv() {
            Ok(master) => return Ok((acked, master)),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        match one(&mut connection, args, n) {
            Ok(true) => {
                acked.push(n);
                fates.last = now();
            }
            Ok(false) => fates.refused += 1,
            // It is unknown whether the server executed this write. The next write uses a new
            // connection.
            Err(_) => connection = None,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("the input ended before a server was named".into())
}

/// Performs one write. Returns true if it is acknowledged by the server and by the required number
/// of replicas.
fn one(connection: &mut Option<BufReader<TcpStream>>, args: &Args, n: u64) -> io::Result<bool> {
    let stream = match connection {
        Some(stream) => stream,
        None => connection.insert(connect(&args.server)?),
    };
    let wait = if args.wait > 0 { format!("WAIT {} 100\r\n", args.wait) } else { String::new() };
    stream.get_mut().write_all(format!("SET w:{n} {n}\r\n{wait}").as_bytes())?;
    let done = line(stream)?;
    let replicas = if args.wait > 0 { line(stream)? } else { ":0".to_owned() };
    let have = replicas.strip_prefix(':').and_then(|n| n.parse::<u8>().ok());
    Ok(done == "+OK" && have.is_some_and(|have| have >= args.wait))
}

fn missing(server: &str, acked: &[u64]) -> io::Result<usize> {
    let mut stream = connect(server)?;
    let mut lost = 0;
    for some in acked.chunks(200) {
        let keys: Vec<_> = some.iter().map(|n| format!("w:{n}")).collect();
        stream.get_mut().write_all(format!("MGET {}\r\n", keys.join(" ")).as_bytes())?;
        if line(&mut stream)? != format!("*{}", some.len()) {
            return Err(io::Error::other("no answer to MGET"));
        }
        for _ in some {
            match line(&mut stream)?.strip_prefix('$').and_then(|n| n.parse::<i64>().ok()) {
                Some(-1) => lost += 1,
                Some(length) => {
                    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0) + 2];
                    stream.read_exact(&mut bytes)?;
                }
                None => return Err(io::Error::other("no answer to MGET")),
            }
        }
    }
    Ok(lost)
}

fn connect(server: &str) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(BufReader::new(stream))
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
