//! `bench --backend device` and `nccl`: nccl-tests' table timed by the GPUs' own clocks, compared with a copy on one GPU.

use super::args::{Args, GpuBackend};
use super::verdict::{CheckResult, identity, verdict};
use crate::call::table;
use crate::measure::bench::{Bench, Path, Placement};
use crate::measure::gpus::{Gpus, Timed};
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_gpu::device::ExecutionMode;
use allfold_report::format;
use allfold_report::records::{CollectiveCall, MeasuredCollective};

/// Measures the collective on the GPUs at every size and prints the table.
pub fn run(
    args: &Args,
    backend: GpuBackend,
    bench: &Bench,
    sizes: &[u64],
) -> CommandResult<Vec<MeasuredCollective>> {
    // The GPUs are opened before any output, so that a missing GPU is the only message.
    let gpus = Gpus::open()?;
    let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
    let checked = sweep(args, backend, bench, &gpus, sizes, &mut output)?;
    let records = output.records()?.all();
    output.close()?;
    checked.map(|()| records)
}

fn sweep(
    args: &Args,
    backend: GpuBackend,
    bench: &Bench,
    gpus: &Gpus,
    sizes: &[u64],
    output: &mut RunOutput,
) -> CommandResult<CheckResult> {
    let (name, ranks) = (bench.choice.collective.name(), args.sweep.ranks);
    let how = match backend {
        GpuBackend::Nccl if bench.choice.algorithm.is_some() => "over NCCL's messages",
        GpuBackend::Nccl => "by NCCL's own collectives",
        GpuBackend::Device => "as buffers of one process",
    };
    let gpu = gpus.name();
    output.say(format!(
        "# allfold bench {name}: {} on {gpu}, {how}; measured on this machine",
        allfold_report::format::counted(ranks as usize, "rank")
    ))?;
    let (warmup, iterations, check) = (args.warmup, args.iterations, args.check);
    let summary = args.sweep.summary();
    output.say(format!("# {summary} warmup iters: {warmup} iters: {iterations} validation: {check}"))?;
    output.say("#")?;
    output.say(table::measured_header())?;
    let (mut records, mut first_wrong) = (Vec::new(), None);
    for &size in sizes {
        let spinner = progress::spinner(&format!("{name}, {}", allfold_report::format::bytes(size)));
        let one = one(backend, bench, gpus, size);
        spinner.finish_and_clear();
        let (record, wrong) = one?;
        let side = |in_place: bool| Some(&record).filter(|record| record.in_place == in_place);
        output.say(table::measured_row(side(false), side(true)))?;
        output.record(&record)?;
        first_wrong = first_wrong.or(wrong.map(|at| format!("{size} bytes, {at}")));
        records.push(record);
    }
    let wrong: Option<u64> = records.iter().map(|record| record.wrong_elements).sum();
    let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
    output.say(table::footer(name, wrong, &busbw))?;
    records.iter().try_for_each(|record| output.say(identity(record)))?;
    for record in &records {
        if let Some(estimate) = record.nccl_estimate_us {
            let (bytes, time) = (record.call.bytes, record.time_us);
            output.say(format!(
                "# {bytes} B: NCCL estimates {}; {} were measured",
                format::time(estimate),
                format::time(time)
            ))?;
        }
    }
    let copy = gpus.copy_gbps(256 << 20)?;
    output
        .say(format!("# Limit, measured in this run: a copy on one GPU {copy:.1} GB/s, read and written"))?;
    Ok(verdict(wrong, first_wrong))
}

/// Measures one size; returns its record and the place of the first wrong element.
fn one(
    backend: GpuBackend,
    bench: &Bench,
    gpus: &Gpus,
    size: u64,
) -> CommandResult<(MeasuredCollective, Option<String>)> {
    let mode = if bench.path == Path::Messages { ExecutionMode::Messages } else { ExecutionMode::Fused };
    let mut call = bench.call(size)?;
    let timed = match backend {
        GpuBackend::Nccl => gpus.nccl(&bench.choice, bench.timing, size)?,
        GpuBackend::Device => gpus.device(&bench.choice, mode, bench.timing, size)?,
    };
    let Timed { side, nccl_estimate_us } = timed;
    if backend == GpuBackend::Nccl && bench.choice.algorithm.is_none() {
        // NCCL chooses the order of the reduction and does not report its choice.
        call = CollectiveCall { algorithm: "native".into(), tree_hash: None, order_class: None, ..call };
    }
    let device = gpus.device_name();
    let ran = Placement { backend: backend.name(), device: &device };
    let record = MeasuredCollective { nccl_estimate_us, ..bench.measured(ran, &call, &side) };
    Ok((record, side.first_wrong))
}
