//! What is referred to is there: rules of `docs/design` by file and number, and files in links.

use std::collections::BTreeMap;
use std::fs;

use crate::{files_below, relative, root};

/// The rules' numbers by topic, which is the name of their file.
fn rules() -> BTreeMap<String, Vec<usize>> {
    let files = files_below(&root().join("docs/design"));
    let topic = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).expect("text");
        let numbers = text.lines().filter_map(|line| number(line.strip_prefix("### ")?).0);
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), numbers.collect())
    };
    files.iter().map(topic).collect()
}

/// The number at the beginning, and what follows it.
fn number(text: &str) -> (Option<usize>, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (text[..digits].parse().ok(), &text[digits..])
}

/// The rules of this topic that a line cites: `(topic 3)`, `topic 3, 4`, `topic 1 to 4`.
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
    let rooms = ["src", "docs", "ARCHITECTURE.md"];
    let below = |room: &&str| match root().join(room) {
        file if file.is_file() => vec![file],
        folder => files_below(&folder),
    };
    for path in rooms.iter().flat_map(below) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
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

#[test]
fn each_link_between_pages_leads_somewhere() {
    let mut found = Vec::new();
    let pages = fs::read_dir(root()).expect("the package").map(|e| e.expect("an entry").path());
    let pages = pages.filter(|p| p.is_file()).chain(files_below(&root().join("docs")));
    for page in pages.filter(|p| p.extension().is_some_and(|e| e == "md")) {
        let text = fs::read_to_string(&page).expect("text");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let file = link.0.split_once('#').map_or(link.0, |(file, _)| file);
            let here = page.parent().expect("a folder").join(file);
            if !file.contains("://") && !here.exists() {
                found.push(format!("{}: {} is not there", relative(&page), link.0));
            }
        }
    }
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

#[test]
fn citations_are_read() {
    assert_eq!(cited("may be put back (quarantine 6).", "quarantine"), [6]);
    assert_eq!(cited("(locks 2, 3; quarantine 1 to 8)", "locks"), [2, 3]);
    assert_eq!(cited("(locks 2, quarantine 1 to 8)", "quarantine"), [1, 8]);
    assert_eq!(cited("| renewal 1 | see [locks 12](locks.md)", "locks"), [12]);
    assert!(cited("a quarantine 3 s long, of 64 locks 2 were lost", "locks").is_empty());
}
