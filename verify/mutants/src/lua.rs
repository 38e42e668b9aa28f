//! Changes of the library's Lua scripts, which run in the server. Each change replaces one
//! operator, bound or condition, or deletes one command.

use std::path::{Path, PathBuf};

use crate::Mutant;

const SCRIPTS: &str = "src/node/lua";

/// Texts of a script, each with the text that replaces it in a change.
const SWAPS: [(&str, &str); 14] = [
    (" == ", " ~= "),
    (" ~= ", " == "),
    (" <= ", " < "),
    (" >= ", " > "),
    (" < ", " <= "),
    (" > ", " >= "),
    (" and ", " or "),
    (" or ", " and "),
    (" + ", " - "),
    (" - ", " + "),
    ("not ", ""),
    ("math.max(", "math.min("),
    ("math.min(", "math.max("),
    ("true", "false"),
];

/// Lists all changes (mutants) of the library's Lua scripts that a run of this program may try.
pub(crate) fn list(root: &Path) -> Result<Vec<Mutant>, String> {
    let dir = root.join(SCRIPTS);
    let entries = dir.read_dir().map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "lua"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = Path::new(SCRIPTS).join(file.file_name().expect("a file has a name"));
        of_script(&name, &text, &mut all);
    }
    Ok(all)
}

fn of_script(file: &Path, text: &str, all: &mut Vec<Mutant>) {
    let mut start = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let code = line.split("--").next().unwrap_or_default();
        let mut push = |at: usize, old: &str, new: &str| {
            all.push(Mutant {
                place: (number, at + 1),
                change: format!(
                    "replace {} with {} in {}",
                    old.trim(),
                    if new.is_empty() { "nothing" } else { new.trim() },
                    code.trim(),
                ),
                file: file.to_owned(),
                range: start + at..start + at + old.len(),
                replacement: new.to_owned(),
            });
        };
        for (old, new) in SWAPS {
            for (at, _) in code.match_indices(old) {
                push(at, old, new);
            }
        }
        let statement = code.trim();
        let is_command = statement.starts_with("call(") || statement.starts_with("redis.call(");
        if is_command && statement.ends_with(')') {
            push(code.len() - code.trim_start().len(), statement, "");
        }
        start += line.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_and_commands_are_changed_and_comments_are_not() {
        let text = "-- a < b\nlocal x = a < b and c\n  call('DEL', key)\n  call('SET', key,\n";
        let mut all = Vec::new();
        of_script(Path::new("s.lua"), text, &mut all);
        let changed = |m: &Mutant| {
            let mut text = text.to_owned();
            text.replace_range(m.range.clone(), &m.replacement);
            text.lines().skip(1).take(2).collect::<Vec<_>>().join("|")
        };
        let changed: Vec<_> = all.iter().map(changed).collect();
        let want = [
            "local x = a <= b and c|  call('DEL', key)",
            "local x = a < b or c|  call('DEL', key)",
            "local x = a < b and c|  ",
        ];
        assert_eq!(changed, want);
    }
}
