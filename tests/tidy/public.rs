//! The file `docs/public-api.txt` lists the public interfaces of the library and of the two
//! packages right above it, with their signatures and auto traits. A test compares the list with
//! rustdoc's output, so each change of an interface must change the list.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::root;

const LIST: &str = "docs/public-api.txt";

const PACKAGES: [&str; 3] = ["palisade", "palisade-consumer", "palisade-cron"];

/// Version of rustdoc's JSON format that the dev-dependency `public-api` reads. Rust 1.95 writes
/// this version.
const FORMAT: u64 = 57;

/// Traits that the list of the public API (`LIST`) leaves out. These traits are unstable, internal
/// to the compiler, or about panics.
const UNASKED: [&str; 5] =
    ["Freeze", "RefUnwindSafe", "StructuralPartialEq", "UnsafeUnpin", "UnwindSafe"];

/// Auto traits that almost all types have. The list of the public API leaves them out, and shows
/// only exceptions (`impl !…`) and implementations with conditions.
const USUAL: [&str; 3] =
    ["impl core::marker::Send for", "impl core::marker::Sync for", "impl core::marker::Unpin for"];

/// Runs rustdoc with JSON output. Returns the path of the output.
fn json(package: &str) -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let done = Command::new(cargo)
        .args(["rustdoc", "--lib", "--all-features", "--package", package, "--"])
        .args(["-Z", "unstable-options", "--output-format", "json"])
        .env("RUSTDOC", root().join("scripts/rustdoc-json"))
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join(format!("doc/{}.json", package.replace('-', "_")))
}

/// Returns the current public interface of a package as text. Each line is an item or an
/// implementation.
fn listed(package: &str) -> String {
    let path = json(package);
    let text = fs::read_to_string(&path).expect("what rustdoc wrote");
    let format = serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["format_version"]
        .as_u64()
        .expect("the format has a number");
    assert_eq!(
        format, FORMAT,
        "rustdoc's JSON has format {format}, and `public-api` reads {FORMAT}: run this test with \
         Rust 1.95 (`PALISADE_PUBLIC=1 cargo +1.95.0 test --all-features --test tidy`), or take \
         the `public-api` of this Rust, write its format here, and write {LIST} anew"
    );
    let api = public_api::Builder::from_rustdoc_json(&path).omit_blanket_impls(true).sorted(true);
    let api = api.build().expect("public-api reads it");
    shown(api.items().map(ToString::to_string))
}

/// Returns the items as text. Leaves out the functions and types that follow from the
/// implementation of another crate's trait.
fn shown(items: impl Iterator<Item = String>) -> String {
    let (mut lines, mut implied) = (String::new(), false);
    for item in items {
        if let Some(rest) = item.strip_prefix("impl") {
            let of = rest.rsplit_once(" for ").map(|(left, _)| left.rsplit(' ').next().unwrap());
            implied = of.is_some_and(|of| !of.starts_with("palisade"));
            let name = of.and_then(|of| of.rsplit("::").next()).unwrap_or_default();
            if UNASKED.contains(&name) || USUAL.iter().any(|usual| item.starts_with(usual)) {
                continue;
            }
        } else if implied && (item.starts_with("pub fn") || is_associated_type(&item)) {
            continue;
        } else {
            implied = false;
        }
        lines += &(item + "\n");
    }
    lines
}

/// Returns true for a type inside a type or a trait, and false for an alias inside a module.
fn is_associated_type(item: &str) -> bool {
    let name = item.strip_prefix("pub type ").and_then(|rest| rest.split(" = ").next());
    let parent = name.and_then(|name| name.rsplit_once("::")).map_or("", |(parent, _)| parent);
    parent.rsplit("::").next().is_some_and(|parent| parent.starts_with(char::is_uppercase))
}

/// Runs in `make lint` only, because rustdoc checks all dependencies first, which takes minutes.
#[test]
fn the_public_interface_is_the_one_that_is_listed() {
    if std::env::var_os("PALISADE_PUBLIC").is_none() {
        return;
    }
    let (path, now) = (root().join(LIST), PACKAGES.map(listed).concat());
    if std::env::var_os("PALISADE_BLESS").is_some() {
        fs::write(&path, &now).expect("the list is written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (kept.lines().collect(), now.lines().collect());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}\n")).collect();
    let come: Vec<_> = new.difference(&old).map(|line| format!("+ {line}\n")).collect();
    assert!(
        gone.is_empty() && come.is_empty(),
        "{LIST} is not what is public; if it is meant so, write it anew by `PALISADE_PUBLIC=1 \
         PALISADE_BLESS=1 cargo test --all-features --test tidy public`:\n{}",
        [gone, come].concat().concat()
    );
}

#[test]
fn functions_of_other_crates_traits_are_implied() {
    let items = [
        "pub struct palisade::A",
        "impl palisade::A",
        "pub fn palisade::A::new() -> palisade::A",
        "impl core::clone::Clone for palisade::A",
        "pub fn palisade::A::clone(&self) -> palisade::A",
        "pub type palisade::A::Of<T> = T",
        "pub type palisade::node::B<T> = palisade::A",
        "impl core::clone::Clone for palisade::A",
        "impl core::marker::Freeze for palisade::A",
        "impl core::marker::Send for palisade::A",
        "impl !core::marker::Sync for palisade::A",
        "impl palisade::node::spi::LockNode for palisade::A",
        "pub fn palisade::A::call(&self)",
    ];
    let all = shown(items.into_iter().map(str::to_owned));
    let left: Vec<_> = [0, 1, 2, 3, 6, 7, 10, 11, 12].map(|i| items[i]).into_iter().collect();
    assert_eq!(all.lines().collect::<Vec<_>>(), left);
}
