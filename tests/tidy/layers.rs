//! The layers of the crate: a module imports only modules of lower layers.

use crate::rules::Finding;

/// The top modules, the lowest layer first. A module may import modules of lower layers. Modules of
/// the same layer may import each other only if `TOGETHER` permits it.
const LAYERS: [&[&str]; 13] = [
    &[
        "name",
        "token",
        "time",
        "op",
        "error",
        "config",
        "durability",
        "retry_policy",
        "safe_text",
        "sync",
    ],
    &["env", "tls", "fuzzing", "metrics", "span"],
    &["dial"],
    &["sentinel", "quorum", "rules"],
    &["store"],
    &["node"],
    &["client"],
    &["redlock", "lock"],
    &["health", "settings"],
    &["idempotency"],
    &["election"],
    &["internal", "test_util"],
    &["lib", "manual"],
];

/// Layers whose modules may import each other. One module stands for each of these layers: `name`
/// for the layer of values, and `redlock` for the layer of the `Redlock` handle and the locks.
const TOGETHER: [&str; 2] = ["name", "redlock"];

/// Words for time, randomness and IO. The modules of values (the lowest layer) and the modules of
/// [`PURE`] must not use these words, because their callers pass time and random numbers in.
const WORLD: [&str; 6] =
    ["tokio::", "rand::", "Instant::now", "SystemTime", "std::thread", "std::net"];

/// Pure modules above the values.
const PURE: [&str; 3] = ["quorum", "rules", "store"];

/// Returns the name of the file's top module.
fn module_of(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or("");
    let first = inside.split('/').next().unwrap_or("");
    first.strip_suffix(".rs").unwrap_or(first)
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Returns the path from a file's module to the root of the crate, as a sequence of `super::`.
fn to_root(path: &str) -> String {
    let steps = path.split('/').count() - 1 - usize::from(path.ends_with("/mod.rs"));
    "super::".repeat(steps)
}

pub(crate) fn imports(path: &str, shipped: &[(usize, &str)]) -> Vec<Finding> {
    let own = module_of(path);
    let Some(mine) = layer(own) else {
        return vec![(0, format!("`{own}` is in no layer; name it in tests/tidy/layers.rs"))];
    };
    let to_root = to_root(path);
    let mut found = Vec::new();
    for (n, line) in shipped {
        for root in ["crate::", &to_root] {
            let named = line.match_indices(root).filter(|(at, _)| {
                !line[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c))
            });
            for (at, _) in named {
                let rest = &line[at + root.len()..];
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                found.extend(judge(own, mine, &rest[..end.unwrap_or(rest.len())]).map(|h| (*n, h)));
            }
        }
    }
    found
}

/// Returns an error text if a file of the module `own` may not import the module `other`.
fn judge(own: &str, mine: usize, other: &str) -> Option<String> {
    if other == own || own == "lib" {
        return None;
    }
    match layer(other) {
        Some(its) if its < mine => None,
        Some(its) if its == mine && LAYERS[mine].iter().any(|m| TOGETHER.contains(m)) => None,
        Some(_) => Some(format!("`{own}` may not know `{other}`; move the shared part down")),
        None if other.is_empty() => Some("one module in each `use crate::…`".to_owned()),
        None if other.starts_with(char::is_uppercase) => {
            Some(format!("`crate::{other}` hides its module; import it from where it lives"))
        }
        None => Some(format!("`{other}` is in no layer; name it in tests/tidy/layers.rs")),
    }
}

pub(crate) fn pure(path: &str, shipped: &[(usize, &str)]) -> Vec<Finding> {
    let module = module_of(path);
    if !PURE.contains(&module) && !LAYERS[0].contains(&module) {
        return Vec::new();
    }
    let used = |line: &str| WORLD.iter().find(|word| line.contains(*word));
    let words = shipped.iter().filter_map(|(n, line)| Some((*n, used(line)?)));
    words.map(|(n, w)| (n, format!("`{w}`: time and chance are passed in by the caller"))).collect()
}

#[test]
fn the_way_to_the_root() {
    let steps = ["src/op.rs", "src/node/mod.rs", "src/node/memory/locks.rs"].map(to_root);
    assert_eq!(steps, ["super::", "super::", "super::super::super::"]);
}
