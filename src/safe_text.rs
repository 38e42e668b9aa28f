//! Makes text from outside safe to show: secrets that were sent to servers are replaced, characters
//! that could move a cursor, hide text or begin a line are escaped, and long texts are cut.

use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

pub(crate) const MOST: usize = 200;
/// Largest number of characters that are shown of a sentence that palisade wrote and that contains
/// text from outside, such as a server's message.
pub const SENTENCE_MAX: usize = 2_000;
const MARK: &str = "***";
/// In bytes, of the pieces of a password that are searched for in a text from outside.
const PART: usize = 4;
/// Longer: palisade's own sentences and many passwords contain the same short words.
const LONG_PART: usize = 8;
/// Bytes that are searched for secrets. The rest is cut.
const LOOK: usize = 16 * 1024;

/// Passwords and user names that must not be shown. They were sent to one server, or to all servers
/// of an operation.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Vec<Secret>>);

#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Password(Box<str>),
    /// Replaced only where it is a whole word.
    User(Box<str>),
}

impl Secrets {
    /// Makes the secrets of one login.
    pub fn of(user: Option<&str>, password: Option<&str>) -> Self {
        let filled = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(Box::from);
        let password = filled(password).map(Secret::Password);
        let user = filled(user).map(Secret::User);
        Self(Arc::new(password.into_iter().chain(user).collect()))
    }

    /// Returns a text from outside in a form that is safe to show: secrets are replaced, dangerous
    /// characters are escaped, and the text is cut to `MOST` characters.
    pub fn clean(&self, text: &str) -> String {
        shown(text, &self.hidden(text, PART), MOST)
    }
}

impl Secrets {
    /// Returns the secrets of several logins together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self(Arc::new(self.0.iter().chain(other.0.iter()).cloned().collect()))
    }

    /// Returns the passwords without the user names. It is for sentences that show the name of the
    /// user on purpose.
    #[must_use]
    pub fn passwords(self) -> Self {
        let is_password = |s: &&Secret| matches!(s, Secret::Password(_));
        Self(Arc::new(self.0.iter().filter(is_password).cloned().collect()))
    }

    /// Returns a sentence that palisade wrote and that contains text from outside, in a form that
    /// is safe to show. The sentence is cut to `most` characters.
    pub fn sentence(&self, text: &str, most: usize) -> String {
        shown(text, &self.hidden(text, LONG_PART), most)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Pieces of a password shorter than `part` are not replaced.
    fn hidden(&self, text: &str, part: usize) -> Vec<bool> {
        let text = &text.as_bytes()[..text.len().min(LOOK)];
        let mut hidden = vec![false; text.len()];
        for secret in self.0.iter() {
            let (all, words, part) = match secret {
                // A short password may occur inside many words.
                Secret::Password(p) => (p.as_bytes(), p.len() < PART, part.min(p.len())),
                Secret::User(name) => (name.as_bytes(), true, name.len()),
            };
            let windows: std::collections::BTreeSet<&[u8]> = all.windows(part).collect();
            for (at, window) in text.windows(part).enumerate() {
                let place = at..at + part;
                if windows.contains(window) && (!words || is_word(text, &place)) {
                    hidden[place].fill(true);
                }
            }
        }
        hidden
    }
}

fn is_word(text: &[u8], place: &Range<usize>) -> bool {
    let within = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let before = place.start.checked_sub(1).and_then(|at| text.get(at));
    !within(before) && !within(text.get(place.end))
}

/// With the number of bytes that were cut off at the end.
fn shown(text: &str, hidden: &[bool], most: usize) -> String {
    let (mut out, mut length) = (String::new(), 0);
    let room = most.saturating_sub(32);
    let mut fits = (0, 0);
    let mut in_secret = false;
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let secret = hidden.get(at..end).is_some_and(|bytes| bytes.contains(&true));
        let token = match (secret, in_secret) {
            (true, true) => String::new(),
            (true, false) => MARK.to_owned(),
            (false, _) => plain(c, false).collect(),
        };
        in_secret = secret;
        length += token.chars().count();
        if length > most || end > LOOK {
            out.truncate(fits.0);
            let _ = write!(out, "… (+{} bytes)", text.len() - fits.1);
            return out;
        }
        out.push_str(&token);
        if length <= room {
            fits = (out.len(), end);
        }
    }
    out
}

