//! The plot of a sweep over sizes: bus bandwidth, a curve for each algorithm.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_report::plots::DrawError;
use allfold_report::records::{MeasuredCollective, SimulatedCollective};
use allfold_report::{Plot, measured_plots, simulated_plots};
use std::path::Path;

/// The fewest sizes that make a plot.
const FEWEST: usize = 3;

/// Refuses `--plot` for a sweep with too few sizes, before it runs.
///
/// # Errors
/// Fewer than three sizes.
pub fn can_draw(sizes: &[u64]) -> CommandResult {
    match sizes.len() < FEWEST {
        true => Err(too_few()),
        false => Ok(()),
    }
}

fn too_few() -> CommandError {
    CommandError::usage("--plot draws three sizes or more; give -b and -e a wider sweep")
}

/// Draws simulated calls into an SVG file.
///
/// # Errors
/// Fewer than three sizes; a file that cannot be written.
pub fn simulated(path: &Path, records: &[SimulatedCollective], output: &mut RunOutput) -> CommandResult {
    write(path, simulated_plots(&records.iter().collect::<Vec<_>>()), output)
}

/// Draws measured calls into an SVG file.
///
/// # Errors
/// Fewer than two sizes; a file that cannot be written.
pub fn measured(path: &Path, records: &[MeasuredCollective], output: &mut RunOutput) -> CommandResult {
    write(path, measured_plots(&records.iter().collect::<Vec<_>>()), output)
}

fn write(path: &Path, plots: Result<Vec<Plot>, DrawError>, output: &mut RunOutput) -> CommandResult {
    let plots = plots.map_err(CommandError::run)?;
    let Some(plot) = plots.first() else {
        return Err(too_few());
    };
    output::replace(path, plot.figure.file(&plot.caption).as_bytes())?;
    plot.finding.iter().try_for_each(|finding| output.say(format!("# {finding}")))?;
    output.say(format!("# Plot: {}", path.display()))
}
