//! For each rule what breaks it, and what looks alike and does not.

use std::collections::BTreeSet;

use crate::rules::RULES;
use crate::source::Source;
use crate::violations;

/// Path, text, and the beginning of each expected report.
type Sample = (&'static str, &'static str, &'static [&'static str]);

const SAMPLES: &[Sample] = &[
    ("src/op.rs", "\nfn a() {}\n", &["src/op.rs:1: head"]),
    ("tests/x.rs", "#![cfg(unix)]\n//! Late.\n", &["tests/x.rs:1: head"]),
    // Imports, in every way to write them.
    ("src/op.rs", "//! x\nuse crate::node::LockNode;\n", &["src/op.rs:2: imports go down"]),
    (
        "src/quorum/acquire.rs",
        "//! x\nuse crate::{\n    error::NodeError,\n    driver::Core,\n};\n",
        &["src/quorum/acquire.rs:2: imports go down: `quorum` may not know `driver`"],
    ),
    (
        "src/node/lane.rs",
        "//! x\nfn a() -> crate::redlock::Redlock {}\n",
        &["src/node/lane.rs:2: imports go down"],
    ),
    (
        "src/node/lane.rs",
        "//! x\nuse super::super::lock::Mutex;\n",
        &["src/node/lane.rs:2: imports go down"],
    ),
    (
        "src/quorum/mod.rs",
        "//! x\nuse crate::sentinel::ask;\n",
        &["src/quorum/mod.rs:2: imports go down"],
    ),
    (
        "src/lock/mutex.rs",
        "//! x\nuse crate::Redlock;\n",
        &["src/lock/mutex.rs:2: imports go down: `crate::Redlock` hides its room"],
    ),
    ("src/attic.rs", "//! x\n", &["src/attic.rs:1: imports go down: `attic` is on no floor"]),
    ("src/lock/mutex.rs", "//! x\nuse crate::redlock::Redlock;\nuse crate::op::Op;\n", &[]),
    ("src/op.rs", "//! x\n// crate::driver\nfn a() { b(\"crate::driver\") }\n", &[]),
    ("src/op.rs", "//! x\n#[cfg(test)]\nmod t {\n    use crate::driver::Core;\n}\n", &[]),
    // The core is handed its time and its chance.
    (
        "src/quorum/fence.rs",
        "//! x\nfn a() { tokio::spawn(b()) }\n",
        &["src/quorum/fence.rs:2: no clock, dice or tasks in the core"],
    ),
    (
        "src/time.rs",
        "//! x\nfn a() { std::time::Instant::now() }\n",
        &["src/time.rs:2: no clock, dice or tasks in the core"],
    ),
    (
        "src/config.rs",
        "//! x\nuse rand::Rng;\nuse std::time::SystemTime;\n",
        &[
            "src/config.rs:2: no clock, dice or tasks in the core: `rand`",
            "src/config.rs:3: no clock, dice or tasks in the core: `SystemTime`",
        ],
    ),
    ("src/env.rs", "//! x\nuse rand::Rng;\n", &[]),
    ("src/quorum/fence.rs", "//! No tokio, no rand.\nfn operand() {}\n", &[]),
    // Forbidden words: what the rules must find in source text, none of it is compiled.
    ("src/env.rs", "//! x\nfn a() { b().unwrap() }\n", &["src/env.rs:2: forbidden: `.unwrap()`"]),
    ("src/env.rs", "//! x\nfn a() { b().unwrap_or(1); }\n/// c().unwrap()\nfn d() {}\n", &[]),
    ("src/env.rs", "//! x\n#[cfg(test)]\nmod t {\n    fn a() { b().unwrap() }\n}\n", &[]),
    (
        "src/env.rs",
        "//! x\n#[allow(dead_code)]\nfn a() { println!() }\n",
        &["src/env.rs:3: forbidden: `println!`", "src/env.rs:2: forbidden: `allow(dead_code)`"],
    ),
    (
        "src/env.rs",
        "//! x\nfn a() { std::thread::sleep(b) }\nfn c() { dbg!(d) }\n",
        &["src/env.rs:3: forbidden: `dbg!`", "src/env.rs:2: forbidden: `thread::sleep`"],
    ),
    ("examples/a.rs", "//! x\nfn main() { println!(); b().unwrap() }\n", &[]),
    (
        "tests/a.rs",
        "//! x\n#[test]\n#[ignore = \"slow\"]\nfn a() {}\n",
        &["tests/a.rs:3: no skipped tests"],
    ),
    (
        "src/env.rs",
        "//! x\nfn a() { todo!() }\nfn b() { unimplemented!() }\n",
        &["src/env.rs:2: unfinished", "src/env.rs:3: unfinished"],
    ),
    ("tests/a.rs", concat!("//! x\n// TO", "DO: later\n"), &["tests/a.rs:2: unfinished"]),
    // A choice by chance.
    (
        "src/driver/mod.rs",
        "//! x\nfn a() { tokio::select! {\n    b = c => {}\n} }\n",
        &["src/driver/mod.rs:2: select is biased"],
    ),
    ("src/driver/mod.rs", "//! x\nfn a() { tokio::select! {\n    // why\n    biased;\n} }\n", &[]),
    // What a dropped future leaves.
    (
        "src/lock/guard.rs",
        "//! x\n/// Does it.\n#[must_use]\npub async fn a() {}\n",
        &["src/lock/guard.rs:4: cancellation safety"],
    ),
    (
        "src/lock/guard.rs",
        "//! x\n/// Does it.\n///\n/// # Cancellation safety\n/// None.\n#[inline]\n\
         pub async fn a() {}\n",
        &[],
    ),
    (
        "src/lock/guard.rs",
        "//! x\n/// # Cancellation safety\nfn b() {}\npub async fn a() {}\n",
        &["src/lock/guard.rs:4: cancellation safety"],
    ),
    // Scripts.
    (
        "src/node/lua/a.lua",
        "-- KEYS[1] the lock\n-- ARGV[1] the owner\nreturn 1\n",
        &["src/node/lua/a.lua:1: lua head: the head does not say `returns`"],
    ),
    ("src/node/lua/a.lua", "-- KEYS[1] k\n-- ARGV none\n-- Returns 1.\nreturn 1\n", &[]),
];

