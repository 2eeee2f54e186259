//! `scale workload`: predicts from a large network's layer table how it trains on increasing numbers of GPUs.

use super::page;
use crate::predict::exchanges::Exchanges;
use crate::scaling::left_out::LeftOut;
use crate::scaling::table::table;
use crate::scaling::workload::{WorkloadScaling, thinned};
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_cli::share::share;
use allfold_prediction::Overheads;
use allfold_report::format;
use allfold_report::plots::{Axis, Curves, Ideal, Origin, Point, Series};
use allfold_report::records::SimulatedScale;
use allfold_report::sizes::RankCounts;
use allfold_sim::catalogue::gpu_of;
use allfold_sim::machines::GpuRates;
use allfold_sim::machines::presets::Preset;
use allfold_sim::{expected, located, read_text_at_most};
use allfold_trainer::workloads::{LayerTable, Precision, Workload};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Flags of `scale workload`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp
  allfold scale workload gpt2-xl --topology hgx-h100,fat-tree=2:1 --ranks 1..4096 --strong --batch 4096 --amp
  allfold scale workload bert-large --topology p4d --ranks 8..1024 --plot curve.svg
  allfold scale workload examples/layers/small-cnn.toml --topology dgx-a100 --ranks 1,8,64

Modeled from shapes, FLOPs and bytes; nothing is measured. Efficiency is throughput divided by that of as many single ranks;
where the machine has no single rank, by that of the fewest ranks.
The ranks train by DDP alone. Another strategy is predicted from a configuration: allfold scale --config FILE --strategy NAME --ranks COUNTS --modeled-only

That models the kernels of Allfold, and `scale workload` those of PyTorch: attention is not fused and covers all pairs, and each
kind of kernel has a share of the GPU's peak of its own, chosen by published rates of ResNet-50 on one GPU. A step of GPT-2 takes
0.9 to 1.9 times as long by --config in f32, and 0.6 to 1.0 times with AMP, on six GPUs from V100 to B200 (`allfold scale --help`
says why). --single-gpu-rate replaces these times by a measured rate; take it where samples/s themselves matter, not only how they
scale. `most memory` is what PyTorch stores: f16 activations with AMP, and the scores of attention. By --config it is what
Allfold's trainer holds: activations in f32 with AMP too, no scores, and the buffers that it keeps to use again.")]
pub(crate) struct Args {
    /// A layer table of your own (a file that ends in .toml), or the network: resnet18, resnet34, resnet50, vgg16, bert-base, bert-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl
    #[arg(value_name = "NAME")]
    name: String,
    /// Rank counts of 1 to 1048576, such as 1,8,64; from a long range, its powers of two
    #[arg(long, value_name = "COUNTS")]
    ranks: RankCounts,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    topology: String,
    /// Samples per step, 1 to 4294967296: of each rank, or with --strong of all ranks
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    batch: u64,
    /// Strong scaling: all ranks share one batch
    #[arg(long, conflicts_with = "weak")]
    strong: bool,
    /// Weak scaling: every rank has a batch of its own (the default)
    #[arg(long)]
    weak: bool,
    /// Half precision on tensor cores, f32 gradients
    #[arg(long, conflicts_with = "tf32")]
    amp: bool,
    /// TF32 products
    #[arg(long)]
    tf32: bool,
    /// Micro-batches per step, 1 to 4096; gradients are exchanged once per step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    accumulate: u64,
    /// Batch norms over the samples of all ranks
    #[arg(long)]
    sync_batch_norm: bool,
    /// The GPU of each rank [default: the machine's own GPU]
    #[arg(long, value_name = "GPU")]
    accelerator: Option<String>,
    /// Samples per second measured on one GPU, 1e-9 to 1e12; all kernel times are scaled to match it
    #[arg(long, value_name = "RATE", value_parser = rate)]
    single_gpu_rate: Option<f64>,
    /// How exchanges are timed [default: nccl on a machine that `allfold machines` lists, with whole nodes and no fat tree; else simulated]
    #[arg(long, value_enum)]
    collectives: Option<Exchanges>,
    /// Standard deviation of the devices' speed, as a share of a step, 0 to less than 1, such as 0.02 or 2%; all ranks wait for the slowest
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    device_variation: f64,
    /// Standard deviation of a host's lateness in a step, in microseconds, 0 to 1e12; all ranks wait for the latest
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = micros)]
    jitter: f64,
    /// Samples per second that the CPUs of a node prepare, 1e-9 to 1e12
    #[arg(long, value_name = "RATE", value_parser = rate)]
    input_rate: Option<f64>,
    /// Draw throughput over ranks into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg())]
    plot: Option<PathBuf>,
    /// Write the curve as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

fn micros(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1e12).contains(number));
    number.ok_or_else(|| "give a number of microseconds from 0 to 1e12".into())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1e-9..=1e12).contains(number));
    number.ok_or_else(|| "give a number of samples per second from 1e-9 to 1e12".into())
}

