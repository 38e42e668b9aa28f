//! A promoted master that is slow, refuses, dies in the login or has other data. Nothing is granted
//! there before its data were judged. What is held is kept once the server is well.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use palisade::node::{MinReplicas, SentinelNode};
use palisade::{Failover, LockGuard, Redlock, TryAcquire};
use palisade_ops::Deployment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::support::fake::{Fake, NAME, View, sentinel};
use crate::support::marker::marker;
use crate::support::server::Server;
use crate::support::wait::until;
use crate::trips::switch;

const MINUTE: Duration = Duration::from_secs(60);

/// Edits what the server sends. True if the connection ends behind it.
type Strike = fn(&mut Vec<u8>) -> bool;

/// A listener in front of a server that can be replaced.
struct Front {
    fake: Fake,
    way: Arc<Mutex<Way>>,
}

struct Way {
    target: String,
    strike: Option<Strike>,
    struck: usize,
}

impl Front {
    fn to(target: String) -> Self {
        let way = Arc::new(Mutex::new(Way { target, strike: None, struck: 0 }));
        let ours = Arc::clone(&way);
        Self { fake: Fake::serve(move |client| join(client, Arc::clone(&ours))), way }
    }

    fn strike(&self, strike: Option<Strike>) {
        self.way.lock().unwrap().strike = strike;
    }

    fn lead_to(&self, target: String) {
        self.way.lock().unwrap().target = target;
    }
}

