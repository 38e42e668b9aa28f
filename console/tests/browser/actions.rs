//! Actions: with a reason and the typed name, and not at all without permission.

use std::time::Duration;

use palisade_console::Options;
use serde_json::{Value, json};

use crate::SOON;
use crate::chrome::Chrome;
use crate::world::{MAX_TTL, World, acting};

const SEND: &str = "document.querySelector('dialog button[type=submit]').disabled";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_needs_a_reason_and_the_typed_name() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, acting()).await;
    let guard = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open(&world.base, "/locks/mutex/deploy").await;
    tab.until("it is held", SOON, "!!document.querySelector('[data-action=force-release]')").await;
    tab.click("[data-action=force-release]").await;
    tab.until("the dialog", SOON, "!!document.querySelector('dialog[open]')").await;
    assert!(tab.eval::<bool>(SEND).await, "neither reason nor name");
    tab.type_into("dialog input[name=confirm]", "deploy").await;
    assert!(tab.eval::<bool>(SEND).await, "no reason");
    tab.type_into("dialog input[name=reason]", "the host is gone").await;
    tab.until("it can be sent", SOON, &format!("!{SEND}")).await;
    tab.type_into("dialog input[name=confirm]", "2").await;
    assert!(tab.eval::<bool>(SEND).await, "another name");
    tab.run(
        "const f = document.querySelector('dialog input[name=confirm]'); f.value = ''; \
             f.dispatchEvent(new Event('input'))",
    )
    .await;
    tab.type_into("dialog input[name=confirm]", "deploy").await;
    tab.click("dialog button[type=submit]").await;
    tab.until("the dialog closes", SOON, "!document.querySelector('dialog')").await;
    tab.until("it is reported", SOON, "!!document.querySelector('.toast')").await;
    tokio::time::timeout(SOON, guard.lost()).await.expect("the holder lost it");
    tab.go("/").await;
    tab.shows("the host is gone", SOON).await;

    // The console itself checks again, whoever asks.
    let ask = |reason: &str, confirm: &str| {
        json!({ "action": "force-release", "name": "deploy", "reason": reason, "confirm": confirm })
            .to_string()
    };
    for (reason, confirm, code) in [("", "deploy", "reason"), ("why not", "other", "confirm")] {
        let (status, body) = world.request("POST", "/api/v1/actions", &ask(reason, confirm)).await;
        assert_eq!((status, code_of(&body).as_str()), (400, code), "{body}");
    }
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_key_runs_again_by_its_page() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, acting()).await;
    let keys = world.keys("mail");
    let call = keys.key("to bob/7");
    let never = call.run(|_| std::future::pending::<Result<u8, String>>());
    assert!(tokio::time::timeout(Duration::from_millis(500), never).await.is_err());
    let tab = chrome.open(&world.base, "/keys").await;
    let listed = "[...document.querySelectorAll('main td.name a')].some(a => \
                  a.innerText === 'to bob/7')";
    tab.until("the key is listed", SOON, listed).await;
    tab.go("/keys/mail/to%20bob%2F7").await;
    tab.until("its page", SOON, "!!document.querySelector('[data-action=rerun]')").await;
    tab.click("[data-action=rerun]").await;
    tab.type_into("dialog input[name=reason]", "the relay has no log of it").await;
    tab.type_into("dialog input[name=confirm]", "to bob/7").await;
    tab.click("dialog button[type=submit]").await;
    tab.until("the dialog closes", SOON, "!document.querySelector('dialog')").await;
    let ran = keys.key("to bob/7").run(|_| async { Ok::<u8, String>(7) }).await.unwrap();
    assert!(matches!(ran, palisade::Outcome::Executed { value: 7, .. }), "{ran:?}");
    tab.shows("done", SOON).await;
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_no_action_can_be_pressed_or_sent() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let guard = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open(&world.base, "/locks/mutex/deploy").await;
    tab.until("it is held", SOON, "!!document.querySelector('[data-action=force-release]')").await;
    let all = "[...document.querySelectorAll('[data-action]')]";
    assert!(tab.eval::<bool>(&format!("{all}.length > 0 && {all}.every(b => b.disabled)")).await);
    tab.run("document.querySelector('[data-action=force-release]').click()").await;
    assert!(!tab.eval::<bool>("!!document.querySelector('dialog')").await);
    let ask = json!({ "action": "force-release", "name": "deploy", "reason": "because",
                      "confirm": "deploy" });
    let (status, body) = world.request("POST", "/api/v1/actions", &ask.to_string()).await;
    assert_eq!((status, code_of(&body).as_str()), (403, "read_only"), "{body}");
    assert!(!guard.remaining().is_zero());
    tab.close().await;
}

fn code_of(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_signs_in_with_a_token_and_out_again() {
    let chrome = Chrome::start().await;
    let mut options = Options::default();
    options.tokens.read = Some("a-token-that-may-read".to_owned());
    let world = World::start(1, MAX_TTL, options).await;
    let tab = chrome.open(&world.base, "/").await;
    tab.shows("Sign in", SOON).await;
    tab.type_into("main input[type=password]", "another-token-of-its-length").await;
    tab.click("main button[type=submit]").await;
    tab.until("it is refused", SOON, "!!document.querySelector('[role=alert] .cut')").await;
    tab.forgive(); // the browser reports the status 401
    tab.run("document.querySelector('main input').value = ''").await;
    tab.type_into("main input[type=password]", "a-token-that-may-read").await;
    tab.click("main button[type=submit]").await;
    tab.shows("1 of 1 vote", SOON).await;
    let cookie: String = tab.eval("document.cookie").await;
    assert_eq!(cookie, "", "no script can read the cookie");
    tab.run("[...document.querySelectorAll('#top button')].at(-1).click()").await;
    tab.shows("Sign in", SOON).await;
    tab.close().await;
}
