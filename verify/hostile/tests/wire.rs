//! The protocol, from the server's side.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// A command: its words.
pub(crate) type Command = Vec<Vec<u8>>;

/// The next command; `None` at the end.
pub(crate) async fn command<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> Option<Command> {
    let count = number(from, b'*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(from, b'$').await?;
        let mut word = vec![0; length + 2];
        from.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

async fn number<R: AsyncRead + Unpin>(from: &mut BufReader<R>, mark: u8) -> Option<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await.ok()?;
    let digits = line.strip_prefix(&[mark])?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The word at `at` as text, in capitals.
pub(crate) fn word(command: &Command, at: usize) -> String {
    let word = command.get(at).map_or(&[][..], |word| &word[..]);
    String::from_utf8_lossy(word).to_uppercase()
}

pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

pub(crate) fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", items.len()).into_bytes(), items.concat()].concat()
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> Vec<u8> {
    let all: Vec<Vec<u8>> = pairs.iter().map(|(k, v)| [bulk(k), bulk(v)].concat()).collect();
    [format!("%{}\r\n", pairs.len()).into_bytes(), all.concat()].concat()
}

pub(crate) fn integer(n: impl std::fmt::Display) -> Vec<u8> {
    format!(":{n}\r\n").into_bytes()
}

pub(crate) fn ok() -> Vec<u8> {
    b"+OK\r\n".to_vec()
}

/// What a subscriber is answered.
pub(crate) fn subscribed(channels: &[Vec<u8>]) -> Vec<u8> {
    let all = channels.iter().enumerate();
    let all = all.map(|(i, channel)| {
        [&b">3\r\n"[..], &bulk("subscribe"), &bulk(channel), &integer(i + 1)].concat()
    });
    all.collect::<Vec<_>>().concat()
}

/// A message to subscribers.
pub(crate) fn message(channel: &str, payload: impl AsRef<[u8]>) -> Vec<u8> {
    [&b">3\r\n"[..], &bulk("message"), &bulk(channel), &bulk(payload)].concat()
}
