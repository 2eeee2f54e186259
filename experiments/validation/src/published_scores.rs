//! The scores of predictions on systems left out of the fit, as `docs/results/validation` publishes them. They ship with the
//! program, so that a report can say how far its predictions are off without the published runs.
//!
//! ```text
//! allfold validate RUNS --leave-one-system-out     up to 10 nodes; median and 90th percentile of the factor over rows
//! ```

use crate::score::BANDS;
use allfold_report::records::{TrainingScore, ValidationScore};

/// The command that makes the scores.
pub const COMMAND: &str = "allfold validate RUNS --leave-one-system-out";
/// The document that publishes the scores.
pub const SOURCE: &str = "docs/results/validation/README.md";
/// The largest number of nodes of a run in the scores.
const MOST_NODES: u32 = 10;

/// The predictors, in the order of the columns of [`SCORES`].
const PREDICTORS: [&str; 3] = ["simulated", "physical", "closed-form"];

/// The numbers of rows and of systems, and the median and 90th percentile of each predictor's factors.
type BandScores = (u64, u64, [(f64, f64); PREDICTORS.len()]);

/// The scores of each band of sizes.
const SCORES: [BandScores; BANDS.len()] = [
    (1553, 19, [(1.15, 1.44), (1.15, 1.44), (1.36, 2.70)]),
    (1052, 21, [(1.16, 1.69), (1.16, 1.66), (1.42, 4.01)]),
    (947, 22, [(1.14, 1.77), (1.14, 1.77), (1.42, 3.56)]),
    (1667, 25, [(1.08, 1.35), (1.08, 1.35), (1.21, 1.79)]),
];

/// A record for each band and predictor.
pub fn published_scores() -> Vec<ValidationScore> {
    let bands = BANDS.iter().zip(&SCORES).flat_map(|((_, _, band), (rows, systems, factors))| {
        PREDICTORS.iter().zip(factors).map(|(predictor, &(median_factor, ninetieth_factor))| {
            ValidationScore {
                predictor: (*predictor).into(),
                band: (*band).into(),
                most_nodes: MOST_NODES,
                rows: *rows,
                systems: *systems,
                median_factor,
                ninetieth_factor,
                source: SOURCE.into(),
            }
        })
    });
    bands.collect()
}

/// The command that makes the score of training.
pub const TRAINING_COMMAND: &str = "allfold scale validate TABLES_DIRECTORY/*.json";

/// The score of predicted training rates, as `docs/results/scaling` publishes it.
pub fn training_score() -> TrainingScore {
    TrainingScore {
        networks: "image networks".into(),
        ranks: 8,
        rows: 76,
        median_error: 0.032,
        ninetieth_error: 0.31,
        source: "docs/results/scaling/README.md".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_score_of_training_that_ships_is_that_of_the_document() {
        let TrainingScore { ranks, rows, median_error, ninetieth_error, source, .. } = training_score();
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source))
            .unwrap();
        assert!(text.contains(TRAINING_COMMAND));
        let [median, ninetieth] = [median_error, ninetieth_error].map(|error| 100.0 * error);
        let row = format!("| all image tables on {ranks} GPUs | {rows} | {median:.1} % | {ninetieth:.0} % |");
        assert!(text.contains(&row), "{row}");
    }

    /// The table of the document that is named as the source, row by row.
    #[test]
    fn the_scores_that_ship_are_those_of_the_document() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(SOURCE);
        let text = std::fs::read_to_string(path).unwrap();
        let section = text.split("## Systems not used in the fit").nth(1).unwrap();
        assert!(section.contains(COMMAND) && section.contains(&format!("Up to {MOST_NODES} nodes")));
        let all = published_scores();
        for (_, _, band) in BANDS {
            let of: Vec<&ValidationScore> = all.iter().filter(|score| score.band == band).collect();
            let cells =
                of.iter().map(|score| format!("{:.2} / {:.2}", score.median_factor, score.ninetieth_factor));
            let cells = cells.collect::<Vec<_>>().join(" | ");
            let row = section.lines().find(|line| line.starts_with(&format!("| {band} |"))).unwrap();
            assert!(row.starts_with(&format!("| {band} | {} | {} |", of[0].rows, of[0].systems)), "{row}");
            assert!(row.ends_with(&format!("| {cells} |")), "{row}: {cells}");
        }
    }
}
