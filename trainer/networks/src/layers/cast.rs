//! What autocast does with a layer.

/// Which precision a layer runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// The narrow one.
    Narrow,
    /// The parameters' own.
    Full,
    /// The precision of its inputs, the widest if they differ.
    Follow,
}
