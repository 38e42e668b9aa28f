//! The rules. Each looks at one file and says where it is broken and what to do.

use crate::layers;
use crate::source::{Source, word};

/// Line (from 0) and what to do.
pub(crate) type Finding = (usize, String);

/// A rule's name and how it is checked.
pub(crate) type Rule = (&'static str, fn(&Source) -> Vec<Finding>);

/// All of them, in the order of reports.
pub(crate) const RULES: &[Rule] = &[
    ("head", head),
    ("columns", columns),
    ("file length", file_length),
    ("function length", function_length),
    ("imports go down", layers::imports),
    ("no clock, dice or tasks in the core", pure),
    ("forbidden", forbidden),
    ("no skipped tests", skipped),
    ("unfinished", unfinished),
    ("select is biased", biased),
    ("cancellation safety", cancellation),
    ("lua head", lua_head),
];

const COLUMNS: usize = 100;
const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

fn head(source: &Source) -> Vec<Finding> {
    // `#![doc` is the crate's own head, which it takes from the README.
    let begins = |with: &str| source.lines.first().is_some_and(|l| l.starts_with(with));
    if !source.is_rust() || begins("//!") || begins("#![doc = include_str!") {
        return Vec::new();
    }
    vec![(0, "begin with a `//!` head that says what the room is for".to_owned())]
}

fn columns(source: &Source) -> Vec<Finding> {
    let long = source.lines.iter().enumerate().filter(|(_, l)| l.chars().count() > COLUMNS);
    long.map(|(n, l)| (n, format!("{} columns; break at {COLUMNS}", l.chars().count()))).collect()
}

fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.lines.len();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![(FILE_LINES, format!("{lines} lines; split into rooms of at most {FILE_LINES}"))]
}

fn function_length(source: &Source) -> Vec<Finding> {
    if !source.is_rust() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in source.code.iter().enumerate() {
        let Some(at) = word(line, "fn") else { continue };
        let name: String = line[at + 2..]
            .trim_start()
            .chars()
            .take_while(|&c| c.is_alphanumeric() || c == '_')
            .collect();
        // `fn(…)` is a type.
        if name.is_empty() {
            continue;
        }
        let lines = source.item_end(n, at) - n + 1;
        if lines > FUNCTION_LINES {
            let help = format!("`{name}` has {lines} lines; give parts of it names of their own");
            found.push((n, help));
        }
    }
    found
}

fn pure(source: &Source) -> Vec<Finding> {
    if !layers::is_pure(&source.path) {
        return Vec::new();
    }
    let words = ["tokio", "rand", "Instant::now", "SystemTime", "std::thread", "std::net"];
    each(source, &words, |w| format!("`{w}`: time and chance are handed in by the caller"))
}

fn forbidden(source: &Source) -> Vec<Finding> {
    if !source.in_src() || !source.is_rust() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (what, help) in [
        (".unwrap()", "say with `expect` which invariant upholds it, or handle it"),
        ("println!", "the library says things through `tracing`"),
        ("eprintln!", "the library says things through `tracing`"),
        ("dbg!", "remove it"),
        ("thread::sleep", "it stops the runtime; `tokio::time::sleep`"),
        ("allow(dead_code)", "remove what nobody uses"),
    ] {
        let hits = source.shipped().filter(|(_, line)| {
            if what.starts_with('.') { line.contains(what) } else { word(line, what).is_some() }
        });
        found.extend(hits.map(|(n, _)| (n, format!("`{what}`: {help}"))));
    }
    found
}

fn skipped(source: &Source) -> Vec<Finding> {
    let hits = source.code.iter().enumerate().filter(|(_, line)| line.contains("#[ignore"));
    hits.map(|(n, _)| (n, "a test that does not run tests nothing; mend or remove it".to_owned()))
        .collect()
}

fn unfinished(source: &Source) -> Vec<Finding> {
    let macros = ["todo!", "unimplemented!"];
    // Put together here, so that this line is none itself.
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut found = Vec::new();
    for (n, line) in source.lines.iter().enumerate() {
        let made = macros.iter().find(|m| word(&source.code[n], m).is_some());
        if let Some(what) = made.or_else(|| notes.iter().find(|w| word(line, w).is_some())) {
            found.push((n, format!("`{what}`: finish it, or write down why it is so")));
        }
    }
    found
}

fn biased(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in source.shipped() {
        let Some(at) = word(line, "select!") else { continue };
        let inside: String = source
            .chars_from(n, at)
            .map(|(_, c)| c)
            .skip_while(|&c| c != '{')
            .skip(1)
            .filter(|c| !c.is_whitespace())
            .take("biased;".len())
            .collect();
        if inside != "biased;" {
            let help = "begin with `biased;`: an order chosen by chance cannot be replayed";
            found.push((n, help.to_owned()));
        }
    }
    found
}

fn cancellation(source: &Source) -> Vec<Finding> {
    if !source.in_src() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in source.shipped() {
        if line.contains("pub async fn") && !doc_above(source, n).contains("# Cancellation safety")
        {
            let help = "say under `# Cancellation safety` what a dropped future leaves behind";
            found.push((n, help.to_owned()));
        }
    }
    found
}

/// The doc comment of the item on this line, past its attributes.
fn doc_above(source: &Source, line: usize) -> String {
    let mut doc = Vec::new();
    for above in source.lines[..line].iter().rev().map(|l| l.trim()) {
        if above.starts_with("///") {
            doc.push(above);
        } else if !above.starts_with("#[") && !above.starts_with("//") && !above.ends_with(")]") {
            break;
        }
    }
    doc.reverse();
    doc.join("\n")
}

fn lua_head(source: &Source) -> Vec<Finding> {
    if !source.path.to_ascii_lowercase().ends_with(".lua") {
        return Vec::new();
    }
    let head: Vec<&str> =
        source.lines.iter().map(String::as_str).take_while(|l| l.starts_with("--")).collect();
    let head = head.join("\n").to_ascii_lowercase();
    // A file is a script, or a part of one that puts its answer or leaves names to the next.
    [&["keys"][..], &["argv"], &["returns", "puts", "leaves"]]
        .iter()
        .filter(|words| !words.iter().any(|w| head.contains(w)))
        .map(|words| (0, format!("the head does not say `{}`", words[0])))
        .collect()
}

fn each(source: &Source, words: &[&str], help: impl Fn(&str) -> String) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in source.shipped() {
        found.extend(words.iter().filter(|w| word(line, w).is_some()).map(|w| (n, help(w))));
    }
    found
}
