//! How far predicted steps are from measured ones.
//!
//! ```text
//! error      |predicted / measured - 1|                  median and 90th percentile, by rows and by systems
//! order      pairs of rows over 5 % apart in seconds a token and GPU: how many are predicted in their order
//! intervals  share of measured steps inside of the 80 % and of the 95 % interval
//! memory     |predicted / measured - 1|; jobs that ran out of memory and were predicted to; jobs that ran and were refused
//! regret     of the layout predicted best among those measured, against the best measured: measured time / best time - 1
//! ```
//!
//! Rows that their collector doubts, and rows that were known to the prediction, count nowhere.

use crate::rows::TrainingRow;
use std::collections::BTreeMap;

/// Rows closer than this in measured time are in no order.
const APART: f64 = 1.05;

/// The fewest layouts among which a choice is scored.
const LAYOUTS: usize = 3;

/// A row with its prediction.
#[derive(Clone, Debug)]
pub struct PredictedRow<'a> {
    /// The published row.
    pub row: &'a TrainingRow,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// The ends of the interval that holds the measured time in 80 of 100 cases, in seconds.
    pub range80_s: [f64; 2],
    /// The same for 95 of 100.
    pub range95_s: [f64; 2],
    /// Predicted memory of the fullest GPU in GB (1e9 bytes).
    pub memory_gb: f64,
    /// The probability that the job fits into memory.
    pub fits: f64,
    /// Whether the prediction knew the row's measured time.
    pub known: bool,
}

impl PredictedRow<'_> {
    /// The measured seconds, if the row counts in scores of time.
    fn measured(&self) -> Option<f64> {
        self.row.step_s.filter(|_| !self.known && !self.row.suspect)
    }

    /// |predicted / measured - 1| of a row that counts.
    pub fn error(&self) -> Option<f64> {
        self.measured().map(|measured| (self.step_s / measured - 1.0).abs())
    }

    /// Whether the model has experts.
    pub fn is_mixture(&self) -> bool {
        self.row.job.model.experts.is_some()
    }
}

/// The median and the 90th percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Half of the values are at most this.
    pub median: f64,
    /// Nine in ten values are at most this.
    pub p90: f64,
}

impl Percentiles {
    /// Those of some values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Percentiles> {
        Some(Percentiles { median: quantile(values, 0.5)?, p90: quantile(values, 0.9)? })
    }
}

/// The value below which a share of the values lies, between two values in proportion; `None` of none.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let [below, above] = [place.floor(), place.ceil()].map(|at| sorted.get(at as usize).copied());
    let (below, above) = (below?, above?);
    Some(below + (above - below) * place.fract())
}

/// Errors of some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorScore {
    /// Rows that count.
    pub rows: usize,
    /// Systems that they come from.
    pub systems: usize,
    /// Over rows.
    pub by_rows: Percentiles,
    /// Over systems, each counted once: the medians of the systems' medians and of their 90th percentiles.
    pub by_systems: Percentiles,
}

/// The errors of all rows that count and that `takes` takes; `None` if there are none.
pub fn errors<'a>(
    rows: &[PredictedRow<'a>],
    takes: impl Fn(&PredictedRow<'a>) -> bool,
) -> Option<ErrorScore> {
    let mut systems: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| takes(row)) {
        if let Some(error) = row.error() {
            systems.entry(&row.row.system).or_default().push(error);
        }
    }
    let all: Vec<f64> = systems.values().flatten().copied().collect();
    let each: Vec<Percentiles> = systems.values().filter_map(|errors| Percentiles::of(errors)).collect();
    let medians: Vec<f64> = each.iter().map(|each| each.median).collect();
    let p90s: Vec<f64> = each.iter().map(|each| each.p90).collect();
    Some(ErrorScore {
        rows: all.len(),
        systems: systems.len(),
        by_rows: Percentiles::of(&all)?,
        by_systems: Percentiles { median: quantile(&medians, 0.5)?, p90: quantile(&p90s, 0.5)? },
    })
}

/// Cases, and how many of them are as predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// As predicted.
    pub hits: usize,
    /// All.
    pub of: usize,
}

impl Hits {
    fn count(&mut self, hit: bool) {
        self.hits += usize::from(hit);
        self.of += 1;
    }

    /// The share; `None` of no cases.
    pub fn share(&self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }
}

