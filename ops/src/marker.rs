//! A server's marker, as operators read it.

use std::time::Duration;

use palisade::FencingToken;
use palisade::internal::lineage::{Marker, Note};
use palisade::node::spi::{Began, Loss};

/// The values in a server's marker by which a node grants or refuses. Times are in milliseconds
/// since 1970, by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptData {
    /// Random id of the deployment; `None` if the data have no name.
    pub deployment: Option<u64>,
    /// Random id of the vote; `None` if the data have no name.
    pub vote: Option<u64>,
    /// The name of the data when the marker was written (the server's `master_replid`).
    pub history: String,
    /// Time when the data history began; `None` if the server never lost data.
    pub since: Option<u64>,
    /// Age of the data history, if there were no keys of palisade when it began; else `None`.
    pub empty_for: Option<Duration>,
    /// True if the server lost all data: its history began empty, although a client had seen
    /// earlier data.
    pub lost_everything: bool,
    /// Length of a quarantine.
    pub quarantine: Duration,
    /// Largest error of any clock that a client has stated.
    pub clock_error: Duration,
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
    /// Returns the end of the last quarantine in ms since 1970; `None` if there was none.
    pub fn quarantine_until(&self) -> Option<u64> {
        let length = u64::try_from(self.quarantine.as_millis()).unwrap_or(u64::MAX);
        self.since.map(|since| since.saturating_add(length))
    }

    /// Returns the time until the quarantine ends; zero if there is none now.
    pub fn quarantine_left(&self) -> Duration {
        Duration::from_millis(self.quarantine_until().unwrap_or(0).saturating_sub(self.now))
    }

    /// Returns the age of `note`.
    pub fn note_age(&self) -> Duration {
        Duration::from_millis(self.now.saturating_sub(self.note))
    }

    /// With the time for which keys with this `retention` count as forgotten because of the loss.
    /// `None` if that is over.
    pub(crate) fn loss(&self, retention: Duration) -> Option<(Loss, Duration)> {
        let loss = *self.losses.last()?;
        let until = Duration::from_millis(loss.to).saturating_add(retention);
        let left = until.saturating_sub(Duration::from_millis(self.now));
        (!left.is_zero()).then_some((loss, left))
    }

    /// `now_ms` is the server's time.
    pub(crate) fn parse(text: &str, note: Option<&str>, now_ms: u64) -> Option<Self> {
        let marker = Marker::parse(text, now_ms)?;
        let note = note
            .and_then(Note::parse)
            .filter(|note| (note.history, note.generation) == (marker.history, marker.generation));
        let is = |began| marker.began == began;
        let empty_for = Duration::from_millis(now_ms.saturating_sub(marker.since));
        Some(Self {
            deployment: Some(marker.deployment).filter(|id| *id != 0),
            vote: Some(marker.vote).filter(|id| *id != 0),
            history: marker.replid.to_string(),
            since: Some(marker.since).filter(|since| *since > 0),
            empty_for: is(Began::Empty).then_some(empty_for),
            lost_everything: is(Began::Lost),
            quarantine: Duration::from_millis(marker.quarantine),
            clock_error: Duration::from_micros(marker.clock_error),
            floor: FencingToken::new(marker.floor),
            note: note.map_or(marker.written, |note| note.micros / 1_000),
            now: now_ms,
            losses: marker.losses.iter().collect(),
        })
    }
}

/// As after a restart: no replaced master could still grant.
#[cfg(test)]
pub(crate) fn between(from: u64, to: u64) -> Loss {
    Loss { from, began: to, to }
}

#[cfg(test)]
mod tests {
    use palisade::internal::lineage::{Losses, ReplicationId};

    use super::*;

    #[test]
    fn a_marker_and_its_note_say_what_a_node_goes_by() {
        let born = Marker::born(1, 2, 3, ReplicationId::parse(&"a".repeat(40)).unwrap());
        let losses = Losses::default().and(between(0, 7)).and(Loss { from: 6, began: 9, to: 9 });
        let marker = Marker { since: 9, quarantine: 30_000, floor: 7, losses, written: 9, ..born };
        let note = Note { history: 3, generation: 1, seq: 5, micros: 99_000_500 };
        let of = |marker: &Marker, note: Option<&Note>| {
            let note = note.map(ToString::to_string);
            KeptData::parse(&marker.to_string(), note.as_deref(), 100_000).unwrap()
        };
        let read = of(&marker, Some(&note));
        assert_eq!(
            (read.deployment, read.vote, &*read.history),
            (Some(1), Some(2), &*"a".repeat(40))
        );
        assert_eq!((read.quarantine.as_millis(), read.floor), (30_000, FencingToken::new(7)));
        assert_eq!((read.note, read.since, read.now), (99_000, Some(9), 100_000));
        let left = |ms| read.loss(Duration::from_millis(ms));
        assert_eq!(left(100_000), Some((read.losses[1], Duration::from_millis(9))));
        assert_eq!(left(99_991), None);
        let other = Note { history: 4, ..note };
        assert_eq!((of(&marker, Some(&other)).note, of(&marker, None).note), (9, 9));
        let empty = of(&Marker { began: Began::Empty, since: 95_000, ..marker }, None);
        assert_eq!(empty.empty_for, Some(Duration::from_secs(5)));
        let lost = of(&Marker { began: Began::Lost, ..marker }, None);
        assert!(lost.lost_everything && lost.empty_for.is_none());
        for odd in ["", "x", "a b c d e"] {
            assert_eq!(KeptData::parse(odd, None, 0), None, "{odd:?}");
        }
    }
}
