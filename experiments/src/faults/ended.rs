//! How one operation ended on one rank.

use allfold_collectives::Error;

/// How one operation ended on one rank.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The operation returned the right result.
    Right,
    /// The operation returned a wrong result.
    Wrong,
    /// The operation returned this error.
    Told(Error),
}
