//! The text of a connection error for users. The text has the server's error code and sentence. The
//! text never contains data that this program sent.

use redis::RedisError;

use crate::safe_text::Secrets;
use crate::tls;

/// Words in a server's error. After them the server repeats the arguments of the command, which may
/// contain a password.
const ECHO: &str = ", with args beginning with";

/// Returns the text of an error. Removes the `secrets` of the connection's login from the text.
pub fn error_text(e: &RedisError, secrets: &Secrets) -> String {
    let text = match (e.code(), e.detail()) {
        (Some(code), Some(detail)) => format!("{code} {}", detail.trim_end_matches('.')),
        _ => e.to_string(),
    };
    secrets.clean(text.split(ECHO).next().unwrap_or_default())
}

/// Returns an instruction for a TLS error, with the cause; `None` if the error is no TLS error.
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
