//! The marker and the note as text. Every field has a fixed width, with one space between
//! (quarantine 2).

use std::fmt;

use super::losses::LOSSES;
use super::{Handover, Losses, Marker, Note, Process};
use crate::op::{Began, Lineage, Loss};

pub(crate) const NOTE: usize = 53;
/// A server that does not count its input.
const NO_INPUTS: u64 = 9_999_999_999_999_999;

/// `master_replid`: the name that a server gives to its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReplicationId([u8; 20]);

impl ReplicationId {
    /// Parses 40 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 40 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 20];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    pub(crate) fn of(number: u64) -> Self {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Self(bytes)
    }

    /// The first 16 digits as a number.
    pub fn digest(&self) -> u64 {
        self.0[..8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }
}

impl fmt::Display for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ReplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads fields of fixed width, each followed by a space or the end.
struct Fields<'t>(&'t str);

impl<'t> Fields<'t> {
    fn next(&mut self, width: usize) -> Option<&'t str> {
        let (field, rest) = (self.0.get(..width)?, self.0.get(width..)?);
        self.0 = if rest.is_empty() { rest } else { rest.strip_prefix(' ')? };
        Some(field)
    }

    fn number(&mut self, width: usize) -> Option<u64> {
        digits(self.next(width)?)
    }

    fn id(&mut self) -> Option<u64> {
        hex(self.next(16)?)
    }
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn hex(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(text, 16).ok())?
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self;
        let began = match m.began {
            Began::Known => 'n',
            Began::Empty => 'e',
            Began::Lost => 'l',
        };
        let (state, until) = match m.handover {
            None => ('-', 0),
            Some(Handover::Closed(till)) => ('c', till),
            Some(Handover::Settling(till)) => ('s', till),
        };
        let Process { run, inputs, calls, was_reset: _ } = m.process;
        write!(
            f,
            "p1 {:016x} {:06} {} {:016x} {:016x} {:013} {run:016x} {:016} {calls:06} {:012} \
             {:016} {:012} {:09} {:016} {began} {state}{until:013} {:013}",
            m.history,
            m.generation,
            m.replid,
            m.deployment,
            m.vote,
            m.since,
            inputs.map_or(NO_INPUTS, |inputs| inputs.min(NO_INPUTS - 1)),
            m.evicted,
            m.epoch,
            m.clock_error,
            m.quarantine,
            m.floor,
            m.written,
        )?;
        m.losses
            .iter()
            .try_for_each(|Loss { from, began, to }| write!(f, " {from:013}-{began:013}-{to:013}"))
    }
}

impl Marker {
    /// Parses a marker that an honest client can have written before `now`. Each bound follows from
    /// the clock error that is in the marker, with a second for what is rounded.
    pub fn parse(text: &str, now: u64) -> Option<Self> {
        let mut fields = Fields(text);
        (fields.next(2)? == "p1").then_some(())?;
        let (history, generation) = (fields.id()?, fields.number(6)?);
        let replid = ReplicationId::parse(fields.next(40)?)?;
        let (deployment, vote, since) = (fields.id()?, fields.id()?, fields.number(13)?);
        let (run, inputs, calls) = (fields.id()?, fields.number(16)?, fields.number(6)?);
        let inputs = Some(inputs).filter(|inputs| *inputs != NO_INPUTS);
        let (evicted, epoch) = (fields.number(12)?, fields.number(16)?);
        let (clock_error, quarantine) = (fields.number(12)?, fields.number(9)?);
        let floor = fields.number(16)?;
        let began = match fields.next(1)? {
            "n" => Began::Known,
            "e" => Began::Empty,
            "l" => Began::Lost,
            _ => return None,
        };
        let (state, until) = fields.next(14)?.split_at_checked(1)?;
        let until = digits(until)?;
        let handover = match state {
            "-" => None,
            "c" => Some(Handover::Closed(until)),
            "s" => Some(Handover::Settling(until)),
            _ => return None,
        };
        let written = fields.number(13)?;
        let mut losses = Losses::default();
        let mut count = 0;
        while !fields.0.is_empty() {
            let mut times =
                fields.next(41)?.split('-').map(|time| (time.len() == 13).then_some(time));
            let mut time = || digits(times.next()??);
            losses = losses.and(Loss { from: time()?, began: time()?, to: time()? });
            count += 1;
        }
        let process = Process { run, inputs, calls, was_reset: false };
        let marker = Self {
            deployment,
            vote,
            history,
            generation,
            since,
            replid,
            process,
            evicted,
            epoch,
            clock_error,
            quarantine,
            floor,
            began,
            handover,
            written,
            losses,
        };
        (count <= LOSSES && marker.is_honest(now)).then_some(marker)
    }

    fn is_honest(&self, now: u64) -> bool {
        // The clocks of two servers, or of one before and after a step, are at most 2E apart.
        let apart = self.clock_error / 500;
        let latest = now.saturating_add(apart + 1_000);
        let highest = now.max(self.quarantine_end()).saturating_add(2 * apart + 1_000);
        let day = 86_400_000;
        let ends = match self.handover {
            Some(Handover::Closed(till)) => till <= latest + 600_000,
            Some(Handover::Settling(till)) => till <= latest + 2 * day,
            None => true,
        };
        self.since <= latest
            && (self.since == 0 || self.quarantine > 0)
            && self.quarantine <= 2 * day
            && self.clock_error <= day * 500
            && self.floor <= highest.saturating_mul(1_000)
            && self.written <= latest
            && self.losses.iter().all(|loss| loss.began <= latest && loss.to <= latest + day)
            && ends
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { history, generation, seq, micros } = self;
        write!(f, "{history:016x} {generation:06} {seq:012} {micros:016}")
    }
}

impl Note {
    /// Parses a note, of which a server may have written more (`lua/prelude.lua`).
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = Fields(text.get(..NOTE)?);
        Some(Self {
            history: fields.id()?,
            generation: fields.number(6)?,
            seq: fields.number(12)?,
            micros: fields.number(16)?,
        })
    }
}

pub(crate) fn foreign(ours: &Lineage, theirs: &Lineage, at: &str) -> String {
    let name = |l: &Lineage| format!("{:016x}/{:016x}", l.deployment, l.vote);
    format!(
        "{at} has the data {} (deployment/vote), and this node's are {}: the address leads to \
         another server, or its replicas copied another group; point the address at the right \
         server; if these are the right data, restart this program (and correct `deployment`)",
        name(theirs),
        name(ours)
    )
}
