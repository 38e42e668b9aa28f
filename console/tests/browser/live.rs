//! Tests that each page shows without a reload what an independent client did.

use std::time::{Duration, Instant};

use palisade::Failed;
use palisade_console::Options;
use palisade_cron::{Cron, Job};

use crate::chrome::{Chrome, Tab, quoted};
use crate::world::{MAX_TTL, World};
use crate::{SOON, tally};

/// Number of locks that the test takes and releases, one after the other.
const CHANGES: usize = 24;

/// Waits until the page shows a text, and records the time since `began`, the start of the call
/// that caused the change.
async fn live(tab: &Tab, text: &str, began: Instant) {
    tab.shows(text, SOON).await;
    tally::live(began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_shows_what_an_independent_client_did() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, Options::default()).await;
    let tab = chrome.open(&world.base, "/").await;
    overview(&world, &tab).await;
    locks(&world, &tab).await;
    one_lock(&world, &tab).await;
    elections(&world, &tab).await;
    cron(&world, &tab).await;
    keys(&world, &tab).await;
    nodes(&world, &tab).await;
    tab.close().await;
}

async fn overview(world: &World, tab: &Tab) {
    tab.shows("3 of 3 votes", SOON).await;
    let votes: usize = tab.eval("document.querySelectorAll('main .vote.fine').length").await;
    assert_eq!(votes, 3, "one part for each node");
    first_page(tab).await;
    let began = Instant::now();
    let guard = world.client.mutex("overview").build().unwrap().acquire().await.unwrap();
    let counted = "[...document.querySelectorAll('.figure')].some(f => f.innerText.trim() \
                   .replace(/\\s+/g, ' ') === '1 lock held')";
    tab.until("the lock is counted", SOON, counted).await;
    tally::live(began.elapsed());
    guard.release().await.unwrap();
    tally::page("overview");
}

async fn first_page(tab: &Tab) {
    let bytes: u64 = tab
        .eval(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType(\
             'navigation')).filter(e => !e.name.includes('/api/') && (e.name.endsWith('/') || \
             /\\.(js|css|svg)$/.test(e.name) || e.entryType === 'navigation'))\
             .reduce((sum, e) => sum + e.encodedBodySize, 0)",
        )
        .await;
    let shown: f64 = tab.eval("performance.getEntriesByName('shown')[0].startTime").await;
    assert!(bytes > 10_000, "{bytes} bytes: the files are not counted");
    assert!(bytes <= 100 << 10, "the first page has {bytes} bytes");
    tally::first_page(bytes, shown);
}

async fn locks(world: &World, tab: &Tab) {
    tab.go("/locks").await;
    tab.shows("No lock is held", SOON).await;
    for n in 0..CHANGES {
        let name = format!("invoice:{n}");
        let began = Instant::now();
        let mutex = world.client.mutex(&name).build().unwrap();
        let guard = mutex.acquire().await.unwrap();
        live(tab, &name, began).await;
        let began = Instant::now();
        guard.release().await.unwrap();
        tab.hides(&name, SOON).await;
        tally::live(began.elapsed());
    }
    // The page shows a name as text, even if it looks like HTML.
    let markup = "<img src=x onerror=alert(1)>&amp;";
    let guard = world.client.mutex(markup).build().unwrap().acquire().await.unwrap();
    tab.shows(markup, SOON).await;
    let images: usize = tab.eval("document.querySelectorAll('main img').length").await;
    assert_eq!(images, 0);
    guard.release().await.unwrap();
    tab.hides(markup, SOON).await;
    tally::page("locks");
}

async fn one_lock(world: &World, tab: &Tab) {
    let held = world.client.mutex("ledger").build().unwrap().acquire().await.unwrap();
    tab.shows("ledger", SOON).await;
    tab.click("main td.name a").await;
    let began = Instant::now();
    live(tab, &held.fencing_token().to_string(), began).await;
    tab.shows("There is nobody in its queue.", SOON).await;
    let other = world.other();
    let waits = tokio::spawn(async move {
        let mutex = other.mutex("ledger").acquire_timeout(SOON).build().unwrap();
        let guard = mutex.acquire().await.unwrap();
        (guard.fencing_token(), guard)
    });
    let began = Instant::now();
    let in_queue = "[...document.querySelectorAll('[aria-label=Waiting] tbody tr')].length === 1";
    tab.until("the waiter has a place", SOON, in_queue).await;
    tally::live(began.elapsed());
    held.release().await.unwrap();
    let (token, guard) = waits.await.unwrap();
    tab.shows(&token.to_string(), SOON).await;
    tab.shows("There is nobody in its queue.", SOON).await;
    guard.release().await.unwrap();
    tab.shows("Nobody holds it now.", SOON).await;
}