#[test]
fn every_sample_is_judged_as_it_says() {
    for (path, text, want) in SAMPLES {
        judge(path, text, want);
    }
}

fn judge(path: &str, text: &str, want: &[&str]) {
    let got = violations(&Source::new(path, text));
    let agree = got.len() == want.len() && got.iter().zip(want).all(|(g, w)| g.starts_with(w));
    assert!(agree, "{path}\n{text}\nwanted {want:#?}\ngot {got:#?}");
}

#[test]
fn lengths_are_counted() {
    let head = "//! x\n";
    let line = |columns: usize| format!("{head}// {}\n", "é".repeat(columns - 3));
    judge("tests/a.rs", &line(100), &[]);
    judge("tests/a.rs", &line(101), &["tests/a.rs:2: columns: 101 columns"]);
    judge("tests/a.rs", &(head.to_owned() + &"\n".repeat(499)), &[]);
    judge("tests/a.rs", &(head.to_owned() + &"\n".repeat(500)), &["tests/a.rs:501: file length"]);
    // Braces in literals end no function, and a type `fn()` begins none.
    let function = |lines: usize| {
        format!("{head}fn long(\n    f: fn(u8)) {{\n{}}}\nfn b() {{}}\n", lines_of(lines - 3))
    };
    judge("tests/a.rs", &function(70), &[]);
    judge("tests/a.rs", &function(71), &["tests/a.rs:2: function length: `long` has 71 lines"]);
}

fn lines_of(n: usize) -> String {
    "    x('}', \"}\"); // }\n".repeat(n)
}

#[test]
fn every_rule_has_been_seen_to_fail() {
    let seen: BTreeSet<&str> = SAMPLES
        .iter()
        .flat_map(|(_, _, want)| want.iter())
        .map(|w| w.split(": ").nth(1).expect("place: rule"))
        .chain(["columns", "file length", "function length"])
        .collect();
    for (rule, _) in RULES {
        assert!(seen.contains(rule), "no sample breaks `{rule}`");
    }
}
