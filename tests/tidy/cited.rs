//! All citations must exist: rules of `docs/design` (by file and number), files in links, and tests
//! (by name).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{files_below, relative, root};

/// Returns the numbers of the rules for each topic. The topic is the name of the file with the
/// rules, for example `locks` for `locks.md`.
fn rules() -> BTreeMap<String, Vec<usize>> {
    let files = files_below(&root().join("docs/design"));
    let topic = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).expect("text");
        let numbers = text.lines().filter_map(|line| number(line.strip_prefix("### ")?).0);
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), numbers.collect())
    };
    files.iter().map(topic).collect()
}

/// Splits a text into the number at its beginning and the rest.
fn number(text: &str) -> (Option<usize>, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (text[..digits].parse().ok(), &text[digits..])
}

/// Returns the numbers of the rules of this topic that the line cites, for example `(topic 3)`,
/// `topic 3, 4` or `topic 1 to 4`.
fn cited(line: &str, topic: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for (at, _) in line.match_indices(topic) {
        let before = &line[..at];
        let begins = ["(", "[", "| ", ", ", ". "].iter().any(|b| before.ends_with(b));
        let Some(mut rest) = line[at + topic.len()..].strip_prefix(' ').filter(|_| begins) else {
            continue;
        };
        while let (Some(rule), more) = number(rest) {
            all.push(rule);
            let next = [", ", " to "].iter().find_map(|between| more.strip_prefix(between));
            rest = next.unwrap_or("");
        }
    }
    all
}

#[test]
fn each_rule_that_is_cited_exists() {
    let rules = rules();
    let (mut found, mut seen) = (Vec::new(), 0);
    let rooms = [
        "src", "consumer", "cron", "ops", "docs", "testing", "tests", "verify", "examples",
        "benches", "scripts",
    ];
    let pages = ["ARCHITECTURE.md", "README.md", "SECURITY.md", "CONTRIBUTING.md"];
    let below = |room: &&str| match root().join(room) {
        file if file.is_file() => vec![file],
        folder => files_below(&folder),
    };
    for path in rooms.iter().chain(&pages).flat_map(below) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        // The examples in this file cite rules that do not exist.
        if path.ends_with("tidy/cited.rs") {
            continue;
        }
        for (n, line) in text.lines().enumerate() {
            let at = format!("{}:{}", relative(&path), n + 1);
            if ["\u{a7}", concat!("DES", "IGN ")].iter().any(|old| line.contains(old)) {
                found.push(format!("{at}: cite a rule of docs/design by topic and number"));
            }
            for (topic, numbers) in &rules {
                let all = cited(line, topic);
                seen += all.len();
                let missing = all.iter().filter(|rule| !numbers.contains(rule));
                found.extend(missing.map(|rule| format!("{at}: {topic} has no rule {rule}")));
            }
        }
    }
    assert!(seen > 100, "only {seen} rules are cited: the search is broken");
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

/// Returns the targets of a page's links, without targets on other sites. The links have the form
/// `[…](target)` or `[id]: target`.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let all = inline.chain(definitions(text).map(|(_, to)| to));
    all.filter(|to| !to.contains("://")).collect()
}

/// Returns the link definitions of a page: the lines of the form `[id]: target`.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
}

/// Returns the links of this page to files that do not exist.
fn dangling(page: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for link in links(text) {
        let file = link.split_once('#').map_or(link, |(file, _)| file);
        let here = page.parent().expect("a folder").join(file);
        if !here.exists() && !link.starts_with("crate::") {
            found.push(format!("{}: {link} is not there", relative(page)));
        }
    }
    found
}

#[test]
fn each_link_between_pages_leads_somewhere() {
    let pages = files_below(root()).into_iter();
    let pages = pages.filter(|p| p.extension().is_some_and(|e| e == "md"));
    let text = |page: &PathBuf| fs::read_to_string(page).expect("text");
    let found: Vec<_> = pages.flat_map(|page| dangling(&page, &text(&page))).collect();
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

/// Returns the links of an included page that do not work in rustdoc, because rustdoc shows the
/// page at another place.
///
/// The documentation of the file `source` includes the page. So `source` must define each link to a
/// file again. It must do this before the page, because rustdoc uses the first definition of a
/// link.
fn dangling_in_rustdoc(page: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for to in page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
        if !to.contains("://") && !to.starts_with("crate::") {
            found.push(format!("({to}): give it an id, and define the id at the end of the page"));
        }
    }
    for (id, to) in definitions(page) {
        let item = format!("//! [{id}]: crate::");
        let at = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");
        // A link to a picture must lead to the file itself, not to the site's page about the file.
        let is_picture = Path::new(to).extension().is_some_and(|e| e == "svg" || e == "png");
        let raw = if is_picture { "?raw=true" } else { "" };
        let file = format!(" [{id}]: {at}{to}{raw}\n");
        if !source.contains(&item) && !source.contains(&file) {
            found.push(format!("[{id}]: {to} is not defined for rustdoc"));
        }
    }
    found
}