async fn elections(world: &World, tab: &Tab) {
    tab.go("/elections").await;
    tab.shows("No process campaigns", SOON).await;
    let began = Instant::now();
    let election = world.client.election("billing").build().unwrap();
    let first = election.campaign("10.0.0.7:8080").await.unwrap();
    live(tab, "10.0.0.7:8080", began).await;
    tab.shows(&first.term().to_string(), SOON).await;
    let other = world.other();
    let second = tokio::spawn(async move {
        let election = other.election("billing").build().unwrap();
        (election.campaign("10.0.0.8:8080").await.unwrap(), other)
    });
    tab.shows("10.0.0.8:8080", SOON).await;
    first.resign().await.unwrap();
    let (second, _other) = second.await.unwrap();
    tab.shows(&second.term().to_string(), SOON).await;
    let bars = "document.querySelectorAll('.timeline rect[class^=c]').length >= 2";
    tab.until("both terms are on the axis", SOON, bars).await;
    second.resign().await.unwrap();
    tab.shows("leaderless", SOON).await;
    tab.until("the gap is on the axis", SOON, "!!document.querySelector('.gap-bar')").await;
    tally::page("elections");
}

async fn cron(world: &World, tab: &Tab) {
    tab.go("/cron").await;
    tab.shows("No process runs a schedule", SOON).await;
    let redlock = world.other();
    let runs = redlock.clone();
    let job = tokio::spawn(async move {
        let job = Job::new("beat", "* * * * * *");
        Cron::new(&runs).run(job, |_tick| async { Ok::<(), Failed>(()) }).await
    });
    tab.shows("beat", SOON).await;
    tab.shows("done", SOON).await;
    tab.click("main td.name a").await;
    let done = "document.querySelectorAll('[aria-label=\"Last ticks\"] tbody tr .is.fine').length";
    tab.until("three ticks are done", SOON, &format!("{done} >= 3")).await;
    let before: f64 = tab.eval(done).await;
    tab.until("more ticks are done", SOON, &format!("{done} > {before}")).await;
    let _ = redlock.close(Duration::from_secs(2)).await;
    let _ = job.await;
    tally::page("cron");
}

async fn keys(world: &World, tab: &Tab) {
    tab.go("/keys").await;
    tab.shows("beat@", SOON).await; // the ticks of the job
    let keys = world.keys("payments");
    let began = Instant::now();
    let ran = keys.key("alice:order-7").run(|_| async { Ok::<_, String>(7) }).await.unwrap();
    assert!(matches!(ran, palisade::Outcome::Executed { .. }));
    live(tab, "alice:order-7", began).await;
    let row = |state: &str| {
        let (key, state) = (quoted("bob:order-8"), quoted(state));
        format!(
            "[...document.querySelectorAll('main tbody tr')].some(tr => \
             tr.innerText.includes({key}) && tr.innerText.includes({state}))"
        )
    };
    // Aborting the task has the effect of a process that dies in the middle of a handler: the run
    // is dropped, and its claim is no longer renewed.
    let other = world.other();
    let dies = tokio::spawn(async move {
        let keys = other.idempotency("payments").lease(Duration::from_secs(2));
        let keys = keys.at_most_once().build().unwrap();
        let never = keys.key("bob:order-8").run(|_| async {
            std::future::pending::<()>().await;
            Ok::<_, String>(8)
        });
        never.await.map(|_| ())
    });
    tab.until("it runs", SOON, &row("running")).await;
    dies.abort();
    tab.until("it is parked", SOON, &row("parked")).await;
    tab.click("main .chips button:nth-child(3)").await;
    tab.hides("alice:order-7", SOON).await;
    tab.shows("bob:order-8", SOON).await;
    tally::page("keys");
}

async fn nodes(world: &World, tab: &Tab) {
    tab.go("/nodes").await;
    tab.shows("3 of 3 vote", SOON).await;
    let port = world.servers[0].port().to_string();
    tab.shows(&port, SOON).await;
    tab.click("main button").await; // "Examine now"
    // These servers do not keep their data over a restart. The doctor shows the command that
    // changes this.
    tab.shows("CONFIG SET appendonly yes", 3 * SOON).await;
    tally::page("nodes");
}
