//! Finds where answers begin and end in a server's stream (RESP2 and RESP3), and refuses answers
//! larger than allowed. It only counts; the parser that runs after it reads the content.

use std::fmt;

/// Longest line of an answer in bytes; a number, a word or an error is one line.
const LINE_MAX: u64 = 64 * 1024;
/// Deepest nesting of lists and maps in an answer.
const DEPTH_MAX: usize = 16;

/// Most pushes on a connection without subscriptions: honest servers send none.
const PUSHES_MAX: u64 = 1_000;

/// Limits of the answers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most bytes of one answer.
    pub(crate) bytes: u64,
    /// Most values in one answer, at any depth.
    pub(crate) items: u64,
    /// Most pushes over the whole life of a connection. Without a subscription, pushes only waste
    /// time.
    pub(crate) pushes: u64,
    /// Most answers, pushes included, that are read in 20 ms. Further answers wait in the socket,
    /// so the sender has to wait, too.
    pub(crate) answers: u64,
}

impl Limits {
    /// Limits for answers to batches. They hold a mebibyte of results, or one result of the largest
    /// size, with room for everything around them.
    pub(crate) const BATCHES: Self = Self { bytes: 10 << 20, ..Self::WORDS };
    /// Limits for all answers of servers and Sentinels that the other constants do not name.
    pub(crate) const WORDS: Self =
        Self { bytes: 1 << 20, items: 1 << 16, pushes: PUSHES_MAX, answers: u64::MAX };
    /// Limits as `WORDS`, but with any number of pushes, for a connection with subscriptions.
    pub(crate) const EVENTS: Self = Self { pushes: u64::MAX, ..Self::WORDS };
    /// Limits for a connection to a Sentinel, which sends some events for each change of a group.
    /// Without the limit for 20 ms, a Sentinel that sends events without end would occupy a
    /// processor.
    pub(crate) const SENTINEL: Self = Self { answers: 256, ..Self::EVENTS };
    /// Limits for answers that hold entries of Redis streams.
    pub(crate) const ENTRIES: Self = Self { bytes: 64 << 20, items: 1 << 20, ..Self::WORDS };
}

/// Reason for which a connection is ended: the server sent what a correct server never sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Bytes(u64),
    Items(u64),
    Pushes(u64),
    Line,
    Depth,
    /// The bytes are not RESP.
    Garbled,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(most) => write!(f, "an answer of more than {most} bytes"),
            Self::Items(most) => write!(f, "an answer of more than {most} values"),
            Self::Pushes(most) => {
                write!(f, "more than {most} pushes without a subscription")
            }
            Self::Line => write!(f, "an answer with a line of more than {LINE_MAX} bytes"),
            Self::Depth => write!(f, "an answer with more than {DEPTH_MAX} levels"),
            Self::Garbled => f.write_str("an answer that is not the Redis protocol"),
        }
    }
}

impl std::error::Error for Excess {}

impl Excess {
    /// Returns why the connection ended, for an error text.
    pub(crate) fn why_it_ended(self) -> String {
        format!("it sent {self}, so this program ended the connection")
    }
}

/// State of the counting in the stream of one connection's answers.
#[derive(Debug)]
pub(crate) struct Frames {
    limits: Limits,
    /// Bytes so far of the answer that has begun and is not complete.
    bytes: u64,
    /// Values so far of that answer. Values that a length has announced count at once, because the
    /// parser allocates memory for them.
    items: u64,
    /// Pushes since the connection was opened.
    pushes: u64,
    /// Number of values that are still missing in each list or map that has begun, the outermost
    /// first.
    open: Vec<u64>,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The next byte is a type byte.
    Kind,
    /// In a line that holds the value itself, of which `length` bytes have come. Only `\r\n` ends
    /// the line: a counter that ended it sooner than the parser does would count the rest as
    /// something else.
    Line { length: u64, ending: bool },
    /// In a line that announces a length: of a text, or of a list or map.
    Length { kind: u8, digits: u8, value: i64, negative: bool, ended: bool },
    /// This number of bytes of a text and its line end are still to come.
    Text(u64),
}

