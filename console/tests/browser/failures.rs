//! Tests of what the pages show if nodes fail and return, and if the console ends.

use std::time::Duration;

use palisade_console::Options;

use crate::chrome::Chrome;
use crate::world::{MAX_TTL, World};
use crate::{SOON, tally};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_shown_its_quarantine_counts_down_and_it_votes_again() {
    let chrome = Chrome::start().await;
    let mut world = World::start(3, MAX_TTL, Options::default()).await;
    let tab = chrome.open(&world.base, "/").await;
    tab.shows("3 of 3 votes", SOON).await;
    let kept = world.client.mutex("kept").build().unwrap().acquire().await.unwrap();
    tab.until("it is counted", SOON, "document.querySelector('.figure b').innerText === '1'").await;

    world.servers[2].kill();
    tab.shows("unreachable", SOON).await;
    tab.until("the verdict warns", SOON, "!!document.querySelector('.verdict.warning')").await;
    let title = tab.eval::<String>("document.title").await;
    assert!(title.starts_with("2/3"), "{title}");

    // The server starts again without its data. For one quarantine it grants nothing, and the page
    // shows until when.
    world.servers[2].again();
    tab.shows("quarantine", SOON).await;
    let seconds = "(parseInt((document.querySelector('.vote .countdown') || {}).innerText) || 0)";
    tab.until("it counts down", SOON, &format!("{seconds} > 1")).await;
    let first: f64 = tab.eval(seconds).await;
    tab.until("the number is smaller", SOON, &format!("{seconds} < {first}")).await;
    tab.until("it votes again", 3 * SOON, "document.querySelectorAll('.vote.fine').length === 3")
        .await;
    tab.until("no countdown is left", SOON, "!document.querySelector('.vote .countdown')").await;
    tab.until("the verdict is well", SOON, "!!document.querySelector('.verdict.fine')").await;

    tab.go("/failovers").await;
    tab.until("the axis has it", SOON, "!!document.querySelector('.timeline .gap-bar')").await;
    tab.shows("votes again", SOON).await;
    let at = world.servers[2].addr();
    tab.shows(&at, SOON).await;
    assert!(!kept.remaining().is_zero(), "two nodes are enough");
    kept.release().await.unwrap();
    tally::page("failovers");
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_that_ends_is_never_taken_for_silence() {
    let chrome = Chrome::start().await;
    let mut world = World::start(1, MAX_TTL, Options::default()).await;
    let tab = chrome.open(&world.base, "/locks").await;
    let live = "document.getElementById('live').innerText.trim() === 'live'";
    tab.until("the stream is live", SOON, live).await;
    world.end_console().await;
    tab.until("it is cut off", SOON, "document.getElementById('live').innerText.includes('cut')")
        .await;
    tab.shows("The stream of changes has been cut off since", SOON).await;
    // From now on the browser reports an error for each refused connection. The test ignores these
    // errors.
    tokio::time::sleep(Duration::from_millis(300)).await;
    tab.forgive();
    tab.until("the age grows", SOON, "/for [2-9] s/.test(document.body.innerText)").await;
    tab.forgive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_left_events_out_says_so_and_the_page_reads_anew() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    // The script gives the test the page's event streams. With them the test acts as a console that
    // left out events.
    let script = "window.streams = []; const Real = EventSource; \
                  window.EventSource = class extends Real { \
                  constructor(url) { super(url); window.streams.push(this); } };";
    let tab = chrome.open_after(&world.base, "/elections", script).await;
    let live = "document.getElementById('live').innerText.trim() === 'live'";
    tab.until("the stream is live", SOON, live).await;
    let reads = "performance.getEntriesByType('resource').filter(e => \
                 e.name.endsWith('/elections')).length";
    let before: f64 = tab.eval(reads).await;
    tab.run(
        "streams.at(-1).dispatchEvent(new MessageEvent('lagged', \
         { data: '{\"missed\": 12, \"text\": \"too slow\"}' }))",
    )
    .await;
    let lagged = "document.getElementById('live').innerText.includes('lagged, 12 events')";
    tab.until("it is said", SOON, lagged).await;
    tab.until("the page reads anew", SOON, &format!("{reads} > {before}")).await;
    tab.until("it is live again", SOON, live).await;
    tab.close().await;
}
