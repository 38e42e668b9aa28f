//! A real browser, driven by its debugging protocol.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chromiumoxide::cdp::browser_protocol::emulation::{
    MediaFeature, SetDeviceMetricsOverrideParams, SetEmulatedMediaParams,
};
use chromiumoxide::cdp::browser_protocol::log::{self, EventEntryAdded, LogEntryLevel};
use chromiumoxide::cdp::browser_protocol::network::{self, EventRequestWillBeSent};
use chromiumoxide::cdp::browser_protocol::page::{
    CaptureScreenshotFormat, CaptureScreenshotParams,
};
use chromiumoxide::cdp::js_protocol::runtime::{
    ConsoleApiCalledType, EvaluateParams, EventConsoleApiCalled, EventExceptionThrown,
};
use chromiumoxide::{Browser, Page};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex as Turn, MutexGuard as MyTurn};
use tokio::task::JoinHandle;

use crate::tally;

/// Time limit for the start of the browser.
const START: Duration = Duration::from_secs(30);
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The tests run one after the other, because a test machine has no room for several browsers.
static TURN: Turn<()> = Turn::const_new(());

/// A browser. Dropping this value ends its processes.
pub(crate) struct Chrome {
    browser: Browser,
    events: JoinHandle<()>,
    shell: Child,
    profile: PathBuf,
    _turn: MyTurn<'static, ()>,
}

impl Chrome {
    pub(crate) async fn start() -> Self {
        let turn = TURN.lock().await;
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("palisade-chromium-{}-{n}", std::process::id());
        let profile = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&profile).expect("a directory for the profile");
        // The shell waits for the end of its standard input. The kernel closes this input even if
        // SIGKILL ends this process. The shell then ends the browser by its process id.
        let script = r#"for it in chromium chromium-browser google-chrome none; do
    command -v $it >/dev/null && break
done
[ $it != none ] || exit 127
$it "$@" </dev/null >/dev/null 2>&1 & p=$!
read _
kill $p 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $p 2>/dev/null || exit 0; sleep 0.1; done
kill -9 $p 2>/dev/null
wait $p 2>/dev/null"#;
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh", "--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-extensions", "--mute-audio"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let address = address(&mut shell, &profile).await;
        let (browser, mut handler) = Browser::connect(address).await.expect("its debugging port");
        let events = tokio::spawn(async move { while handler.next().await.is_some() {} });
        Self { browser, events, shell, profile, _turn: turn }
    }

    /// Opens a tab on a page of the console; `hash` is the part of its address after `#`.
    pub(crate) async fn open(&self, base: &str, hash: &str) -> Tab {
        self.open_after(base, hash, "").await
    }

    pub(crate) async fn open_after(&self, base: &str, hash: &str, script: &str) -> Tab {
        let page = self.browser.new_page("about:blank").await.expect("a tab");
        let tab = Tab { page, base: base.to_owned(), reported: Arc::default() };
        tab.listen().await;
        tab.emulate((1280, 800), &[]).await;
        tab.page.evaluate_on_new_document(script).await.expect("a script");
        tab.page.goto(format!("{base}#{hash}")).await.expect("the console answers");
        tab.until("a page is drawn", START, "!!document.querySelector('main h1')").await;
        tab
    }
}

