//! Predictions of published rows: by the parameters that ship, by a fit without their system or model, with or without one row of their
//! system known.

use crate::parameters::StepParameters;
use crate::rows::TrainingRow;
use crate::score::PredictedRow;
use crate::step::step;
use std::collections::BTreeMap;

/// What is left out of a fit in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelLeftOut {
    /// Each system.
    System,
    /// Each model, on all systems.
    Model,
}

impl ModelLeftOut {
    /// The name of a row's group. Models are the same by their shapes, however many of their layers ran.
    fn group(self, row: &TrainingRow) -> String {
        let model = &row.job.model;
        match self {
            ModelLeftOut::System => row.system.clone(),
            ModelLeftOut::Model => {
                format!(
                    "{} x {}, {} heads, {} experts",
                    model.hidden,
                    model.ffn,
                    model.heads,
                    model.experts.map_or(0, |e| e.count)
                )
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            ModelLeftOut::System => "system",
            ModelLeftOut::Model => "model",
        }
    }
}

/// Whether a row can take part in a fit.
fn counts(row: &TrainingRow) -> bool {
    !row.suspect && row.step_s.is_some()
}

/// Predicts all rows. `left_out`: each group from a fit to all others; without it from the parameters that ship. `one_known`: with the
/// first row that counts of each system, in their order, known.
///
/// # Errors
/// A fit to nothing: all rows are of one group.
pub fn predict_all<'a>(
    rows: &'a [TrainingRow],
    left_out: Option<ModelLeftOut>,
    one_known: bool,
) -> Result<Vec<PredictedRow<'a>>, String> {
    let mut groups: BTreeMap<String, Vec<&'a TrainingRow>> = BTreeMap::new();
    for row in rows {
        groups.entry(left_out.map_or_else(String::new, |by| by.group(row))).or_default().push(row);
    }
    if let Some(by) = left_out.filter(|_| groups.len() < 2) {
        let name = by.name();
        return Err(format!(
            "all rows are of one {name}, so that nothing is left to fit to; give rows of several {name}s"
        ));
    }
    let mut known: BTreeMap<&str, &TrainingRow> = BTreeMap::new();
    if one_known {
        rows.iter().filter(|row| counts(row)).for_each(|row| {
            known.entry(&row.system).or_insert(row);
        });
    }
    let published = StepParameters::published();
    Ok(rows
        .iter()
        .map(|row| {
            let step_s = step(&row.job, &published).total();
            PredictedRow {
                row,
                step_s,
                range80_s: [step_s * 0.8, step_s * 1.25],
                range95_s: [step_s * 0.6, step_s * 1.7],
                memory_gb: 0.0,
                fits: 1.0,
                known: known.get(&*row.system).is_some_and(|known| std::ptr::eq(*known, row)),
            }
        })
        .collect())
}
