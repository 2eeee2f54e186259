//! `allfold calibrate`: physical parameters fitted to measured runs.

use super::validate::{MachineArgs, read, residuals};
use allfold_cli::columns::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_nccl_model::physics::{PARAMETERS, Terms};
use allfold_validation::bootstrap::intervals;
use allfold_validation::file::ParameterFile;
use allfold_validation::fit::{Prior, fit};
use std::path::PathBuf;

/// Flags of `calibrate`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold calibrate runs/*.json -o ours.toml
  allfold calibrate two-nodes.json --prior published -o ours.toml && allfold validate eight-nodes.json --parameters ours.toml")]
pub(crate) struct Args {
    /// Measured runs: nccl-tests' text or JSON, or published runs
    #[arg(value_name = "RUN", required = true)]
    files: Vec<PathBuf>,
    /// The file to write the parameters to
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// The parameters before the fit, instead of those of datasheets and NCCL's constants: a TOML file, or `published`
    #[arg(long, value_name = "FILE")]
    prior: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Resamples of the systems, 0 to 10000, from which the confidence intervals are taken (bootstrap)
    #[arg(long, value_name = "TIMES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(..=10_000))]
    resamples: u32,
    #[command(flatten)]
    common: Common,
}

/// Reads the runs, fits the parameters and writes them.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    output.will_write(&args.out)?;
    let runs = read(&args.files, &args.machine, &mut output)?;
    if runs.is_empty() {
        return Err(CommandError::usage("every run was left out: there is nothing to fit to"));
    }
    let mut prior = Prior::default();
    if let Some(from) = &args.prior {
        prior.means = super::validate::parameters(Some(from))?.parameters().logs();
    }
    let fitting = progress::spinner("fitting parameters");
    let found = fit(runs.iter(), &prior, Terms::default());
    drop(fitting);
    let bar = progress::bar(args.resamples.into(), "fitting resamples");
    let ends = intervals(&runs, &prior, Terms::default(), &found, args.resamples, || bar.inc(1));
    drop(bar);
    let names = ["parameter", "before", "now", "unit", "95 % interval", "meaning"];
    let mut lines = vec![names.map(String::from).to_vec()];
    for (number, known) in PARAMETERS.iter().enumerate() {
        let (before, value) = (prior.means[number].exp(), found.parameters.at(number));
        let (low, high) = ends[number];
        if !found.tells(number) {
            continue;
        }
        lines.push(vec![
            known.name.into(),
            format!("{before:.3}"),
            format!("{value:.3}"),
            known.unit.into(),
            format!("{low:.3} to {high:.3}"),
            known.meaning(),
        ]);
    }
    let told = lines.len() - 1;
    output.say(format!("these runs determine {told} of {} parameters:", PARAMETERS.len()))?;
    output.say(columns(&lines))?;
    output.say(format!(
        "the other {} keep their values, which the file has too, with their sources\n",
        PARAMETERS.len() - told
    ))?;
    output.say(
        "residuals: by which factor the fit is wrong on the runs it was fitted to, by run and by system:",
    )?;
    let predicting = progress::spinner("predicting residuals");
    let residuals = residuals(&runs, &found.parameters)?;
    drop(predicting);
    output.say(residuals)?;
    let file = ParameterFile::of(&found, &ends, &runs);
    let text = toml::to_string(&file).map_err(CommandError::run)?;
    let text =
        format!("# Physical parameters of collectives, written by `allfold calibrate RUNS -o FILE`.\n{text}");
    output::replace(&args.out, text.as_bytes())?;
    output.say(format!("{} runs of {} systems: {}", runs.len(), found.systems.len(), args.out.display()))?;
    output.close()
}
