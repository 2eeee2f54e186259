//! Errors for unknown names, with suggestions.

use crate::Error;
use allfold_sim::suggest::suggestion;

/// The error for a name that is not in `names`: it suggests the nearest, or lists all.
pub(crate) fn unknown<'a>(what: &str, got: &str, names: impl Iterator<Item = &'a str>) -> Error {
    Error::Config(format!("unknown {what} `{got}`; {}", suggestion(got, &names.collect::<Vec<_>>())))
}
