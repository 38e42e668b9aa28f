//! Each setting in the templates of `sentinel-conf` has a comment above it. The comment must name
//! the check of `palisade doctor` that requires this setting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use palisade_ops::doctor::checks;

/// Checks of the doctor that do not depend on one setting in a file, so the templates of
/// `sentinel-conf` do not name them.
const NOT_SETTINGS: &[&str] = &[
    "aof-replay",
    "clock-skew",
    "data-loss",
    "durable",
    "not-initialised",
    "other-deployment",
    "permissions",
    "trial",
    "quarantine-long",
    "sentinel-sight",
];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sentinel-conf").join(name);
    std::fs::read_to_string(path).expect("it is part of the package")
}

/// Returns each setting of the template, with the checks that the comment `# doctor: …` above it
/// names.
fn settings(template: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut ids: Option<Vec<String>> = None;
    for line in read(template).lines() {
        if let Some(named) = line.strip_prefix("# doctor: ") {
            let none = named.strip_prefix("none: ");
            assert!(none.is_none_or(|why| why.len() > 10), "{template}: no reason: {line}");
            let words = named.split_whitespace().map(str::to_owned);
            ids = Some(if none.is_some() { Vec::new() } else { words.collect() });
        } else if !line.is_empty() && !line.starts_with('#') {
            let mut words = line.split_whitespace();
            let first = words.next().expect("a word");
            let name = if first == "sentinel" { words.next().expect("its verb") } else { first };
            let ids = ids.clone().unwrap_or_else(|| panic!("{template}: no check above: {line}"));
            found.insert(name.to_owned(), ids);
        }
    }
    assert!(found.len() > 10, "{template}: only {found:?} seen");
    found
}

fn known() -> BTreeSet<String> {
    checks().map(str::to_owned).collect()
}

#[test]
fn every_line_of_the_templates_names_checks_that_exist() {
    let known = known();
    let mut named = BTreeSet::new();
    for template in ["templates/redis.conf", "templates/sentinel.conf"] {
        for (setting, ids) in settings(template) {
            for id in ids {
                assert!(known.contains(&id), "{template}: {setting}: no check is called {id}");
                named.insert(id);
            }
        }
    }
    // The other direction: each check of `palisade doctor` about a setting must be named in a
    // template.
    let free: BTreeSet<String> = NOT_SETTINGS.iter().map(|id| (*id).to_owned()).collect();
    assert!(free.is_subset(&known), "{:?}", free.difference(&known));
    let missing: Vec<_> = known.difference(&named).filter(|id| !free.contains(*id)).collect();
    assert!(missing.is_empty(), "no line of the templates is there for {missing:?}");
    let both: Vec<_> = named.intersection(&free).collect();
    assert!(both.is_empty(), "{both:?} have their lines, and are called free of settings");
}

#[test]
fn the_table_of_reasons_knows_every_setting_and_only_checks_that_exist() {
    let readme = read("README.md");
    let known = known();
    let head = "| line | without it | checked as |";
    let table = readme.lines().skip_while(|l| *l != head).skip(2);
    let table: Vec<&str> = table.take_while(|l| l.starts_with('|')).collect();
    let mut seen = 0;
    for row in &table {
        let ids = row.trim_end_matches(" |").rsplit(" | ").next().expect("a last column");
        for id in ids.split(", ").filter(|id| *id != "–") {
            let id = id.trim_matches('`');
            assert!(known.contains(id), "no check is called {id:?}: {row}");
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} ids seen: the table is read wrongly");
    // These settings are set on every server, so the README's table of reasons does not mention
    // them.
    let usual = ["port", "dir", "daemonize", "logfile", "timeout", "repl-diskless-sync"];
    for template in ["templates/redis.conf", "templates/sentinel.conf"] {
        for setting in settings(template).keys().filter(|s| !usual.contains(&s.as_str())) {
            let reported =
                table.iter().any(|row| row.split(" | ").next().unwrap().contains(setting));
            assert!(reported, "{template}: no reason is given for {setting}");
        }
    }
}
