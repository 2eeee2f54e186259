//! The precision of a layer under autocast.

/// Which precision a layer runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cast {
    /// The layer runs in autocast's narrow type.
    Narrow,
    /// The layer runs in the type of the parameters.
    Full,
    /// The layer runs in the type of its inputs; in the widest if they differ.
    #[default]
    Follow,
}
