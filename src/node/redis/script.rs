//! The Lua script that executes a batch, assembled from several files. One call executes a whole
//! batch, so the script reads the clock and the marker once, and the ops keep their order.

use std::sync::LazyLock;

use redis::Script;

use super::codes::{codes, lua_text};

macro_rules! lua {
    ($($file:literal)*) => { concat!($(include_str!(concat!("../lua/", $file, ".lua")), "\n"),*) };
}

/// The functions of the fast paths, those of the slow paths, and the loop. Functions come first, so
/// that the loop's variables are no upvalues of theirs. Closures inside the slow paths are created
/// only when an op needs them.
const SOURCE: &str = concat!(
    lua!("acquire" "wake" "release" "leave" "show" "join" "write"),
    "local function fast(kind, k, a, now_us, life, second)\n",
    lua!("slots_fast"),
    "end\n",
    "local function batch(now_us, note, out)\n",
    lua!("batch"),
    "end\n",
    "local function rare(b, kind, k, a, join)\n",
    codes!(lua_text),
    lua!("helpers" "late"),
    "if kind ~= 'E' then\n",
    lua!("locks" "queue" "slots"),
    "end\n",
    lua!("candidates"),
    "end\n",
    lua!("prelude" "main"),
);

static TEXT: LazyLock<String> = LazyLock::new(|| stripped(SOURCE));

pub(crate) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(&TEXT));

/// What the script does otherwise in a slot of a cluster. Its last two keys are one that shows
/// whether the slot was away (cluster 7) and one that is never there; it may use no others.
const IN_SLOTS: [(&str, &str); 3] = [
    ("'palisade:none'", "KEYS[#KEYS]"),
    (
        "store(KEYS[1], ARGV[5])\n",
        "store(KEYS[1], ARGV[5])\n\
         call('DEL', KEYS[#KEYS - 1])\n\
         call('SETRANGE', KEYS[#KEYS - 1], '1', '1')\n",
    ),
    (
        "return {'news', now_us, marker, sub(note, 1, 67),\n",
        "local stays = redis.pcall('OBJECT', 'ENCODING', KEYS[#KEYS - 1])\n\
         return {stays == 'raw' and 'stayed' or 'news', now_us, marker, sub(note, 1, 67),\n",
    ),
];

static TEXT_IN_SLOT: LazyLock<String> = LazyLock::new(|| {
    IN_SLOTS.iter().fold(TEXT.clone(), |text, (plain, in_slot)| text.replace(plain, in_slot))
});

pub(crate) static IN_SLOT: LazyLock<Script> = LazyLock::new(|| Script::new(&TEXT_IN_SLOT));

pub(crate) fn load(in_cluster: bool) -> redis::Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(if in_cluster { &*TEXT_IN_SLOT } else { &*TEXT });
    cmd
}

/// In lower case. The first line is 1, as in the servers' error messages.
pub(crate) fn commands_at(line: usize) -> Vec<String> {
    let text = line.checked_sub(1).and_then(|at| TEXT.lines().nth(at)).unwrap_or_default();
    let calls = text.split("call('").skip(1).filter_map(|rest| rest.split_once('\''));
    calls.map(|(command, _)| command.to_ascii_lowercase()).collect()
}

/// Removes comments, indentation and empty lines. Lines stay apart, so no two tokens meet. Knows
/// neither `--[[` nor `[[`, which the sources do not use.
fn stripped(source: &str) -> String {
    let lines = source.lines().map(|line| line[..code_len(line)].trim());
    lines.filter(|line| !line.is_empty()).fold(String::new(), |text, line| text + line + "\n")
}

fn code_len(line: &str) -> usize {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (Some(_), _) if std::mem::take(&mut escaped) => {}
            (Some(_), '\\') => escaped = true,
            (Some(begun), c) if begun == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '-') if line[at..].starts_with("--") => return at,
            _ => {}
        }
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits Lua text into words, strings and single signs, over the ends of lines.
    fn tokens(text: &str) -> Vec<String> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            let len = if rest.starts_with("--") {
                rest.find('\n').unwrap_or(rest.len())
            } else if is_word(c) {
                rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
            } else if c == '\'' || c == '"' {
                let mut at = 1;
                while !rest[at..].starts_with(c) {
                    assert!(!rest[at..].starts_with('\n'), "a string ends on its line: {rest}");
                    at += if rest[at..].starts_with('\\') { 2 } else { 1 };
                }
                at + 1
            } else {
                c.len_utf8()
            };
            let (token, after) = rest.split_at(len);
            if !token.starts_with("--") && !c.is_whitespace() {
                tokens.push(token.to_owned());
            }
            rest = after;
        }
        tokens
    }

    #[test]
    fn servers_get_every_token_and_no_comment() {
        assert_eq!(tokens(&TEXT), tokens(SOURCE));
        let strange =
            |line: &&str| line.trim() != *line || line.is_empty() || code_len(line) != line.len();
        assert_eq!(TEXT.lines().find(strange), None);
        assert!(!SOURCE.contains("[[") && !SOURCE.contains("[=") && TEXT.is_ascii());
        assert!(TEXT.len() < 60_000, "{}", TEXT.len());
    }

    #[test]
    fn a_comment_ends_a_line_and_not_a_string() {
        for (line, code) in [
            ("  local a = 1 -- one", "local a = 1\n"),
            ("local a = '--' .. \"--\" --'", "local a = '--' .. \"--\"\n"),
            (r"return '\'--', '\\' -- it's", "return '\\'--', '\\\\'\n"),
            ("a = b - -c", "a = b - -c\n"),
            ("\t-- all of it", ""),
            ("a = ' x  '\n\n  end", "a = ' x  '\nend\n"),
        ] {
            assert_eq!(stripped(line), code, "{line}");
        }
    }

    #[test]
    fn a_slot_has_a_script_of_its_own() {
        for (plain, in_slot) in IN_SLOTS {
            assert!(TEXT.contains(plain) && TEXT_IN_SLOT.contains(in_slot), "{plain}");
        }
        assert!(!TEXT_IN_SLOT.contains("palisade:none"));
    }

    #[test]
    fn the_digest_is_that_of_the_text_that_is_sent() {
        let sent = String::from_utf8(load(false).get_packed_command()).unwrap();
        let text = sent.splitn(7, "\r\n").last().unwrap().strip_suffix("\r\n").unwrap();
        assert_eq!(SCRIPT.get_hash(), Script::new(text).get_hash());
        assert_ne!(SCRIPT.get_hash(), Script::new(SOURCE).get_hash());
    }
}
