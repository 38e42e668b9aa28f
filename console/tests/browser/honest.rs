//! Tests that a page does not show partial lists as complete, or old events as live. A page also
//! shows if it cannot draw its data.

use palisade_console::Options;

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::world::{MAX_TTL, World};

/// Script for the start of a page. It gives the test the streams of the page, and passes each
/// answer and event through `change(name, data)` before the page receives it.
pub(crate) const BETWEEN: &str = r"
window.streams = [];
window.change = (name, data) => data;
const RealSource = EventSource;
window.EventSource = class extends RealSource {
  constructor(url) {
    super(url);
    window.streams.push(this);
  }
  addEventListener(name, listener) {
    super.addEventListener(name, (event) => listener({
      data: JSON.stringify(window.change(name, JSON.parse(event.data))) }));
  }
};
const realFetch = fetch;
window.fetch = async (path, options) => {
  const name = path.replace('/api/v1/', '');
  if (options.body) {
    const instead = window.acts && await window.acts(JSON.parse(options.body));
    return instead ? new Response(JSON.stringify(instead), { status: 200 })
      : realFetch(path, options);
  }
  const response = await realFetch(path, options);
  const { status } = response;
  return new Response(JSON.stringify(window.change(name, await response.json())), { status });
};";
/// Script that returns the page's text about how fresh its data are.
const LIVE: &str = "document.getElementById('live').innerText.trim()";