/// With `quoted`, also double quotes and backslashes.
fn plain(c: char, quoted: bool) -> impl Iterator<Item = char> {
    // These characters are letters by their Unicode category, but are invisible.
    let blank = matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}');
    let quote = matches!(c, '"' | '\\') && quoted;
    let as_it_is = matches!(c, '"' | '\'' | '\\') && !quote;
    let escaped = if blank { Some(c.escape_unicode()) } else { None };
    let debug = if blank || as_it_is { None } else { Some(c.escape_debug()) };
    let raw = as_it_is.then_some(c);
    escaped.into_iter().flatten().chain(debug.into_iter().flatten()).chain(raw)
}

pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| plain(c, false).eq([c]))
}

/// Not cut, because it comes from the user.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.0.chars().flat_map(|c| plain(c, true)).try_for_each(|c| f.write_char(c))?;
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn login() -> Secrets {
        Secrets::of(Some("app"), Some("S3CRETPW-of-ours"))
    }

    #[test]
    fn secrets_and_their_parts_are_replaced() {
        for (said, is) in [
            ("ERR unknown 'HELLO' '3' 'AUTH' 'app' 'S3CRETPW-of-ours'", "'AUTH' '***' '***'"),
            ("ERR S3CRETP", "ERR ***"),
            ("ERR xTPW-ofx", "ERR x***x"),
            ("User app may not, apple may", "User *** may not, apple may"),
            ("ERR S3C", "ERR S3C"),
        ] {
            assert!(login().clean(said).ends_with(is), "{}", login().clean(said));
        }
        assert_eq!(Secrets::of(None, Some("pw")).clean("pw: spwn 'pw'"), "***: spwn '***'");
        assert_eq!(Secrets::of(Some(""), Some("")).clean("as it is"), "as it is");
        assert!(!format!("{:?}", login()).contains("S3C"));
    }

    #[test]
    fn what_moves_hides_or_joins_is_escaped() {
        for (said, is) in [
            ("a\r\nb\x1b[2J\0", "a\\r\\nb\\u{1b}[2J\\0"),
            ("\u{202e}gpj\u{200b}\u{2066}\u{feff}", "\\u{202e}gpj\\u{200b}\\u{2066}\\u{feff}"),
            ("\u{2028}\u{85}\u{3164}\u{301}", "\\u{2028}\\u{85}\\u{3164}\\u{301}"),
            ("don't \"say\" c:\\x é 日本", "don't \"say\" c:\\x é 日本"),
        ] {
            assert_eq!(Secrets::default().clean(said), is);
        }
        assert_eq!(Quoted("a\"\n\u{200b}").to_string(), "\"a\\\"\\n\\u{200b}\"");
        assert!(is_plain("db-1.example") && !is_plain("db\u{200d}1") && !is_plain("a\nb"));
    }

    #[test]
    fn what_is_long_is_cut_with_its_length() {
        let most = "x".repeat(MOST);
        assert_eq!(Secrets::default().clean(&most), most);
        let cut = Secrets::default().clean(&"x".repeat(40 << 20));
        assert!(cut.ends_with("… (+41942872 bytes)"), "{cut}");
        assert!(cut.chars().count() <= MOST);
        let all_secret = login().clean(&"S3CRETPW-of-ours".repeat(100_000));
        assert!(all_secret.starts_with("***… (+"), "{all_secret}");
    }

    proptest! {
        #[test]
        fn nothing_shown_forges_a_line_or_holds_a_secret(
            before in "\\PC{0,300}", hostile in "[\\x00-\\x20\u{200b}-\u{202e}]{0,9}",
            from in 0_usize..12, after in ".{0,300}",
        ) {
            let secret = "S3CRETPW-of-ours";
            let part = &secret[from..from + PART];
            let text = login().clean(&format!("{before}{hostile}{part}{after}{secret}"));
            prop_assert!(text.chars().count() <= MOST, "{text}");
            prop_assert!(is_plain(&text), "{text:?}");
            let windows = secret.as_bytes().windows(PART);
            for window in windows.filter_map(|w| std::str::from_utf8(w).ok()) {
                prop_assert!(!text.contains(window), "{text}");
            }
        }
    }
}
