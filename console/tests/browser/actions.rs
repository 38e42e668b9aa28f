//! Actions in the browser. An action needs a reason and the typed name. Without permission no
//! action is possible.

use std::time::Duration;

use palisade::Failed;
use palisade_console::Options;
use palisade_cron::{Cron, Job, Tick};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::SOON;
use crate::chrome::{Chrome, Tab};
use crate::honest::BETWEEN;
use crate::world::{MAX_TTL, World, acting};

const SEND: &str = "document.querySelector('dialog button[type=submit]').disabled";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_needs_a_reason_and_the_typed_name() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, acting()).await;
    let guard = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open(&world.base, "/locks/mutex/deploy").await;
    open(&tab, "force-release").await;
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

    // The console checks the reason and the typed name again, because a request need not come from
    // a page.
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

async fn open(tab: &Tab, action: &str) {
    let button = format!("[data-action={action}]");
    tab.until("its button", SOON, &format!("!!document.querySelector('{button}')")).await;
    tab.click(&button).await;
    tab.until("the dialog", SOON, "!!document.querySelector('dialog[open]')").await;
}

async fn type_and_send(tab: &Tab, name: &str) {
    tab.type_into("dialog input[name=reason]", "the host is gone").await;
    tab.type_into("dialog input[name=confirm]", name).await;
    tab.click("dialog button[type=submit]").await;
}

