//! Tests of the console's pages with long lists: 10,000 locks and 100,000 keys.

use std::time::Duration;

use palisade_console::Options;

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::world::World;

const LOCKS: usize = 10_000;
const KEYS: usize = 100_000;
/// Lua script that copies keys. ARGV: the end of a key's name, which is a number, and the count.
/// Each key with this end is copied under the names with all other numbers below the count. Returns
/// the number of copies.
const COPY: &str = r"
local made, name, copies = 0, ARGV[1], tonumber(ARGV[2])
local digits = #name:match('%d+$')
local stem = name:sub(1, -digits - 1)
for _, key in ipairs(redis.call('keys', '*' .. name .. '*')) do
    local first, last = key:find(name, 1, true)
    for n = 1, copies - 1 do
        local number = string.format('%0' .. digits .. 'd', n)
        redis.call('copy', key, key:sub(1, first - 1) .. stem .. number .. key:sub(last + 1))
    end
    made = made + copies
end
return made";
/// Time limit until the console has read all keys and checked all locks. It reads only a limited
/// number of keys per second.
const LONG: Duration = Duration::from_secs(300);
/// Number of keys that the console has read before the test scrolls through them.
const LISTED: usize = 30_000;
/// Time that is longer than this test, so that nothing expires during the test.
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
    let (mut most, mut height, mut reached) = (0, 0, 0);
    for _ in 0..40 {
        let (rows_there, now): (usize, u64) = tab.eval(&script).await;
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
    // A client makes one lock and one record. The server copies them, because a client would need
    // too long for so many.
    let mutex = world.client.mutex("lock:00000").ttl(HOUR).auto_renew(false).build().unwrap();
    let _held = mutex.acquire().await.unwrap();
    let call = world.keys("load");
    let ran = call.key("order:000000").run(|_| async { Ok::<_, String>(0_u8) }).await.unwrap();
    assert!(matches!(ran, palisade::Outcome::Executed { .. }));
    for (name, copies) in [("lock:00000", LOCKS), ("order:000000", KEYS)] {
        let made = world.servers[0].cli(&["eval", COPY, "0", name, &copies.to_string()]);
        assert!(made.parse::<usize>().is_ok_and(|made| made >= copies), "{made}");
    }

    let tab = chrome.open(&world.base, "/locks").await;
    let all = "/of 10.?000 locks|All 10.?000 locks/.test(document.body.innerText)";
    tab.until("every lock is found", LONG, all).await;
    let rows = to_the_end(&tab, LOCKS).await;
    assert!(rows < 200, "{rows} rows are in the document at once");
    tab.shows("lock:09999", SOON).await;
    tab.shows("All 10\u{202f}000 locks are here.", SOON).await;
    tab.shows("keys a second on each node", SOON).await;
    // A change of a row far down in the list is shown in that part of the list.
    assert_eq!(world.servers[0].cli(&["del", "lock:09990"]), "1");
    tab.hides("lock:09990", LONG).await;

    tab.go("/keys").await;
    // The console reads a limited number of keys per second, and the page shows how many it has
    // read.
    let listed = r"Number((document.body.innerText.match(/of ([\d\u202f]+) keys/) || ['', '0'])[1]
        .replace(/\D/g, ''))";
    tab.until("many keys are found", LONG, &format!("{listed} >= {LISTED}")).await;
    tab.shows("There may be more: names are still being found.", SOON).await;
    let rows = to_the_end(&tab, 5_000).await;
    assert!(rows < 200, "{rows} rows are in the document at once");
    let name = "document.querySelector('.scroll.tall td.name a').innerText";
    let last: String = tab.eval(name).await;
    tab.type_into("main input[type=search]", &last).await;
    let only = "document.querySelectorAll('tr[aria-rowindex]').length === 1";
    tab.until("only the key that is searched is there", SOON, only).await;
    tab.shows(&last, SOON).await;
    tab.close().await;
}
