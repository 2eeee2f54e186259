//! Tables of published throughput, predicted and scored.

use super::rows::{Left, Predicted, Rows, TERMS, is_resnet50, predict};
use super::score::{RowError, plot, quantiles, scores};
use allfold_cli::columns::columns;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_report::records::ScalingRow;
use allfold_validation::scaling_tables::{self, Curve, ScalingTable};
use std::path::PathBuf;

/// Options of the score.
#[derive(Clone, Debug, Default)]
pub struct ScoreOptions {
    /// The terms that are left out, by name: communication, device-variation, jitter.
    pub without: Vec<String>,
    /// Print every row.
    pub rows: bool,
    /// Draw the errors of the predictions into this file.
    pub plot: Option<PathBuf>,
}

/// Whether a table is of classification, detection or segmentation of images.
fn is_vision(model: &str) -> bool {
    ["classification", "detection", "segmentation"].iter().any(|kind| model.to_lowercase().contains(kind))
}

/// The rows that were predicted so far, and the tables that were left out.
struct Found {
    /// The printed table: a line for every row.
    lines: Vec<Vec<String>>,
    /// The rows that count for the score.
    scored: Vec<RowError>,
    /// Tables and curves that were left out, each with the reason.
    left: Vec<(String, Left)>,
}

/// The name of a term, for clap.
///
/// # Errors
/// The term does not exist; the error gives the nearest name.
pub fn term(name: &str) -> Result<String, String> {
    let names = TERMS.map(|(name, _)| name);
    match names.contains(&name) {
        true => Ok(name.to_string()),
        false => Err(allfold_sim::suggest::unknown("term", name, &names)),
    }
}

/// Predicts every table, prints the score and writes the records.
///
/// # Errors
/// A file that is no table.
pub fn run(files: &[PathBuf], options: &ScoreOptions, output: &mut RunOutput) -> CommandResult {
    let tables: Vec<ScalingTable> = files
        .iter()
        .map(|file| scaling_tables::read(file).map_err(CommandError::usage))
        .collect::<CommandResult<_>>()?;
    options.plot.iter().try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    let head = ["table", "curve", "GPUs", "published", "predicted", "error (%)"];
    let mut found =
        Found { lines: vec![head.map(String::from).to_vec()], scored: Vec::new(), left: Vec::new() };
    let bar = progress::bar(tables.len() as u64, "predicting tables");
    for table in &tables {
        found.table(table, &options.without, output)?;
        bar.inc(1);
    }
    drop(bar);
    let Found { lines, scored, left } = found;
    if options.rows {
        output.say(columns(&lines))?;
        for (what, why) in &left {
            output.say(format!("left out: {what}: {why}"))?;
        }
    } else if !left.is_empty() {
        output.say(format!("left out: {} tables and curves; --rows says which and why", left.len()))?;
    }
    output.say(columns(&scores(&scored)))?;
    ablation(&tables, options, output)?;
    match &options.plot {
        Some(path) => plot(&scored, path),
        None => Ok(()),
    }
}

impl Found {
    /// Predicts the curves of a table.
    fn table(&mut self, table: &ScalingTable, without: &[String], output: &mut RunOutput) -> CommandResult {
        let reason = match (&table.suspect, table.evaluation) {
            (Some(why), _) => Some(format!("suspect: {why}")),
            (None, true) => Some("inference exchanges nothing".into()),
            (None, false) => None,
        };
        if let Some(reason) = reason {
            self.left.push((table.name.clone(), reason));
            return Ok(());
        }
        for curve in &table.curves {
            match predict(table, curve, without) {
                Ok(rows) => self.curve(table, curve, &rows, output)?,
                Err(why) => self.left.push((format!("{}, {}", table.name, curve.name), why)),
            }
        }
        Ok(())
    }

    /// Keeps the rows of a curve.
    fn curve(
        &mut self,
        table: &ScalingTable,
        curve: &Curve,
        rows: &Rows,
        output: &mut RunOutput,
    ) -> CommandResult {
        let vision = is_vision(&table.model);
        for row in &rows.rows {
            self.lines.push(vec![
                table.name.clone(),
                curve.name.clone(),
                row.ranks.to_string(),
                format!("{:.0}", row.published),
                format!("{:.0}", row.predicted),
                format!("{:.1}", 100.0 * row.error()),
            ]);
            self.scored.push(RowError {
                vision,
                resnet50: is_resnet50(&table.model),
                ranks: row.ranks,
                error: row.error(),
            });
            output.record(&ScalingRow {
                run: table.name.clone(),
                curve: curve.name.clone(),
                system: table.machine.clone().unwrap_or_default(),
                vision,
                ranks: row.ranks,
                published_samples_per_s: row.published,
                predicted_samples_per_s: row.predicted,
                relative_error: row.error(),
                fitted: false,
                assumed: rows.assumed.clone(),
            })?;
        }
        Ok(())
    }
}

/// Whether the rows of a table count: it is of training, and nothing in it is suspect.
fn is_scored(table: &ScalingTable) -> bool {
    table.suspect.is_none() && !table.evaluation
}

/// The score without each term.
fn ablation(tables: &[ScalingTable], options: &ScoreOptions, output: &mut RunOutput) -> CommandResult {
    let mut lines = vec![
        ["without", "vision, 8 GPUs: median error (%)", "all: median error (%)"].map(String::from).to_vec(),
    ];
    let bar = progress::bar(((1 + TERMS.len()) * tables.len()) as u64, "predicting without each term");
    for (term, _) in [("nothing", "")].iter().chain(&TERMS) {
        let without = [options.without.clone(), vec![term.to_string()]].concat();
        let (mut vision, mut all) = (Vec::new(), Vec::new());
        for table in tables.iter().inspect(|_| bar.inc(1)).filter(|table| is_scored(table)) {
            for curve in &table.curves {
                let Ok(Rows { rows, .. }) = predict(table, curve, &without) else { continue };
                all.extend(rows.iter().map(Predicted::error));
                if is_vision(&table.model) {
                    vision.extend(rows.iter().filter(|row| row.ranks == 8).map(Predicted::error));
                }
            }
        }
        let figures = [&mut vision, &mut all].map(|errors| {
            quantiles(errors).map_or("-".into(), |(median, _)| format!("{:.1}", 100.0 * median))
        });
        lines.push([vec![term.to_string()], figures.to_vec()].concat());
    }
    drop(bar);
    output.say(format!("\n{}", columns(&lines)))
}