async fn live(tab: &Tab) {
    tab.until("the stream is live", SOON, &format!("{LIVE} === 'live'")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_whole_only_if_the_console_has_read_every_name() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let tab = chrome.open_after(&world.base, "/", BETWEEN).await;
    tab.run(
        "window.change = (name, data) => /^(locks|elections|keys)/.test(name) \
         ? { ...data, whole: false, left_out: 7 } : data",
    )
    .await;
    for (hash, partial, whole) in [
        ("/locks", "No lock has been seen so far", "No lock is held"),
        ("/elections", "No election has been seen so far", "No process campaigns"),
        ("/keys", "No key has been seen so far", "The nodes have no record of a key"),
    ] {
        tab.go(hash).await;
        tab.shows(partial, SOON).await;
        tab.shows("names are still being found", SOON).await;
        tab.shows("7 are left out", SOON).await;
        tab.shows("keys a second on each node", SOON).await;
        let text: String = tab.eval("document.querySelector('main').innerText").await;
        assert!(!text.contains(whole) && !text.contains("in all"), "{text}");
    }
    let _held = world.client.mutex("ledger").build().unwrap().acquire().await.unwrap();
    tab.go("/locks").await;
    tab.shows("1 locks seen so far.", SOON).await;
    tab.run("window.change = (name, data) => ({ ...data, whole: true })").await;
    tab.go("/locks").await;
    tab.shows("All 1 locks are here.", SOON).await;
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incident_is_settled_only_if_each_namespace_is_decided() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let tab = chrome.open_after(&world.base, "/", BETWEEN).await;
    let incident = |standings: &[&str]| {
        let namespaces: Vec<_> = standings
            .iter()
            .enumerate()
            .map(|(n, standing)| {
                serde_json::json!({ "namespace": format!("n{n}"), "standing": standing,
                    "by": null, "reason": null, "at_ms": null, "may": [], "error": null })
            })
            .collect();
        serde_json::json!([{ "loss": "20261123-140321.417", "sentence": "the master lost 2 s",
            "until_ms": 9_000_000_000_000_u64, "remaining_ms": 1, "losses": [],
            "namespaces": namespaces }])
    };
    for (standings, undecided, left_out, level, text) in [
        (&["run", "park"][..], 0, 0, "fine", "the master lost 2 s"),
        (&["run"], 0, 0, "fine", "Each namespace with a record is decided"),
        (&[], 1, 0, "error", "No namespace with a record of keys has been seen so far"),
        (&["run"], 1, 0, "warning", "names are still being found"),
        (&["run"], 1, 3, "warning", "3 namespaces more"),
        (&["run", "unknown"], 1, 0, "warning", "is not known"),
        (&["run", "mixed"], 0, 0, "warning", "different decisions"),
        (&["run", "undecided"], 1, 0, "error", "1 namespace without a decision"),
    ] {
        tab.go("/").await;
        let incidents = incident(standings);
        tab.run(&format!(
            "window.change = (name, data) => name.startsWith('incidents') \
             ? {{ ...data, incidents: {incidents}, left_out: {left_out}, \
             undecided: {undecided} }} : data"
        ))
        .await;
        tab.until("the first page", SOON, "!!document.querySelector('.figure')").await;
        tab.go("/keys").await;
        tab.shows(text, SOON).await;
        tab.until(
            &format!("{standings:?} is {level}"),
            SOON,
            &format!("!!document.querySelector('.lead .mark.{level}')"),
        )
        .await;
        let chooses: bool = tab.eval("!!document.querySelector('input[name=namespace]')").await;
        assert!(chooses, "one that is not known can be chosen");
    }
    // The list of incidents depends on how long keys are kept, which the visitor chooses.
    tab.shows("1 incident for keys that are kept for", SOON).await;
    tab.run(
        "const f = document.querySelector('input[name=retention]'); f.focus(); f.value = '720'; \
         f.dispatchEvent(new Event('input'))",
    )
    .await;
    let asked = "performance.getEntriesByType('resource').some(e => \
                 e.name.endsWith('/incidents?retention_ms=2592000000'))";
    tab.until("the list of 30 days is read", SOON, asked).await;
    let focused: bool = tab.eval("document.activeElement.name === 'retention'").await;
    assert!(focused, "the field stays while the list is read");
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_cannot_be_drawn_are_never_live_over_old_content() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let election = world.client.election("billing").build().unwrap();
    let _leads = election.campaign("10.0.0.7:8080").await.unwrap();
    let tab = chrome.open_after(&world.base, "/elections", BETWEEN).await;
    tab.shows("10.0.0.7:8080", SOON).await;
    live(&tab).await;
    // 9e15 ms is after the last date of JavaScript. The page leaves this time out, and draws the
    // rest.
    let with = |change: &str| {
        format!(
            "window.change = (name, data) => {{ if (name === 'elections') {{ \
             for (const e of data.elections) {{ {change} }} }} return data; }}; \
             location.hash = '#/'"
        )
    };
    let again = async |change: &str| {
        tab.run(&with(change)).await;
        tab.until("the first page", SOON, "!!document.querySelector('.figure')").await;
        tab.go("/elections").await;
    };
    again("e.leader.since_ms = e.candidates[0].since_ms = e.terms[0].from_ms = 9e15").await;
    tab.shows("10.0.0.7:8080", SOON).await;
    live(&tab).await;
    again("e.terms = 7").await;
    tab.shows("This page could not be drawn", SOON).await;
    tab.until("it is not live", SOON, &format!("{LIVE} === 'not drawn'")).await;
    tab.hides("10.0.0.7:8080", SOON).await;
    again("").await;
    tab.shows("10.0.0.7:8080", SOON).await;
    live(&tab).await;
    tab.forgive(); // the page reports its error
    // If the page cannot use an event, it must show the stream as cut off, because its content may
    // be old.
    tab.run("window.change = (name, data) => name === 'overview' ? { votes: 7 } : data").await;
    let _held = world.client.mutex("ledger").build().unwrap().acquire().await.unwrap();
    tab.until("it is cut off", SOON, &format!("{LIVE}.startsWith('cut')")).await;
    tab.run("window.change = (name, data) => data").await;
    live(&tab).await;
    tab.forgive();
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_from_the_past_set_neither_the_clock_nor_the_page_back() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let tab = chrome.open_after(&world.base, "/", BETWEEN).await;
    tab.shows("1 of 1 vote", SOON).await;
    live(&tab).await;
    let hours = "Number(document.querySelector('#top time').innerText.slice(0, 2))";
    let before: u32 = tab.eval(hours).await;
    tab.run(
        "fetch('/api/v1/overview', {}).then(r => r.json()).then(page => { \
         const now_ms = page.now_ms - 7200000; \
         const old = { ...page, now_ms, verdict: { state: 'down', text: 'two hours ago' } }; \
         const s = streams.at(-1); \
         for (const [name, data] of [['overview', old], ['tick', { ...page, now_ms }]]) \
         s.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) })); \
         window.isSent = true; })",
    )
    .await;
    tab.until("they are sent", SOON, "window.isSent === true").await;
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    let text: String = tab.eval("document.body.innerText").await;
    assert!(!text.contains("two hours ago"), "{text}");
    let after: u32 = tab.eval(hours).await;
    assert!(after == before || after == (before + 1) % 24, "{before} became {after}");
    // If the events of a stream are too old, the page opens the stream again. The new stream begins
    // with the present time.
    tab.run(
        "window.change = (name, data) => name === 'hello' ? data \
         : { ...data, now_ms: data.now_ms - 7200000 }",
    )
    .await;
    let opened: u32 = tab.eval("streams.length").await;
    tab.until("it is opened anew", 2 * SOON, &format!("streams.length > {opened}")).await;
    tab.run("window.change = (name, data) => data").await;
    live(&tab).await;
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_page_has_no_stream_and_no_read_lasts_for_ever() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let held = world.client.mutex("ledger").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open_after(&world.base, "/locks/mutex/ledger", BETWEEN).await;
    tab.shows("held by", SOON).await;
    live(&tab).await;
    tab.run(
        "Object.defineProperty(document, 'hidden', { get: () => window.isHidden === true }); \
         window.hide = (is) => { window.isHidden = is; \
         document.dispatchEvent(new Event('visibilitychange')); }; hide(true)",
    )
    .await;
    tab.until("its stream ends", SOON, "streams.at(-1).readyState === 2").await;
    let opened: u32 = tab.eval("streams.length").await;
    tab.run("hide(false)").await;
    tab.until("it is opened again", SOON, &format!("streams.length > {opened}")).await;
    live(&tab).await;
    // The first request for the lock never receives an answer. The page must read again
    // nevertheless.
    tab.run(
        "const through = window.fetch; window.hangs = 0; window.fetch = (path, options) => \
         path.includes('/lock?') && window.hangs++ === 0 ? new Promise((_, fail) => \
         options.signal.addEventListener('abort', () => fail(options.signal.reason))) \
         : through(path, options)",
    )
    .await;
    held.release().await.unwrap();
    tab.until("the read hangs", SOON, "window.hangs > 0").await;
    tab.shows("Nobody holds it now.", 2 * SOON).await;
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_with_a_part_of_the_rows_does_not_shorten_a_list() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let _first = world.client.mutex("ledger-1").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open_after(&world.base, "/locks", BETWEEN).await;
    tab.shows("ledger-1", SOON).await;
    tab.run(
        "window.change = (name, data) => name === 'locks' \
         ? { ...data, locks: [], next: '100', total: 300 } : data",
    )
    .await;
    let _second = world.client.mutex("ledger-2").build().unwrap().acquire().await.unwrap();
    tab.shows("ledger-2", SOON).await;
    let rows = "document.querySelectorAll('tr[aria-rowindex]').length";
    assert_eq!(tab.eval::<u32>(rows).await, 2);
    tab.close().await;
}