/// Pairs of rows of one group that are predicted in their order.
pub fn order<'a, K: Ord>(rows: &[PredictedRow<'a>], group: impl Fn(&'a TrainingRow) -> K) -> Hits {
    let mut groups: BTreeMap<K, Vec<[f64; 2]>> = BTreeMap::new();
    for row in rows {
        if let Some(measured) = row.measured() {
            // Seconds a token and GPU: rows of unlike batches compare.
            let share = f64::from(row.row.job.layout.gpus) / row.row.job.layout.tokens();
            groups.entry(group(row.row)).or_default().push([measured * share, row.step_s * share]);
        }
    }
    let mut found = Hits::default();
    for group in groups.values() {
        for (at, [measured, predicted]) in group.iter().enumerate() {
            for [other, other_predicted] in group.iter().take(at) {
                if (measured / other).max(other / measured) > APART {
                    found.count((measured > other) == (predicted > other_predicted));
                }
            }
        }
    }
    found
}

/// Measured steps inside of the 80 % and the 95 % intervals.
pub fn coverage(rows: &[PredictedRow<'_>]) -> [Hits; 2] {
    let mut found = [Hits::default(); 2];
    for row in rows {
        let Some(measured) = row.measured() else { continue };
        for (hits, [low, high]) in found.iter_mut().zip([row.range80_s, row.range95_s]) {
            hits.count((low..=high).contains(&measured));
        }
    }
    found
}

/// The score of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryScore {
    /// Rows with a measured memory.
    pub rows: usize,
    /// The errors of their predictions.
    pub error: Option<Percentiles>,
    /// Jobs that ran out of memory, and were predicted not to fit.
    pub found: Hits,
    /// Jobs that ran, and were predicted not to fit.
    pub refused: Hits,
}

/// Memory, and whether jobs fit, over all rows that are not doubted.
pub fn memory(rows: &[PredictedRow<'_>]) -> MemoryScore {
    let mut score = MemoryScore::default();
    let mut errors = Vec::new();
    for row in rows.iter().filter(|row| !row.row.suspect) {
        let refused = row.fits < 0.5;
        match row.row.out_of_memory == Some(true) {
            true => score.found.count(refused),
            false => {
                errors.extend(row.row.memory_gb.map(|measured| (row.memory_gb / measured - 1.0).abs()));
                score.refused.count(refused);
            }
        }
    }
    score.rows = errors.len();
    score.error = Percentiles::of(&errors);
    score
}

/// What a choice by prediction costs, over groups of layouts of one job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    /// Groups of three layouts and more.
    pub groups: usize,
    /// Mean and median of the layout ranked first.
    pub first: [f64; 2],
    /// The same of the best of the first three.
    pub best_of_three: [f64; 2],
}

/// The regret of choosing by prediction; `None` without a group of layouts.
pub fn regret(rows: &[PredictedRow<'_>]) -> Option<Regret> {
    // Rows of one layout are one choice: the medians of what was measured and predicted.
    let mut groups: BTreeMap<String, BTreeMap<String, [Vec<f64>; 2]>> = BTreeMap::new();
    for row in rows {
        let Some(measured) = row.measured() else { continue };
        let (job, layout) = (&row.row.job, &row.row.job.layout);
        let task = format!(
            "{} {} {} {} {} {} {:?} {:?} {}",
            row.row.system,
            job.model.name,
            job.model.layers,
            layout.gpus,
            layout.global_batch,
            layout.sequence,
            job.precision,
            job.framework,
            job.lora
        );
        let choice = groups.entry(task).or_default().entry(format!("{layout:?}")).or_default();
        choice[0].push(measured);
        choice[1].push(row.step_s);
    }
    let mut costs: [Vec<f64>; 2] = Default::default();
    for choices in groups.values().filter(|choices| choices.len() >= LAYOUTS) {
        let mut times: Vec<[f64; 2]> = choices
            .values()
            .filter_map(|[measured, predicted]| Some([quantile(measured, 0.5)?, quantile(predicted, 0.5)?]))
            .collect();
        times.sort_by(|[_, one], [_, other]| one.total_cmp(other));
        let best_of =
            |count: usize| times.iter().take(count).map(|[measured, _]| *measured).fold(f64::MAX, f64::min);
        let best = best_of(times.len());
        costs[0].push(best_of(1) / best - 1.0);
        costs[1].push(best_of(3) / best - 1.0);
    }
    let summary =
        |costs: &[f64]| Some([costs.iter().sum::<f64>() / costs.len() as f64, quantile(costs, 0.5)?]);
    Some(Regret { groups: costs[0].len(), first: summary(&costs[0])?, best_of_three: summary(&costs[1])? })
}

#[cfg(test)]
mod tests;