impl Drop for Chrome {
    fn drop(&mut self) {
        self.events.abort();
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

async fn address(shell: &mut Child, profile: &std::path::Path) -> String {
    let end = Instant::now() + START;
    loop {
        if let Ok(Some(status)) = shell.try_wait() {
            assert!(
                status.code() != Some(127),
                "chromium is missing: install the package chromium (scripts/need chromium)"
            );
            panic!("chromium ended at its start: {status}");
        }
        let port = std::fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        if let Some((port, path)) = port.trim().split_once('\n') {
            return format!("ws://127.0.0.1:{port}{path}");
        }
        assert!(Instant::now() < end, "chromium did not start within {START:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Errors of a tab, and its requests to other servers than the console, as the browser reported
/// them.
#[derive(Default)]
struct Reported {
    errors: Vec<String>,
    foreign: Vec<String>,
}

/// A tab of the browser.
pub(crate) struct Tab {
    page: Page,
    base: String,
    reported: Arc<Mutex<Reported>>,
}

impl Tab {
    async fn listen(&self) {
        let page = &self.page;
        page.execute(log::EnableParams::default()).await.expect("the domain Log");
        page.execute(network::EnableParams::default()).await.expect("the domain Network");
        let mut thrown = page.event_listener::<EventExceptionThrown>().await.expect("events");
        let mut logged = page.event_listener::<EventEntryAdded>().await.expect("events");
        let mut called = page.event_listener::<EventConsoleApiCalled>().await.expect("events");
        let mut sent = page.event_listener::<EventRequestWillBeSent>().await.expect("events");
        let (reported, base) = (Arc::clone(&self.reported), self.base.clone());
        tokio::spawn(async move {
            loop {
                let error = tokio::select! {
                    Some(event) = thrown.next() => {
                        let details = &event.exception_details;
                        let inner = details.exception.as_ref().and_then(|e| e.description.clone());
                        inner.unwrap_or_else(|| details.text.clone())
                    }
                    Some(event) = logged.next() => match event.entry.level {
                        LogEntryLevel::Error | LogEntryLevel::Warning => {
                            format!("{} {:?}", event.entry.text, event.entry.url)
                        }
                        _ => continue,
                    },
                    Some(event) = called.next() => match event.r#type {
                        ConsoleApiCalledType::Error | ConsoleApiCalledType::Warning => {
                            format!("{:?}", event.args)
                        }
                        _ => continue,
                    },
                    Some(event) = sent.next() => {
                        let url = &event.request.url;
                        if !url.starts_with(&base) && url != "about:blank" {
                            reported.lock().unwrap().foreign.push(url.clone());
                        }
                        continue;
                    }
                    else => return,
                };
                reported.lock().unwrap().errors.push(error);
            }
        });
    }

    /// Goes to another page of the console, as a link does.
    pub(crate) async fn go(&self, hash: &str) {
        self.run(&format!("location.hash = {}", quoted(hash))).await;
    }

    /// Evaluates an expression, and waits for it if it is a promise.
    pub(crate) async fn eval<T: DeserializeOwned>(&self, script: &str) -> T {
        let params = EvaluateParams::builder().expression(script);
        let params = params.await_promise(true).return_by_value(true).build().expect("complete");
        let value = self.page.evaluate_expression(params).await;
        let value = value.unwrap_or_else(|e| panic!("{script}: {e}"));
        value.into_value().unwrap_or_else(|e| panic!("{script}: {e}"))
    }

    pub(crate) async fn run(&self, script: &str) {
        let _: bool = self.eval(&format!("(() => {{ {script}; return true; }})()")).await;
    }

    pub(crate) async fn until(&self, what: &str, within: Duration, script: &str) -> Duration {
        let began = Instant::now();
        loop {
            if self.eval::<bool>(script).await {
                return began.elapsed();
            }
            if began.elapsed() > within {
                let text: String = self.eval("document.body.innerText").await;
                let errors = self.reported.lock().unwrap().errors.clone();
                panic!("not within {within:?}: {what}; errors: {errors:?}; the page:\n{text}");
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    pub(crate) async fn shows(&self, text: &str, within: Duration) -> Duration {
        self.until(&format!("the page shows {text:?}"), within, &has(text)).await
    }

    pub(crate) async fn hides(&self, text: &str, within: Duration) -> Duration {
        let script = format!("!{}", has(text));
        self.until(&format!("the page does not show {text:?}"), within, &script).await
    }

    /// Clicks the first element of this selector as a person does. If the page is drawn anew
    /// between the search and the click, both are repeated.
    pub(crate) async fn click(&self, selector: &str) {
        for last in [false, false, false, true] {
            let clicked = match self.page.find_element(selector).await {
                Ok(found) => found.click().await.map(|_| ()),
                Err(e) => Err(e),
            };
            match clicked {
                Ok(()) => return,
                Err(e) if last => panic!("{selector}: {e}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    pub(crate) async fn type_into(&self, selector: &str, text: &str) {
        let field = self.page.find_element(selector).await;
        let field = field.unwrap_or_else(|e| panic!("{selector}: {e}"));
        field.focus().await.expect("it can be focused").type_str(text).await.expect("typed");
    }

    /// Presses a key, wherever the focus is.
    pub(crate) async fn press(&self, key: &str) {
        let body = self.page.find_element("html").await.expect("a document");
        body.press_key(key).await.unwrap_or_else(|e| panic!("{key}: {e}"));
    }

    pub(crate) async fn emulate(&self, (width, height): (i64, i64), features: &[(&str, &str)]) {
        let metrics = SetDeviceMetricsOverrideParams::builder()
            .width(width)
            .height(height)
            .device_scale_factor(1.0)
            .mobile(width < 600);
        self.page.execute(metrics.build().expect("complete")).await.expect("a size");
        let feature = |(name, value): &(&str, &str)| MediaFeature::new(*name, *value);
        let media = SetEmulatedMediaParams::builder().features(features.iter().map(feature));
        self.page.execute(media.build()).await.expect("media features");
        // The new layout takes a moment, and then the page draws itself for its new size.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    pub(crate) async fn picture(&self) -> Vec<u8> {
        let params = CaptureScreenshotParams::builder().format(CaptureScreenshotFormat::Png);
        self.page.screenshot(params.build()).await.expect("a picture")
    }

    /// Closes the tab, and checks that the browser reported no error and no request to another
    /// host.
    pub(crate) async fn close(self) {
        let _ = self.page.close().await;
        let Reported { errors, foreign } = std::mem::take(&mut *self.reported.lock().unwrap());
        tally::reported(errors.len(), foreign.len());
        assert!(errors.is_empty(), "errors in the browser's console: {errors:#?}");
        assert!(foreign.is_empty(), "requests to elsewhere: {foreign:#?}");
    }

    /// Discards the errors that were reported until now, because the test has caused them on
    /// purpose.
    pub(crate) fn forgive(&self) {
        self.reported.lock().unwrap().errors.clear();
    }
}

fn has(text: &str) -> String {
    format!("document.querySelector('main').innerText.includes({})", quoted(text))
}

pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text")
}
