//! Servers and Sentinels that answer as a test wants.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The group's name at every fake Sentinel.
pub(crate) const NAME: &str = "orders";

/// Listens until the test ends.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) at: String,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    clients: AtomicUsize,
    asked: Mutex<Vec<String>>,
    subscribed: Mutex<Vec<TcpStream>>,
}

impl Fake {
    /// Answers each command, given as its words, with these bytes.
    pub(crate) fn start(answer: impl Fn(&[&str]) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let at = listener.local_addr().expect("it is bound").to_string();
        let fake = Self { at, inner: Arc::default() };
        let (inner, answer) = (Arc::clone(&fake.inner), Arc::new(answer));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                inner.clients.fetch_add(1, SeqCst);
                let (inner, answer) = (Arc::clone(&inner), Arc::clone(&answer));
                std::thread::spawn(move || inner.serve(client, &*answer));
            }
        });
        fake
    }

    /// How often somebody connected.
    pub(crate) fn clients(&self) -> usize {
        self.inner.clients.load(SeqCst)
    }

    /// How often this was asked.
    pub(crate) fn asked(&self, command: &str) -> usize {
        let asked = self.inner.asked.lock().unwrap();
        asked.iter().filter(|words| words.starts_with(command)).count()
    }

    /// Sends an event to all that subscribed.
    pub(crate) fn tell(&self, channel: &str, payload: &str) {
        let push = format!(">3\r\n{}{}{}", bulk("message"), bulk(channel), bulk(payload));
        for mut client in self.inner.subscribed.lock().unwrap().iter() {
            let _ = client.write_all(push.as_bytes());
        }
    }

    /// Sends events as fast as this until the test ends.
    pub(crate) fn flood(&self, pause: Duration) {
        let fake = self.clone();
        std::thread::spawn(move || {
            loop {
                for _ in 0..100 {
                    fake.tell("+sdown", &format!("master {NAME} 127.0.0.1 1"));
                }
                std::thread::sleep(pause);
            }
        });
    }
}

impl Inner {
    fn serve(&self, mut client: TcpStream, answer: &dyn Fn(&[&str]) -> String) {
        let mut from = BufReader::new(client.try_clone().expect("a socket"));
        while let Some(words) = command(&mut from) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.asked.lock().unwrap().push(words.join(" "));
            if client.write_all(answer(&words).as_bytes()).is_err() {
                return;
            }
            if words[0] == "SUBSCRIBE" {
                let to = client.try_clone().expect("a socket");
                self.subscribed.lock().unwrap().push(to);
            }
        }
    }
}

/// The next command, as its words.
fn command(from: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let number = |from: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    (0..number(from)?)
        .map(|_| {
            let mut word = vec![0; number(from)? + 2];
            from.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            Some(String::from_utf8_lossy(&word).into_owned())
        })
        .collect()
}

/// What a Sentinel says of its group.
#[derive(Clone, Default)]
pub(crate) struct View {
    pub(crate) master: String,
    pub(crate) epoch: u64,
    pub(crate) replicas: Vec<String>,
    pub(crate) others: Vec<String>,
}

/// A Sentinel that says what is in the view at that time.
pub(crate) fn sentinel(id: char, view: &Arc<Mutex<View>>) -> Fake {
    let view = Arc::clone(view);
    Fake::start(move |words| {
        let view = view.lock().unwrap();
        match words {
            ["HELLO", ..] => map(&[("server", "redis"), ("mode", "sentinel")]),
            ["SUBSCRIBE", channels @ ..] => {
                let reported = |(i, c): (usize, &&str)| {
                    format!(">3\r\n{}{}:{}\r\n", bulk("subscribe"), bulk(c), i + 1)
                };
                channels.iter().enumerate().map(reported).collect::<Vec<_>>().concat()
            }
            ["SENTINEL", "MYID"] => bulk(&id.to_string().repeat(40)),
            ["SENTINEL", "MASTER", _] => master(&view),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                let (host, port) = view.master.rsplit_once(':').expect("host:port");
                format!("*2\r\n{}{}", bulk(host), bulk(port))
            }
            ["SENTINEL", "SENTINELS", _] => list(&view.others, "sentinel"),
            ["SENTINEL", "REPLICAS", _] => list(&view.replicas, "slave"),
            ["SENTINEL", "CONFIG", ..] => map(&[]),
            ["SENTINEL", "CKQUORUM", _] => "+OK 3 usable Sentinels\r\n".to_owned(),
            ["INFO", ..] => bulk("redis_version:7.0.15\r\nredis_mode:sentinel\r\n"),
            _ => "+OK\r\n".to_owned(),
        }
    })
}

pub(crate) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn map(pairs: &[(&str, &str)]) -> String {
    let all: String = pairs.iter().map(|(k, v)| bulk(k) + &bulk(v)).collect();
    format!("%{}\r\n{all}", pairs.len())
}

fn list(all: &[String], flags: &str) -> String {
    let each = all.iter().map(|at| {
        let (host, port) = at.rsplit_once(':').expect("host:port");
        map(&[("ip", host), ("port", port), ("runid", &format!("{at:0>40}")), ("flags", flags)])
    });
    format!("*{}\r\n{}", all.len(), each.collect::<String>())
}

fn master(view: &View) -> String {
    let (host, port) = view.master.rsplit_once(':').expect("host:port");
    map(&[
        ("name", NAME),
        ("ip", host),
        ("port", port),
        ("flags", "master"),
        ("config-epoch", &view.epoch.to_string()),
        ("num-slaves", "0"),
        ("num-other-sentinels", "2"),
        ("quorum", "2"),
        ("down-after-milliseconds", "30000"),
    ])
}
