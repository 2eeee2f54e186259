//! The parts of the report, one file each. A part that has no records is left out.

pub(crate) mod format;
mod measured;
mod predicted;
mod proofs;
mod scaling;
mod timeline;
mod training;

use super::{Finding, Section};
use crate::plots::DrawError;
use crate::records::{Records, Stamp};
use std::collections::BTreeSet;

/// What one part adds to the summary, and the part itself.
type Part = (Vec<Finding>, Section);

/// Makes a part of the records that it knows.
type Make = fn(&Records) -> Result<Option<Part>, DrawError>;

/// Every part that the records have something for, in order.
///
/// # Errors
/// A plot cannot be drawn.
pub fn all(records: &Records) -> Result<(Vec<Finding>, Vec<Section>), DrawError> {
    let parts: [Make; 6] =
        [proofs::part, training::part, measured::part, predicted::part, scaling::part, timeline::part];
    let made: Vec<Option<Part>> = parts.iter().map(|part| part(records)).collect::<Result<_, _>>()?;
    let (findings, sections): (Vec<_>, Vec<_>) = made.into_iter().flatten().unzip();
    Ok((findings.into_iter().flatten().collect(), sections))
}

/// The commands of records, each once, in order of appearance.
fn commands<'a>(stamps: impl IntoIterator<Item = &'a Stamp>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let each = stamps.into_iter().map(|stamp| stamp.command.clone());
    each.filter(|command| seen.insert(command.clone())).collect()
}

/// Values in order of appearance, each once.
fn distinct<T: Ord + Clone>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}
