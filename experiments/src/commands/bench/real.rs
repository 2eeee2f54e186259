//! `bench` on ranks that are threads or processes of this machine, in real time.

use super::args::{Args, HostBackend};
use super::launched_ranks::{LaunchedRanks, ranks};
use super::limit;
use super::verdict::{CheckResult, identity, verdict};
use crate::call::table;
use crate::measure::bench::{Bench, Path, RunsOn};
use crate::measure::machine_limits::cores;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_collectives::{DType, ReduceOp};
use allfold_report::format::{self, counted};
use allfold_report::records::MeasuredCollective;

/// Measures the collective at every size and prints the table. Of several processes, rank 0's prints.
pub fn run(
    args: &Args,
    host: HostBackend,
    mut bench: Bench,
    sizes: &[u64],
) -> CommandResult<Vec<MeasuredCollective>> {
    // Hundreds of ranks take seconds to start and to connect.
    let starting = progress::spinner(&format!("starting {}", counted(args.sweep.ranks as usize, "rank")));
    let ranks = ranks(args, host, &bench.choice);
    drop(starting);
    let ranks = ranks?;
    if bench.path == Path::Native {
        // Floats that MPI reduces in its own order have no exact reference.
        let (dtype, op) = (bench.choice.dtype, bench.choice.op);
        let exact = !bench.choice.collective.reduces()
            || matches!(op, ReduceOp::Min | ReduceOp::Max)
            || !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
        bench.timing.check &= exact;
    }
    let is_reporter = match &ranks.runs_on {
        RunsOn::World(_) => true,
        RunsOn::Process(comm) => comm.rank().0 == 0,
    };
    let output = match is_reporter {
        true => RunOutput::open(args.common.json.as_deref(), Some(args.seed))?,
        false => RunOutput::silent(Some(args.seed)),
    };
    let mut sweep = Sweep { args, host, bench: &bench, output, is_reporter };
    let checked = sweep.run(ranks, sizes)?;
    let records = sweep.output.records()?.all();
    sweep.output.close()?;
    checked.map(|()| records)
}

/// A sweep over sizes in real time.
struct Sweep<'a> {
    args: &'a Args,
    host: HostBackend,
    bench: &'a Bench,
    output: RunOutput,
    /// Whether this process prints the results.
    is_reporter: bool,
}

impl Sweep<'_> {
    fn run(&mut self, ranks: LaunchedRanks, sizes: &[u64]) -> CommandResult<CheckResult> {
        self.heading(&ranks.how)?;
        let name = self.bench.choice.collective.name();
        let (mut records, mut first_wrong) = (Vec::new(), None);
        for &size in sizes {
            let spinner =
                self.is_reporter.then(|| progress::spinner(&format!("{name}, {}", format::bytes(size))));
            let measured = self.bench.on(self.host.name(), &ranks.runs_on, size);
            drop(spinner);
            let measured = measured?;
            first_wrong = first_wrong.or(measured
                .iter()
                .find_map(|side| Some(format!("{size} bytes, {}", side.first_wrong.as_ref()?))));
            let sides: Vec<MeasuredCollective> = measured.into_iter().map(|side| side.record).collect();
            let side = |in_place: bool| sides.iter().find(|side| side.in_place == in_place);
            self.output.say(table::measured_row(side(false), side(true)))?;
            sides.iter().try_for_each(|record| self.output.record(record))?;
            records.extend(sides);
        }
        let wrong: Option<u64> = records.iter().map(|record| record.wrong_elements).sum();
        let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
        self.output.say(table::footer(name, wrong, &busbw))?;
        self.output.say(table::spread(&records))?;
        let mut lines: Vec<String> = records.iter().map(identity).collect();
        lines.dedup();
        lines.iter().try_for_each(|line| self.output.say(line))?;
        // The other ranks end here, so that the machine is quiet while its limits are measured.
        drop(ranks);
        if self.is_reporter {
            let (ranks, collective) = (self.args.sweep.ranks, self.bench.choice.collective);
            limit::of_memory(ranks, collective, sizes, &records, &mut self.output)?;
            if self.host == HostBackend::Tcp {
                limit::of_sockets(ranks, collective, sizes, &records, &mut self.output)?;
            }
        }
        Ok(verdict(wrong, first_wrong))
    }

    /// The lines above the table.
    fn heading(&mut self, how: &str) -> CommandResult {
        let (ranks, cores) = (self.args.sweep.ranks, cores());
        let name = self.bench.choice.collective.name();
        self.output.say(format!(
            "# allfold bench {name}: {} {how}; measured on this machine",
            counted(ranks as usize, "rank")
        ))?;
        self.output.say(format!(
            "# {} warmup iters: {} iters: {} validation: {}",
            self.args.sweep.summary(),
            self.args.warmup,
            self.args.iterations,
            u8::from(self.bench.timing.check)
        ))?;
        if ranks > cores {
            let (ranks, cores) = (counted(ranks as usize, "rank"), counted(cores as usize, "core"));
            self.output.say(format!("# {ranks} share {cores}"))?;
        }
        self.output.say("#")?;
        self.output.say(table::measured_header())
    }
}
