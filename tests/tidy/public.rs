//! The public interface as a list of names, kept in `docs/public-api.txt` and compared with what
//! rustdoc shows: nothing becomes public, or stops being so, unseen.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::root;

const LIST: &str = "docs/public-api.txt";

/// Kinds of things on a page of rustdoc, by the beginning of their anchors.
const KINDS: [&str; 6] =
    ["method.", "tymethod.", "variant.", "structfield.", "associatedconstant.", "associatedtype."];

/// What is between the two, for each place where the first is found.
fn between<'a>(text: &'a str, from: &'a str, to: char) -> impl Iterator<Item = &'a str> {
    text.split(from).skip(1).filter_map(move |rest| rest.split(to).next())
}

/// The items of the crate: page and path.
fn items(doc: &Path) -> Vec<(PathBuf, String)> {
    let all = fs::read_to_string(doc.join("all.html")).expect("rustdoc's list of all items");
    let links = between(&all, "<li><a href=\"", '<').filter_map(|link| link.split_once("\">"));
    // Those to parts of this very page are headings.
    let links = links.filter(|(page, _)| !page.starts_with('#'));
    links.map(|(page, path)| (doc.join(page), format!("palisade::{path}"))).collect()
}

/// Names on one page, without those of traits that the item has from elsewhere.
fn members(page: &str, path: &str) -> BTreeSet<String> {
    let (own, rest) = page.split_once("id=\"trait-implementations\"").unwrap_or((page, ""));
    let own = own.split("id=\"foreign-impls\"").next().unwrap_or_default();
    let own = own.split("id=\"implementors\"").next().unwrap_or_default();
    let traits = rest.split("id=\"synthetic-implementations\"").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for id in between(own, "id=\"", '"') {
        let name = KINDS.iter().find_map(|kind| id.strip_prefix(kind));
        found.extend(name.map(|name| format!("{path}::{}", name.replace(".field.", "."))));
    }
    for id in between(traits, "id=\"impl-", '"') {
        let name = id.split("-for-").next().unwrap_or_default();
        // The compiler's own, beside `PartialEq`.
        if name == "StructuralPartialEq" {
            continue;
        }
        let name = name.replace("%3C", "<").replace("%3E", ">").replace("%26", "&");
        found.insert(format!("{path}: {}", name.replace("%5B", "[").replace("%5D", "]")));
    }
    found
}

fn listed() -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let done = Command::new(cargo)
        .args(["doc", "--no-deps", "--lib", "--all-features", "--package", "palisade"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let items = items(&target.join("doc/palisade"));
    assert!(items.len() > 50, "only {} items seen: rustdoc's pages have changed", items.len());
    let mut lines = BTreeSet::new();
    for (page, path) in items {
        let page = fs::read_to_string(&page).expect("the page of an item");
        lines.extend(members(&page, &path));
        lines.insert(path);
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[test]
fn the_public_interface_is_the_one_that_is_listed() {
    let (path, now) = (root().join(LIST), listed());
    if std::env::var_os("PALISADE_BLESS").is_some() {
        fs::write(&path, &now).expect("the list is written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (kept.lines().collect(), now.lines().collect());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let come: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    assert!(
        gone.is_empty() && come.is_empty(),
        "{LIST} is not what is public; if it is meant so, run this test with PALISADE_BLESS=1:\n{}",
        [gone, come].concat().join("\n")
    );
}

#[test]
fn a_page_shows_its_own_members_and_the_names_of_traits() {
    let page = "<x id=\"variant.Lost\"><x id=\"variant.Lost.field.of\"><x id=\"method.run\">\
                <x id=\"trait-implementations\"><x id=\"impl-From%3CE%3E-for-X\">\
                <x id=\"method.from\"><x id=\"synthetic-implementations\">\
                <x id=\"impl-Send-for-X\">";
    let found: Vec<_> = members(page, "p::X").into_iter().collect();
    assert_eq!(found, ["p::X: From<E>", "p::X::Lost", "p::X::Lost.of", "p::X::run"]);
}
