//! `bench --backend sim`: nccl-tests' table of calls on real data, in virtual time.

use super::args::Args;
use super::verdict::{CheckResult, identity_of, verdict};
use crate::call::table;
use crate::measure::bench::Bench;
use crate::predict::machine::SimulatedMachine;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_report::format::counted;
use allfold_report::records::SimulatedCollective;

/// Prints the table of a benchmark with real data on virtual time.
pub fn run(
    args: &Args,
    bench: &Bench,
    machine: &SimulatedMachine,
    sizes: &[u64],
    output: &mut RunOutput,
) -> CommandResult<CheckResult> {
    let name = bench.choice.collective.name();
    output.say(format!(
        "# allfold bench {name}: {} with data on {}; simulated, all times are virtual",
        counted(args.sweep.ranks as usize, "rank"),
        machine.name
    ))?;
    output.say(format!("# {} validation: {}", args.sweep.summary(), args.check))?;
    output.say("#")?;
    output.say(table::simulated_header())?;
    let (mut wrong, mut first_wrong, mut busbw, mut lines) = (None, None, Vec::new(), Vec::new());
    for &size in sizes {
        let spinner = progress::spinner(&format!("{name}, {size} bytes"));
        let simulated = bench.on_sim(machine, size);
        spinner.finish_and_clear();
        let simulated = simulated?;
        first_wrong = first_wrong.or(simulated
            .iter()
            .find_map(|side| Some(format!("{size} bytes, {}", side.first_wrong.as_ref()?))));
        let sides: Vec<SimulatedCollective> = simulated.into_iter().map(|side| side.record).collect();
        // Virtual time does not depend on which buffer takes the result: a collective with only one form fills both sides.
        let side = |at: usize| sides.get(at).or(sides.first());
        if let (Some(first), Some(last)) = (side(0), side(1)) {
            output.say(table::simulated_row(first, last))?;
        }
        for record in &sides {
            output.record(record)?;
            wrong = record.wrong_elements.map(|more| wrong.unwrap_or(0) + more).or(wrong);
            busbw.push(record.busbw_gbps);
            lines.push(identity_of(&record.call, record.checksum.as_deref()));
        }
    }
    output.say(table::footer(name, wrong, &busbw))?;
    lines.dedup();
    lines.iter().try_for_each(|line| output.say(line))?;
    Ok(verdict(wrong, first_wrong))
}
