//! How one operation ended on one rank.

use allfold_collectives::Error;

/// How one operation ended on one rank.
#[derive(Clone, Debug)]
pub enum Ended {
    /// With the right result.
    Right,
    /// With another one.
    Wrong,
    /// With an error.
    Told(Error),
}