impl Frames {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, items: 0, pushes: 0, open: Vec::new(), at: At::Kind }
    }

    /// Counts the next bytes; returns how many answers end in them.
    pub(crate) fn take(&mut self, mut data: &[u8]) -> Result<u64, Excess> {
        let mut answers = 0;
        while !data.is_empty() {
            let (used, ends) = self.next(data)?;
            answers += u64::from(ends);
            data = &data[used..];
        }
        Ok(answers)
    }

    /// Counts the next bytes up to the end of an answer; returns how many bytes that were, and true
    /// if an answer ends there.
    pub(crate) fn next(&mut self, data: &[u8]) -> Result<(usize, bool), Excess> {
        let mut all = 0;
        while let Some(&byte) = data.get(all) {
            all += if let At::Text(left) = self.at {
                let used = left.min((data.len() - all) as u64);
                self.count(used)?;
                if left == used {
                    self.ended();
                } else {
                    self.at = At::Text(left - used);
                }
                usize::try_from(used).unwrap_or(data.len())
            } else {
                self.count(1)?;
                self.byte(byte)?;
                1
            };
            if self.open.is_empty() && matches!(self.at, At::Kind) {
                return Ok((all, true));
            }
        }
        Ok((all, false))
    }

    fn count(&mut self, bytes: u64) -> Result<(), Excess> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.bytes { Err(Excess::Bytes(self.limits.bytes)) } else { Ok(()) }
    }

    fn byte(&mut self, byte: u8) -> Result<(), Excess> {
        match self.at {
            At::Kind => self.kind(byte),
            At::Line { ending: true, .. } if byte == b'\n' => {
                self.ended();
                Ok(())
            }
            At::Line { length, .. } if length >= LINE_MAX => Err(Excess::Line),
            At::Line { length, .. } => {
                self.at = At::Line { length: length + 1, ending: byte == b'\r' };
                Ok(())
            }
            At::Length { .. } => self.length(byte),
            At::Text(_) => Ok(()),
        }
    }

    fn announced(&mut self, values: u64) -> Result<(), Excess> {
        self.items = self.items.saturating_add(values);
        if self.items > self.limits.items { Err(Excess::Items(self.limits.items)) } else { Ok(()) }
    }

    fn kind(&mut self, byte: u8) -> Result<(), Excess> {
        if self.open.is_empty() {
            self.announced(1)?;
        }
        if byte == b'>' {
            self.pushes += 1;
            if self.pushes > self.limits.pushes {
                return Err(Excess::Pushes(self.limits.pushes));
            }
        }
        self.at = match byte {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => At::Line { length: 0, ending: false },
            b'$' | b'!' | b'=' | b'*' | b'%' | b'~' | b'>' | b'|' => {
                At::Length { kind: byte, digits: 0, value: 0, negative: false, ended: false }
            }
            _ => return Err(Excess::Garbled),
        };
        Ok(())
    }

    fn length(&mut self, byte: u8) -> Result<(), Excess> {
        let At::Length { kind, digits, value, negative, ended } = &mut self.at else {
            return Ok(());
        };
        match byte {
            b'0'..=b'9' if *digits < 18 && !*ended => {
                *value = *value * 10 + i64::from(byte - b'0');
                *digits += 1;
            }
            // A number with more digits is larger than any limit.
            b'0'..=b'9' if !*ended => return Err(Excess::Bytes(self.limits.bytes)),
            b'-' if *digits == 0 && !*negative => *negative = true,
            b'+' if *digits == 0 && !*negative => {}
            b'\r' if *digits > 0 && !*ended => *ended = true,
            b'\n' if *ended => {
                let (kind, value) = (*kind, if *negative { -*value } else { *value });
                return self.begin(kind, value);
            }
            _ => return Err(Excess::Garbled),
        }
        Ok(())
    }

    /// Begins the value that a length announces.
    fn begin(&mut self, kind: u8, length: i64) -> Result<(), Excess> {
        let Ok(length) = u64::try_from(length) else {
            // A length of -1 means that there is no value. Only texts (`$`) and lists (`*`) have
            // that form.
            self.ended();
            let absent = length == -1 && matches!(kind, b'$' | b'*');
            return if absent { Ok(()) } else { Err(Excess::Garbled) };
        };
        if matches!(kind, b'$' | b'!' | b'=') {
            if self.bytes.saturating_add(length) > self.limits.bytes {
                return Err(Excess::Bytes(self.limits.bytes));
            }
            self.at = At::Text(length + 2);
            return Ok(());
        }
        let values = match kind {
            b'%' => length.saturating_mul(2),
            // Attributes are followed by the value that they describe.
            b'|' => length.saturating_mul(2).saturating_add(1),
            _ => length,
        };
        self.announced(values)?;
        if values == 0 {
            self.ended();
            return Ok(());
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(Excess::Depth);
        }
        self.open.push(values);
        self.at = At::Kind;
        Ok(())
    }

    /// Ends a value, and every list and map that is complete with it.
    fn ended(&mut self) {
        self.at = At::Kind;
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
        (self.bytes, self.items) = (0, 0);
    }
}

#[cfg(test)]
mod tests;
