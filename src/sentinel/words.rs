//! A server's words in an error, fit to be shown: its code, its sentence, and never what we sent.

use redis::RedisError;

/// Where a server begins to repeat the command: a `HELLO` it does not know comes back with the
/// password in it.
const ECHO: &str = ", with args beginning with";

/// What the error says.
pub(crate) fn said(e: &RedisError) -> String {
    let words = match (e.code(), e.detail()) {
        (Some(code), Some(detail)) => format!("{code} {}", detail.trim_end_matches('.')),
        _ => e.to_string(),
    };
    match words.find(ECHO) {
        Some(at) => words[..at].to_owned(),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_with_its_sentence_and_no_echo() {
        let e = |code: &str, detail: &str| {
            said(&redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
        };
        assert_eq!(e("NOPERM", "this user may not."), "NOPERM this user may not");
        let echo = "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 's3cret' ";
        assert_eq!(e("ERR", echo), "ERR unknown command 'HELLO'");
        let io = RedisError::from(std::io::Error::other("gone"));
        assert!(said(&io).contains("gone"));
    }
}