#[test]
fn each_link_of_the_readme_and_the_glossary_leads_somewhere_in_rustdoc() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("text");
    let mut found = dangling_in_rustdoc(&read("README.md"), &read("src/lib.rs"));
    let glossary = read("docs/glossary.md").replace("]: design/", "]: docs/design/");
    found.extend(dangling_in_rustdoc(&glossary, &read("src/manual/mod.rs")));
    for page in files_below(&root().join("src/manual")) {
        if page.extension().is_some_and(|e| e == "md") {
            let text = fs::read_to_string(&page).expect("text");
            found.extend(dangling_in_rustdoc(&text, ""));
        }
    }
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

#[test]
fn a_dangling_link_is_seen() {
    let page = root().join("README.md");
    assert_eq!(dangling(&page, "[a](nowhere.md), [b](Cargo.toml#x), [c](https://d)").len(), 1);
    assert_eq!(dangling(&page, "[a]: nowhere.md\n[b]: Cargo.toml\n[c]: https://d\n").len(), 1);
    let at = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/B.md");
    let source = &format!("//! [a]: crate::a\n//! [b]: {at}\n");
    assert!(dangling_in_rustdoc("[a]: A.md\n[b]: B.md\n[c](crate::c)", source).is_empty());
    assert_eq!(dangling_in_rustdoc("[a]: A.md\n[b]: C.md\n[d](D.md)", source).len(), 2);
}

#[test]
fn each_test_that_the_documents_name_exists() {
    let mut code = String::new();
    for room in ["src", "consumer", "cron", "ops", "cli", "testing", "tests", "verify", "examples"]
    {
        for path in files_below(&root().join(room)) {
            if path.extension().is_some_and(|e| e == "rs") {
                code += &fs::read_to_string(&path).expect("text");
            }
        }
    }
    let (mut found, mut seen) = (Vec::new(), 0);
    for page in ["docs/proofs.md", "SECURITY.md"] {
        let text = fs::read_to_string(root().join(page)).expect("text");
        for name in text.split('`').skip(1).step_by(2).filter(|name| is_test(name)) {
            seen += 1;
            if !code.contains(&format!("fn {name}(")) {
                found.push(format!("{page}: there is no test {name}"));
            }
        }
    }
    assert!(seen > 40, "only {seen} tests are named: the search is broken");
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

/// Returns true if the name looks like the name of a test. Tests are named by sentences.
fn is_test(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.matches('_').count() >= 3 && name.chars().all(plain)
}

#[test]
fn citations_are_read() {
    assert_eq!(cited("may be put back (quarantine 6).", "quarantine"), [6]);
    assert_eq!(cited("(locks 2, 3; quarantine 1 to 8)", "locks"), [2, 3]);
    assert_eq!(cited("(locks 2, quarantine 1 to 8)", "quarantine"), [1, 8]);
    assert_eq!(cited("| renewal 1 | see [locks 12](locks.md)", "locks"), [12]);
    assert!(cited("a quarantine 3 s long, of 64 locks 2 were lost", "locks").is_empty());
}

/// Returns the pairs of a name and a file that a page has in the form `name` in `file`. If several
/// names stand before a file (`a`, `b` in `file`), each name makes a pair with the file. A name is
/// returned without the type or module before it.
fn places(text: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = text.split('`').collect();
    let mut found = Vec::new();
    // The text of the page is split at backticks, so the words in code style have odd indices.
    for at in (3..words.len()).step_by(2).filter(|at| words[at - 1].trim() == "in") {
        let mut name = at - 2;
        loop {
            found.push((words[name].rsplit("::").next().unwrap_or_default(), words[at]));
            if name < 2 || words[name - 1] != ", " || words[name - 2].contains(['/', ' ', '.']) {
                break;
            }
            name -= 2;
        }
    }
    found
}

#[test]
fn what_a_rule_says_is_in_a_file_is_there() {
    let sample = "`a::b` in `src/x.rs`, `c`, `d` in\n`y.lua`; `e` in the `f`";
    assert_eq!(places(sample), [("b", "src/x.rs"), ("d", "y.lua"), ("c", "y.lua")]);
    let sources = [
        "src", "consumer", "cron", "ops", "cli", "adapters", "testing", "tests", "verify",
        "examples",
    ];
    let sources: Vec<PathBuf> = sources.iter().flat_map(|s| files_below(&root().join(s))).collect();
    let manual = files_below(&root().join("src/manual"));
    let (mut missing, mut seen) = (Vec::new(), 0);
    for page in files_below(&root().join("docs")).into_iter().chain(manual) {
        let Some(text) = page
            .extension()
            .filter(|e| *e == "md")
            .map(|_| fs::read_to_string(&page).expect("text"))
        else {
            continue;
        };
        for (name, file) in places(&text) {
            let is_code = [".rs", ".lua"].iter().any(|end| file.ends_with(end));
            let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !is_code || !is_name {
                continue;
            }
            seen += 1;
            let mut there = sources.iter().filter(|path| path.ends_with(file));
            let says = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|t| t.contains(name));
            if !there.any(says) {
                missing.push(format!("{}: `{name}` is not in `{file}`", relative(&page)));
            }
        }
    }
    assert!(seen > 100, "only {seen} places were found: the search is broken");
    assert!(missing.is_empty(), "{}\n", missing.join("\n"));
}
