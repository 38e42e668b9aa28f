//! Pictures of each page for the manual: `make console-pictures`.

use std::path::Path;
use std::time::Duration;

use palisade::{Failed, Redlock};
use palisade_cron::{Cron, Job};
use tokio::task::JoinHandle;

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::server::Server;
use crate::world::{World, acting};

/// Longest lease. It makes the quarantine of the killed server long enough to be seen in all
/// pictures.
const MAX_TTL: Duration = Duration::from_secs(20);
const DESK: (i64, i64) = (1280, 800);
const PHONE: (i64, i64) = (390, 844);
const LARGEST: usize = 150 << 10;

async fn save(tab: &Tab, name: &str) {
    let picture = tab.picture().await;
    assert!(picture.len() <= LARGEST, "{name} has {} bytes", picture.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/console");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(name).with_extension("png"), picture).expect("a file");
}

/// Traffic in the deployment. It ends when this value is dropped.
struct Busy {
    handles: Vec<Redlock>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Busy {
    fn task(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(work));
    }

    fn lock(&mut self, redlock: &Redlock, name: &'static str) {
        let mutex = redlock.mutex(name).build().unwrap();
        self.task(async move {
            loop {
                let Ok(guard) = mutex.acquire().await else { continue };
                guard.lost().await;
            }
        });
    }
}

async fn seed(world: &World) -> Busy {
    let mut busy = Busy { handles: Vec::new(), tasks: Vec::new() };
    let redlock = world.other();
    for name in [
        "deploy",
        "importer:acme",
        "invoice:42",
        "invoice:57",
        "ledger:2026-11",
        "mail-queue",
        "stock:eu-1",
        "tenant:globex",
    ] {
        busy.lock(&redlock, name);
        tokio::time::sleep(Duration::from_millis(130)).await;
    }
    // Two processes wait for one lock.
    for _ in 0..2 {
        let other = world.other();
        busy.lock(&other, "invoice:42");
        busy.handles.push(other);
    }
    let reads = redlock.rw_lock("catalogue").build().unwrap();
    for _ in 0..3 {
        let reads = reads.clone();
        busy.task(async move {
            let guard = reads.read().await.unwrap();
            guard.lost().await;
        });
    }
    let slots = redlock.semaphore("render-farm", 3).build().unwrap();
    for _ in 0..2 {
        let slots = slots.clone();
        busy.task(async move {
            let permit = slots.acquire().await.unwrap();
            permit.lost().await;
        });
    }
    for value in ["10.0.0.7:8080", "10.0.0.8:8080"] {
        let handle = world.other();
        let election = handle.election("billing").build().unwrap();
        busy.task(async move {
            let _ = election.lead(value, |_| std::future::pending::<()>()).await;
        });
        busy.handles.push(handle);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    for (name, schedule) in [
        ("rates", "*/10 * * * * *"),
        ("nightly-report", "0 3 * * *"),
        ("cleanup", "*/15 * * * * *"),
    ] {
        let redlock = redlock.clone();
        busy.task(async move {
            let work = |tick: palisade_cron::Tick| async move {
                tokio::time::sleep(Duration::from_millis(400)).await;
                let fails = name == "cleanup" && tick.unix_seconds() % 45 == 0;
                if fails { Err(Failed::from("the archive is full")) } else { Ok(()) }
            };
            let _ = Cron::new(&redlock).run(Job::new(name, schedule), work).await;
        });
    }
    keys(world, &mut busy).await;
    busy.handles.push(redlock);
    busy
}

async fn keys(world: &World, busy: &mut Busy) {
    let [payments, mail] = ["payments", "mail"].map(|namespace| world.keys(namespace));
    for n in 0..34 {
        let keys = if n % 3 == 0 { &mail } else { &payments };
        let key = format!("{}:order-{}", ["alice", "bob", "carol"][n % 3], 7_000 + n);
        let _ = keys.key(key).run(|_| async { Ok::<_, String>(n) }).await.unwrap();
    }
    for n in 0..3 {
        let call = payments.key(format!("dave:order-{}", 7_100 + n));
        let never = call.run(|_| std::future::pending::<Result<u8, String>>());
        assert!(tokio::time::timeout(Duration::from_millis(200), never).await.is_err());
    }
    for n in 0..2 {
        let keys = world.keys("payments");
        busy.task(async move {
            let call = keys.key(format!("erin:order-{}", 7_200 + n));
            let _ = call.run(|_| std::future::pending::<Result<u8, String>>()).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures() {
    // The pictures are files of the repository, so they are replaced only on request.
    if std::env::var_os("CONSOLE_PICTURES").is_none() {
        return;
    }
    let chrome = Chrome::start().await;
    // The server that is killed later keeps its data on disk, except for those of the last second.
    let keeps: &[&str] = &["--appendonly", "yes"];
    let servers = [&[][..], &[], keeps].map(Server::start);
    let mut world = World::start_on(servers.into(), MAX_TTL, acting()).await;
    let tab = chrome.open(&world.base, "/").await;
    tab.emulate(DESK, &[("prefers-color-scheme", "light")]).await;
    tab.shows("3 of 3 votes", SOON).await;
    let busy = seed(&world).await;
    let parked = "[...document.querySelectorAll('.figure')].some(f => /^3\\s+keys parked/.test(\
                  f.innerText))";
    tab.until("the keys are parked", 6 * SOON, parked).await;
    // A leader steps down, so that the election has two terms.
    let (status, body) = world
        .request(
            "POST",
            "/api/v1/actions",
            &serde_json::json!({ "action": "step-down", "name": "billing", "confirm": "billing",
                                 "reason": "its host is drained" })
            .to_string(),
        )
        .await;
    assert_eq!(status, 200, "{body}");
    world.request("POST", "/api/v1/doctor", "{}").await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    world.servers[2].kill();
    tab.shows("unreachable", SOON).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.servers[2].again();
    tab.shows("quarantine", SOON).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    save(&tab, "overview").await;
    for (hash, text, name) in [
        ("/locks", "invoice:42", "locks"),
        ("/locks/mutex/invoice%3A42", "What each node answers", "lock"),
        ("/elections", "10.0.0.8:8080", "elections"),
        ("/cron", "rates", "cron"),
        ("/keys", "Namespaces", "keys"),
        ("/nodes", "What the doctor finds", "nodes"),
        ("/failovers", "quarantine", "failovers"),
    ] {
        tab.go(hash).await;
        tab.shows(text, SOON).await;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        save(&tab, name).await;
    }
    tab.emulate(DESK, &[("prefers-color-scheme", "dark")]).await;
    tab.go("/").await;
    tab.shows("What happened lately", SOON).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    save(&tab, "overview-dark").await;
    tab.emulate(PHONE, &[("prefers-color-scheme", "light")]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    save(&tab, "overview-phone").await;
    drop(busy);
    tab.close().await;
}
