//! Every part of the report, in order.

use super::part::Part;
use super::{compare, measured, predicted, proofs, scaling, timeline, training};
use crate::page::{Headline, Section};
use crate::plots::DrawError;
use crate::records::Records;

/// Makes a part of the records that it knows.
type Make = fn(&Records) -> Result<Option<Part>, DrawError>;

/// Every part that the records have something for, in order.
///
/// # Errors
/// A plot cannot be drawn.
pub fn all(records: &Records) -> Result<(Vec<Headline>, Vec<Section>), DrawError> {
    let parts: [Make; 7] = [
        proofs::part,
        training::part,
        compare::part,
        measured::part,
        predicted::part,
        scaling::part,
        timeline::part,
    ];
    let made: Vec<Option<Part>> = parts.iter().map(|part| part(records)).collect::<Result<_, _>>()?;
    let (findings, sections): (Vec<_>, Vec<_>) = made.into_iter().flatten().unzip();
    Ok((findings.into_iter().flatten().collect(), sections))
}