async fn join(client: TcpStream, way: Arc<Mutex<Way>>) -> Option<()> {
    let target = way.lock().unwrap().target.clone();
    let (mut back, mut there) = TcpStream::connect(target).await.ok()?.into_split();
    let (mut from, mut to) = client.into_split();
    let answers = async {
        let mut chunk = vec![0; 1 << 16];
        loop {
            let n = back.read(&mut chunk).await.ok().filter(|n| *n > 0)?;
            let mut bytes = chunk[..n].to_vec();
            let ends = {
                let mut way = way.lock().unwrap();
                let ends = way.strike.is_some_and(|strike| strike(&mut bytes));
                way.struck += usize::from(ends || bytes != chunk[..n]);
                ends
            };
            to.write_all(&bytes).await.ok()?;
            if ends {
                return Some(());
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from, &mut there) => None,
        ended = answers => ended,
    }
}

/// A failover from `old` to `new`, whose address is that of `front`.
struct World {
    old: Server,
    new: Server,
    front: Front,
    view: Arc<Mutex<View>>,
    sentinels: [Fake; 3],
    node: Arc<SentinelNode>,
    redlock: Redlock,
    guard: LockGuard,
}

impl World {
    async fn new() -> Self {
        let old = Server::start(&[]);
        let done = palisade_ops::init(&Deployment::new().node(old.url()), "").await.unwrap();
        assert!(done.is_done(), "{done}");
        let port = old.port().to_string();
        let args = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let new = Server::start(&args);
        let front = Front::to(new.addr());
        let (master, replicas) = (old.addr(), vec![front.fake.at.clone()]);
        let view = Arc::new(Mutex::new(View { master, replicas, ..View::default() }));
        let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
        let node = SentinelNode::builder(NAME, sentinels.each_ref().map(|s| s.at.clone()));
        let node = node.min_replicas_check(MinReplicas::Off).sentinel_deadline(MINUTE / 6);
        let node = Arc::new(node.build().unwrap());
        let redlock = Redlock::builder().node_arc(node.clone()).ttl(MINUTE).max_ttl(MINUTE);
        let redlock = redlock.node_deadline(Duration::from_secs(2)).build().unwrap();
        let mutex = redlock.mutex("k").acquire_timeout(MINUTE).build().unwrap();
        let guard = mutex.acquire().await.unwrap_or_else(|e| panic!("{e}"));
        until("the replica has the lock", || new.cli(&["exists", "k"]) == "1").await;
        Self { old, new, front, view, sentinels, node, redlock, guard }
    }

    /// Returns when the node has heard of it.
    async fn switch(&self) {
        let (from, to) = (self.old.addr(), self.front.fake.at.clone());
        {
            let mut view = self.view.lock().unwrap();
            (view.master, view.replicas, view.epoch) = (to.clone(), vec![from.clone()], 1);
        }
        for sentinel in &self.sentinels {
            switch(sentinel, &from, &to);
        }
        until("the master is named", || self.node.status().master.as_ref() == Some(&to)).await;
    }

    async fn promote(&self) {
        assert_eq!(self.new.cli(&["replicaof", "no", "one"]), "OK");
        self.switch().await;
    }

    /// Tries to acquire another lock, and returns why it was refused.
    async fn refused(&self, what: &str) -> String {
        match self.redlock.mutex("other").build().unwrap().try_acquire().await {
            Err(e) => e.to_string(),
            Ok(TryAcquire::Taken(taken)) => panic!("{what}: {taken:?}"),
            Ok(TryAcquire::Acquired(_)) => panic!("{what}: granted"),
        }
    }

    /// Waits until a refusal has one of these words.
    async fn refuses(&self, what: &str, words: &str) {
        let begun = Instant::now();
        loop {
            let said = self.refused(what).await;
            if words.split('|').any(|words| said.contains(words)) {
                return;
            }
            assert!(begun.elapsed() < MINUTE, "{what}: {said}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The judgement is that of a failover without trouble.
    async fn is_judged_as_ever(&self, what: &str) {
        let kept = async { while self.guard.failover().await != Failover::Kept {} };
        timeout(MINUTE, kept).await.unwrap_or_else(|_| panic!("{what}: not kept"));
        self.refuses(what, "quarantine").await;
        let (before, after) = (marker(&self.old), marker(&self.new));
        assert_eq!((before.epoch, after.epoch), (0, 1), "{what}");
        assert_ne!(before.history, after.history, "{what}");
        assert_eq!(self.new.cli(&["exists", "k", "other"]), "1", "{what}");
    }
}

/// Begins the answer to the look at the data, the last of the login.
const NEWS: &[u8] = b"*10\r\n$4\r\nnews";

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|at| at == what)
}

fn replace(bytes: &mut Vec<u8>, with: &str) -> bool {
    if let Some(at) = find(bytes, NEWS) {
        bytes.splice(at.., with.bytes());
    }
    false
}

fn cut(bytes: &mut Vec<u8>, at: Option<usize>) -> bool {
    bytes.truncate(at.unwrap_or(bytes.len()));
    at.is_some()
}

/// A promoted server that answers so and serves later.
const STRIKES: &[(&str, Strike, &str)] = &[
    ("is demoted in the login", |b| replace(b, "-READONLY no\r\n"), "READONLY|breaks them"),
    ("loads its data", |b| replace(b, "-LOADING no\r\n"), "LOADING|breaks them"),
    ("forgets the login", |b| replace(b, "-NOAUTH no\r\n"), "NOAUTH|breaks them"),
    ("takes no script", |b| replace(b, "-NOSCRIPT no\r\n"), "NOSCRIPT|breaks them"),
    ("is silent about its data", |b| replace(b, ""), ""),
    ("dies before the first answer", |b| cut(b, Some(0)), "cannot connect"),
    // The second answer is to CLIENT SETINFO, which not every server knows.
    (
        "dies behind the login",
        |b| {
            let second = find(b, b"\n-ERR").or(find(b, b"\n+OK"));
            cut(b, Some(second.map_or(b.len(), |at| at + 1)))
        },
        "cannot connect",
    ),
    ("dies before its data", |b| cut(b, find(b, NEWS)), "cannot connect"),
    (
        "dies in the middle of its data",
        |b| cut(b, find(b, NEWS).map(|at| at + 40)),
        "cannot connect",
    ),
    // In a quarantine a batch without ops is answered by the clock and the note.
    ("dies behind the marker", |b| cut(b, Some(0).filter(|_| b.starts_with(b"*2\r\n:"))), ""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_master_that_fails_in_the_login_grants_nothing_until_it_is_judged() {
    let each = STRIKES.iter().map(async |(what, strike, words)| {
        let world = World::new().await;
        world.front.strike(Some(*strike));
        world.promote().await;
        for _ in 0..3 {
            world.refuses(what, words).await;
        }
        assert_eq!(world.new.cli(&["exists", "other"]), "0", "{what}");
        assert!(world.front.way.lock().unwrap().struck > 0, "{what}");
        world.front.strike(None);
        world.is_judged_as_ever(what).await;
    });
    join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_master_that_cannot_serve_yet_is_judged_once_it_can() {
    let world = World::new().await;
    world.switch().await;
    world.refuses("still a replica", "role:slave").await;
    assert_eq!(world.new.cli(&["replicaof", "no", "one"]), "OK");
    world.is_judged_as_ever("a replica").await;

    let world = World::new().await;
    world.new.cli(&["config", "set", "requirepass", "pw"]);
    assert_eq!(world.new.cli(&["-a", "pw", "replicaof", "no", "one"]), "OK");
    world.switch().await;
    world.refuses("another login", "NOAUTH").await;
    assert_eq!(world.new.cli(&["-a", "pw", "config", "set", "requirepass", ""]), "OK");
    world.is_judged_as_ever("another login").await;

    let world = World::new().await;
    assert_eq!(world.new.cli(&["replicaof", "no", "one"]), "OK");
    // The kernel takes connections for it.
    world.new.freeze();
    world.switch().await;
    world.refused("frozen").await;
    world.new.resume();
    world.is_judged_as_ever("frozen").await;
}

/// Whatever was opened ahead of the Sentinels' word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_address_that_leads_to_another_deployment_is_refused() {
    let (world, theirs) = (World::new().await, Server::start(&[]));
    let done = palisade_ops::init(&Deployment::new().node(theirs.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    let kept = || theirs.cli(&["mget", "palisade:generation", "palisade:note", "k", "other"]);
    let before = kept();
    world.front.lead_to(theirs.addr());
    world.promote().await;
    for _ in 0..3 {
        world.refuses("foreign", "the address leads to another server").await;
    }
    assert_eq!((kept(), theirs.cli(&["dbsize"])), (before, "1".to_owned()), "left alone");
    world.front.lead_to(world.new.addr());
    theirs.cli(&["client", "kill", "type", "normal"]);
    world.is_judged_as_ever("home again").await;
}
