//! `allfold plan`: layouts of a large model's training that fit its GPUs, ranked by predicted time, with what the run takes and costs.

mod text;
mod units;

use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_large_models::cluster::Cluster;
use allfold_large_models::goodput::{FaultyRun, goodput};
use allfold_large_models::interval::StepPredictor;
use allfold_large_models::job::{Framework, OperandPrecision};
use allfold_large_models::model::LargeModel;
use allfold_large_models::plan::{PlanTask, RankedLayout, RankedPlan, narrowing, plan, what_if};
use allfold_report::RenderedReport;
use allfold_report::records::{PlannedLayout, PlannedRun};
use allfold_sim::machines::presets::Preset;
use allfold_sim::quantity::Bandwidth;
use std::path::PathBuf;
use units::{Price, hourly, money, tokens, watts, within};

/// Flags of `plan`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold plan \"Llama 3 8B\" --gpus 8 --gpu H100
  allfold plan llama3-70b --gpus 512 --gpu H100 --tokens 15e12 --price \"2.5 USD/h\" --power \"700 W\" --html plan.html
  allfold plan mixtral-8x7b --gpus 64 --topology dgx-h100 --precision fp8
  allfold plan own.toml --budget \"200000 USD\" --price \"2.5 USD/h\" --days 14 --gpu A100

MODEL is a published model, or a TOML file with its shapes. All layouts that divide the model, the batch and the GPUs are looked at in
closed form; those that fit are ranked. Times are of the framework's kernels and NCCL, not of Allfold's own. Exchanges count as far as
nothing hides them. `before next` gives the odds that a layout is faster than the one below. With --tokens or --days failures, restarts
and checkpoints are simulated; the defaults are those of Llama 3's training.")]
pub(crate) struct Args {
    /// The model: a name such as llama3-70b, or a TOML file with its shapes
    #[arg(value_name = "MODEL")]
    model: String,
    /// Number of GPUs, 1 to 131072
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072), required_unless_present = "budget")]
    gpus: Option<u32>,
    /// What all GPU hours may cost, such as "200000 USD"; sets the number of GPUs with --price and --days
    #[arg(long, value_name = "AMOUNT", value_parser = money, requires = "price", requires = "days", conflicts_with = "gpus")]
    budget: Option<Price>,
    /// The GPU, such as H100 or A100-40GB [default: that of --topology, else H100]
    #[arg(long, value_name = "GPU", conflicts_with = "topology")]
    gpu: Option<String>,
    /// A machine by name, whose GPU, node and NICs count (`allfold machines` lists them)
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// GPUs of a node, 1 to 72 [default: that of --topology, else 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=72), conflicts_with = "topology")]
    node: Option<u32>,
    /// Each GPU's share of its node's NICs in one direction, such as "50 GB/s" [default: the GPU's usual one]
    #[arg(long, value_name = "BANDWIDTH", conflicts_with = "topology")]
    nic: Option<Bandwidth>,
    /// Sequences of a step, 1 to 1048576 [default: 4 Mi tokens or a little more, a multiple of the GPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    global_batch: Option<u32>,
    /// Tokens of a sequence, 1 to 1048576
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), default_value_t = 4096)]
    sequence: u32,
    /// Precision of the blocks' products: bf16, f16, f32, fp8, fp8rows, mxfp8, nvfp4
    #[arg(long, value_name = "P", value_parser = OperandPrecision::named, default_value = "bf16")]
    precision: OperandPrecision,
    /// The software: megatron-bridge, megatron-core, torchtitan, foundry, xla, ..
    #[arg(long, value_name = "NAME", value_parser = Framework::named, default_value = "megatron-bridge")]
    framework: Framework,
    /// Number of layouts that are shown, 1 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100), default_value_t = 10)]
    top: u32,
    /// Tokens of the whole run, 1 to 1e18, such as 15e12 or 15T
    #[arg(long, value_name = "N", value_parser = tokens, conflicts_with = "days")]
    tokens: Option<f64>,
    /// Days of the whole run, 0.01 to 3650
    #[arg(long, value_name = "DAYS", value_parser = |text: &str| within(text, 0.01, 3650.0))]
    days: Option<f64>,
    /// The price of a GPU for an hour, such as "2.5 USD/h"
    #[arg(long, value_name = "PRICE", value_parser = hourly)]
    price: Option<Price>,
    /// The power of a GPU, 1 W to 100 kW, such as "700 W"
    #[arg(long, value_name = "POWER", value_parser = watts)]
    power: Option<f64>,
    /// Hours between failures of one GPU with its share of node and network, 1 to 1e9 [default: 50676, as in Llama 3's training]
    #[arg(long, value_name = "HOURS", value_parser = |text: &str| within(text, 1.0, 1e9))]
    gpu_hours: Option<f64>,
    /// Seconds from a failure to the next step, 0 to 1e6
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| within(text, 0.0, 1e6), default_value_t = 600.0)]
    restart: f64,
    /// Seconds for which a checkpoint stops training, 0.001 to 1e6 [default: the state at 2 TB/s for 16384 GPUs]
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| within(text, 1e-3, 1e6))]
    checkpoint: Option<f64>,
    /// Spare nodes, 0 to 10000 [default: one for each 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    spares: Option<u32>,
    /// The seed of the simulated failures, 0 to 18446744073709551615
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Write the plan as an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Plans, and prints the layouts and the run.
pub fn run(args: &Args) -> CommandResult {
    let task = args.task().map_err(CommandError::usage)?;
    let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
    args.html.iter().try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    let predictor = StepPredictor::published();
    let found = plan(&task, &predictor, args.top as usize);
    let Some(best) = found.layouts.first() else { return Err(CommandError::usage(lacking(&task, &found))) };
    let layouts: Vec<PlannedLayout> =
        found.layouts.iter().enumerate().map(|(at, ranked)| text::layout(at, ranked)).collect();
    let changes = what_if(&task, &found, &predictor);
    let narrow = narrowing(&found, &predictor);
    let mut record = text::run(&task, &found, &changes, narrow.as_ref());
    args.whole(&task, best, &mut record);
    output.say(text::table(&task, &layouts))?;
    layouts.first().map_or(Ok(()), |first| output.say(text::first(first)))?;
    output.say(text::around(&record))?;
    if record.tokens > 0.0 {
        output.say(text::whole(&record))?;
    }
    layouts.iter().try_for_each(|layout| output.record(layout))?;
    output.record(&record)?;
    if let Some(path) = &args.html {
        let RenderedReport { page, .. } = allfold_report::render(&output.records()?, output.stamp())?;
        output::replace(path, page.as_bytes())?;
        output.say(format!("\npage: {}", path.display()))?;
    }
    output.close()
}

