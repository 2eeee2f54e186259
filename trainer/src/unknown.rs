//! Errors for unknown names, with suggestions.

use crate::Error;
use allfold_sim::suggest::suggestion;

/// The kind of part, its name in PyTorch in lower case, and its name here.
const OF_PYTORCH: [(&str, &str, &str); 4] = [
    ("data", "imagefolder", "pictures"),
    ("data", "image_folder", "pictures"),
    ("data", "tensordataset", "arrays"),
    ("data", "fakedata", "synthetic"),
];

/// The error for a name that is not in `names`: it gives the name here of PyTorch's name, suggests the nearest name, or
/// lists all.
pub(crate) fn unknown<'a>(what: &str, got: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let lower = got.to_lowercase();
    if let Some((.., ours)) = OF_PYTORCH.iter().find(|(kind, theirs, _)| *kind == what && *theirs == lower) {
        return Error::Config(format!("unknown {what} `{got}`; here it is `{ours}`"));
    }
    Error::Config(format!("unknown {what} `{got}`; {}", suggestion(got, &names.collect::<Vec<_>>())))
}

/// A count with its noun, in the plural unless the count is 1.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}
