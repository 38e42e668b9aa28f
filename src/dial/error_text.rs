//! The text of a connection error for users, without data that this program sent.

use redis::RedisError;

use crate::safe_text::Secrets;
use crate::tls;

/// After these words a server repeats the arguments of the command, which may contain a password.
const ECHO: &str = ", with args beginning with";

/// Returns the text of an error, without the `secrets` of the login.
pub fn error_text(e: &RedisError, secrets: &Secrets) -> String {
    let text = match (e.code(), e.detail()) {
        (Some(code), Some(detail)) => format!("{code} {}", detail.trim_end_matches('.')),
        _ => e.to_string(),
    };
    secrets.clean(text.split(ECHO).next().unwrap_or_default())
}

pub(crate) fn refusal(e: &RedisError, secrets: &Secrets) -> Option<String> {
    let (remedy, cause) = tls::refusal(e)?;
    Some(format!("{remedy}: {}", secrets.clean(&cause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_with_its_sentence_and_no_echo() {
        let secrets = Secrets::of(Some("u"), Some("s3cret"));
        let e = |code: &str, detail: &str| {
            let e = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
            error_text(&e, &secrets)
        };
        assert_eq!(e("NOPERM", "this user may not."), "NOPERM this user may not");
        let echo = "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 's3cret' ";
        assert_eq!(e("ERR", echo), "ERR unknown command 'HELLO'");
        assert_eq!(e("ERR", "no AUTH u s3cret"), "ERR no AUTH *** ***");
        assert_eq!(e("s3cret", "a\nb"), "*** a\\nb");
        let io = RedisError::from(std::io::Error::other("gone"));
        assert!(error_text(&io, &secrets).contains("gone"));
    }
}