/// The network of a name, or of a user's layer table.
fn named_or_read(name: &str) -> CommandResult<Workload> {
    /// The greatest length of a layer table in bytes.
    const LONGEST: u64 = 16 << 20;
    if !name.ends_with(".toml") {
        return Workload::named(name).map_err(|error| {
            CommandError::usage(format!("{error}; or name a layer table that ends in .toml"))
        });
    }
    let wrong = |error: &dyn std::fmt::Display| CommandError::usage(format!("{name}: {error}"));
    let text = read_text_at_most(Path::new(name), LONGEST, "a layer table").map_err(|error| wrong(&error))?;
    let table: LayerTable = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        CommandError::usage(located(name, &text, at, &expected(error.message())))
    })?;
    table.workload().map_err(|error| wrong(&error))
}

impl Args {
    fn scaling(&self) -> CommandResult<WorkloadScaling> {
        let machine = Preset::with_options(&self.topology);
        let own = gpu_of(&self.topology);
        let gpu = match (&self.accelerator, own) {
            (None, Some(gpu)) => gpu,
            (name, _) => {
                GpuRates::named(name.as_deref().unwrap_or("A100 SXM")).map_err(CommandError::usage)?
            }
        };
        let workload = named_or_read(&self.name)?;
        let samples = self.batch.div_ceil(self.accumulate);
        // Gradients of activations and buffers take a few times what is kept, 8 bytes per number.
        if workload.kept().checked_mul(samples).is_none_or(|numbers| numbers > u64::MAX / 64) {
            return Err(CommandError::usage(format!(
                "the activations of {samples} samples of {} take more than 2^64 bytes; take a smaller --batch, or --accumulate",
                workload.name()
            )));
        }
        Ok(WorkloadScaling {
            workload,
            topology: self.topology.clone(),
            gpu,
            precision: match (self.amp, self.tf32) {
                (true, _) => Precision::Half,
                (_, true) => Precision::Tf32,
                _ => Precision::F32,
            },
            batch: usize::try_from(self.batch).map_err(CommandError::usage)?,
            strong: self.strong,
            accumulate: usize::try_from(self.accumulate).map_err(CommandError::usage)?,
            sync_batch_norm: self.sync_batch_norm,
            measured: self.single_gpu_rate,
            terms: Overheads {
                device_variation: self.device_variation,
                jitter_us: self.jitter,
                input: self.input_rate,
                node: machine.map_or(8, |preset| preset.devices),
                ..Overheads::NONE
            },
            collectives: Exchanges::of(self.collectives, &self.topology, &thinned(&self.ranks.0)),
        })
    }
}

