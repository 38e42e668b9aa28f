//! Display of text from outside: messages of servers and Sentinels, the addresses and names that
//! they announce, and the names that users give to locks. Passwords and user names that were sent
//! to servers are replaced. Characters that could move a cursor, hide text or begin a line are
//! escaped. Long texts are cut.

use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

/// Most characters of a text from outside that are shown.
pub(crate) const MOST: usize = 200;
/// Most characters that are shown of a sentence of palisade's own that contains texts from outside.
pub const SENTENCE_MAX: usize = 2_000;
/// Text in place of a secret, whatever its length.
const MARK: &str = "***";
/// Number of consecutive bytes of a password that are replaced wherever they occur in a text from
/// outside.
const PART: usize = 4;
/// Number of consecutive bytes of a password that are replaced in a sentence of palisade's own. It
/// is larger than `PART`, because these sentences share short words with many passwords.
const LONG_PART: usize = 8;
/// Most bytes of a text that are searched for secrets; the rest is cut.
const LOOK: usize = 16 * 1024;

/// Passwords and user names that were sent to a server, or to all servers that an operation asks,
/// and must not be shown.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Vec<Secret>>);

#[derive(Clone, PartialEq, Eq)]
enum Secret {
    /// A password: replaced wherever it or a part of it occurs.
    Password(Box<str>),
    /// A user name: replaced where it is a word by itself.
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

    /// Returns a text from outside in a form that can be shown: secrets are replaced, dangerous
    /// characters are escaped, and it is cut to `MOST` characters.
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

    /// Returns the passwords alone, for sentences that name the user.
    #[must_use]
    pub fn passwords(self) -> Self {
        let is_password = |s: &&Secret| matches!(s, Secret::Password(_));
        Self(Arc::new(self.0.iter().filter(is_password).cloned().collect()))
    }

    /// Returns a sentence of palisade's own that contains texts from outside, in a form that can be
    /// shown, cut to at most `most` characters.
    pub fn sentence(&self, text: &str, most: usize) -> String {
        shown(text, &self.hidden(text, LONG_PART), most)
    }
}

/// Writes only the name of the type, so no secret.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Returns for each byte of the text whether it belongs to a secret. `part` is the smallest
    /// number of consecutive bytes of a password that count as a part of it.
    fn hidden(&self, text: &str, part: usize) -> Vec<bool> {
        let text = &text.as_bytes()[..text.len().min(LOOK)];
        let mut hidden = vec![false; text.len()];
        for secret in self.0.iter() {
            let (all, words, part) = match secret {
                // A password shorter than a part occurs inside many words, so it is replaced only
                // where it is a word by itself.
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

/// Returns true if there is no letter or digit next to `place`.
fn is_word(text: &[u8], place: &Range<usize>) -> bool {
    let within = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let before = place.start.checked_sub(1).and_then(|at| text.get(at));
    !within(before) && !within(text.get(place.end))
}

/// Returns the text with its `hidden` bytes replaced, cut to at most `most` characters. The number
/// of bytes that were cut off stands at the end.
fn shown(text: &str, hidden: &[bool], most: usize) -> String {
    let (mut out, mut length) = (String::new(), 0);
    // Up to this length there is room left for the number of bytes that were cut off.
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

/// Returns a character as it is, or escaped if it is not visible, changes the direction of the text
/// after it, or joins with the text before it. If `quoted` is true, a double quote or backslash is
/// escaped, too.
fn plain(c: char, quoted: bool) -> impl Iterator<Item = char> {
    // Characters that are letters by their Unicode category, but show nothing.
    let blank = matches!(c, '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}');
    let quote = matches!(c, '"' | '\\') && quoted;
    let as_it_is = matches!(c, '"' | '\'' | '\\') && !quote;
    let escaped = if blank { Some(c.escape_unicode()) } else { None };
    let debug = if blank || as_it_is { None } else { Some(c.escape_debug()) };
    let raw = as_it_is.then_some(c);
    escaped.into_iter().flatten().chain(debug.into_iter().flatten()).chain(raw)
}

/// Returns true if the text can be shown as it is.
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| plain(c, false).eq([c]))
}

/// A name of a user, shown between quotes and escaped, whatever it contains. It is not cut, because
/// it is the user's own.
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
