//! Rules that no lint checks: lengths, head comments, directions of imports, citations, and the
//! public interface. Each rule is a search in the text.
//!
//! Clippy checks the other rules (`src/lib.rs`, `clippy.toml`).

mod cited;
mod layers;
mod lines;
mod public;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that contain code.
const FOLDERS: [&str; 12] = [
    "src", "ops", "adapters", "cli", "console", "consumer", "cron", "examples", "testing", "tests",
    "benches", "verify",
];

#[test]
fn every_file_keeps_the_rules() {
    let (mut found, mut seen) = (Vec::new(), 0);
    for path in FOLDERS.iter().flat_map(|folder| files_below(&root().join(folder))) {
        if matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "lua")) {
            let text = fs::read_to_string(&path).expect("source is UTF-8");
            found.extend(rules::broken(&relative(&path), &text));
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} files seen: the walk is broken");
    assert!(found.is_empty(), "{} rules broken:\n{}\n", found.len(), found.join("\n"));
}

#[test]
fn nothing_names_a_path_of_one_machine() {
    let mut found = Vec::new();
    for path in tracked() {
        // A file that is not UTF-8 text, for example a picture, has no paths. So it is skipped.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        found.extend(machine_paths(&path, &text));
    }
    assert!(found.is_empty(), "{}\n", found.join("\n"));
}

/// Returns an error for each line with a path that exists only on a developer's machine.
fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let paths = [concat!("/ro", "ot/"), concat!("/tmp", "/w/"), concat!("/wo", "rk/")];
    let names = |line: &str| {
        paths.iter().any(|p| {
            line.match_indices(p).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}*/".contains(c))
            })
        })
    };
    let hits = text.lines().enumerate().filter(|(_, line)| names(line));
    hits.map(|(n, _)| format!("{path}:{}: machine path: name it from the package on", n + 1))
        .collect()
}

#[test]
fn a_path_of_one_machine_is_seen() {
    let bad = format!("see {}notes\n", concat!("/wo", "rk/"));
    assert_eq!(machine_paths("a.md", &format!("fine\n{bad}")).len(), 1);
    let (work, root) = (concat!("wo", "rk/"), concat!("ro", "ot/"));
    let fine = format!("see target/{work}notes and https://x.org/{root}a\n");
    assert!(machine_paths("a.md", &fine).is_empty());
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn relative(path: &Path) -> String {
    let inside = path.strip_prefix(root()).expect("below the package");
    inside.to_string_lossy().replace('\\', "/")
}

/// Returns all files below a folder, sorted. Returns no files if the folder does not exist.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("a readable folder").path()).collect();
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path);
        } else if !path.ends_with("target") && !path.ends_with(".git") {
            files.extend(files_below(&path));
        }
    }
    files
}

/// Returns the files that git tracks. Without git, as in an unpacked package, returns all files.
fn tracked() -> Vec<String> {
    let git = Command::new("git").arg("ls-files").current_dir(root()).output();
    match git {
        Ok(out) if out.status.success() && !out.stdout.is_empty() => {
            String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
        }
        _ => files_below(root()).iter().map(|p| relative(p)).collect(),
    }
}

#[test]
fn what_is_built_from_is_examined_for_every_feature() {
    let read = |file: &str| fs::read_to_string(root().join(file)).expect("it is there");
    let (manifest, deny) = (read("Cargo.toml"), read("deny.toml"));
    let (_, features) = manifest.split_once("\n[features]\n").expect("features");
    let (features, _) = features.split_once("\n[").expect("a section after them");
    let names = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    let examined = deny.lines().find(|line| line.starts_with("features = [")).expect("a list");
    // `deny.toml` leaves these features out, and gives the reason for each.
    let left_out = ["default", "backoff"];
    let missing: Vec<_> = names
        .filter(|name| !left_out.contains(name) && !examined.contains(&format!("\"{name}\"")))
        .collect();
    assert!(missing.is_empty(), "deny.toml leaves out {missing:?}");
}