/// Why no layout fits, and what would be right.
fn lacking(task: &PlanTask, found: &RankedPlan) -> String {
    let (model, gpus) = (&task.model.name, task.gpus);
    match found.least_memory {
        Some(least) => format!(
            "{model} does not fit on {gpus} {}: of {} layouts the smallest needs {:.0} GB of a GPU that has {:.0}; give more GPUs, or shorter sequences",
            task.cluster.gpu,
            found.tried,
            least / 1e9,
            task.cluster.capacity / 1e9
        ),
        None => format!(
            "no layout divides {model}, {} sequences and {gpus} GPUs; give a --global-batch that is a multiple of {gpus}",
            task.global_batch
        ),
    }
}

impl Args {
    fn task(&self) -> Result<PlanTask, String> {
        let model = LargeModel::find(&self.model)?;
        let cluster = self.cluster()?;
        let gpus = self.count(&cluster)?;
        let batch = ((1_u32 << 22) / self.sequence).max(1).div_ceil(gpus) * gpus;
        Ok(PlanTask {
            model,
            cluster,
            gpus,
            global_batch: self.global_batch.unwrap_or(batch),
            sequence: self.sequence,
            precision: self.precision,
            framework: self.framework,
        })
    }

    fn cluster(&self) -> Result<Cluster, String> {
        let Some(name) = &self.topology else {
            let nic = self.nic.map(|nic| nic.bytes().0 as f64);
            return Cluster::of(self.gpu.as_deref().unwrap_or("H100"), self.node.unwrap_or(8), nic);
        };
        let machine = Preset::named(name).map_err(|error| error.to_string())?;
        let nics = f64::from(machine.nics.count) * machine.nics.bandwidth.bytes().0 as f64;
        Cluster::of(&machine.gpu, machine.devices, Some(nics / f64::from(machine.devices.max(1))))
    }

    /// The number of GPUs: as given, or as many whole nodes as the budget pays.
    fn count(&self, cluster: &Cluster) -> Result<u32, String> {
        let (Some(budget), Some(price), Some(days)) = (&self.budget, &self.price, self.days) else {
            return self.gpus.ok_or_else(|| "give --gpus N".to_string());
        };
        if budget.currency != price.currency {
            return Err(format!(
                "the budget is in {} and the price in {}; give both in one currency",
                budget.currency, price.currency
            ));
        }
        let nodes = budget.amount / (price.amount * 24.0 * days * f64::from(cluster.node));
        match nodes.min(131_072.0 / f64::from(cluster.node)) as u32 {
            0 => Err(format!(
                "{} {} do not pay a node for {days} days; give {:.0} or more",
                budget.amount,
                budget.currency,
                budget.amount / nodes
            )),
            nodes => Ok(nodes * cluster.node),
        }
    }

    /// Adds time, goodput and cost of the whole run.
    fn whole(&self, task: &PlanTask, best: &RankedLayout, record: &mut PlannedRun) {
        let speed = best.tokens_per_s();
        let training = match (self.tokens, self.days) {
            (Some(tokens), _) => tokens / speed,
            (None, Some(days)) => days * 86400.0,
            (None, None) => return,
        };
        let state = 14.0 * task.model.parameters().total();
        let usual = FaultyRun::usual(task.gpus, task.cluster.node, training, state);
        let run = FaultyRun {
            gpu_hours: self.gpu_hours.unwrap_or(usual.gpu_hours),
            restart: self.restart,
            checkpoint: self.checkpoint.unwrap_or(usual.checkpoint),
            spares: self.spares.unwrap_or(usual.spares),
            ..usual
        };
        let found = goodput(&run, self.seed);
        let share = found.share.max(1e-6);
        let days = self.days.unwrap_or(training / share / 86400.0);
        let [low, high] = best.step.within80.map(|seconds| seconds / best.step.seconds);
        record.tokens = self.tokens.unwrap_or(training * share * speed);
        record.days = match self.tokens {
            Some(_) => {
                [days, days * low * share / found.high.max(1e-6), days * high * share / found.low.max(1e-6)]
            }
            None => [days; 3],
        };
        record.goodput = [found.share, found.low, found.high];
        record.interruptions = found.interruptions * days * 86400.0 / training;
        record.checkpoints_s = [found.interval, run.young(), run.daly()];
        let hours = days * 24.0 * f64::from(task.gpus);
        record.cost = self.price.as_ref().map(|price| (price.amount * hours, price.currency.clone()));
        record.energy_mwh = self.power.map(|watts| watts * hours / 1e6);
    }
}
