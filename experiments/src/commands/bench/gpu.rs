//! `bench --backend device` and `nccl`: nccl-tests' table timed by the GPUs' own clocks, compared with a copy on one GPU.

use super::args::{Args, GpuBackend};
use super::launched_ranks;
use super::nccl_json::Report;
use super::verdict::{CheckResult, identity, verdict};
use crate::call::table;
use crate::measure::bench::{Bench, Path, Placement};
use crate::measure::gpus::Gpus;
use crate::measure::nccl::{self, Found, GpuRanks, NcclSweep};
use crate::measure::ranks::MeasuredSide;
use crate::measure::statistics::CallTimes;
use allfold_cli::error::CommandResult;
use allfold_cli::output::{RunOutput, replace};
use allfold_cli::progress::{self, ProgressDisplay};
use allfold_gpu::device::ExecutionMode;
use allfold_report::format::{self, counted};
use allfold_report::records::{CollectiveCall, MeasuredCollective};

/// Measures the collective on the GPUs at every size and prints the table. Of several processes, rank 0's prints.
pub fn run(
    args: &Args,
    backend: GpuBackend,
    bench: &Bench,
    sizes: &[u64],
) -> CommandResult<Vec<MeasuredCollective>> {
    // The GPUs are opened before any output, so that a missing GPU is the only message.
    let gpus = Gpus::open()?;
    let ranks = match backend {
        GpuBackend::Nccl => launched_ranks::on_gpus(args.sweep.ranks)?,
        GpuBackend::Device => GpuRanks::Threads(args.sweep.ranks),
    };
    let reports = !matches!(&ranks, GpuRanks::Process(comm, _) if comm.rank().0 > 0);
    let mut output = match reports {
        true => RunOutput::open(args.common.json.as_deref(), Some(args.seed))?,
        false => RunOutput::silent(Some(args.seed)),
    };
    let file = args.nccl.file.as_deref().filter(|_| reports);
    file.map_or(Ok(()), |file| output.will_write(file))?;
    let (gpus, records, report) = (&gpus, Vec::new(), Report::default());
    let mut sweep = GpuSweep { args, backend, bench, gpus, reports, output, records, report, wrong_at: None };
    sweep.run(ranks, sizes)?;
    if let Some(file) = file {
        replace(file, sweep.report.text(args, bench).as_bytes())?;
    }
    if reports {
        let copy = gpus.copy_gbps(256 << 20)?;
        sweep.output.say(format!(
            "# Limit, measured in this run: a copy on one GPU {copy:.1} GB/s, read and written"
        ))?;
    }
    let records = sweep.output.records()?.all();
    let checked = sweep.checked();
    sweep.output.close()?;
    checked.map(|()| records)
}

/// A sweep over sizes.
struct GpuSweep<'a> {
    args: &'a Args,
    backend: GpuBackend,
    bench: &'a Bench,
    gpus: &'a Gpus,
    /// Whether this process prints the results.
    reports: bool,
    output: RunOutput,
    records: Vec<MeasuredCollective>,
    /// The results in the form of nccl-tests.
    report: Report,
    /// The size and the place of the first wrong element.
    wrong_at: Option<String>,
}

