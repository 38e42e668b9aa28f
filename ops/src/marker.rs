//! A server's marker, with the fields that operators need.

use std::time::Duration;

use palisade::node::spi::Loss;

/// The marker of a server, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// The server has no marker.
    Absent,
    Kept(Kept),
}

/// The fields of a marker that matter to operators. The script that writes the marker documents all
/// its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Time for which the node grants nothing after it was restarted or replaced.
    pub(crate) quarantine: Duration,
    /// Time for which that length still holds although no client requires it.
    pub(crate) agreed: Duration,
    /// Age of the history if it began without any palisade data.
    pub(crate) empty_for: Option<Duration>,
    /// True if the history began without data that clients had a record of.
    pub(crate) lost_everything: bool,
    /// Data history in which the marker was written.
    pub(crate) history: String,
    /// Time when that history began, in ms since 1970; 0 if the server never lost anything.
    pub(crate) since: u64,
    /// Smallest fencing token of this history, in µs.
    pub(crate) floor: u64,
    /// The server's clock when the note was written, in ms.
    pub(crate) note: u64,
    /// The server's clock when the marker was read, in ms.
    pub(crate) now: u64,
    /// Losses: the writes that the data may lack, the latest last.
    pub(crate) losses: Vec<Loss>,
}

impl Kept {
    /// Returns the rest of the quarantine of a server that began without data; `None` if it is
    /// over.
    pub(crate) fn quarantine_left(&self) -> Option<Duration> {
        Some(self.quarantine.saturating_sub(self.empty_for?)).filter(|left| !left.is_zero())
    }

    /// Returns the latest loss, if it still concerns keys that are kept for `retention`, and the
    /// time for which it does.
    pub(crate) fn loss(&self, retention: Duration) -> Option<(Loss, Duration)> {
        let loss = *self.losses.last()?;
        let until = Duration::from_millis(loss.to).saturating_add(retention);
        let left = until.saturating_sub(Duration::from_millis(self.now));
        (!left.is_zero()).then_some((loss, left))
    }

    /// Parses the marker; `now_ms` is the server's time in ms. The length of a quarantine cannot be
    /// shortened before the quarantine is over, so `agreed` lasts at least until its end.
    pub(crate) fn parse(text: &str, now_ms: u64) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (since, floor, length, agreed) = (number(1)?, number(2)?, number(3)?, number(4)?);
        let loss = |word: &&str| {
            let mut times = word.splitn(3, '-').map(|time| time.parse().ok());
            Some(Loss { from: times.next()??, began: times.next()??, to: times.next()?? })
        };
        let until = agreed.max(since.saturating_add(length));
        let ms = Duration::from_millis;
        Some(Self {
            quarantine: ms(length),
            agreed: ms(until.saturating_sub(now_ms)),
            empty_for: (words.get(6) == Some(&"e")).then(|| ms(now_ms.saturating_sub(since))),
            lost_everything: words.get(6) == Some(&"l"),
            history: words[0].to_owned(),
            since,
            floor,
            note: number(8).unwrap_or(0),
            now: now_ms,
            losses: words.iter().skip(9).filter_map(loss).collect(),
        })
    }
}

/// Returns a loss whose window is zero.
#[cfg(test)]
pub(crate) fn between(from: u64, to: u64) -> Loss {
    Loss { from, began: to, to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_says_for_how_long_its_quarantine_stays() {
        let id = "a".repeat(40);
        let of = |since: u64, q: u64, agreed: u64, more: &str| {
            let text = format!("{id} {since:013} {:016} {q:09} {agreed:013} {:013} n {more}", 7, 0);
            Kept::parse(&text, 100_000)
        };
        let lengths = |kept: Option<Kept>| {
            let kept = kept.unwrap();
            assert_eq!((kept.empty_for, kept.floor, kept.now), (None, 7, 100_000));
            (kept.quarantine.as_millis(), kept.agreed.as_millis())
        };
        let read = of(0, 30_000, 160_000, "-0000000000000 0000000000000");
        assert_eq!(lengths(read), (30_000, 60_000));
        let read = of(0, 30_000, 90_000, "s0000000123456 0000000000000");
        assert_eq!(lengths(read), (30_000, 0));
        // In quarantine, the length stays until the quarantine is over.
        assert_eq!(lengths(of(95_000, 30_000, 90_000, "-")), (30_000, 25_000));
        let two = "-0000000000000 0000000099000 0000000000000-0000000000007-0000000000007 \
                   0000000000006-0000000000009-0000000000009";
        let read = of(0, 30_000, 90_000, two).unwrap();
        assert_eq!((read.note, &*read.history), (99_000, &*id));
        assert_eq!(read.losses, [between(0, 7), between(6, 9)]);
        let left = |ms| read.loss(Duration::from_millis(ms));
        assert_eq!(left(100_000), Some((read.losses[1], Duration::from_millis(9))));
        assert_eq!(left(99_991), None);
        let text = format!("{id} {:013} {:016} {:09} {:013} {:013} e", 95_000, 7, 30_000, 0, 0);
        let empty_for = Kept::parse(&text, 100_000).unwrap().empty_for;
        assert_eq!(empty_for, Some(Duration::from_secs(5)));
        let lost = Kept::parse(&text.replace(" e", " l"), 100_000).unwrap();
        assert!(lost.lost_everything && lost.empty_for.is_none());
        for odd in ["", "x", "a b c d e", &id] {
            assert_eq!(Kept::parse(odd, 0), None, "{odd:?}");
        }
    }
}
