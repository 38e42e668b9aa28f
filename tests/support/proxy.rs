//! A proxy on loopback. It edits the replies of a real server, or delays the link of a real
//! replica. So it can imitate a wrong clock, an old version or a lag.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// All that the clients of a proxy have sent so far.
#[derive(Clone)]
pub struct Requests(Arc<Rules>);

impl Requests {
    pub fn bytes(&self) -> usize {
        self.0.requests.lock().unwrap().len()
    }

    /// Returns how often they contain this text.
    pub fn count(&self, text: &str) -> usize {
        let all = self.0.requests.lock().unwrap();
        all.windows(text.len()).filter(|bytes| *bytes == text.as_bytes()).count()
    }
}

/// A function that edits a chunk of the server's output.
pub type Edit = Box<dyn Fn(&mut Vec<u8>) + Send>;

/// A proxy that listens until it is dropped.
pub struct Proxy {
    at: SocketAddr,
    rules: Arc<Rules>,
}

#[derive(Default)]
struct Rules {
    /// `host:port` to which new connections lead.
    target: Mutex<String>,
    edit: Mutex<Option<Edit>>,
    /// If true, the data from replicas to their master are delayed, so the acknowledgements become
    /// old.
    mute: AtomicBool,
    /// If true, the data from a master to its replicas are delayed, so the replicas become
    /// outdated.
    deaf: AtomicBool,
    /// If true, new connections are closed at once. Existing connections remain.
    shut: AtomicBool,
    /// All that clients have sent.
    requests: Mutex<Vec<u8>>,
    ended: AtomicBool,
}

impl Proxy {
    /// Starts a proxy to `host:port` on a free port of 127.0.0.1.
    pub fn to(target: &str) -> Self {
        Self::between((Ipv4Addr::LOCALHOST, 0).into(), target)
    }

    /// Starts a proxy to `host:port` on this address.
    pub fn between(at: SocketAddr, target: &str) -> Self {
        let listener = TcpListener::bind(at).expect("an address of this machine");
        let at = listener.local_addr().expect("it is bound");
        let target = Mutex::new(target.to_owned());
        let rules = Arc::new(Rules { target, ..Rules::default() });
        let theirs = rules.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if theirs.ended.load(SeqCst) {
                    return;
                }
                if theirs.shut.load(SeqCst) {
                    continue;
                }
                // If the server is down, the client's socket is dropped here, and so its connection
                // is closed.
                let target = theirs.target.lock().unwrap().clone();
                if let Ok(server) = TcpStream::connect(target) {
                    join(client, server, &theirs);
                }
            }
        });
        Self { at, rules }
    }

    /// Returns the proxy's `host:port`.
    pub fn addr(&self) -> String {
        self.at.to_string()
    }

    pub fn port(&self) -> u16 {
        self.at.port()
    }

    /// Has new connections lead to another server. Existing connections remain.
    pub fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.rules.target.lock().unwrap());
    }

    pub fn requests(&self) -> Requests {
        Requests(Arc::clone(&self.rules))
    }

    /// Edits the server's output on all connections from now on.
    pub fn edit(&self, edit: impl Fn(&mut Vec<u8>) + Send + 'static) {
        *self.rules.edit.lock().unwrap() = Some(Box::new(edit));
    }

    /// Stops editing.
    pub fn honest(&self) {
        *self.rules.edit.lock().unwrap() = None;
    }

    /// Switches the delay of the replicas' acknowledgements on or off.
    pub fn mute(&self, on: bool) {
        self.rules.mute.store(on, SeqCst);
    }

    /// Switches the refusal of new connections on or off.
    pub fn shut(&self, on: bool) {
        self.rules.shut.store(on, SeqCst);
    }

    /// Switches the delay of the stream to replicas on or off.
    pub fn deaf(&self, on: bool) {
        self.rules.deaf.store(on, SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.rules.ended.store(true, SeqCst);
        // This connection wakes the listener, and the listener then reads `ended`.
        let _ = TcpStream::connect_timeout(&self.at, Duration::from_secs(1));
    }
}

fn join(client: TcpStream, server: TcpStream, rules: &Arc<Rules>) {
    let link = Arc::new(AtomicBool::new(false));
    let copy = |s: &TcpStream| s.try_clone().expect("a socket can be shared");
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from, to, seen, mine) = (copy(&client), copy(&server), link.clone(), rules.clone());
    std::thread::spawn(move || {
        pump(from, to, |bytes| {
            // The chunk that contains PSYNC is not delayed, because a replica sends it to begin
            // replication. Only later data of this connection are delayed.
            let is_link = seen.load(SeqCst);
            if !is_link {
                mine.requests.lock().unwrap().extend_from_slice(bytes);
            }
            seen.fetch_or(bytes.windows(5).any(|w| w == b"PSYNC"), SeqCst);
            mine.wait_while(|| is_link && mine.mute.load(SeqCst));
        });
    });
    let rules = rules.clone();
    std::thread::spawn(move || {
        pump(server, client, |bytes| {
            let is_link = link.load(SeqCst);
            if let Some(edit) = rules.edit.lock().unwrap().as_ref().filter(|_| !is_link) {
                edit(bytes);
            }
            rules.wait_while(|| is_link && rules.deaf.load(SeqCst));
        });
    });
}

impl Rules {
    fn wait_while(&self, held: impl Fn() -> bool) {
        while held() && !self.ended.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut each: impl FnMut(&mut Vec<u8>)) {
    let mut room = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut room) {
        let mut piece = room[..n].to_vec();
        each(&mut piece);
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Returns an edit that adds `seconds` to the time in each reply to TIME.
pub fn shift_time(seconds: i64) -> impl Fn(&mut Vec<u8>) + Send {
    move |bytes| {
        let head = b"*2\r\n$10\r\n";
        for at in 0..bytes.len().saturating_sub(head.len() + 10) {
            if !bytes[at..].starts_with(head) {
                continue;
            }
            let digits = &mut bytes[at + head.len()..][..10];
            let Some(now) = std::str::from_utf8(digits).ok().and_then(|d| d.parse::<i64>().ok())
            else {
                continue;
            };
            digits.copy_from_slice((now + seconds).to_string().as_bytes());
        }
    }
}

/// Returns an edit that overwrites the bytes after each occurrence of `name` with the bytes of
/// `with`.
pub fn overwrite(name: &'static str, with: &'static str) -> impl Fn(&mut Vec<u8>) + Send {
    move |bytes| {
        let (name, with) = (name.as_bytes(), with.as_bytes());
        for at in 0..bytes.len().saturating_sub(name.len() + with.len()) {
            if bytes[at..].starts_with(name) {
                bytes[at + name.len()..][..with.len()].copy_from_slice(with);
            }
        }
    }
}

/// Returns an edit that replaces a value in a reply's list of names and values: the text after the
/// text `name` becomes `with`.
pub fn answer(name: &'static str, with: &'static str) -> impl Fn(&mut Vec<u8>) + Send {
    move |bytes| {
        let name = format!("${}\r\n{name}\r\n", name.len());
        let with = format!("${}\r\n{with}\r\n", with.len());
        let mut at = 0;
        while let Some(found) = find(&bytes[at..], name.as_bytes()) {
            let value = at + found + name.len();
            let Some(head) = find(&bytes[value..], b"\r\n") else { return };
            let Some(end) = find(&bytes[value + head + 2..], b"\r\n") else { return };
            bytes.splice(value..value + head + 2 + end + 2, with.bytes());
            at = value + with.len();
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}
