//! Long lists: 10,000 locks and 100,000 keys.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use palisade_console::Options;

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::world::World;

const LOCKS: usize = 10_000;
const KEYS: usize = 100_000;
/// Requests at a time while the data are made.
const AT_ONCE: usize = 256;
/// Longer than this test: nothing that was made may run out in it.
const HOUR: Duration = Duration::from_secs(3_600);

/// Scrolls to the end again and again until the list has `rows` rows, and returns the largest
/// number of rows that were in the document.
async fn to_the_end(tab: &Tab, rows: usize) -> usize {
    let script = format!(
        "(async () => {{
            const box = document.querySelector('.scroll.tall');
            const end = performance.now() + 8000;
            let most = 0;
            while (performance.now() < end) {{
                box.scrollTop = box.scrollHeight;
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 10)));
                most = Math.max(most, box.querySelectorAll('tbody tr').length);
                const last = [...box.querySelectorAll('tr[aria-rowindex]')].at(-1);
                if (last && Number(last.getAttribute('aria-rowindex')) > {rows}) break;
            }}
            return [most, box.scrollHeight];
        }})()"
    );
    let (mut most, mut height, mut reached) = (0, 0.0, 0.0);
    for _ in 0..40 {
        let (rows_there, now): (usize, f64) = tab.eval(&script).await;
        most = most.max(rows_there);
        if reached == now && height == now {
            break;
        }
        (reached, height) = (height, now);
    }
    let index = "Number([...document.querySelectorAll('tr[aria-rowindex]')].at(-1)\
                 .getAttribute('aria-rowindex'))";
    let last: usize = tab.eval(index).await;
    assert!(last > rows, "row {last} is the last that can be reached, of {rows}");
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_and_a_hundred_thousand_keys_scroll() {
    let chrome = Chrome::start().await;
    let mut options = Options::default();
    (options.keys, options.keys_per_second) = (2 * KEYS, 10_000);
    let world = World::start(1, HOUR, options).await;
    let guards: Vec<_> = stream::iter(0..LOCKS)
        .map(|n| {
            let mutex = world.client.mutex(format!("lock:{n:05}"));
            let mutex = mutex.ttl(HOUR).auto_renew(false).build().unwrap();
            async move { mutex.acquire().await.unwrap() }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let keys = Arc::new(world.keys("load"));
    stream::iter(0..KEYS)
        .for_each_concurrent(AT_ONCE, |n| {
            let keys = Arc::clone(&keys);
            async move {
                let call = keys.key(format!("order:{n:06}"));
                let _ = call.run(|_| async { Ok::<_, String>(0_u8) }).await.unwrap();
            }
        })
        .await;

    let tab = chrome.open(&world.base, "/locks").await;
    tab.shows("lock:00000", 6 * SOON).await;
    let all = "/of 10.?000 locks|All 10.?000 locks/.test(document.body.innerText)";
    tab.until("every lock is found", 12 * SOON, all).await;
    let rows = to_the_end(&tab, LOCKS).await;
    assert!(rows < 200, "{rows} rows are in the document at once");
    tab.shows("lock:09999", SOON).await;
    tab.shows("All 10\u{202f}000 locks are here.", SOON).await;
    tab.shows("keys a second on each node", SOON).await;
    // A change far down is shown there.
    let name = guards.iter().position(|guard| guard.name() == "lock:09990").unwrap();
    let mut guards = guards;
    guards.swap_remove(name).release().await.unwrap();
    tab.hides("lock:09990", 6 * SOON).await;

    tab.go("/keys").await;
    let all = "/of 100.?000 keys|All 100.?000 keys/.test(document.body.innerText)";
    tab.until("every key is found", 12 * SOON, all).await;
    let rows = to_the_end(&tab, 5_000).await;
    assert!(rows < 200, "{rows} rows are in the document at once");
    tab.type_into("main input[type=search]", "order:099999").await;
    tab.shows("order:099999", SOON).await;
    tab.close().await;
}
