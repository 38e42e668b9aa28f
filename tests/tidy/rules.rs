//! Rules for a single source file, for example its length and its head comment.

use crate::layers;

const COLUMNS: usize = 100;
const FILE_LINES: usize = 500;

/// Index of the line that breaks a rule, from 0, and a text that says how to correct the line.
pub(crate) type Finding = (usize, String);

/// Returns one line `file:line: correction` for each place in the file that breaks a rule.
pub(crate) fn broken(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = lengths(&lines);
    let name = path.strip_suffix(".rs");
    if name.is_some() {
        found.extend(head(&lines));
        found.extend(unfinished(&lines));
    } else {
        found.extend(lua_head(&lines));
    }
    if name.is_some_and(|name| name.starts_with("src/") && !is_test(name)) {
        let shipped = shipped(&lines);
        found.extend(layers::imports(path, &shipped));
        found.extend(layers::pure(path, &shipped));
    }
    let libraries = ["src/", "consumer/src/", "cron/src/", "ops/src/"];
    let is_library = |name: &str| libraries.iter().any(|at| name.starts_with(at));
    if name.is_some_and(|name| is_library(name) && !is_test(name)) {
        let shipped = shipped(&lines);
        found.extend(biased(&shipped));
        found.extend(cancellation(&shipped, &lines));
    }
    found.sort();
    found.into_iter().map(|(line, help)| format!("{path}:{}: {help}", line + 1)).collect()
}

fn is_test(name: &str) -> bool {
    ["/tests", "/fuzz", "/fuzzing"].iter().any(|end| name.ends_with(end))
}

/// Returns the lines of code with their indices. Leaves out comments and the test module at the
/// end.
fn shipped<'a>(lines: &[&'a str]) -> Vec<(usize, &'a str)> {
    let tests = lines.windows(2).position(|two| {
        two[0] == "#[cfg(test)]" && two[1].starts_with("mod ") && two[1].ends_with('{')
    });
    let code = lines.iter().take(tests.unwrap_or(lines.len())).enumerate();
    code.filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(n, l)| (n, *l)).collect()
}

fn lengths(lines: &[&str]) -> Vec<Finding> {
    let wide = lines.iter().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS);
    let mut found: Vec<_> = wide.map(|(n, _)| (n, format!("break it at {COLUMNS}"))).collect();
    if lines.len() > FILE_LINES {
        let help = format!("{} lines; split it into files of at most {FILE_LINES}", lines.len());
        found.push((FILE_LINES, help));
    }
    found
}

fn head(lines: &[&str]) -> Option<Finding> {
    // A crate's root file takes its head from the README, with `#![doc`.
    let begins = |with: &str| lines.first().is_some_and(|line| line.starts_with(with));
    let fine = begins("//!") || begins("#![doc = include_str!");
    (!fine).then(|| (0, "begin with a `//!` head that says what the file is for".to_owned()))
}

fn lua_head(lines: &[&str]) -> Vec<Finding> {
    let head: Vec<_> = lines.iter().take_while(|line| line.starts_with("--")).collect();
    let head = head.iter().map(|line| line.to_lowercase()).collect::<String>();
    // The head comment of a script must name the script's result: the script returns it, puts it
    // into the reply, or leaves it in variables for the script part that follows.
    [&["keys"][..], &["argv"], &["returns", "puts", "leaves"]]
        .iter()
        .filter(|words| !words.iter().any(|word| head.contains(word)))
        .map(|words| (0, format!("the head does not say `{}`", words[0])))
        .collect()
}

fn unfinished(lines: &[&str]) -> Vec<Finding> {
    // Each word is composed of two parts here, so this file does not break its own rule.
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("#[ign", "ore")];
    let all = lines.iter().enumerate();
    all.filter(|(_, line)| notes.iter().any(|note| line.contains(note)))
        .map(|(n, _)| (n, "finish it, or remove it".to_owned()))
        .collect()
}

fn biased(shipped: &[(usize, &str)]) -> Vec<Finding> {
    let help = "begin with `biased;`: an order chosen by chance cannot be replayed";
    let two = shipped.windows(2).filter(|two| two[0].1.contains("select! {"));
    two.filter(|two| two[1].1.trim() != "biased;").map(|two| (two[0].0, help.to_owned())).collect()
}

fn cancellation(shipped: &[(usize, &str)], lines: &[&str]) -> Vec<Finding> {
    let help = "say under `# Cancellation safety` what a dropped future leaves behind";
    let public = shipped.iter().filter(|(_, line)| line.contains("pub async fn"));
    let bare = public.filter(|(n, _)| {
        let above = lines[..*n].iter().rev().map(|line| line.trim());
        let mut doc = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
        !doc.any(|line| line.contains("# Cancellation safety"))
    });
    bare.map(|(n, _)| (*n, help.to_owned())).collect()
}

#[test]
fn each_rule_finds_what_breaks_it() {
    let wide = format!("//! x\n// {}\n", "x".repeat(100));
    let long = format!("//! x\n{}", "\n".repeat(500));
    let samples = [
        ("tests/a.rs", &*wide, &["tests/a.rs:2: break it"][..]),
        ("tests/a.rs", &long, &["tests/a.rs:501: 501 lines"]),
        ("tests/a.rs", "fn a() {}\n", &["tests/a.rs:1: begin with"]),
        ("tests/a.rs", concat!("//! x\n// TO", "DO\n"), &["tests/a.rs:2: finish it"]),
        ("src/node/lua/a.lua", "-- KEYS ARGV\n", &["src/node/lua/a.lua:1: the head"]),
        ("src/op.rs", "//! x\nuse crate::node::A;\n", &["src/op.rs:2: `op` may not know `node`"]),
        (
            "src/op.rs",
            "//! x\n// crate::node\n#[cfg(test)]\nmod t {\n    use crate::node;\n}\n",
            &[],
        ),
        (
            "src/client/node_queue/pending.rs",
            "//! x\nsuper::super::super::lock::A;\n",
            &["src/client/node_queue/pending.rs:2: `client` may not know `lock`"],
        ),
        ("src/lock/a.rs", "//! x\nuse crate::Redlock;\n", &["src/lock/a.rs:2: `crate::Redlock`"]),
        ("src/lock/a.rs", "//! x\nuse crate::{op, node};\n", &["src/lock/a.rs:2: one module"]),
        ("src/attic.rs", "//! x\n", &["src/attic.rs:1: `attic` is in no layer"]),
        ("src/quorum/a.rs", "//! x\ntokio::spawn(b)\n", &["src/quorum/a.rs:2: `tokio::`"]),
        ("src/env.rs", "//! x\nuse rand::Rng;\n", &[]),
        ("src/op.rs", "//! x\ntokio::select! {\n    biased;\n", &["src/op.rs:2: `tokio::`"]),
        ("src/lock/a.rs", "//! x\nselect! {\n    a = b => {}\n", &["src/lock/a.rs:2: begin with"]),
        ("src/lock/a.rs", "//! x\n/// a\npub async fn a() {}\n", &["src/lock/a.rs:3: say under"]),
        ("src/lock/a.rs", "//! x\n/// # Cancellation safety\n#[a]\npub async fn a() {}\n", &[]),
    ];
    for (path, text, expected) in samples {
        let found = broken(path, text);
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for (found, begins) in found.iter().zip(expected) {
            assert!(found.starts_with(begins), "{found}");
        }
    }
}
