//! Who may import whom: imports only go down.

use crate::rules::Finding;
use crate::source::Source;

/// The rooms from the ground up. A room may import those below it and itself; rooms on one floor
/// may import each other only where `NEIGHBOURS` says so.
const FLOORS: &[&[&str]] = &[
    &["bugs", "name", "token", "time", "op", "error", "config", "durability", "receipt", "shown"],
    &["env", "tls", "fuzzing", "metrics", "span"],
    &["dial"],
    &["sentinel", "quorum"],
    &["node"],
    &["driver"],
    &["redlock", "lock"],
    &["health", "settings"],
    &["idempotency"],
    &["streams"],
    &["election"],
    &["cron"],
    &["ops"],
    &["test_util"],
    &["lib", "manual"],
];

/// Floors whose rooms know each other: the values, and the handle that makes the locks.
const NEIGHBOURS: &[&str] = &["name", "redlock"];

/// Whether the file belongs to the values or to the quorum core.
pub(crate) fn is_pure(path: &str) -> bool {
    let room = room_of(path);
    room == "quorum" || FLOORS[0].contains(&room)
}

/// The top module a file belongs to.
fn room_of(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or("");
    let first = inside.split('/').next().unwrap_or("");
    first.strip_suffix(".rs").unwrap_or(first)
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// How many `super` lead from a file to the crate's root.
fn depth(path: &str) -> usize {
    let steps = path.split('/').count() - 1;
    if path.ends_with("/mod.rs") { steps - 1 } else { steps }
}

pub(crate) fn imports(source: &Source) -> Vec<Finding> {
    if !source.in_src() || !source.is_rust() {
        return Vec::new();
    }
    let room = room_of(&source.path);
    let Some(own) = floor(room) else {
        return vec![(0, format!("`{room}` is on no floor; give it one in tests/tidy/layers.rs"))];
    };
    let mut found = Vec::new();
    for (line, name) in mentions(source) {
        let help = match floor(&name) {
            _ if name == room || room == "lib" => continue,
            // Operations use what users use: the names at the root.
            None if name.starts_with(char::is_uppercase) && room == "ops" => continue,
            None if name.starts_with(char::is_uppercase) => {
                format!("`crate::{name}` hides its room; import it from the module it lives in")
            }
            None => format!("`{name}` is on no floor; give it one in tests/tidy/layers.rs"),
            Some(other) if other < own => continue,
            Some(other) if other == own && FLOORS[own].iter().any(|r| NEIGHBOURS.contains(r)) => {
                continue;
            }
            Some(_) => format!("`{room}` may not know `{name}`; move the shared part down"),
        };
        found.push((line, help));
    }
    found
}

/// Every top module named in code that ships, through `crate::` or enough `super::`.
fn mentions(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let to_root = "super::".repeat(depth(&source.path));
    for (n, line) in source.shipped() {
        for root in ["crate::", &to_root] {
            for (at, _) in line.match_indices(root) {
                let before = &line[..at];
                if before.ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c)) {
                    continue;
                }
                let rest: String =
                    source.chars_from(n, at + root.len()).map(|(_, c)| c).take(2_000).collect();
                found.extend(first_names(&rest).into_iter().map(|name| (n, name)));
            }
        }
    }
    found
}

/// `a::b` → `a`; `{a::{b, c}, d as e}` → `a`, `d`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| {
        text.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect::<String>()
    };
    let Some(list) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut names, mut depth, mut fresh) = (Vec::new(), 0_usize, true);
    for (at, c) in list.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                names.push(name(&list[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_lists() {
        assert_eq!(first_names("op::Op;"), ["op"]);
        assert_eq!(
            first_names("{op::{A, B}, error,\n  Redlock as R};"),
            ["op", "error", "Redlock"]
        );
    }

    #[test]
    fn the_way_to_the_root() {
        assert_eq!(depth("src/op.rs"), 1);
        assert_eq!(depth("src/node/mod.rs"), 1);
        assert_eq!(depth("src/node/memory/locks.rs"), 3);
    }
}
