//! Why a row gives no job.

/// Why a row gives no job.
pub(super) enum Unusable {
    /// The source does not say what is needed.
    Silent(String),
    /// The row is wrong: what, and what would be right.
    Wrong(String),
}

impl From<String> for Unusable {
    fn from(what: String) -> Unusable {
        Unusable::Wrong(what)
    }
}
