//! `allfold why`: the causes for which a measured run is slower than its machine allows.
//!
//! ```text
//! run --> expected time of each size, with its interval --> causes by probability --> what mends it, what tells two apart
//! ```

use super::validate::{MachineArgs, parameters, read_runs};
use allfold_cli::columns::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_report::format::{self, percent, time};
use allfold_report::records::SlowRunCause;
use allfold_validation::prepare::GivenMachine;
use allfold_validation::runs::{LogFacts, Run, log_facts};
use allfold_validation::why::{Evidence, Finding, Judge, SlowCause, tuner_file};
use std::path::PathBuf;

/// Causes that are less likely than this are not shown, after the first two.
const UNLIKELY: f64 = 0.01;
/// The share of a healthy run's sizes that are slower than the 80 % interval.
const USUALLY_SLOWER: f64 = 0.1;
/// The least probability that a choice of algorithm or protocol is the cause, for a tuner's file to be written.
const SURE: f64 = 0.95;

/// Flags of `why`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold why ours.txt --topology hgx-h100
  allfold why ours.txt --topology hgx-h100 --log nccl.log --tuner nccl_tuner.conf

Causes: GPUDirect RDMA off, peer-to-peer off, NICs missing, one rail only, wrong algorithm, wrong protocol, LL128 off, NVLS off, few
channels, sockets in place of RDMA, slow links or a slow NIC, a rank that comes late.")]
pub(crate) struct Args {
    /// A measured run: nccl-tests' text or JSON, or a published run
    #[arg(value_name = "RUN")]
    file: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
    /// A log of the job with NCCL_DEBUG=INFO, which confirms causes or rules them out
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Parameters that `calibrate` wrote [default: those that ship with Allfold]
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Write a file for NCCL's example tuner plug-in, if another algorithm or protocol alone is faster with 95 % probability
    #[arg(long, value_name = "FILE")]
    tuner: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Judges every run of the file.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    args.tuner.as_ref().map_or(Ok(()), |path| output.will_write(path))?;
    let log = args.log.as_ref().map(|path| log_facts(path)).transpose().map_err(CommandError::usage)?;
    let (runs, given) = read_runs(&args.file, &args.machine, &mut output)?;
    if args.tuner.is_some() && runs.len() > 1 {
        return Err(CommandError::usage(format!(
            "--tuner writes the file of one run, and {} has {}; give a file with one table",
            args.file.display(),
            runs.len()
        )));
    }
    runs.iter().try_for_each(|run| judge(args, run, given.as_ref(), log.as_ref(), &mut output))?;
    output.close()
}

fn judge(
    args: &Args,
    run: &Run,
    given: Option<&GivenMachine>,
    log: Option<&LogFacts>,
    output: &mut RunOutput,
) -> CommandResult {
    let judge =
        Judge::new(run, given, &parameters(args.parameters.as_deref())?).map_err(CommandError::usage)?;
    let Some(healthy) = judge.candidates().next().map(|candidate| &candidate.run) else {
        return Err(CommandError::usage(format!("{}: the run has no rows", run.name)));
    };
    let nics = healthy.setting.machine.nics.map(|nics| nics.count);
    let evidence = Evidence::of(run, log, nics);
    let measured: Vec<f64> = healthy.rows.iter().map(|row| row.measured_us).collect();
    let found = judge.causes(&measured, &evidence);
    let slower = expected(&judge, output)?;
    record(run, &judge, &found, &evidence, slower, output)?;
    causes(&judge, &found, output)?;
    for (cause, confirmed, why) in &evidence.found {
        output.say(format!("{why}: {} {cause}", if *confirmed { "confirms" } else { "rules out" }))?;
    }
    let [first, second] = [&found[0], found.get(1).unwrap_or(&found[0])];
    if is_slow(slower, measured.len()) {
        if first.cause != SlowCause::Healthy {
            output.say(format!("to mend it: {}", first.cause.mend()))?;
        }
        apart(&judge, first, second, output)?;
    }
    let Some(path) = &args.tuner else { return Ok(()) };
    let choice = |finding: &&Finding| finding.cause.is_choice() || finding.cause == SlowCause::Healthy;
    let by_choice: f64 = found.iter().filter(choice).map(|finding| finding.probability).sum();
    if by_choice < SURE {
        return output.say(format!(
            "no tuner file: that a choice of algorithm and protocol mends it has a probability of {}, and {} is asked for",
            percent(by_choice),
            percent(SURE)
        ));
    }
    match tuner_file(healthy, &measured, &judge.parameters, &judge.spreads) {
        None => output.say("no tuner file: no choice is faster than the run with 95 % probability"),
        Some((text, gains)) => {
            output::replace(path, text.as_bytes())?;
            output.say(format!(
                "tuner file: {}, faster at {}",
                path.display(),
                format::counted(gains, "size")
            ))
        }
    }
}