const DIALOG: &str = "document.querySelector('dialog').innerText";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_is_about_what_its_dialog_shows() {
    let chrome = Chrome::start().await;
    let world = World::start(3, MAX_TTL, acting()).await;
    let mutex = world.client.mutex("deploy").build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    let owner = mutex.inspect().await.unwrap().holder().unwrap().owner;
    let tab = chrome.open_after(&world.base, "/locks/mutex/deploy", BETWEEN).await;
    open(&tab, "force-release").await;
    let shown: String = tab.eval(DIALOG).await;
    assert!(shown.contains(&*owner), "{shown}");
    assert!(shown.contains(&guard.fencing_token().to_string()), "{shown}");
    // The console answers that the action is refused, as it does if another owner holds the lock by
    // now. The dialog must show the answer, and the page must read the lock again.
    tab.run(
        "window.acts = (body) => { window.sent = body; return { result: 'refused', \
         text: 'it has changed since the page showed it; look again' }; }",
    )
    .await;
    let reads = "performance.getEntriesByType('resource').filter(e => \
                 e.name.includes('/lock?')).length";
    let before: f64 = tab.eval(reads).await;
    type_and_send(&tab, "deploy").await;
    tab.until("it is refused", SOON, &format!("{DIALOG}.includes('it has changed since')")).await;
    assert_eq!(tab.eval::<String>("window.sent.expect").await, *owner);
    tab.until("the page reads again", SOON, &format!("{reads} > {before}")).await;
    // The lock now has another owner than the one for which the name was typed, so the dialog must
    // not send the action.
    guard.release().await.unwrap();
    let _other = world.other().mutex("deploy").build().unwrap().acquire().await.unwrap();
    tab.until("it is told", SOON, &format!("{DIALOG}.includes('It has changed since')")).await;
    assert!(tab.eval::<bool>(SEND).await, "another holder");
    tab.click("dialog button[type=button]").await;

    let election = world.client.election("billing").build().unwrap();
    let leads = election.campaign("10.0.0.7:8080").await.unwrap();
    tab.go("/elections").await;
    open(&tab, "step-down").await;
    let shown: String = tab.eval(DIALOG).await;
    assert!(shown.contains("10.0.0.7:8080"), "{shown}");
    type_and_send(&tab, "billing").await;
    tab.until("it is sent", SOON, "window.sent.action === 'step-down'").await;
    assert_eq!(tab.eval::<String>("window.sent.expect").await, leads.term().to_string());
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_action_is_shown_also_if_its_dialog_is_gone() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, acting()).await;
    let _held = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open_after(&world.base, "/locks/mutex/deploy", BETWEEN).await;
    tab.run("window.acts = () => new Promise((done) => { window.answer = done; })").await;
    open(&tab, "force-release").await;
    type_and_send(&tab, "deploy").await;
    tab.until("it is sent", SOON, "!!window.answer").await;
    tab.press("Escape").await;
    tab.press("Escape").await;
    let closable = "!document.querySelector('dialog button[type=button]').disabled";
    assert!(!tab.eval::<bool>(closable).await, "nothing closes it while it is sent");
    // The page keeps the dialog open, but the browser may close it nevertheless.
    tab.run("document.querySelector('dialog').close()").await;
    tab.until("the dialog is gone", SOON, "!document.querySelector('dialog')").await;
    tab.run("window.answer({ result: 'failed', text: 'no majority names a holder' })").await;
    let told = "document.querySelector('.toast.error').innerText.includes('no majority')";
    tab.until("a message shows it", SOON, &format!("!!document.querySelector('.toast') && {told}"))
        .await;
    tab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_not_known_is_named_so() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, acting()).await;
    let _held = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open_after(&world.base, "/locks/mutex/deploy", BETWEEN).await;
    let told = format!("{DIALOG}.includes('It is unknown if it took effect')");
    tab.run("window.acts = () => ({ result: 'unknown', text: 'the nodes did not answer' })").await;
    open(&tab, "force-release").await;
    type_and_send(&tab, "deploy").await;
    tab.until("the result is unknown", SOON, &told).await;
    assert!(tab.eval::<String>(DIALOG).await.contains("The nodes did not answer."));
    tab.click("dialog button[type=button]").await;
    // A proxy between page and console ends the request, with an answer that is not JSON.
    tab.run(
        "const through = window.fetch; window.fetch = async (path, options) => options.body \
         ? new Response('gateway time-out', { status: 504 }) : through(path, options)",
    )
    .await;
    open(&tab, "force-release").await;
    type_and_send(&tab, "deploy").await;
    tab.until("no answer came", SOON, &told).await;
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
    let first = "[...document.querySelectorAll('select')].map(s => s.selectedIndex).join()";
    assert_eq!(tab.eval::<String>(first).await, "0,0", "every namespace, of any age");
    // The page selects the namespace that its address contains, although the list of namespaces
    // arrives after the page.
    tab.go("/keys/mail").await;
    let chosen = "document.querySelector('select[aria-label=Namespace]').value === 'mail'";
    tab.until("its namespace", SOON, &format!("!!document.querySelector('select') && {chosen}"))
        .await;
    tab.go("/keys/mail/to%20bob%2F7").await;
    tab.until("its page", SOON, "!!document.querySelector('[data-action=rerun]')").await;
    open(&tab, "resolve").await;
    let value = "document.querySelector('dialog input[name=value]').value";
    assert_eq!(tab.eval::<String>(value).await, "", "no result is stored by mistake");
    assert!(tab.eval::<String>(DIALOG).await.contains("if the program cannot read it"));
    tab.click("dialog button[type=button]").await;
    open(&tab, "rerun").await;
    let shown: String = tab.eval(DIALOG).await;
    assert!(shown.contains("parked") && shown.contains("Attempts"), "{shown}");
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
async fn a_job_is_run_now_by_its_button() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, acting()).await;
    let (ran, mut runs) = mpsc::unbounded_channel();
    let process = |name: &'static str, job: Job| {
        let (cron, ran) = (Cron::new(&world.client), ran.clone());
        tokio::spawn(async move {
            let run = cron.run(job, |tick: Tick| {
                let ran = ran.clone();
                async move {
                    ran.send((name, tick.is_requested())).unwrap();
                    Ok::<_, Failed>(())
                }
            });
            drop(run.await);
        })
    };
    let rare = |name: &str| Job::new(name, "0 0 29 2 *");
    let jobs = [process("report", rare("report").on_request()), process("silent", rare("silent"))];
    let tab = chrome.open(&world.base, "/cron/cron%2Fsilent").await;
    let button = "document.querySelector('[data-action=run-now]')";
    let is_off = format!("!!{button} && {button}.getAttribute('aria-disabled') === 'true'");
    tab.until("a job without requests cannot be run", SOON, &is_off).await;
    tab.go("/cron/cron%2Freport").await;
    let is_on = format!("!!{button} && {button}.getAttribute('aria-disabled') !== 'true'");
    tab.until("the job can be run", SOON, &is_on).await;
    open(&tab, "run-now").await;
    type_and_send(&tab, "cron/report").await;
    let run = tokio::time::timeout(2 * SOON, runs.recv()).await.expect("the job runs");
    assert_eq!(run, Some(("report", true)));
    tab.until("the dialog closes", SOON, "!document.querySelector('dialog')").await;
    tab.shows("requested by local", SOON).await;
    assert!(runs.try_recv().is_err(), "it runs once");
    tab.close().await;
    for job in jobs {
        job.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_no_action_can_be_pressed_or_sent() {
    let chrome = Chrome::start().await;
    let world = World::start(1, MAX_TTL, Options::default()).await;
    let guard = world.client.mutex("deploy").build().unwrap().acquire().await.unwrap();
    let tab = chrome.open(&world.base, "/locks/mutex/deploy").await;
    tab.until("it is held", SOON, "!!document.querySelector('[data-action=force-release]')").await;
    let all = "[...document.querySelectorAll('[data-action]')]";
    let off = "b => b.getAttribute('aria-disabled') === 'true' && !b.disabled";
    assert!(tab.eval::<bool>(&format!("{all}.length > 0 && {all}.every({off})")).await);
    // A disabled action can be reached by keyboard. A screen reader reads out why it is disabled,
    // and the page shows the reason when the action is pressed.
    let reason = "document.getElementById(document.activeElement.getAttribute(\
                  'aria-describedby')).textContent";
    tab.run("document.querySelector('[data-action=force-release]').focus()").await;
    let reason: String = tab.eval(reason).await;
    assert!(reason.contains("--allow-actions"), "{reason}");
    tab.run("document.activeElement.click()").await;
    assert!(!tab.eval::<bool>("!!document.querySelector('dialog')").await);
    let told = "document.getElementById('toasts').innerText.includes('--allow-actions')";
    tab.until("the reason is shown", SOON, told).await;
    let wrong: Vec<String> = tab.eval(include_str!("audit.js")).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
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
    tab.run("document.querySelector('main input').value = ''").await;
    tab.type_into("main input[type=password]", "a-token-that-may-read").await;
    tab.click("main button[type=submit]").await;
    tab.shows("1 of 1 vote", SOON).await;
    tab.forgive(); // the browser reports the status 401
    let cookie: String = tab.eval("document.cookie").await;
    assert_eq!(cookie, "", "no script can read the cookie");
    tab.run("[...document.querySelectorAll('#top button')].at(-1).click()").await;
    tab.shows("Sign in", SOON).await;
    tab.close().await;
}
