//! Files of the web pages. They are compiled into this crate, so that nothing is loaded from
//! elsewhere.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../web/", $path)))),*]
    };
}

/// All files, with their paths below `web/`.
const FILES: &[(&str, &[u8])] = files![
    "index.html",
    "style.css",
    "icon.svg",
    "action.js",
    "api.js",
    "app.js",
    "dom.js",
    "live.js",
    "table.js",
    "time.js",
    "timeline.js",
    "ui.js",
    "pages/cron.js",
    "pages/elections.js",
    "pages/failovers.js",
    "pages/incidents.js",
    "pages/keys.js",
    "pages/lock.js",
    "pages/locks.js",
    "pages/nodes.js",
    "pages/overview.js",
];

/// Returns the file at this path of the console; `None` if there is none.
pub(crate) fn file(path: &str, headers: &HeaderMap) -> Option<Response> {
    let path = path.trim_start_matches('/');
    let path = if path.is_empty() { "index.html" } else { path };
    let (_, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
    // With `no-cache`, a browser asks each time if its copy is still current. So a page is never
    // older than the program.
    let tag = format!("\"{}\"", hex(&Sha256::digest(bytes)[..12]));
    let head = [(CACHE_CONTROL, "no-cache".to_owned()), (ETAG, tag.clone())];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Some((StatusCode::NOT_MODIFIED, head).into_response());
    }
    Some((head, [(CONTENT_TYPE, kind(path))], *bytes).into_response())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn below(dir: &Path, root: &Path, all: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, root, all);
            } else {
                all.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let mut there = BTreeSet::new();
        below(&root, &root, &mut there);
        let served: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(there, served);
        assert!(FILES.iter().all(|(name, _)| kind(name) != "application/octet-stream"));
    }

    fn named<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn the_first_page_is_at_most_a_hundred_kibibytes() {
        let text = |path: &str| {
            let (_, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
            Some(std::str::from_utf8(bytes).unwrap())
        };
        let mut waits = vec!["index.html".to_owned()];
        let mut loaded = BTreeSet::new();
        while let Some(path) = waits.pop() {
            if !loaded.insert(path.clone()) {
                continue;
            }
            let text = text(&path).unwrap_or_else(|| panic!("{path} is missing"));
            let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            let absolute =
                ["href=\"/", "src=\"/"].into_iter().flat_map(|before| named(text, before));
            waits.extend(absolute.filter(|path| !path.is_empty()).map(ToOwned::to_owned));
            // Only static imports are followed: a module that is loaded later does not delay the
            // first page.
            for module in named(text, "from \"").chain(named(text, "\nimport \"")) {
                waits.push(match (module.strip_prefix("../"), module.strip_prefix("./")) {
                    (Some(rest), _) => rest.to_owned(),
                    (None, Some(rest)) if dir.is_empty() => rest.to_owned(),
                    (None, Some(rest)) => format!("{dir}/{rest}"),
                    (None, None) => panic!("{path} loads {module}"),
                });
            }
        }
        let size: usize = loaded.iter().filter_map(|path| text(path)).map(str::len).sum();
        assert!(loaded.len() > 5, "{loaded:?}");
        assert!(size <= 100 << 10, "{size} bytes in {loaded:?}");
    }

    #[test]
    fn a_copy_that_is_still_good_is_not_sent_again() {
        let headers = HeaderMap::new();
        let first = file("/", &headers).unwrap();
        assert_eq!(first.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let mut again = HeaderMap::new();
        again.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(file("/", &again).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert!(file("/../src/lib.rs", &headers).is_none());
    }
}
