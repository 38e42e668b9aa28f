//! State of a node's data at their beginning.

/// State of a node's data at their beginning, as far as the node knows. It stays the same in later
/// data histories, until `palisade init` marks the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Began {
    /// An operator marked the node as new, or it was created so.
    #[default]
    Known,
    /// There was no palisade data, and no client knows of any: the node is new, or was emptied.
    Empty,
    /// There was no palisade data, but a client had seen some: they are lost.
    Lost,
}

impl Began {
    /// Returns the name of the state in logs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Empty => "empty",
            Self::Lost => "lost",
        }
    }
}