impl GpuSweep<'_> {
    fn run(&mut self, ranks: GpuRanks, sizes: &[u64]) -> CommandResult {
        let (bench, gpus, args) = (self.bench, self.gpus, self.args);
        let (choice, timing) = (&bench.choice, bench.timing);
        match self.backend {
            GpuBackend::Device => {
                self.heading("as buffers of one process", timing.iterations, &[])?;
                let messages = bench.path == Path::Messages;
                let mode = if messages { ExecutionMode::Messages } else { ExecutionMode::Fused };
                for &size in sizes {
                    let spinner = self.spinner(size);
                    let side = gpus.device(choice, mode, timing, size);
                    drop(spinner);
                    self.size(size, vec![side?], None)?;
                }
            }
            GpuBackend::Nccl => {
                let processes =
                    if matches!(ranks, GpuRanks::Process(..)) { ", a process per rank" } else { "" };
                let over = if choice.algorithm.is_some() { "messages" } else { "own collectives" };
                let sweep = NcclSweep { gpus, choice, timing, issue: args.nccl.issue(args.register)?, sizes };
                let (mut spinner, mut next) = (None, sizes.iter());
                sweep.run(ranks, |found| {
                    drop(spinner.take());
                    match found {
                        Found::Joined((major, minor, patch), places) => {
                            self.report.joined((major, minor, patch), &places);
                            let how = format!("by the {over} of NCCL {major}.{minor}.{patch}{processes}");
                            self.heading(&how, nccl::calls(timing).1, &places)?;
                        }
                        Found::Size(size, sides, estimate) => self.size(size, sides, estimate)?,
                    }
                    spinner = next.next().map(|size| self.spinner(*size));
                    Ok(())
                })?;
            }
        }
        self.footer()
    }

    fn spinner(&self, size: u64) -> ProgressDisplay {
        if !self.reports {
            return progress::hidden();
        }
        progress::spinner(&format!("{}, {}", self.bench.choice.collective.name(), format::bytes(size)))
    }

    /// The lines above the table. Those about NCCL's ranks are as nccl-tests has them, so that what reads its tables reads this one.
    fn heading(&mut self, how: &str, iterations: u32, places: &[String]) -> CommandResult {
        let (name, ranks) = (self.bench.choice.collective.name(), self.args.sweep.ranks as usize);
        let (summary, gpu) = (self.args.sweep.summary(), self.gpus.name());
        let (warmup, check) = (self.args.warmup, self.args.check);
        self.output.say(format!(
            "# allfold bench {name}: {} on {gpu}, {how}; measured on this machine",
            counted(ranks, "rank")
        ))?;
        self.output
            .say(format!("# {summary} warmup iters: {warmup} iters: {iterations} validation: {check}"))?;
        if !places.is_empty() {
            let program = self.bench.choice.collective.meaning().nccl_tests;
            self.output.say(format!("# As {program}_perf of nccl-tests. Using devices"))?;
        }
        for (rank, place) in places.iter().enumerate() {
            self.output.say(format!("#  Rank {rank:>2} Group  0 {place}"))?;
        }
        self.output.say("#")?;
        let header = match self.args.nccl.times_each() {
            true => table::spread_header(),
            false => table::measured_header(),
        };
        // The host's time is no time of the collective.
        let is_host_time = self.backend == GpuBackend::Nccl && self.args.nccl.reports_host_time();
        self.output.say(if is_host_time { header.replace("   time", "cputime") } else { header })
    }

    /// Prints and records the sides of a size.
    fn size(&mut self, size: u64, sides: Vec<MeasuredSide>, estimate: Option<f64>) -> CommandResult {
        let mut call = self.bench.call(size)?;
        let native = self.backend == GpuBackend::Nccl && self.bench.choice.algorithm.is_none();
        if native {
            // NCCL chooses the order of the reduction and does not report its choice.
            call = CollectiveCall { algorithm: "native".into(), tree_hash: None, order_class: None, ..call };
        }
        let device = self.gpus.device_name();
        let ran = Placement { backend: self.backend.name(), device: &device };
        let record = |side: &MeasuredSide| {
            let record = self.bench.measured(ran, &call, side);
            MeasuredCollective { nccl_estimate_us: estimate, ..record }
        };
        let records: Vec<MeasuredCollective> = sides.iter().map(record).collect();
        let wrong_at = sides.iter().find_map(|side| side.first_wrong.as_ref());
        self.wrong_at = self.wrong_at.take().or(wrong_at.map(|at| format!("{size} bytes, {at}")));
        let side = |in_place: bool| records.iter().find(|record| record.in_place == in_place);
        let spread = |in_place: bool| {
            sides.iter().find(|side| side.in_place == in_place).and_then(|side| CallTimes::of(&side.each_us))
        };
        self.output.say(match self.args.nccl.times_each() {
            true => table::spread_row([side(false), side(true)], [spread(false), spread(true)]),
            false => table::measured_row(side(false), side(true)),
        })?;
        self.report.size(&records, &sides, self.args.nccl.reports_host_time());
        records.iter().try_for_each(|record| self.output.record(record))?;
        self.records.extend(records);
        Ok(())
    }

    fn wrong(&self) -> Option<u64> {
        self.records.iter().map(|record| record.wrong_elements).sum()
    }

    fn checked(&mut self) -> CheckResult {
        verdict(self.wrong(), self.wrong_at.take())
    }

    /// The lines below the table.
    fn footer(&mut self) -> CommandResult {
        let busbw: Vec<f64> = self.records.iter().map(|record| record.busbw_gbps).collect();
        self.output.say(table::footer(self.bench.choice.collective.name(), self.wrong(), &busbw))?;
        self.output.say(table::spread(&self.records))?;
        let mut lines: Vec<String> = self.records.iter().map(identity).collect();
        lines.dedup();
        lines.iter().try_for_each(|line| self.output.say(line))?;
        for record in &self.records {
            if let Some(estimate) = record.nccl_estimate_us {
                let (bytes, time) = (record.call.bytes, record.time_us);
                self.output.say(format!(
                    "# {bytes} B: NCCL estimates {}; {} were measured",
                    format::time(estimate),
                    format::time(time)
                ))?;
            }
        }
        Ok(())
    }
}
