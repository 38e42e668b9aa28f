//! A source file as the rules see it: its lines, the same lines with comments and literals blanked
//! out, and which of them are compiled for tests only.

/// One file. Line numbers count from 0 here and from 1 in reports.
pub(crate) struct Source {
    /// Relative to the package, with `/`.
    pub(crate) path: String,
    /// As written.
    pub(crate) lines: Vec<String>,
    /// The same lines; comments, strings and characters are spaces.
    pub(crate) code: Vec<String>,
    /// Whether a line belongs to `#[cfg(test)]`.
    pub(crate) test: Vec<bool>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let code: Vec<String> = if is_rust(path) {
            let blanked = blank(text);
            blanked.lines().map(str::to_owned).collect()
        } else {
            lines.clone()
        };
        let mut source =
            Self { path: path.to_owned(), test: vec![false; lines.len()], lines, code };
        source.mark_tests();
        source
    }

    pub(crate) fn is_rust(&self) -> bool {
        is_rust(&self.path)
    }

    /// Whether the file is part of the library.
    pub(crate) fn in_src(&self) -> bool {
        self.path.starts_with("src/")
    }

    /// Lines of code that ship: number and blanked text.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().filter(|(n, _)| !self.test[*n]).map(|(n, l)| (n, l.as_str()))
    }

    /// The code from this place on, as characters with their line.
    pub(crate) fn chars_from(
        &self,
        line: usize,
        column: usize,
    ) -> impl Iterator<Item = (usize, char)> {
        let lines = self.code.iter().enumerate().skip(line);
        lines
            .flat_map(|(n, l)| l.chars().chain(['\n']).map(move |c| (n, c)))
            .skip(self.code[line][..column].chars().count())
    }

    /// The line on which the item ends that begins here: at its closing brace, or at a semicolon
    /// before any brace.
    pub(crate) fn item_end(&self, line: usize, column: usize) -> usize {
        let (mut braces, mut brackets) = (0_usize, 0_usize);
        for (n, c) in self.chars_from(line, column) {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                '{' => braces += 1,
                '}' if braces <= 1 => return n,
                '}' => braces -= 1,
                ';' if braces == 0 && brackets == 0 => return n,
                _ => {}
            }
        }
        self.lines.len().saturating_sub(1)
    }

    /// Test code: all of a file `tests.rs`, `fuzz.rs` or `fuzzing.rs`, and the code under
    /// `#[cfg(test)]`.
    fn mark_tests(&mut self) {
        let whole = ["/tests.rs", "/fuzz.rs", "/fuzzing.rs"];
        if whole.iter().any(|end| self.path.ends_with(end)) || !self.in_src() {
            self.test.fill(true);
            return;
        }
        let attribute = "#[cfg(test)]";
        for line in 0..self.code.len() {
            if let Some(column) = self.code[line].find(attribute) {
                let end = self.item_end(line, column + attribute.len());
                self.test[line..=end].fill(true);
            }
        }
    }
}

fn is_rust(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extension == "rs")
}

/// The position of `word` in `text`, not as part of a longer word.
pub(crate) fn word(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
    })
}

/// The text with comments, strings and character literals replaced by spaces, lines kept.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal ends that begins at `at`; `at` itself if none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => find(chars, at, '\n'),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => quoted_end(chars, at + 1, '"'),
        // A lifetime has no second quote mark; `'\''` and `'"'` are literals.
        ('\'', Some('\\')) => quoted_end(chars, at + 1, '\''),
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
        ('r', Some('"' | '#')) if !joins(chars, at) => raw_end(chars, at).unwrap_or(at),
        _ => at,
    }
}

/// Whether the character before belongs to the same word (`br"…"` begins with its `b`, which may
/// stay).
fn joins(chars: &[char], at: usize) -> bool {
    let before = at.checked_sub(1).map(|b| chars[b]);
    before.is_some_and(|c| (c.is_alphanumeric() || c == '_') && !matches!(c, 'b' | 'c'))
}

fn find(chars: &[char], from: usize, what: char) -> usize {
    chars[from..].iter().position(|&c| c == what).map_or(chars.len(), |n| from + n)
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut n) = (0_usize, at);
    while n + 1 < chars.len() {
        match (chars[n], chars[n + 1]) {
            ('/', '*') => (depth, n) = (depth + 1, n + 2),
            ('*', '/') if depth == 1 => return n + 2,
            ('*', '/') => (depth, n) = (depth - 1, n + 2),
            _ => n += 1,
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut n = from;
    while n < chars.len() {
        match chars[n] {
            '\\' => n += 2,
            c if c == quote => return n + 1,
            _ => n += 1,
        }
    }
    chars.len()
}

/// `r"…"`, `r#"…"#`; `None` for a raw identifier.
fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut n = open + 1;
    loop {
        n = find(chars, n, '"');
        if n >= chars.len() {
            return Some(n);
        }
        n += 1;
        if chars[n..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes {
            return Some(n + hashes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_kept() {
        for (text, want) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("{\"}", x)"#, "f(      , x)"),
            (r##"f(r#"{"}"#, x)"##, "f(        , x)"),
            (r#"f(br"{", x)"#, "f(b    , x)"),
            ("m('{', '\\'', '\"', &'a x)", "m(   ,     ,    , &'a x)"),
            ("r#type(bar\"{\")", "r#type(bar   )"),
            ("'x: loop {}", "'x: loop {}"),
        ] {
            assert_eq!(blank(text), want, "{text}");
        }
    }

    #[test]
    fn test_code_is_known_as_such() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t {\n    fn b() {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod tests;\nfn d() {}\n";
        let source = Source::new("src/x.rs", text);
        let want = [false, true, true, true, true, false, true, true, false];
        assert_eq!(source.test, want);
        assert_eq!(Source::new("src/x/tests.rs", "fn a() {}").test, [true]);
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(word("operand rand::x", "rand"), Some(8));
        assert_eq!(word("operand random rand_core", "rand"), None);
    }
}
