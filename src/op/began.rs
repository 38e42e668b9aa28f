//! Origin of a node's data.

/// Origin of a node's data, as far as the node knows. It stays the same in later data histories,
/// until `palisade init` marks the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Began {
    /// The node was marked as new by a person, or created so.
    #[default]
    Known,
    /// There was no palisade data, and no client knows of any: the node is new, or was emptied.
    Empty,
    /// There was no palisade data, but a client had seen some: they are lost.
    Lost,
}

impl Began {
    /// Its name in logs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Empty => "empty",
            Self::Lost => "lost",
        }
    }
}
