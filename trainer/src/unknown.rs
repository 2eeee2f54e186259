//! Errors for unknown names, with suggestions.

use crate::Error;

/// The error for a name that is not in `names`: it suggests the nearest, or lists all.
pub(crate) fn unknown<'a>(what: &str, got: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<&str> = names.collect();
    Error::Config(format!("unknown {what} `{got}`; {}", suggestion(got, &names)))
}

/// `the nearest is ...` if a name resembles `got`, else `there are ...`.
pub(crate) fn suggestion(got: &str, names: &[&str]) -> String {
    // More than a line can hold are the configuration's keys.
    if names.len() > 50 && allfold_sim::suggest::nearest(got, names.iter().copied()).is_none() {
        return "`allfold train --keys` lists the keys".into();
    }
    allfold_sim::suggest::suggestion(got, names)
}
