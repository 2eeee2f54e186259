//! The measured runs that `validate` and `calibrate` are given, with the machine and settings that the files do not name.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_sim::{json_error, read_text_at_most};
use allfold_validation::prepare::{GivenMachine, Prepared, prepare};
use allfold_validation::runs::{self, Run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The greatest length in bytes of a file that describes a machine.
pub(super) const LONGEST: u64 = 1 << 20;
/// Up to this many runs, the commands explain their hardware without a flag.
pub(super) const FEW: usize = 8;

/// The machine of runs that do not describe it.
#[derive(clap::Args, Debug)]
pub(in crate::commands) struct MachineArgs {
    /// The machine of runs that do not describe it, by name, such as hgx-h100 or dgx-a100,devices=4 (`allfold machines` lists them).
    /// The GPUs and hosts that nccl-tests lists must be this machine's
    #[arg(long, value_name = "T", conflicts_with = "machine")]
    topology: Option<String>,
    /// The same in words: a JSON file such as {"gpu": "H100 SXM", "gpus_per_node": 8, "nodes": 2, "inter_node": "8x400Gb/s
    /// InfiniBand"}. What nccl-tests lists may be left out
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// The number of ranks, 2 to 1000000, of tables that list none [default: GPUs of --machine, or what busbw / algbw says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    ranks: Option<u32>,
    /// A setting of all runs, such as NCCL_ALGO=Ring, in place of what their files say; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    env: Vec<(String, String)>,
}

/// A variable and its value.
fn setting(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| key.contains('_') && !key.contains(' '));
    pair.map(|(key, value)| (key.into(), value.into()))
        .ok_or_else(|| "give a variable and its value, such as NCCL_ALGO=Ring".into())
}

impl MachineArgs {
    /// Whether any of the flags was given.
    pub(super) fn is_given(&self) -> bool {
        self.topology.is_some() || self.machine.is_some() || self.ranks.is_some() || !self.env.is_empty()
    }

    fn given(&self) -> CommandResult<Option<GivenMachine>> {
        let Some(path) = &self.machine else { return Ok(self.topology.clone().map(GivenMachine::Named)) };
        let wrong =
            |error: &dyn std::fmt::Display| CommandError::usage(format!("{}: {error}", path.display()));
        let text =
            read_text_at_most(path, LONGEST, "a machine's description").map_err(|error| wrong(&error))?;
        let json = |error: serde_json::Error| wrong(&json_error(&error.to_string(), None));
        Ok(Some(GivenMachine::Described(serde_json::from_str(&text).map_err(json)?)))
    }

    /// The number of ranks of tables that list none.
    fn ranks(&self, given: Option<&GivenMachine>) -> Option<u32> {
        let described = match given {
            Some(GivenMachine::Described(words)) => words.gpus_per_node.zip(words.nodes),
            _ => None,
        };
        self.ranks.or_else(|| described.and_then(|(gpus, nodes)| gpus.checked_mul(nodes)))
    }
}

/// Reads the runs of one file with the settings of the command line, and the machine that the command line gives.
///
/// # Errors
/// A file that is no run.
pub(in crate::commands) fn read_runs(
    file: &Path,
    machine: &MachineArgs,
    output: &mut RunOutput,
) -> CommandResult<(Vec<Run>, Option<GivenMachine>)> {
    let given = machine.given()?;
    let mut read = runs::read(file, machine.ranks(given.as_ref())).map_err(CommandError::usage)?;
    read.left_out.iter().try_for_each(|flaw| output.say(format!("left out: {flaw}")))?;
    for run in &mut read.runs {
        output.say(&*run)?;
        run.env.extend(machine.env.iter().cloned());
    }
    Ok((read.runs, given))
}

/// Reads measured runs; prints the runs that cannot be predicted and leaves them out.
///
/// # Errors
/// A file that is no run; no run that can be predicted.
pub(in crate::commands) fn read(
    files: &[PathBuf],
    machine: &MachineArgs,
    output: &mut RunOutput,
) -> CommandResult<Vec<Prepared>> {
    let (given, mut prepared, mut refused) = (machine.given()?, Vec::new(), Vec::new());
    let ranks = machine.ranks(given.as_ref());
    let mut seen: BTreeMap<u64, String> = BTreeMap::new();
    for file in files {
        let read = match runs::read(file, ranks) {
            Ok(read) => read,
            Err(flaw) if files.len() > 1 && flaw.to_string().contains("contradicts itself") => {
                output.say(format!("left out: {flaw}"))?;
                continue;
            }
            Err(flaw) => return Err(CommandError::usage(flaw)),
        };
        read.left_out.iter().try_for_each(|flaw| output.say(format!("left out: {flaw}")))?;
        for mut run in read.runs {
            if let Some(first) = seen.insert(run.fingerprint(), run.name.clone()) {
                output
                    .say(format!("left out: {} has the same rows as {first}, and counts once", run.name))?;
                continue;
            }
            if files.len() <= FEW || !run.left_out.is_empty() {
                output.say(&run)?;
            }
            run.env.extend(machine.env.iter().cloned());
            match prepare(&run, given.as_ref(), false) {
                Ok(run) => prepared.push(run),
                Err(why) => refused.push(why),
            }
        }
    }
    match refused.first().filter(|_| prepared.is_empty()) {
        Some(why) => Err(CommandError::usage(format!("every run was left out: {why}"))),
        None => refused.iter().try_for_each(|why| output.say(format!("left out: {why}"))).map(|()| prepared),
    }
}
