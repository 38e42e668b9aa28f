//! The origin of a node's data.

/// Origin of a node's data. A restart or a failover does not change this value; `palisade init`
/// sets it to `Known`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Began {
    /// The node was known to be new: an operator marked it with `palisade init`, or it was created
    /// as a new one, for example in memory.
    #[default]
    Known,
    /// The node had no palisade data, and no client had seen earlier data on it. Either the node
    /// was new, or it had been emptied.
    Empty,
    /// The node had no palisade data, although a client had seen earlier data on it. So the earlier
    /// data are lost.
    Lost,
}

impl Began {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Empty => "empty",
            Self::Lost => "lost",
        }
    }
}
