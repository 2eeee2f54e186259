//! Scores of a run by epoch: which epoch is the best, and how many epochs have brought no better score.
//!
//! ```text
//! epoch            0      1      2      3      4      5
//! accuracy       0.61   0.83   0.90   0.89   0.90   0.88      best: epoch 2, the first with 0.90
//! without better   0      0      0      1      2      3       `training.patience = 3` ends the run here
//! ```
//!
//! Everything is a function of the list of scores. A checkpoint holds the list, so a resumed run decides as one that never stopped.

use crate::{Config, Evaluation};
use allfold_config::{ScoreBy, TrainingConfig};

/// The outcome of an epoch, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochReport {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// Steps of the whole run so far.
    pub steps: u64,
    /// The mean loss of the steps of the epoch.
    pub loss: f64,
    /// The score, on the test set or the samples that `validation` holds out.
    pub test: Evaluation,
    /// The score on the training set, with `training.score_train`.
    pub train: Option<Evaluation>,
}

impl EpochReport {
    /// The value by which the epoch is compared.
    pub fn compared(&self, by: ScoreBy) -> f64 {
        match by {
            ScoreBy::Accuracy => self.test.accuracy(),
            ScoreBy::Loss => self.test.loss,
        }
    }
}

/// The place in `reports` of the first epoch with the best score; `None` if there is no epoch.
pub fn best(by: ScoreBy, reports: &[EpochReport]) -> Option<usize> {
    let (mut best, mut value) = (None, by.worst());
    for (at, report) in reports.iter().enumerate() {
        if by.better(report.compared(by), value, 0.0) {
            (best, value) = (Some(at), report.compared(by));
        }
    }
    best
}

/// The number of epochs at the end of `reports` without a better score. A score is better if it exceeds the last better one by more
/// than `min_delta`.
pub fn without_better(by: ScoreBy, reports: &[EpochReport], min_delta: f64) -> u64 {
    let (mut count, mut value) = (0, by.worst());
    for report in reports {
        if by.better(report.compared(by), value, min_delta) {
            (count, value) = (0, report.compared(by));
        } else {
            count += 1;
        }
    }
    count
}

/// Whether the run that `config` describes ends after these epochs, since `patience` of them in a row have brought no better score.
pub fn out_of_patience(config: &Config, reports: &[EpochReport]) -> bool {
    let TrainingConfig { patience, min_delta, .. } = config.training;
    patience > 0 && without_better(config.training.score, reports, min_delta) >= patience
}

/// Numbers in the row of an epoch.
pub(crate) const COLUMNS: usize = 9;

/// The largest count that f64 holds exactly, with all counts below it.
const COUNTS: f64 = 9_007_199_254_740_992.0;

impl EpochReport {
    /// The report as a row of numbers, for a checkpoint or a message. Its counts of labels are far below 2^53.
    pub(crate) fn row(&self) -> [f64; COLUMNS] {
        let Evaluation { labels, correct, loss } = self.test;
        let train = self
            .train
            .map_or([-1.0, 0.0, 0.0], |train| [train.labels as f64, train.correct as f64, train.loss]);
        let [train_labels, train_correct, train_loss] = train;
        let (epoch, steps) = (self.epoch as f64, self.steps as f64);
        [
            epoch,
            steps,
            self.loss,
            labels as f64,
            correct as f64,
            loss,
            train_labels,
            train_correct,
            train_loss,
        ]
    }

    /// The report of a row that [`EpochReport::row`] made; `None` if the row has other numbers than a run writes.
    pub(crate) fn of_row(row: &[f64; COLUMNS]) -> Option<EpochReport> {
        let count =
            |value: f64| ((0.0..COUNTS).contains(&value) && value.fract() == 0.0).then_some(value as u64);
        let evaluation = |labels: f64, correct: f64, loss: f64| {
            let (labels, correct) = (count(labels)?, count(correct)?);
            (correct <= labels && loss.is_finite()).then_some(Evaluation { labels, correct, loss })
        };
        let [epoch, steps, loss, labels, correct, test_loss, train_labels, train_correct, train_loss] = *row;
        let train = match train_labels {
            -1.0 => None,
            _ => Some(evaluation(train_labels, train_correct, train_loss)?),
        };
        let test = evaluation(labels, correct, test_loss)?;
        Some(EpochReport { epoch: count(epoch)?, steps: count(steps)?, loss, test, train })
    }
}

/// The reports of rows that lie one after another; `None` if one of them is no row of a run, or the steps do not grow.
pub(crate) fn reports(rows: &[f64]) -> Option<Vec<EpochReport>> {
    let (rows, rest) = rows.as_chunks::<COLUMNS>();
    let reports = rows.iter().map(EpochReport::of_row).collect::<Option<Vec<_>>>()?;
    (rest.is_empty() && reports.is_sorted_by(|a, b| a.steps < b.steps)).then_some(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports with these numbers of correct answers of 100, and a loss that falls as they grow.
    fn of(correct: &[u64]) -> Vec<EpochReport> {
        let report = |(epoch, &correct): (u64, &u64)| EpochReport {
            epoch,
            steps: 10 * (epoch + 1),
            loss: 1.0,
            test: Evaluation { labels: 100, correct, loss: 1.0 - correct as f64 / 100.0 },
            train: (epoch % 2 == 1).then_some(Evaluation { labels: 7, correct: 3, loss: 0.25 }),
        };
        (0..).zip(correct).map(report).collect()
    }

    #[test]
    fn the_best_epoch_is_the_first_with_the_best_score() {
        for by in [ScoreBy::Accuracy, ScoreBy::Loss] {
            assert_eq!(best(by, &[]), None);
            assert_eq!(best(by, &of(&[61, 83, 90, 89, 90, 88])), Some(2));
            assert_eq!(best(by, &of(&[61, 83, 90, 89, 90, 91])), Some(5));
            assert_eq!(best(by, &of(&[0, 0])), Some(0));
        }
    }

    #[test]
    fn epochs_count_as_without_better_until_a_score_exceeds_the_last_better_one_by_more_than_min_delta() {
        for by in [ScoreBy::Accuracy, ScoreBy::Loss] {
            let counts = |correct: &[u64], delta| -> Vec<u64> {
                let reports = of(correct);
                (0..=reports.len()).map(|end| without_better(by, &reports[..end], delta)).collect()
            };
            assert_eq!(counts(&[61, 83, 90, 89, 90, 88], 0.0), [0, 0, 0, 0, 1, 2, 3]);
            // Small gains add up: they are measured from the last better score.
            assert_eq!(counts(&[50, 52, 54, 56, 58], 0.05), [0, 0, 1, 2, 0, 1]);
        }
    }

    #[test]
    fn rows_give_the_reports_back_and_other_numbers_give_none() {
        let all = of(&[61, 83, 90]);
        let rows: Vec<f64> = all.iter().flat_map(EpochReport::row).collect();
        assert_eq!(reports(&rows), Some(all));
        assert_eq!(reports(&rows[1..]), None, "no whole number of rows");
        for (at, value) in [
            (0, -1.0),
            (1, 0.5),
            (1, 1e300),
            (3, f64::NAN),
            (4, 101.0),
            (5, f64::INFINITY),
            (6, -2.0),
            (10, 10.0),
        ] {
            let mut wrong = rows.clone();
            wrong[at] = value;
            assert_eq!(reports(&wrong), None, "{value} at {at}");
        }
    }
}
