//! Finds the ends of answers (RESP2 and RESP3), and refuses those above the limits.

/// In bytes. A number, a word or an error is one line.
const LINE_MAX: u64 = 64 * 1024;
const DEPTH_MAX: usize = 16;

/// A correct server sends none on a connection without subscriptions.
const PUSHES_MAX: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
    pub(crate) items: u64,
    /// Over the whole life of a connection.
    pub(crate) pushes: u64,
    /// Read in 20 ms, with pushes.
    pub(crate) answers: u64,
}

impl Limits {
    /// One mebibyte of results, or one result of the largest size, plus the other parts.
    pub(crate) const BATCHES: Self = Self { bytes: 10 << 20, ..Self::WORDS };
    pub(crate) const WORDS: Self =
        Self { bytes: 1 << 20, items: 1 << 16, pushes: PUSHES_MAX, answers: u64::MAX };
    pub(crate) const EVENTS: Self = Self { pushes: u64::MAX, ..Self::WORDS };
    /// Without `answers`, an endless stream would occupy a processor.
    pub(crate) const SENTINEL: Self = Self { answers: 256, ..Self::EVENTS };
    pub(crate) const ENTRIES: Self = Self { bytes: 64 << 20, items: 1 << 20, ..Self::WORDS };
}

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
    #[error("an answer that is not the Redis protocol")]
    Garbled,
}

impl Excess {
    pub(crate) fn why_it_ended(self) -> String {
        format!("it sent {self}, so this program ended the connection")
    }
}

#[derive(Debug)]
pub(crate) struct Frames {
    limits: Limits,
    bytes: u64,
    /// All values of a list or map count when its length arrives: the parser allocates memory for
    /// them.
    items: u64,
    pushes: u64,
    /// The outermost is the first.
    open: Vec<u64>,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Kind,
    /// Only `\r
    /// ` ends the line, as for the parser: ended earlier, its rest would be taken for other values.
    Line {
        length: u64,
        ending: bool,
    },
    Length {
        kind: u8,
        digits: u8,
        value: i64,
        negative: bool,
        ended: bool,
    },
    /// With the line end.
    Text(u64),
}

impl Frames {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, items: 0, pushes: 0, open: Vec::new(), at: At::Kind }
    }

    pub(crate) fn take(&mut self, mut data: &[u8]) -> Result<u64, Excess> {
        let mut answers = 0;
        while !data.is_empty() {
            let (used, ends) = self.next(data)?;
            answers += u64::from(ends);
            data = &data[used..];
        }
        Ok(answers)
    }

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

    fn begin(&mut self, kind: u8, length: i64) -> Result<(), Excess> {
        let Ok(length) = u64::try_from(length) else {
            // -1: no value. This form exists only for texts (`$`) and lists (`*`).
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
            // Pairs of a name and a value, and the value that they describe.
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
