//! `allfold validate`: predictions compared with measured runs, and by what factor they are wrong.
//!
//! ```text
//! parameters that ship, or --parameters      runs that took part in their fit are shown and do not count
//! --leave-one-system-out                     every system from a fit to all the others
//! --leave-one-generation-out, -fabric-       the same by generation of GPUs, by kind of NICs: harder
//! --with-one-run                             as --leave-one-system-out, with one other run of the system in the fit
//! ```

mod measured;
mod predictor_name;
mod training;

use crate::scaling::published as throughput;
use allfold_cli::columns::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_cli::recorder::Recorder;
use allfold_large_models::rows::is_rows_file;
use allfold_nccl_model::physics::{ModelTerm, Parameters, Terms};
use allfold_report::format::{file_name, time};
use allfold_report::records::{Stamp, Validated};
use allfold_sim::read_text_at_most;
use allfold_validation::cross_validation::Group;
use allfold_validation::file::ParameterFile;
use allfold_validation::predict::Predictor;
use allfold_validation::prepare::{Prepared, PreparedRow};
use allfold_validation::repeatability::{self, RunPair};
use allfold_validation::score::{BANDS, Scored, band, factor, score};
use allfold_validation::spread::{Spread, UnseenRow, spread_of, spreads};
use allfold_validation::{cross_validation, draw, tables};
use measured::{FEW, LONGEST};
pub(super) use measured::{MachineArgs, read, read_runs};
use predictor_name::PredictorName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use training::TrainingArgs;

