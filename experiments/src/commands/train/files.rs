//! The files and records that a run leaves at its end.

use super::{Args, draw};
use crate::predict::trace;
use crate::training::launch_mode::LaunchMode;
use crate::training::trained::Trained;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_report::loss_curve::LossSeries;
use allfold_report::plots::Origin;
use allfold_trainer::Config;
use std::path::{Path, PathBuf};

/// Writes the plot and the trace.
///
/// # Errors
/// A file that cannot be written, or a step that this process did not make.
pub fn plot_and_trace(
    args: &Args,
    config: &Config,
    place: &LaunchMode,
    trained: &Trained,
    reference: Option<LossSeries>,
) -> CommandResult {
    if let Some(path) = &args.plot {
        let origin = match place {
            LaunchMode::Sim(_) => Origin::Simulated,
            _ => Origin::measured_on(&trained.device),
        };
        draw::course(path, config, origin, &trained.result, reference)?;
    }
    if let Some(path) = &args.trace {
        match place {
            LaunchMode::Sim(_) => trace::activities(path, &trained.timeline)?,
            _ => one_step(path, args, trained)?,
        }
    }
    Ok(())
}

/// Writes the records of the steps from number `first` on, and of the layers of a profiled run.
///
/// # Errors
/// A file that cannot be written.
pub fn records(
    config: &Config,
    place: &LaunchMode,
    trained: &Trained,
    first: usize,
    output: &mut RunOutput,
) -> CommandResult {
    match place.kind() {
        (backend, true) => keep::<true>(config, backend, trained, first, output),
        (backend, false) => keep::<false>(config, backend, trained, first, output),
    }
}

fn keep<const MEASURED: bool>(
    config: &Config,
    backend: &str,
    trained: &Trained,
    first: usize,
    output: &mut RunOutput,
) -> CommandResult {
    trained.records::<MEASURED>(config, backend, first).iter().try_for_each(|step| output.record(step))?;
    trained.layers::<MEASURED>(config, backend).iter().try_for_each(|layer| output.record(layer))
}

/// The file for the profile of this process's ranks: `path`, or, where a process has one of the ranks, with the rank in its name.
pub fn profile_path(path: &Path, place: &LaunchMode) -> PathBuf {
    match place.is_one_rank() {
        false => path.to_path_buf(),
        true => {
            let ending = path.extension().map_or("json".into(), |ending| ending.to_string_lossy());
            path.with_extension(format!("{}.{ending}", place.first_rank()))
        }
    }
}

/// Writes the trace of one step of this process.
fn one_step(path: &Path, args: &Args, trained: &Trained) -> CommandResult {
    let steps = trained.result.losses.len();
    let first = steps - trained.made();
    let step = args.trace_step.map_or(steps.saturating_sub(1), |step| step as usize);
    if !(first..steps).contains(&step) {
        return Err(CommandError::usage(format!(
            "step {step} was not traced: this process ran {} steps, from step {first} on",
            trained.made()
        )));
    }
    trace::spans(path, &trained.spans(step))
}