/// Predicts every point, prints the table and draws the curve.
///
/// # Errors
/// An unknown network or machine, an impossible rate, an exchange that cannot be timed.
pub fn run(args: &Args) -> CommandResult {
    let scaling = args.scaling()?;
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    args.html.iter().chain(&args.plot).try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    let (points, left_out) = points(&scaling, &args.ranks, &mut output)?;
    let Some(first) = points.first() else { return output.close() };
    let kind = if scaling.strong { "strong" } else { "weak" };
    output.say(format!(
        "{} on {}: {kind} scaling, modeled; a sample is {}",
        first.setup.model,
        first.topology,
        scaling.workload.sample()
    ))?;
    memory(&scaling, &points).map_or(Ok(()), |line| output.say(line))?;
    output.say(table(&points))?;
    left_out.say(&args.ranks.0, (|_| false, ""), &mut output)?;
    left_out.relative_to(&points).map_or(Ok(()), |line| output.say(line))?;
    let engines: BTreeSet<&str> =
        points.iter().flat_map(|point| point.engines.iter().map(String::as_str)).collect();
    if !engines.is_empty() {
        output.say(format!("exchanges timed by: {}", engines.into_iter().collect::<Vec<_>>().join("; ")))?;
    }
    if let Some(path) = &args.plot {
        draw(&points, kind, path)?;
        output.say(format!("\nplot: {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        page::write(path, &mut output)?;
    }
    output.close()
}

/// The memory of the point that needs the most, at its peak, in parts whose sum is what the table shows; and what a GPU has. `None`
/// without a point.
fn memory(scaling: &WorkloadScaling, points: &[SimulatedScale]) -> Option<String> {
    let held = |point: &&SimulatedScale| point.memory.map_or(0, |memory| memory.total());
    let most = points.iter().max_by_key(held)?;
    let (memory, has) = (most.memory?, scaling.gpu.capacity_bytes());
    let samples = usize::try_from(most.batch).ok()?.div_ceil(scaling.accumulate.max(1));
    let model = memory.params + memory.gradients + memory.optimiser;
    let limit =
        if memory.exceeds(Some(has)) { " (MORE THAN IT HAS; the times ignore this limit)" } else { "" };
    let activations = memory.activations;
    let rest = memory.total() - model - activations;
    let [has, needed, model, activations, rest] =
        [has, memory.total(), model, activations, rest].map(|bytes| bytes as f64 / f64::from(1 << 30));
    Some(format!(
        "GiB of each GPU: {has:.3} ({} GB), needed up to {needed:.3}{limit}: {model:.3} for weights, gradients and optimiser state, \
         {activations:.3} for activations of {}, {rest:.3} for gradients of activations and buckets",
        scaling.gpu.capacity,
        format::counted(samples, "sample")
    ))
}

/// The points of the curve, including one rank, up to the largest count at which every rank has a sample. Each is recorded as soon as
/// it is made: efficiency is relative to the first point, of one rank if the machine has it. Counts that the machine does not have are
/// left out.
///
/// # Errors
/// A point that cannot be timed; a machine that has none of the counts.
fn points(
    scaling: &WorkloadScaling,
    counts: &RankCounts,
    output: &mut RunOutput,
) -> CommandResult<(Vec<SimulatedScale>, LeftOut)> {
    let asked = thinned(&counts.0);
    let counts = if asked.contains(&1) { asked.clone() } else { [vec![1], asked.clone()].concat() };
    let (mut points, mut left_out): (Vec<SimulatedScale>, _) = (Vec::new(), LeftOut::default());
    let bar = progress::bar(counts.len() as u64, scaling.workload.name());
    for &ranks in &counts {
        let Some(point) = left_out.kept(ranks, scaling.point(ranks))? else { continue };
        let Some(point) = point else {
            let (from, batch) = (format::counted(ranks as usize, "rank"), scaling.batch);
            output.say(format!(
                "from {from} on, a batch of {batch} leaves ranks without a sample: the curve ends there"
            ))?;
            break;
        };
        tracing::debug!(
            "a step of {} takes {:.1} us, {:.1} of them exposed",
            format::counted(ranks as usize, "rank"),
            point.time_us,
            point.exposed_us
        );
        points.push(point);
        SimulatedScale::set_efficiency(&mut points);
        if let Some(point) = points.last() {
            output.record(point)?;
        }
        bar.inc(1);
    }
    left_out.check(&asked, |ranks| points.iter().any(|point| point.setup.ranks == ranks))?;
    Ok((points, left_out))
}

/// Draws the curve: of weak scaling the efficiency, since its throughput is a line close to the ideal one that shows nothing; of
/// strong scaling the throughput, with the line of ideal scaling. Points that do not fit in memory have no efficiency: they are left
/// out of a curve of it, and their throughput is drawn where no point fits.
fn draw(points: &[SimulatedScale], kind: &str, path: &Path) -> CommandResult {
    let Some(first) = points.first() else { return Ok(()) };
    let fit: Vec<&SimulatedScale> = points.iter().filter(|point| point.excess().is_none()).collect();
    let base = fit.first().copied().unwrap_or(first);
    let weak = kind == "weak" && !fit.is_empty();
    let last = points.last().map_or(1, |point| point.setup.ranks);
    let ideal = |ranks: u32| match weak {
        true => (f64::from(ranks), 1.0),
        false => (f64::from(ranks), f64::from(ranks) * base.samples_per_s / f64::from(base.setup.ranks)),
    };
    let point = |p: &SimulatedScale| Point {
        x: f64::from(p.setup.ranks),
        y: if weak { p.efficiency } else { p.samples_per_s },
        error: 0.0,
    };
    let curves = Curves {
        label: format!("{kind} scaling of {}", first.setup.model),
        x: Axis { label: "ranks", log: Some(2), format: format::number },
        y: match weak {
            true => Axis { label: "efficiency", log: None, format: format::percent_axis },
            false => Axis { label: "samples/s", log: Some(10), format: format::number },
        },
        series: [(true, ""), (false, ", DOES NOT FIT in memory")]
            .into_iter()
            .filter(|(fits, _)| *fits || !weak)
            .map(|(fits, mark)| Series {
                name: format!("{} on {}{mark}", first.setup.model, first.topology),
                origin: Origin::Simulated,
                points: points.iter().filter(|p| p.excess().is_none() == fits).map(point).collect(),
            })
            .filter(|series| !series.points.is_empty())
            .collect(),
        ideal: (!fit.is_empty())
            .then(|| Ideal { name: "ideal".into(), points: [base.setup.ranks, last].map(ideal).to_vec() }),
    };
    let figure = curves.draw().map_err(CommandError::run)?;
    let what = if weak { "efficiency" } else { "throughput" };
    let caption = format!("{what} of {kind} scaling of {}, modeled", first.setup.model);
    output::replace(path, figure.file(&caption).as_bytes())
}
