//! The plot of a training run: its losses by step, and its accuracies by epoch.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output;
use allfold_report::loss_curve::{self, LossSeries};
use allfold_report::plots::{Figure, Origin};
use allfold_trainer::{Config, EpochReport, Evaluation, TrainResult};
use std::path::Path;

/// Draws the losses of a run, another engine's if given, and below them the accuracies into an SVG file. A run without a score has
/// no accuracies.
///
/// # Errors
/// A file that cannot be written.
pub fn course(
    path: &Path,
    config: &Config,
    origin: Origin,
    result: &TrainResult,
    reference: Option<LossSeries>,
) -> CommandResult {
    let model = &config.model.name;
    let steps = result.losses.iter().enumerate().map(|(step, &loss)| (step as f64, loss)).collect();
    let ours = LossSeries { name: "allfold".into(), origin, samples_per_step: None, steps };
    let courses = [ours].into_iter().chain(reference).collect();
    let losses = loss_curve::curves(model, courses).draw().map_err(CommandError::run)?;
    let mut figures = vec![(format!("Training loss of the {model}"), losses)];
    if result.epochs.iter().any(|epoch| epoch.test.labels > 0) {
        let of = |score: fn(&EpochReport) -> Option<Evaluation>| -> Vec<(f64, f64)> {
            let scored = result.epochs.iter().filter_map(|epoch| Some((epoch.epoch, score(epoch)?)));
            scored.map(|(epoch, score)| (epoch as f64 + 1.0, score.accuracy())).collect()
        };
        let sets = vec![
            (format!("{} set", config.scored_on()), of(|epoch| Some(epoch.test))),
            ("training set".to_string(), of(|epoch| epoch.train)),
        ];
        let drawn = loss_curve::accuracies(model, origin, sets).draw().map_err(CommandError::run)?;
        figures.push((format!("Accuracy of the {model}"), drawn));
    }
    output::replace(path, Figure::stacked(&figures).as_bytes())
}