/// Flags of `validate`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold validate runs/*.json --leave-one-system-out
  allfold validate ours.txt --topology hgx-h100 --rows
  allfold validate ours.txt --machine ours.json --parameters ours.toml --rows
  allfold validate runs/*.json --leave-one-system-out --ablation

The score of a row is max(predicted/measured, measured/predicted). Terms: host-launch, nic-family, link-efficiency,
host-staging, sockets, pipeline-fill, gpu-clock, ring-end, own-part, rendezvous, host-matching, congestion, first-call.")]
pub(crate) struct Args {
    /// Measured runs: nccl-tests' text or JSON, or published runs; or published tables of training throughput, or rows of large models
    #[arg(value_name = "RUN", required = true)]
    files: Vec<PathBuf>,
    /// Parameters that `calibrate` wrote [default: those that ship with Allfold]
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Which predictor; may be given again [default: all three]
    #[arg(long, value_enum)]
    predictor: Vec<PredictorName>,
    /// Predict every system from a fit to all other systems
    #[arg(long, conflicts_with = "parameters")]
    leave_one_system_out: bool,
    /// Predict every GPU generation from a fit to all other generations
    #[arg(long, conflicts_with_all = ["leave_one_system_out", "parameters"])]
    leave_one_generation_out: bool,
    /// Predict every kind of network, and single nodes, from a fit to all other kinds
    #[arg(long, conflicts_with_all = ["leave_one_system_out", "leave_one_generation_out", "parameters"])]
    leave_one_fabric_out: bool,
    /// Predict every run from a fit to all other systems and one other run of the same system
    #[arg(
        long,
        conflicts_with_all = ["leave_one_system_out", "leave_one_generation_out", "leave_one_fabric_out", "parameters"]
    )]
    with_one_run: bool,
    /// Leave a term out of the model; may be given again
    #[arg(long, value_name = "TERM", value_parser = ModelTerm::named)]
    without: Vec<ModelTerm>,
    /// Score with each term left out in turn, refitted each time
    #[arg(long, requires = "leave_one_system_out")]
    ablation: bool,
    /// Print every row
    #[arg(long)]
    rows: bool,
    /// Draw predicted and measured times into this folder, an SVG file per system
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    common: Common,
}

/// A run to predict, and the parameters to predict it with.
struct Plan<'a> {
    run: &'a Prepared,
    parameters: Parameters,
    fitted: bool,
    spreads: Vec<Spread>,
}

impl<'a> Plan<'a> {
    /// A run that took no part in the fit of `parameters`.
    fn unseen(run: &'a Prepared, parameters: Parameters) -> Plan<'a> {
        Plan { run, parameters, fitted: false, spreads: Vec::new() }
    }
}

/// Gives every plan intervals from the errors on all other systems.
fn give_spreads(plans: &mut [Plan<'_>], terms: Terms) {
    let unseen: Vec<UnseenRow> =
        plans.iter().flat_map(|plan| UnseenRow::of(plan.run, &plan.parameters, terms)).collect();
    let mut known: BTreeMap<&str, Vec<Spread>> = BTreeMap::new();
    for plan in plans {
        let system: &str = &plan.run.system;
        plan.spreads = known.entry(system).or_insert_with(|| spreads(&unseen, Some(system))).clone();
    }
}

/// Reads the runs, predicts and scores them.
pub fn run(args: &Args) -> CommandResult {
    let file = parameters(args.parameters.as_deref())?;
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    if args.plots.is_some() {
        output.expect_file();
    }
    // Rows of large models and tables of training throughput are recognised by their schemas.
    let (rows, files): (Vec<PathBuf>, Vec<PathBuf>) =
        args.files.iter().cloned().partition(|file| is_rows_file(file));
    let runs_left_out =
        args.training.check(args.of_runs(), !rows.is_empty(), !files.is_empty(), &mut output)?;
    if !rows.is_empty() {
        training::run(&args.training, [args.leave_one_system_out, args.rows], &rows, &mut output)?;
        if files.is_empty() || runs_left_out {
            return output.close();
        }
    }
    let (tables, files): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| allfold_validation::scaling_tables::is_table_file(file));
    if !tables.is_empty() {
        let options = throughput::ScoreOptions { rows: args.rows, ..Default::default() };
        throughput::run(&tables, &options, &mut output)?;
        if files.is_empty() {
            return output.close();
        }
    }
    let runs = match read(&files, &args.machine, &mut output) {
        // What was predicted before stays, whatever is wrong with files of another kind.
        Err(error) if !rows.is_empty() => {
            output.say(format!("left out: {error}"))?;
            return output.close();
        }
        runs => runs?,
    };
    if runs.is_empty() {
        return Err(CommandError::usage("every run was left out: there is nothing to validate"));
    }
    args.check_left_out(&runs)?;
    let terms = args.without.iter().fold(Terms::default(), |terms, term| terms.without(*term));
    if args.ablation {
        output.say(ablation(&runs)?)?;
        return output.close();
    }
    let predictors: Vec<Predictor> = match &*args.predictor {
        [] => Predictor::ALL.to_vec(),
        named => named.iter().map(|name| name.predictor()).collect(),
    };
    let fitting = progress::spinner("fitting parameters");
    let plans = plans(args, &runs, &file, terms);
    drop(fitting);
    if plans.is_empty() {
        return Err(CommandError::usage("--with-one-run needs two runs of one system or more"));
    }
    let found = predict_all(&plans, &predictors, terms, &output.recorder())?;
    report(args, &predictors, &plans, &repeatability::pairs(&runs), &found, &mut output)?;
    if let Some(folder) = &args.plots {
        plots(args, folder, predictors[0], &found, &mut output)?;
    }
    output.close()
}

/// Parameters from a file, or those that ship with Allfold.
///
/// # Errors
/// A file that cannot be read.
pub fn parameters(path: Option<&Path>) -> CommandResult<ParameterFile> {
    let Some(path) = path.filter(|path| *path != Path::new("published")) else {
        return ParameterFile::published().map_err(CommandError::run);
    };
    let wrong = |error: &dyn std::fmt::Display| CommandError::usage(format!("{}: {error}", path.display()));
    let text = read_text_at_most(path, LONGEST, "a file of parameters").map_err(|error| wrong(&error))?;
    ParameterFile::parse(&text).map_err(|error| wrong(&error))
}

impl Args {
    /// The kind of group that is left out of the fit in turn; `None` if nothing is left out.
    fn left_out(&self) -> Option<Group> {
        match self {
            Args { leave_one_generation_out: true, .. } => Some(Group::Generation),
            Args { leave_one_fabric_out: true, .. } => Some(Group::Fabric),
            _ => (self.leave_one_system_out || self.with_one_run).then_some(Group::System),
        }
    }

    /// The first given flag that is for runs of collectives alone.
    fn of_runs(&self) -> Option<&'static str> {
        let flags = [
            (self.parameters.is_some(), "--parameters"),
            (self.leave_one_generation_out, "--leave-one-generation-out"),
            (self.leave_one_fabric_out, "--leave-one-fabric-out"),
            (self.with_one_run, "--with-one-run"),
            (!self.without.is_empty(), "--without"),
            (self.ablation, "--ablation"),
            (!self.predictor.is_empty(), "--predictor"),
            (self.plots.is_some(), "--plots"),
            (self.machine.is_given(), "--topology, --machine, --ranks or --env"),
        ];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }

    /// Refuses a fit to nothing: all runs are of the group that is left out.
    fn check_left_out(&self, runs: &[Prepared]) -> CommandResult {
        let Some(by) = self.left_out().filter(|_| !self.with_one_run) else { return Ok(()) };
        let groups: BTreeSet<String> = runs.iter().map(|run| by.of(run)).collect();
        match (groups.first(), groups.len()) {
            (Some(one), 1) => Err(CommandError::usage(format!(
                "all runs are of {} `{one}`, so that nothing is left to fit to; give runs of several {}s, or leave the flag out",
                by.name(),
                by.name()
            ))),
            _ => Ok(()),
        }
    }

    /// What the predictions of a plot are made from.
    fn predicted(&self, rows: &[&Validated]) -> String {
        match self.left_out() {
            Some(by) if self.with_one_run => {
                format!("predicted from all other {}s and one other run of this one", by.name())
            }
            Some(by) => format!("predicted from all other {}s", by.name()),
            None if rows.iter().any(|row| row.fitted) => {
                "fitted to some of these runs, not predicted from others".into()
            }
            None => "predicted by given parameters, without these runs".into(),
        }
    }
}

fn plans<'a>(args: &Args, runs: &'a [Prepared], file: &ParameterFile, terms: Terms) -> Vec<Plan<'a>> {
    let mut others: BTreeMap<String, Parameters> = BTreeMap::new();
    let mut plans = Vec::new();
    let by = args.left_out();
    for run in runs {
        let Some(by) = by else {
            plans.push(Plan {
                run,
                parameters: file.parameters(),
                fitted: file.has(run),
                spreads: file.spreads(),
            });
            continue;
        };
        let group = by.of(run);
        let fit = || cross_validation::without(runs, by, &group, terms);
        let others = others.entry(group.clone()).or_insert_with(fit);
        match (args.with_one_run, cross_validation::companion(runs, run)) {
            (false, _) => plans.push(Plan::unseen(run, others.clone())),
            (true, Some(one)) => {
                let parameters = match cross_validation::is_telling(others, one, run, terms) {
                    true => cross_validation::with_run(others, one, terms),
                    false => others.clone(),
                };
                plans.push(Plan::unseen(run, parameters));
            }
            (true, None) => {}
        }
    }
    if by.is_some() {
        give_spreads(&mut plans, terms);
    }
    plans
}

/// Every row of every run by every predictor, on all cores; in the order of the runs and the predictors. A row is recorded as soon as
/// it and all rows before it are predicted.
fn predict_all(
    plans: &[Plan<'_>],
    predictors: &[Predictor],
    terms: Terms,
    (recorder, stamp): &(Recorder, Stamp),
) -> CommandResult<Vec<Validated>> {
    type Call<'a> = (usize, &'a Plan<'a>, Predictor, &'a PreparedRow);
    let mut jobs: Vec<(usize, Call<'_>)> = Vec::new();
    for (run, plan) in plans.iter().enumerate() {
        for (&predictor, row) in
            predictors.iter().flat_map(|by| plan.run.rows.iter().map(move |row| (by, row)))
        {
            // NCCL's tuner estimates no all-to-all.
            if predictor == Predictor::ClosedForm && row.case.tuner_us.is_nan() {
                continue;
            }
            jobs.push((jobs.len(), (run, plan, predictor, row)));
        }
    }
    // Run by run, so that the records of a run are written before the next run is predicted. The largest calls of a run take the longest
    // and start first, so that no core has a long one alone at the end.
    jobs.sort_by_key(|&(place, (run, _, _, row))| (run, std::cmp::Reverse(row.bytes), place));
    let bar = progress::bar(jobs.len() as u64, "predicting calls");
    let work = |&(_, plan, predictor, row): &Call<'_>| {
        let found = predict_row(plan, predictor, row, terms);
        if let Ok(row) = &found {
            let what = format!("{}: {} bytes by {}", row.run, row.bytes, row.predictor);
            tracing::debug!("{what}: {:.1} us, measured {:.1}", row.predicted_us, row.measured_us);
        }
        bar.inc(1);
        found
    };
    let mut found = Vec::with_capacity(jobs.len());
    // The command names every file: the first record alone has it.
    let further = Stamp { command: String::new(), ..stamp.clone() };
    allfold_base::on_all_cores(&jobs, work, |row| -> CommandResult {
        let row = row?;
        recorder.record(&row, if found.is_empty() { stamp } else { &further })?;
        found.push(row);
        Ok(())
    })?;
    Ok(found)
}

/// Every row of a run.
fn predict(plan: &Plan<'_>, predictor: Predictor, terms: Terms) -> CommandResult<Vec<Validated>> {
    plan.run.rows.iter().map(|row| predict_row(plan, predictor, row, terms)).collect()
}

fn predict_row(
    plan: &Plan<'_>,
    predictor: Predictor,
    row: &PreparedRow,
    terms: Terms,
) -> CommandResult<Validated> {
    let run = plan.run;
    let predicted_us = predictor.predict(row, &plan.parameters, terms).map_err(CommandError::run)?;
    let spread = spread_of(&plan.spreads, &run.setting.machine, row.bytes);
    // NCCL's own estimate is no fit, and has no interval.
    let spread = spread.filter(|_| predictor != Predictor::ClosedForm);
    let interval = spread.map(|spread| spread.around(predicted_us));
    Ok(Validated {
        run: run.name.clone(),
        system: run.system.clone(),
        nodes: run.nodes,
        collective: row.case.collective.name().into(),
        ranks: row.case.ranks as u32,
        bytes: row.bytes,
        nccl_choice: format!("{}/{}", row.case.algorithm.name(), row.case.protocol.name()),
        predictor: predictor.name().into(),
        measured_us: row.measured_us,
        predicted_us,
        error_factor: factor(predicted_us, row.measured_us),
        fitted: plan.fitted,
        interval,
    })
}

fn report(
    args: &Args,
    predictors: &[Predictor],
    plans: &[Plan<'_>],
    pairs: &[RunPair<'_>],
    found: &[Validated],
    output: &mut RunOutput,
) -> CommandResult {
    if args.rows || plans.len() <= FEW {
        tables::hardware(plans.iter().map(|plan| plan.run))
            .into_iter()
            .try_for_each(|line| output.say(line))?;
    } else {
        output.say("--rows prints how the hardware of each run was understood and what was assumed")?;
    }
    for &predictor in predictors {
        let of = || found.iter().filter(|row| row.predictor == predictor.name());
        output.say(format!("\n{}: median factor of each run, by band of sizes", predictor.name()))?;
        let mut lines = vec![tables::head(&["run", "system", "nodes"])];
        for plan in plans {
            let rows: Vec<&Validated> = of().filter(|row| row.run == plan.run.name).collect();
            let fitted = if plan.fitted { " (fitted)" } else { "" };
            let mut line = vec![
                format!("{}{fitted}", plan.run.name),
                plan.run.system.clone(),
                plan.run.nodes.to_string(),
            ];
            line.extend(tables::medians(&rows));
            lines.push(line);
        }
        output.say(columns(&lines))?;
        output.say(format!("\n{}: {SYSTEMS}", predictor.name()))?;
        output.say(columns(&tables::by_system(&of().collect::<Vec<_>>())))?;
        if args.rows {
            for row in of() {
                let [predicted, measured] = [row.predicted_us, row.measured_us].map(time);
                output.say(format!(
                    "{} {} B {}: predicted {predicted}, measured {measured}, factor {:.2}",
                    row.run, row.bytes, row.nccl_choice, row.error_factor
                ))?;
            }
        }
    }
    if !pairs.is_empty() {
        output.say("\nrows that two runs of a system share: the factor between them, median and most:")?;
        output.say(columns(&tables::said_twice(pairs)))?;
    }
    output.say("\nscores of what took no part in the fit:")?;
    output.say(columns(&tables::scores(predictors, found)))?;
    let covered = tables::coverage(predictors, found);
    if covered.len() > 1 {
        output.say("\nrows inside the intervals of what took no part in the fit:")?;
        output.say(columns(&covered))?;
    }
    let fitted = plans.iter().filter(|plan| plan.fitted).count();
    if fitted > 0 {
        output.say(format!(
            "{fitted} of {} runs took part in the fit of these parameters and do not count; --leave-one-system-out \
             refits without each system in turn",
            plans.len()
        ))?;
    }
    Ok(())
}

/// Median and 90th percentile of the error without each term. Every system is predicted from a fit to the other systems, which
/// lacks the term too.
fn ablation(runs: &[Prepared]) -> CommandResult<String> {
    let mut lines = vec![tables::head(&["without"])];
    let whole = std::iter::once(None);
    for term in whole.chain(ModelTerm::ALL.into_iter().map(Some)) {
        let terms = term.map_or(Terms::default(), |term| Terms::default().without(term));
        let mut others: BTreeMap<&str, Parameters> = BTreeMap::new();
        let mut found = Vec::new();
        for run in runs.iter().filter(|run| run.nodes <= 10) {
            let fit = || cross_validation::without_system(runs, &run.system, terms);
            let parameters = others.entry(&run.system).or_insert_with(fit).clone();
            found.extend(predict(&Plan::unseen(run, parameters), Predictor::Physical, terms)?);
        }
        let mut line = vec![term.map_or("nothing", ModelTerm::name).to_string()];
        for at in 0..BANDS.len() {
            let rows: Vec<Scored> =
                found.iter().filter(|row| band(row.bytes) == at).map(tables::scored).collect();
            line.push(score(rows.iter()).map_or("-".into(), |score| {
                format!("{:.2} / {:.2}", score.by_rows.median, score.by_rows.p90)
            }));
        }
        lines.push(line);
    }
    Ok(format!("median / 90th percentile by rows, up to 10 nodes:\n{}", columns(&lines)))
}

/// The errors of a fit on the runs that it was fitted to: median factors by run, then by system.
pub(super) fn residuals(runs: &[Prepared], parameters: &Parameters) -> CommandResult<String> {
    let mut lines = vec![tables::head(&["run"])];
    let mut all = Vec::new();
    for run in runs {
        let plan = Plan { fitted: true, ..Plan::unseen(run, parameters.clone()) };
        let rows = predict(&plan, Predictor::Physical, Terms::default())?;
        let mut line = vec![run.name.clone()];
        line.extend(tables::medians(&rows.iter().collect::<Vec<_>>()));
        lines.push(line);
        all.extend(rows);
    }
    let systems = tables::by_system(&all.iter().collect::<Vec<_>>());
    Ok(format!("{}\n\n{SYSTEMS}\n{}", columns(&lines), columns(&systems)))
}

/// The line above the tables of errors by system.
const SYSTEMS: &str = "predicted / measured of each system (geometric mean), 90th percentile of the factor:";

fn plots(
    args: &Args,
    folder: &Path,
    predictor: Predictor,
    found: &[Validated],
    output: &mut RunOutput,
) -> CommandResult {
    output::folder(folder)?;
    let mut systems: BTreeMap<&str, Vec<&Validated>> = BTreeMap::new();
    for row in found.iter().filter(|row| row.predictor == predictor.name()) {
        systems.entry(&row.system).or_default().push(row);
    }
    for (system, rows) in systems {
        let Some(text) = draw::system(system, &args.predicted(&rows), &rows).map_err(CommandError::run)?
        else {
            continue;
        };
        let path = folder.join(format!("{}.svg", file_name(system)));
        output::replace(&path, text.as_bytes())?;
        output.say(format!("plot: {}", path.display()))?;
    }
    Ok(())
}
