//! Finds where answers begin and end in a server's stream (RESP2 and RESP3), and refuses answers
//! larger than allowed. It only counts; the parser that runs after it reads the content.

use std::fmt;

/// Longest line: numbers, words, errors.
const LINE_MAX: u64 = 64 * 1024;
/// Deepest nesting of answers.
const DEPTH_MAX: usize = 16;

/// Most pushes on a connection without subscriptions: honest servers send none.
const PUSHES_MAX: u64 = 1_000;

/// Limits of the answers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// All bytes of one answer.
    pub(crate) bytes: u64,
    /// All values in one answer, at any depth.
    pub(crate) items: u64,
    /// Most pushes of a connection in all: without a subscription, a server that sends them without
    /// end only wastes time.
    pub(crate) pushes: u64,
    /// Most answers, pushes included, that are read in 20 ms. Further ones wait in the socket, and
    /// so does their sender.
    pub(crate) answers: u64,
}

impl Limits {
    /// Limits for answers to batches: a mebibyte of results, or one result of the largest size, and
    /// room for everything around them.
    pub(crate) const BATCHES: Self = Self { bytes: 10 << 20, ..Self::WORDS };
    /// Limits for all other answers of servers and Sentinels.
    pub(crate) const WORDS: Self =
        Self { bytes: 1 << 20, items: 1 << 16, pushes: PUSHES_MAX, answers: u64::MAX };
    /// `WORDS` for a connection with subscriptions.
    pub(crate) const EVENTS: Self = Self { pushes: u64::MAX, ..Self::WORDS };
    /// Limits for a Sentinel's events: it sends some for each change of a group. A Sentinel that
    /// sends them without end would otherwise occupy a processor.
    pub(crate) const SENTINEL: Self = Self { answers: 256, ..Self::EVENTS };
    /// Limits for entries of streams.
    pub(crate) const ENTRIES: Self = Self { bytes: 64 << 20, items: 1 << 20, ..Self::WORDS };
}

/// Reason for ending a connection: a correct server never sends this.
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

/// State of one stream.
#[derive(Debug)]
pub(crate) struct Frames {
    limits: Limits,
    /// Bytes of the answer that has begun.
    bytes: u64,
    /// Values of the answer that has begun, announced ones included: the parser allocates memory
    /// for them.
    items: u64,
    /// Pushes of the whole stream.
    pushes: u64,
    /// Number of values that are still missing, on each level.
    open: Vec<u64>,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The next byte is a type byte.
    Kind,
    /// In a line that holds the value itself, after `length` bytes. Only `\r
    /// ` ends it: a counter that ends the line sooner than the parser does would count the rest as
    /// something else.
    Line { length: u64, ending: bool },
    /// In a line with a length.
    Length { kind: u8, digits: u8, value: i64, negative: bool, ended: bool },
    /// This number of bytes of a text and its line end are still to come.
    Text(u64),
}

impl Frames {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, items: 0, pushes: 0, open: Vec::new(), at: At::Kind }
    }

    /// Takes in the next bytes; returns how many answers end in them.
    pub(crate) fn take(&mut self, mut data: &[u8]) -> Result<u64, Excess> {
        let mut answers = 0;
        while !data.is_empty() {
            let (used, ends) = self.next(data)?;
            answers += u64::from(ends);
            data = &data[used..];
        }
        Ok(answers)
    }

    /// Takes in the next bytes up to the end of an answer; returns how many bytes that were, and
    /// true if an answer ends there.
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
            // -1 means that there is no value. Only these two types have that form.
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

    /// Ends a value, and every value that is complete with it.
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
