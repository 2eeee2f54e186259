//! Predictions of published rows: by the parameters that ship, by a fit without their system or model, with or without one row of their
//! system known.

use crate::fit::{StepSample, fit};
use crate::interval::{KnownStep, StepPredictor};
use crate::memory::{memory, reported};
use crate::parameters::{IntervalScales, StepParameterRow, StepParameters};
use crate::rows::TrainingRow;
use crate::score::PredictedRow;
use std::collections::{BTreeMap, BTreeSet};

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
    let groups: BTreeSet<String> =
        rows.iter().map(|row| left_out.map_or_else(String::new, |by| by.group(row))).collect();
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
    let published = StepPredictor::published();
    let mut found = Vec::with_capacity(rows.len());
    for group in &groups {
        let of = |row: &TrainingRow| left_out.is_none_or(|by| by.group(row) == *group);
        let predictor = match left_out {
            None => published.clone(),
            Some(_) => fitted(rows.iter().filter(|row| !of(row) && counts(row)))?,
        };
        let mut systems: BTreeMap<&str, StepPredictor> = BTreeMap::new();
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| of(row)) {
            let first = known.get(&*row.system).copied();
            let knowing = || match first.and_then(|first| Some((first, first.step_s?))) {
                Some((first, seconds)) => predictor.knowing(&[KnownStep { job: &first.job, seconds }]),
                None => predictor.clone(),
            };
            let predictor = systems.entry(&row.system).or_insert_with(knowing);
            let is_known = first.is_some_and(|first| std::ptr::eq(first, row));
            found.push((at, predicted(row, predictor, is_known)));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, row)| row).collect())
}

/// A predictor fitted to some rows.
fn fitted<'a>(rows: impl Iterator<Item = &'a TrainingRow>) -> Result<StepPredictor, String> {
    let samples: Vec<StepSample<'_>> = rows
        .filter_map(|row| {
            Some(StepSample { job: &row.job, seconds: row.step_s?, system: &row.system, noisy: row.noisy })
        })
        .collect();
    if samples.is_empty() {
        return Err("no row that counts is left to fit to; give rows of more systems".into());
    }
    let prior = StepParameterRow::published();
    let found = fit(&samples, prior, &StepParameters::published());
    let mut doubts = prior.to_vec();
    doubts.iter_mut().zip(&found.std_devs).for_each(|(row, deviation)| row.deviation = *deviation);
    Ok(StepPredictor::new(found.parameters, &doubts, IntervalScales::published()))
}

fn predicted<'a>(row: &'a TrainingRow, predictor: &StepPredictor, known: bool) -> PredictedRow<'a> {
    let (step, used) = (predictor.predict(&row.job), memory(&row.job));
    PredictedRow {
        row,
        step_s: step.seconds,
        range80_s: step.within80,
        range95_s: step.within95,
        memory_gb: reported(&row.job, row.meter) / 1e9,
        fits: used.fits(row.job.cluster.capacity),
        known,
    }
}

#[cfg(test)]
mod tests;
