//! What a part of the report is, and what the parts have in common.

use crate::page::{Headline, Section};
use crate::records::Stamp;
use std::collections::BTreeSet;

/// What one part adds to the summary, and the part itself.
pub(super) type Part = (Vec<Headline>, Section);

/// The commands of records, each once, in order of appearance.
pub fn commands<'a>(stamps: impl IntoIterator<Item = &'a Stamp>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let each = stamps.into_iter().map(|stamp| stamp.command.clone());
    each.filter(|command| seen.insert(command.clone())).collect()
}

/// Values in order of appearance, each once.
pub fn distinct<T: Ord + Clone>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

/// The head of a table.
pub fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}
