//! A server's marker: the key `palisade:generation`, the record in which palisade stores the
//! history of the server's data. By its values a node grants or refuses.

use std::time::Duration;

use palisade::FencingToken;
use palisade::node::spi::Loss;

/// The values in a server's marker (`palisade:generation`) by which a node grants or refuses. Times
/// are in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptData {
    /// The data history in which the marker was written (the server's `master_replid`).
    pub history: String,
    /// Time when the data history began (a restart, a promotion or a loss of data begins one);
    /// `None` if the server never lost data.
    pub since: Option<u64>,
    /// Age of the server's data history (sequence of writes), if there were no keys of palisade
    /// when the history began; else `None`.
    pub empty_for: Option<Duration>,
    /// True if the server lost all data: its history began empty, although a client had seen
    /// earlier data.
    pub lost_everything: bool,
    /// Length of a quarantine: a node grants nothing for this time after a restart or a change of
    /// the master.
    pub quarantine: Duration,
    /// Time for which the length of the quarantine (the time without grants) may not become
    /// shorter, although no client requires that length any more.
    pub(crate) agreed: Duration,
    /// Smallest fencing token that the node grants.
    pub floor: FencingToken,
    /// Time of the server's clock when it was last written to the marker. After a crash, all writes
    /// after this time count as lost.
    pub note: u64,
    /// Time of the server's clock at the reading of the marker.
    pub now: u64,
    /// Losses: the writes that the server's data may lack. The latest loss is the last; at most
    /// eight are kept.
    pub losses: Vec<Loss>,
}

impl KeptData {
    /// Returns the end of the last quarantine (a time without grants) in ms since 1970; `None` if
    /// there was no quarantine.
    pub fn quarantine_until(&self) -> Option<u64> {
        let length = u64::try_from(self.quarantine.as_millis()).unwrap_or(u64::MAX);
        self.since.map(|since| since.saturating_add(length))
    }

    /// Returns the time until the quarantine (a time without grants) ends; zero if there is no
    /// quarantine now.
    pub fn quarantine_left(&self) -> Duration {
        Duration::from_millis(self.quarantine_until().unwrap_or(0).saturating_sub(self.now))
    }

    /// Returns the age of `note`, the last time of the server's clock that was written to the
    /// marker (the key with the server's data history).
    pub fn note_age(&self) -> Duration {
        Duration::from_millis(self.now.saturating_sub(self.note))
    }

    /// Returns the latest loss of data, and the time for which keys with this `retention` count as
    /// forgotten because of the loss. Returns `None` if that time is over.
    pub(crate) fn loss(&self, retention: Duration) -> Option<(Loss, Duration)> {
        let loss = *self.losses.last()?;
        let until = Duration::from_millis(loss.to).saturating_add(retention);
        let left = until.saturating_sub(Duration::from_millis(self.now));
        (!left.is_zero()).then_some((loss, left))
    }

    /// Parses a marker, the value of `palisade:generation`; `now_ms` is the server's time in ms.
    /// The length of the quarantine cannot become shorter while the server is in quarantine, so
    /// `agreed` (the time for which the length is fixed) lasts at least until the quarantine ends.
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
            history: words[0].to_owned(),
            since: Some(since).filter(|since| *since > 0),
            empty_for: (words.get(6) == Some(&"e")).then(|| ms(now_ms.saturating_sub(since))),
            lost_everything: words.get(6) == Some(&"l"),
            quarantine: ms(length),
            agreed: ms(until.saturating_sub(now_ms)),
            floor: FencingToken::new(floor),
            note: number(8).unwrap_or(0),
            now: now_ms,
            losses: words.iter().skip(9).filter_map(loss).collect(),
        })
    }
}

/// Returns the loss of data for the writes from `from` to `to`, as after a restart: no replaced
/// master could still grant.
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
            KeptData::parse(&text, 100_000)
        };
        let lengths = |kept: Option<KeptData>| {
            let kept = kept.unwrap();
            assert_eq!(
                (kept.empty_for, kept.floor, kept.now),
                (None, FencingToken::new(7), 100_000)
            );
            (kept.quarantine.as_millis(), kept.agreed.as_millis())
        };
        let read = of(0, 30_000, 160_000, "-0000000000000 0000000000000");
        assert_eq!(lengths(read), (30_000, 60_000));
        let read = of(0, 30_000, 90_000, "s0000000123456 0000000000000");
        assert_eq!(lengths(read), (30_000, 0));
        // While the server is in quarantine (grants nothing), the length of the quarantine stays
        // the same.
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
        let empty_for = KeptData::parse(&text, 100_000).unwrap().empty_for;
        assert_eq!(empty_for, Some(Duration::from_secs(5)));
        let lost = KeptData::parse(&text.replace(" e", " l"), 100_000).unwrap();
        assert!(lost.lost_everything && lost.empty_for.is_none());
        for odd in ["", "x", "a b c d e", &id] {
            assert_eq!(KeptData::parse(odd, 0), None, "{odd:?}");
        }
    }
}
