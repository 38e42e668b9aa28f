//! Finds the beginning and the end of each answer in a server's stream (RESP2 and RESP3). Refuses
//! answers that are larger than the limits. This module only counts bytes and values; a parser
//! reads the contents later.

/// Largest number of bytes in a line of an answer. A number, a word or an error is one line.
const LINE_MAX: u64 = 64 * 1024;
/// Largest number of levels of lists and maps in an answer.
const DEPTH_MAX: usize = 16;

/// Largest number of pushes (messages that answer no request) on a connection without
/// subscriptions. A correct server sends no pushes on such a connection.
const PUSHES_MAX: u64 = 1_000;

/// Limits of the answers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Largest number of bytes in one answer.
    pub(crate) bytes: u64,
    /// Largest number of values in one answer, over all levels.
    pub(crate) items: u64,
    /// Largest number of pushes over the whole life of a connection. On a connection without
    /// subscriptions, pushes have no use and only cost time.
    pub(crate) pushes: u64,
    /// Largest number of answers that are read in 20 ms, including pushes. Further answers stay in
    /// the socket, so the server has to wait.
    pub(crate) answers: u64,
}

impl Limits {
    /// Limits for answers to batches (script calls with several requests). The limits allow one
    /// mebibyte of results, or one result of the largest size, plus the other parts of the answer.
    pub(crate) const BATCHES: Self = Self { bytes: 10 << 20, ..Self::WORDS };
    /// Limits for answers of servers and Sentinels, if no other limits below apply.
    pub(crate) const WORDS: Self =
        Self { bytes: 1 << 20, items: 1 << 16, pushes: PUSHES_MAX, answers: u64::MAX };
    /// Limits for a connection with subscriptions: `WORDS` with any number of pushes (messages
    /// without a request).
    pub(crate) const EVENTS: Self = Self { pushes: u64::MAX, ..Self::WORDS };
    /// Limits for a connection to a Sentinel. A Sentinel sends some events for each change of a
    /// group. Without the limit `answers` (answers in 20 ms), an endless stream of events would
    /// occupy a processor.
    pub(crate) const SENTINEL: Self = Self { answers: 256, ..Self::EVENTS };
    /// Limits for answers with entries of Redis streams.
    pub(crate) const ENTRIES: Self = Self { bytes: 64 << 20, items: 1 << 20, ..Self::WORDS };
}

/// Reason for which this program ends a connection: the server sent more than a limit allows, or
/// bytes that are not its protocol. A correct server never does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Excess {
    #[error("an answer of more than {0} bytes")]
    Bytes(u64),
    #[error("an answer of more than {0} values")]
    Items(u64),
    #[error("more than {0} pushes without a subscription")]
    Pushes(u64),
    #[error("an answer with a line of more than {LINE_MAX} bytes")]
    Line,
    #[error("an answer with more than {DEPTH_MAX} levels")]
    Depth,
    /// The bytes are not the Redis protocol (RESP).
    #[error("an answer that is not the Redis protocol")]
    Garbled,
}

impl Excess {
    /// Returns a text for errors. The text says that this program ended the connection, and why.
    pub(crate) fn why_it_ended(self) -> String {
        format!("it sent {self}, so this program ended the connection")
    }
}

/// Counts the bytes and values of the answers on one connection, and compares them with the limits.
#[derive(Debug)]
pub(crate) struct Frames {
    limits: Limits,
    /// Number of bytes of the present answer that have been counted so far.
    bytes: u64,
    /// Number of values of the present answer so far. When the length of a list or map arrives, all
    /// its values are counted at once, because the parser allocates memory for them.
    items: u64,
    /// Number of pushes since the connection was opened.
    pushes: u64,
    /// Number of values that are still missing in each list or map that has begun. The outermost
    /// list or map is the first.
    open: Vec<u64>,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The next byte is the type byte with which a value begins.
    Kind,
    /// The next byte is in a line that contains the value itself. `length` bytes of the line have
    /// arrived. Only `\r\n` ends the line, as for the parser that reads the contents later. If this
    /// module ended a line earlier, it would take the rest of the line for other values.
    Line { length: u64, ending: bool },
    /// The next byte is in a line with the length of a text, list or map.
    Length { kind: u8, digits: u8, value: i64, negative: bool, ended: bool },
    /// The next byte is in a text. The value is the number of missing bytes, including the line
    /// end.
    Text(u64),
}

impl Frames {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, items: 0, pushes: 0, open: Vec::new(), at: At::Kind }
    }

    /// Counts the next bytes. Returns the number of answers that end in these bytes.
    pub(crate) fn take(&mut self, mut data: &[u8]) -> Result<u64, Excess> {
        let mut answers = 0;
        while !data.is_empty() {
            let (used, ends) = self.next(data)?;
            answers += u64::from(ends);
            data = &data[used..];
        }
        Ok(answers)
    }

    /// Counts the next bytes until an answer ends. Returns the number of counted bytes, and true if
    /// an answer ends there.
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
            // A length with so many digits is above any limit.
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

    /// Begins the text, list or map after the line with its length.
    fn begin(&mut self, kind: u8, length: i64) -> Result<(), Excess> {
        let Ok(length) = u64::try_from(length) else {
            // A length of -1 means that there is no value. This form exists only for texts (`$`)
            // and lists (`*`).
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
            // Attributes (`|`) are pairs of a name and a value, like a map. One more value follows
            // the pairs: the value that the attributes describe.
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

    /// Records that a value of the answer has ended. Also ends every list and map that this value
    /// completes.
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