/// Prints the expected and the measured times; returns how many sizes are slower than their 80 % interval.
fn expected(judge: &Judge, output: &mut RunOutput) -> CommandResult<u64> {
    let names = ["size", "measured", "expected", "80 % interval", "95 % interval", "measured / expected"];
    let mut lines = vec![names.map(String::from).to_vec()];
    let (mut slower, mut sizes) = (0, 0);
    for (row, expected, around) in judge.expected() {
        let is_slower = row.measured_us > around.high_us;
        (slower, sizes) = (slower + u64::from(is_slower), sizes + 1);
        lines.push(vec![
            format::bytes(row.bytes),
            time(row.measured_us),
            time(expected),
            format!("{} - {}", time(around.low_us), time(around.high_us)),
            format!("{} - {}", time(around.low95_us), time(around.high95_us)),
            format!("{:.2}{}", row.measured_us / expected, if is_slower { " slower" } else { "" }),
        ]);
    }
    output.say(columns(&lines))?;
    let verdict = match is_slow(slower, sizes) {
        true => "the run is slower than its machine allows",
        false => "as many as of a healthy run",
    };
    output.say(format!("{slower} of {sizes} sizes are slower than the 80 % interval: {verdict}"))?;
    Ok(slower)
}

/// Whether more sizes are slower than the 80 % interval than those of a healthy run.
fn is_slow(slower: u64, sizes: usize) -> bool {
    slower as f64 > USUALLY_SLOWER * sizes as f64
}

/// Prints the likely causes, and those that the run cannot tell.
fn causes(judge: &Judge, found: &[Finding], output: &mut RunOutput) -> CommandResult {
    let names = ["cause", "probability", "sizes that tell it", "measured / predicted"];
    let mut lines = vec![names.map(String::from).to_vec()];
    for (_, finding) in
        found.iter().enumerate().filter(|(at, finding)| *at < 2 || finding.probability >= UNLIKELY)
    {
        let sizes = judge.telling_sizes(finding);
        lines.push(vec![
            finding.title.clone(),
            percent(finding.probability),
            sizes.map_or("-".into(), |(from, to)| format!("{} - {}", format::bytes(from), format::bytes(to))),
            format!("{:.2}", off(judge, finding)),
        ]);
    }
    output.say(columns(&lines))?;
    let names: Vec<&str> = judge.without_effect.iter().map(|cause| cause.name()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => output.say(format!("without effect at these sizes: {}", names.join(", "))),
    }
}

/// Prints what tells the two likeliest causes apart.
fn apart(judge: &Judge, first: &Finding, second: &Finding, output: &mut RunOutput) -> CommandResult {
    output.say(format!("to tell {} from {}:", first.title, second.title))?;
    for finding in [first, second].into_iter().filter(|finding| finding.cause != SlowCause::Healthy) {
        output.say(format!("  {}: {}", finding.cause, finding.cause.proof()))?;
    }
    match judge.telling_call(first, second) {
        None => output.say("  no call's times tell them apart"),
        Some((collective, bytes, [one, other])) => output.say(format!(
            "  {collective} of {}: {} by the first, {} by the second",
            format::bytes(bytes),
            time(one),
            time(other)
        )),
    }
}

/// The geometric mean of measured time / time by a finding.
fn off(judge: &Judge, finding: &Finding) -> f64 {
    let logs = judge.expected().zip(&finding.times).map(|((row, ..), time)| (row.measured_us / time).ln());
    (logs.sum::<f64>() / finding.times.len().max(1) as f64).exp()
}

fn record(
    run: &Run,
    judge: &Judge,
    found: &[Finding],
    evidence: &Evidence,
    slower_sizes: u64,
    output: &mut RunOutput,
) -> CommandResult {
    for finding in found {
        let (telling_from, telling_to) = judge.telling_sizes(finding).unzip();
        let said = evidence.found.iter().find(|(cause, ..)| *cause == finding.cause);
        output.record(&SlowRunCause {
            run: run.name.clone(),
            collective: run.collective.to_string(),
            ranks: run.ranks,
            cause: finding.title.clone(),
            probability: finding.probability,
            telling_from,
            telling_to,
            measured_to_predicted: off(judge, finding),
            evidence: said.map(|(_, _, why)| why.clone()),
            sizes: finding.times.len() as u64,
            slower_sizes,
        })?;
    }
    Ok(())
}
