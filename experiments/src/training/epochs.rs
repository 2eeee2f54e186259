//! The table of a run's epochs in its summary.

use super::trained::Trained;
use allfold_cli::columns::columns;
use allfold_report::format::number;
use allfold_trainer::scores::best;
use allfold_trainer::{Config, EpochReport};
use std::collections::BTreeSet;

/// The most rows of the table.
const ROWS: usize = 10;

/// A row for each epoch with its mean loss, its scores and the time of its steps; of many epochs the first, the last, the best and
/// some between. `None` for a run of one epoch, which the summary describes without a table.
pub fn table(config: &Config, trained: &Trained) -> Option<String> {
    let epochs = &trained.result.epochs;
    if epochs.len() < 2 {
        return None;
    }
    let set = config.scored_on();
    let scored = epochs.iter().all(|epoch| epoch.test.labels > 0);
    let best = best(config.training.score, epochs).filter(|_| scored);
    let names: [String; 5] =
        ["epoch".into(), "loss".into(), format!("{set} loss"), "accuracy (%)".into(), "steps (s)".into()];
    let mut rows = vec![names.to_vec()];
    for at in shown(epochs.len(), best) {
        let EpochReport { epoch, steps, loss, test, .. } = epochs[at];
        let before = at.checked_sub(1).map_or(0, |before| epochs[before].steps);
        let mut row = vec![(epoch + 1).to_string(), format!("{loss:.6}")];
        row.push(if scored { format!("{:.6}", test.loss) } else { "-".into() });
        row.push(if scored { format!("{:.2}", 100.0 * test.accuracy()) } else { "-".into() });
        row.push(trained.seconds(before..steps).map_or("-".into(), number));
        row.extend((best == Some(at)).then(|| "best".to_string()));
        rows.push(row);
    }
    Some(columns(&rows))
}

/// The places of the epochs that are shown, in order.
fn shown(epochs: usize, best: Option<usize>) -> BTreeSet<usize> {
    let even = ROWS - 1;
    let places: BTreeSet<usize> = match epochs <= ROWS {
        true => (0..epochs).collect(),
        false => (0..even).map(|row| row * (epochs - 1) / (even - 1)).collect(),
    };
    places.into_iter().chain(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_epochs_ten_are_shown_with_the_first_the_best_and_the_last() {
        for epochs in [2, 10, 11, 12, 100, 1000] {
            for best in [None, Some(0), Some(epochs / 2 + 1), Some(epochs - 1)] {
                let shown = shown(epochs, best.filter(|best| *best < epochs));
                assert!(shown.len() <= ROWS && shown.len() >= ROWS.min(epochs) - 1, "{epochs}: {shown:?}");
                assert!(shown.contains(&0) && shown.contains(&(epochs - 1)), "{epochs}: {shown:?}");
                assert!(best.is_none_or(|best| best >= epochs || shown.contains(&best)), "{epochs}");
            }
        }
    }
}
