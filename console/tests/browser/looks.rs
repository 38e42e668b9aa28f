//! Tests of accessibility: contrast, names, landmarks, keyboard, narrow windows, and motion that
//! can be turned off.

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::world::{MAX_TTL, World, acting};

const PAGES: [(&str, &str); 9] = [
    ("/", "3 of 3 votes"),
    ("/locks", "ledger"),
    ("/locks/mutex/ledger", "What each node answers"),
    ("/elections", "10.0.0.7:8080"),
    ("/cron", "Cron"),
    ("/keys", "order-7"),
    ("/keys/payments/order-7", "Attempts"),
    ("/nodes", "3 of 3 vote"),
    ("/failovers", "Losses that the nodes remember"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_is_legible_named_and_fits_in_light_and_dark_and_on_a_phone() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, acting()).await;
    let _held = world.client.mutex("ledger").build().unwrap().acquire().await.unwrap();
    let election = world.client.election("billing").build().unwrap();
    let _leads = election.campaign("10.0.0.7:8080").await.unwrap();
    let keys = world.keys("payments");
    let _ = keys.key("order-7").run(|_| async { Ok::<_, String>(7) }).await.unwrap();
    let tab = chrome.open(&world.base, "/").await;
    for (size, scheme) in [((1280, 800), "light"), ((1280, 800), "dark"), ((390, 844), "dark")] {
        tab.emulate(size, &[("prefers-color-scheme", scheme)]).await;
        for (hash, text) in PAGES {
            tab.go(hash).await;
            tab.shows(text, SOON).await;
            let wrong = audit(&tab).await;
            assert!(wrong.is_empty(), "{hash} in {scheme}, {size:?}: {wrong:#?}");
        }
    }
    tab.go("/locks/mutex/ledger").await;
    tab.shows("ledger", SOON).await;
    tab.click("[data-action=force-release]").await;
    tab.until("the dialog", SOON, "!!document.querySelector('dialog[open]')").await;
    let wrong = audit(&tab).await;
    assert!(wrong.is_empty(), "the dialog: {wrong:#?}");
    tab.close().await;
}

async fn audit(tab: &Tab) -> Vec<String> {
    tab.eval(include_str!("audit.js")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_is_enough_and_motion_can_be_turned_off() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, acting()).await;
    let tab = chrome.open(&world.base, "/").await;
    let focused = |what: &str| format!("document.activeElement.matches({what:?})");
    tab.press("Tab").await;
    assert!(tab.eval::<bool>(&focused("#skip")).await, "the first is the way to the content");
    tab.press("Enter").await;
    assert!(tab.eval::<bool>(&focused("main")).await);
    tab.press("2").await;
    tab.until("the second page", SOON, "location.hash === '#/locks'").await;
    tab.until("its heading", SOON, "document.querySelector('h1').innerText === 'Locks'").await;
    tab.until("focus", SOON, &focused("main")).await;
    tab.press("/").await;
    tab.until("search", SOON, &focused("input[type=search]")).await;
    tab.run("document.activeElement.blur()").await;
    tab.press("?").await;
    tab.until("help", SOON, "!!document.querySelector('dialog[open]')").await;
    tab.press("Escape").await;
    tab.until("no help", SOON, "!document.querySelector('dialog')").await;
    // The Tab key reaches the links of all pages one after the other.
    tab.run("document.getElementById('skip').focus()").await;
    let mut reached = 0;
    for _ in 0..16 {
        tab.press("Tab").await;
        reached += usize::from(tab.eval::<bool>(&focused("#nav a")).await);
    }
    assert_eq!(reached, 7);

    // The cell of a new row has an animation. The script adds such a row for a moment, only to read
    // the animation's name.
    let moves = "(() => { const table = document.createElement('table'); \
                 const row = table.insertRow(); row.className = 'new'; \
                 const cell = row.insertCell(); document.body.append(table); \
                 const name = getComputedStyle(cell).animationName; \
                 table.remove(); return name; })()";
    for (wish, name) in [("reduce", "none"), ("no-preference", "arrive")] {
        tab.emulate((1280, 800), &[("prefers-reduced-motion", wish)]).await;
        let animation = tab.eval::<String>(moves).await;
        assert_eq!(animation, name, "{wish}");
    }
    tab.close().await;
}
