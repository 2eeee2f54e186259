//! Every part of the report, in order, and the first line and facts above the parts.

use super::part::Part;
use super::{
    accuracy, compare, machine, measured, planned, predicted, proofs, scaling, timeline, training, triage,
    validated,
};
use crate::page::Contents;
use crate::plots::DrawError;
use crate::records::Records;

/// Makes a section from the records that it shows; `None` if there are none.
type Make = fn(&Records) -> Result<Option<Part>, DrawError>;

/// Every part that has records, in order. The page's answer is that of the first part that gives one (else the first part's title),
/// with the typical error of such predictions if there are scores.
///
/// # Errors
/// A plot cannot be drawn.
pub fn all(records: &Records) -> Result<Contents, DrawError> {
    let parts: [Make; 11] = [
        triage::part,
        planned::part,
        scaling::part,
        predicted::part,
        accuracy::part,
        validated::part,
        measured::part,
        training::part,
        compare::part,
        timeline::part,
        proofs::part,
    ];
    let mut contents = Contents { machine: machine::facts(records), ..Contents::default() };
    let parts: Vec<Option<Part>> = parts.iter().map(|part| part(records)).collect::<Result<_, _>>()?;
    let mut parts: Vec<Part> = parts.into_iter().flatten().collect();
    // The error of predictions is the first fact of its card, although its part comes later on the page.
    for part in parts.iter_mut().filter(|part| part.section.id == accuracy::ID) {
        contents.facts.append(&mut part.facts);
    }
    let mut error = accuracy::typical_error(records);
    for part in parts {
        if let Some(answer) = part.answer.filter(|_| contents.answer.is_empty()) {
            contents.answer = answer;
            if part.section.id == scaling::ID {
                error = accuracy::training_error(records).or(error);
            }
        }
        contents.facts.extend(part.facts);
        contents.limits.extend(part.limits);
        contents.sections.push(part.section);
    }
    if let Some(error) = error {
        contents.answer = format!("{}; {error}", contents.answer.trim_end_matches('.'));
    }
    if let Some(first) = contents.sections.first().filter(|_| contents.answer.is_empty()) {
        contents.answer.clone_from(&first.title);
    }
    Ok(contents)
}
