//! The program `palisade` with the option `--metrics`, and its HTTP responses.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::ground::{Ground, signal};

/// A running command with `--metrics`. Dropping the value kills the command.
pub(crate) struct Watched {
    child: Child,
    pub(crate) address: String,
}

impl Watched {
    /// Starts the command, and reads the address of its metrics pages from standard error.
    pub(crate) fn start(ground: &Ground, args: &[&str]) -> Self {
        let at = args.iter().position(|arg| *arg == "--" || *arg == "-c").unwrap_or(args.len());
        let (before, after) = args.split_at(at);
        let args = [before, &["--metrics", "127.0.0.1:0"], after].concat();
        let mut command = ground.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be run");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("a line");
            let (_, rest) = line.split_once("metrics at http://")?;
            Some(rest.trim_end_matches("/metrics").to_owned())
        });
        // Read the rest of standard error. Otherwise `palisade` would wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        match address {
            Some(address) => Self { child, address },
            None => panic!("it ended without an address: {:?}", child.wait()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub(crate) fn get(&self, path: &str) -> (u32, String) {
        ask(&self.address, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    /// Returns the value of a series. `series` has the text format of Prometheus.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        let line = text.lines().find(|line| line.starts_with(&format!("{series} ")))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.signal("CONT");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends the request and reads the response to its end. Returns status and body.
pub(crate) fn ask(address: &str, request: &str) -> (u32, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    // The server may send its response and close the connection before the whole request is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, body.to_owned())
}

/// Calls `look` until it returns a value.
pub(crate) fn wait_for<T>(what: &str, within: Duration, look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
