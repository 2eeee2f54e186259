//! `allfold compare`: one configuration trained by several strategies on the same samples, measured on threads and predicted.

mod table;

use crate::measure::machine_limits::cores;
use crate::predict::exchanges::Exchanges;
use crate::training::comparison::Contender;
use crate::training::launch_mode::{LaunchMode, SimulatedRanks};
use crate::training::{config, run};
use allfold_cli::common::Common;
use allfold_cli::devices::RankDevices;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_cli::{memory, progress};
use allfold_prediction::MOST_SERVED;
use allfold_report::RenderedReport;
use allfold_report::format::{counted, rounded_bytes};
use allfold_report::records::{LeftOutStrategy, MeasuredComparison, SimulatedComparison};
use allfold_report::sizes::rank_count;
use allfold_sim::{Device, Topology};
use allfold_trainer::config::AutocastType;
use allfold_trainer::{Config, SampleForm, data, models, strategies};
use std::path::PathBuf;
use table::table;

/// Flags of `compare`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold compare --config experiments/configs/digits-mlp.toml --strategies ddp,zero3,pipeline --ranks 4
  allfold compare --config experiments/configs/text-gpt.toml --strategies ddp,zero1,zero2,zero3 --ranks 8 --html compare.html
  allfold compare --config experiments/configs/digits-mlp.toml --strategies ddp,pipeline --ranks 8 --topology dgx-a100 --predicted-only --plots gantt
  allfold compare --config experiments/configs/gpu/gpt2.toml --ranks 16 --topology dgx-a100 --device a100 --modeled-only --html gpt2.html

Every strategy takes the same samples in a step: `training.batch` times --ranks. A pipeline without `training.accumulate` cuts them
into 4 micro-batches for each stage. Measured: threads of this machine, which share its cores. Predicted: real arithmetic on virtual
time, on the machine of --topology, each rank computing on --device; bytes are counted there, and * marks what such a device does not
hold. A strategy that does not take the configuration is named with the reason, and left out. `most for` is the rank that the others
wait for longest, with its share of all waiting, both as means over the steps after the first; - means that no rank waits for another.

The work grows with --ranks times --steps: this machine computes the samples of all ranks for every strategy, on threads and again,
on one core, for the prediction. By default runs on many ranks have fewer steps. With --predicted-only and --steps nothing
runs on threads. With --modeled-only, or --predicted-only alone, nothing is computed: times, bytes and memory are predicted. Every
message of every rank is simulated; where that would take minutes, one rank of each kind is predicted, without bytes and plots.

Collectives are Allfold's own unless --collectives says otherwise, by the algorithm that a communicator chooses for the ranks and the size (`allfold show`): where ranks are
no power of two a slower one. Messages are as wide as parameters, with AMP too. A pipeline has a stage for each rank, and tensor and
context share layers and positions among all, unless `parallel.stages`, `parallel.tensor` and `parallel.context` say otherwise.")]
pub(crate) struct Args {
    /// The configuration, a TOML file; its strategy is replaced
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Replace the value of a key of the configuration; may be given many times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The strategies, such as ddp,zero3,pipeline [default: all that the configuration fits]
    #[arg(long, alias = "strategy", value_name = "NAMES", value_delimiter = ',')]
    strategies: Vec<String>,
    /// Number of ranks, 1 to 4096
    #[arg(long, value_name = "N", value_parser = rank_count)]
    ranks: u32,
    /// Steps of each run, 2 to 1000000; the first one is not timed [default: 10 with up to 8 ranks, fewer with more, 3 with more than 20]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    steps: Option<u64>,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    topology: String,
    /// What each rank of the simulated machine computes on: a device, or with others for some ranks, such as a100_f32,4-7:v100_f32; a GPU
    /// alone, or with _bf16, means its tensor cores, with _f32 plain f32 [default: the machine's own GPU in f32, else a100_f32]
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Predict alone, without runs on threads: as --modeled-only, or with --steps by so many steps of real arithmetic
    #[arg(long)]
    predicted_only: bool,
    /// Run no arithmetic: predict from shapes, FLOPs and bytes, networks of any size on up to 256 ranks
    #[arg(long, conflicts_with_all = ["predicted_only", "steps"])]
    modeled_only: bool,
    /// How exchanges are timed: by Allfold's schedules, simulated, or with --modeled-only as NCCL's, of one rank of each kind
    #[arg(long, value_enum, default_value_t = Exchanges::Simulated)]
    collectives: Exchanges,
    /// Write the comparison as an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every plot as an SVG file into DIR, among them a Gantt chart for each strategy: a step on every rank
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The runs of a comparison.
pub(super) struct Comparison {
    /// The configuration to train; its strategy is replaced by each strategy of the comparison.
    pub config: Config,
    /// The names of the strategies.
    pub strategies: Vec<String>,
    /// Ranks of each strategy but `single`.
    pub ranks: u32,
    /// The simulated machine, as `--topology` names it: a name or a file.
    pub topology: String,
    /// The devices of the simulated ranks.
    pub devices: RankDevices,
    /// What runs.
    pub by: ComparedBy,
    /// How exchanges are timed.
    pub collectives: Exchanges,
}

/// What runs to compare strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparedBy {
    /// Each strategy trains on threads, and on virtual time.
    ThreadsAndPrediction,
    /// Each strategy trains on virtual time.
    Prediction,
    /// Nothing trains: steps are predicted from shapes, FLOPs and bytes.
    Model,
}

/// The outcome of a comparison.
#[derive(Default)]
pub(super) struct Compared {
    /// The measured results, one for each strategy.
    pub measured: Vec<MeasuredComparison>,
    /// The predicted results, one for each strategy.
    pub simulated: Vec<SimulatedComparison>,
    /// Strategies whose weights differ between threads and virtual time.
    pub wrong: Vec<String>,
    /// The strategies that do not take the configuration.
    pub left_out: Vec<LeftOutStrategy>,
}

/// The most steps of a run for which the user gives no number; the fewest are 3, of which the first one is not timed.
const MOST_STEPS: u64 = 10;

/// The steps of a run for which the user gives no number: with many ranks as many as keep the samples of all ranks and steps those of
/// ten steps on eight ranks.
fn usual_steps(ranks: u32) -> u64 {
    (8 * MOST_STEPS / u64::from(ranks.max(1))).clamp(3, MOST_STEPS)
}

/// Compares, and prints a table of what was measured and one of what was predicted.
pub fn run(args: &Args) -> CommandResult {
    let modeled = args.modeled_only || args.predicted_only && args.steps.is_none();
    let mut config = config::read(&args.config)?;
    for pair in &args.set {
        config::replace(&mut config, pair)?;
    }
    config.check_values().map_err(CommandError::usage)?;
    let steps = args.steps.unwrap_or_else(|| usual_steps(args.ranks));
    // There are enough epochs for the steps, no checkpoints and no early end.
    (config.training.max_steps, config.training.epochs) = (steps, steps);
    config.fixed_length();
    if config.uses_gpus() && !modeled {
        return Err(CommandError::usage(
            "`device` is cuda, and strategies are compared on the CPU; use --set device=cpu, or predict alone with --modeled-only",
        ));
    }
    for (at, name) in args.strategies.iter().enumerate() {
        strategies::check_name(name)?;
        if args.strategies[..at].contains(name) {
            return Err(CommandError::usage(format!(
                "--strategies names {name} twice; name each strategy once"
            )));
        }
    }
    let all = || strategies::names().map(String::from).collect();
    let strategies = if args.strategies.is_empty() { all() } else { args.strategies.clone() };
    let devices = RankDevices::of(args.device.as_deref(), &args.topology)?;
    devices.check(args.ranks)?;
    let topology = Topology::named(&args.topology, args.ranks).map_err(CommandError::usage)?;
    topology.notes().iter().for_each(|note| tracing::info!("{note}"));
    if !modeled && args.collectives != Exchanges::Simulated {
        return Err(CommandError::usage(
            "runs exchange real messages, by Allfold's schedules; use --collectives with --modeled-only",
        ));
    }
    if modeled && args.ranks > MOST_SERVED {
        return Err(CommandError::usage(format!(
            "every message is predicted, of {MOST_SERVED} ranks at most, and there are {0}; give fewer, or predict each strategy by `allfold scale --config FILE --strategy NAME --ranks {0} --modeled-only`",
            args.ranks
        )));
    }
    memory::threads(args.ranks)?;
    let mut output = RunOutput::open(args.common.json.as_deref(), Some(config.seed))?;
    args.html.iter().try_for_each(|path| output.will_write(path))?;
    if let Some(folder) = &args.plots {
        output.expect_file();
        output::folder(folder)?;
    }
    output.check_text()?;
    let comparison = Comparison {
        config,
        strategies,
        ranks: args.ranks,
        topology: args.topology.clone(),
        devices,
        by: match (modeled, args.predicted_only) {
            (true, _) => ComparedBy::Model,
            (_, true) => ComparedBy::Prediction,
            _ => ComparedBy::ThreadsAndPrediction,
        },
        collectives: args.collectives,
    };
    if args.steps.is_none() && steps < MOST_STEPS && !modeled {
        tracing::info!("each run of {} ranks takes {steps} steps; --steps sets another number", args.ranks);
    }
    let compared = comparison.run(None, &mut output)?;
    comparison.say(&compared, &mut output)?;
    write(args, &mut output)?;
    output.close()?;
    compared.wrong.into_iter().next().map_or(Ok(()), |first| Err(CommandError::check(first)))
}

/// Writes the page and the plots that the flags ask for.
fn write(args: &Args, output: &mut RunOutput) -> CommandResult {
    if args.html.is_none() && args.plots.is_none() {
        return Ok(());
    }
    let RenderedReport { page, plots } = allfold_report::render(&output.records()?, output.stamp())?;
    if let Some(path) = &args.html {
        output::replace(path, page.as_bytes())?;
        output.say(format!("\npage: {}", path.display()))?;
    }
    if let Some(folder) = &args.plots {
        output::replace_all(folder, &plots)?;
        output.say(format!("\nplots: {} in {}", counted(plots.len(), "file"), folder.display()))?;
    }
    Ok(())
}

impl Comparison {
    /// A comparison that measures and predicts all strategies.
    pub fn of_all(config: Config, ranks: u32, topology: String, device: Device) -> Comparison {
        let strategies = strategies::names().map(String::from).collect();
        let by = ComparedBy::ThreadsAndPrediction;
        let collectives = Exchanges::Simulated;
        Comparison { config, strategies, ranks, topology, devices: device.into(), by, collectives }
    }

    /// Trains by every strategy and writes the records, under `command` if that is another than this process's.
    ///
    /// # Errors
    /// A run that fails, or no strategy that takes the configuration.
    pub fn run(&self, command: Option<&str>, output: &mut RunOutput) -> CommandResult<Compared> {
        let compared = match self.by {
            ComparedBy::Model => self.model(command, output)?,
            _ => self.train(command, output)?,
        };
        match compared.left_out.first() {
            Some(LeftOutStrategy { strategy, why, .. }) if compared.simulated.is_empty() => {
                return Err(CommandError::usage(format!("{strategy}: {why}")));
            }
            _ => compared.left_out.iter().try_for_each(|left_out| output.record_as(left_out, command))?,
        }
        Ok(compared)
    }

    /// Trains by every strategy on virtual time and, if `by` says so, on threads.
    fn train(&self, command: Option<&str>, output: &mut RunOutput) -> CommandResult<Compared> {
        let data = run::load(&self.config)?;
        let form = data.0.form();
        let mut compared = Compared::default();
        let contenders = self.contenders(form, &mut compared.left_out);
        self.holds_models(form)?;
        let measures = self.by == ComparedBy::ThreadsAndPrediction;
        let runs = contenders.len() * if measures { 2 } else { 1 };
        let mut run = 0;
        let mut train = |contender: &Contender, place: LaunchMode| {
            run += 1;
            let kind = if matches!(place, LaunchMode::Threads(_)) { "threads" } else { "sim" };
            let name = format!("run {run} of {runs}, {} on {kind}", contender.config.strategy);
            let bar = progress::steps_of(&name, contender.config.training.max_steps);
            contender.train(&data, &place, &bar)
        };
        for contender in &contenders {
            let machine = self.machine(contender.ranks)?;
            let predicted = train(contender, LaunchMode::Sim(Box::new(machine)))?;
            let (record, spans) = contender.simulated(&predicted, &self.place());
            output.record_as(&record, command)?;
            spans.iter().try_for_each(|span| output.record_as(span, command))?;
            if measures {
                let real = train(contender, LaunchMode::Threads(contender.ranks))?;
                let real = contender.measured(&real, &counted(cores() as usize, "core"), &record);
                output.record_as(&real, command)?;
                if real.weights_hash != record.weights_hash {
                    let hash = |of: &Option<String>| of.clone().unwrap_or_default();
                    compared.wrong.push(format!(
                        "{} ends with weights {} on threads and {} on virtual time",
                        real.setup.strategy,
                        hash(&real.weights_hash),
                        hash(&record.weights_hash)
                    ));
                }
                compared.measured.push(real);
            }
            compared.simulated.push(record);
        }
        Ok(compared)
    }

    /// Predicts every strategy without arithmetic. One that cannot be predicted is left out with the reason.
    fn model(&self, command: Option<&str>, output: &mut RunOutput) -> CommandResult<Compared> {
        let load = || data::load(&self.config).map(|(train, _)| train.form());
        let form = run::form(&self.config, || load().map_err(CommandError::from))?;
        let mut compared = Compared::default();
        let contenders = self.contenders(form, &mut compared.left_out);
        let bar = progress::bar(contenders.len() as u64, "strategies predicted");
        for contender in &contenders {
            let machine = self.machine(contender.ranks)?;
            bar.set_message(format!("strategies predicted, now {}", contender.config.strategy));
            let system = self.collectives.system(&self.topology, contender.ranks)?;
            match contender.modeled(form, (&machine, system.as_ref()), &self.place()) {
                Ok((record, spans)) => {
                    output.record_as(&record, command)?;
                    spans.iter().try_for_each(|span| output.record_as(span, command))?;
                    compared.simulated.push(record);
                }
                Err(error) => compared.left_out.push(self.left_out(&contender.config.strategy, &error)),
            }
            bar.inc(1);
        }
        Ok(compared)
    }

    /// Refuses to train models that this machine does not hold.
    fn holds_models(&self, samples: SampleForm) -> CommandResult {
        let each = models::memory(&self.config, samples).map_err(CommandError::from)?;
        let all = each.checked_mul(u64::from(self.ranks));
        let what = format!("the models of {}", counted(self.ranks as usize, "rank"));
        memory::require_or(
            all,
            &what,
            "take fewer ranks or a smaller model, or compute nothing with --modeled-only",
        )
    }

    /// Prints a table of what was measured and one of what was predicted.
    fn say(&self, compared: &Compared, output: &mut RunOutput) -> CommandResult {
        let Compared { measured, simulated, wrong, left_out } = compared;
        for LeftOutStrategy { strategy, why, .. } in left_out {
            output.say(format!("left out: {strategy}: {why}"))?;
        }
        output.say(format!(
            "{}: {} to train, {} in a step",
            self.config.model.name,
            counted(simulated.len(), "way"),
            counted(self.config.training.batch * self.ranks as usize, "sample")
        ))?;
        let all = self.config.training.batch as u64 * u64::from(self.ranks);
        for SimulatedComparison { setup, batch, .. } in simulated.iter().filter(|record| record.batch != all)
        {
            output.say(format!("{} takes {batch} of them, which its ranks share evenly", setup.strategy))?;
        }
        if let Some(first) = measured.first() {
            output.say(format!("\nmeasured on threads of this machine, which share {}", first.topology))?;
            output.say(table(measured))?;
            let same = if wrong.is_empty() { "are the same bits" } else { "DIFFER" };
            output
                .say(format!("the final weights of each strategy on threads and on virtual time {same}"))?;
        }
        let amp = self.config.precision.amp != AutocastType::None;
        let devices = self.devices.described(amp);
        let exchanges = match self.collectives {
            Exchanges::Simulated => "",
            Exchanges::Nccl => ", NCCL's exchanges by the fitted model",
            Exchanges::Tuner => ", NCCL's exchanges by its tuner's times",
        };
        output
            .say(format!("\npredicted on {}, each rank computing on {devices}{exchanges}", self.topology))?;
        output.say(table(simulated))?;
        let exceeds = |record: &&SimulatedComparison| record.memory.exceeds(record.device_memory);
        let Some(has) = simulated.iter().find(exceeds) else { return Ok(()) };
        let bytes = has.device_memory.unwrap_or_default();
        output.say(format!(
            "* does not fit: a device has {}; the times ignore this limit",
            rounded_bytes(bytes)
        ))
    }

    /// The strategies that take the configuration, each on a number of ranks that the topology has; the others are named with the
    /// reason. `single` takes one rank, which a graph, or a file with `ranks`, may not have.
    fn contenders(&self, form: SampleForm, left_out: &mut Vec<LeftOutStrategy>) -> Vec<Contender> {
        let mut fit = Vec::new();
        for strategy in &self.strategies {
            match Contender::new(&self.config, strategy, self.ranks, form) {
                Ok(contender) => match Topology::named(&self.topology, contender.ranks) {
                    Ok(_) => fit.push(contender),
                    Err(error) => {
                        let ranks = counted(contender.ranks as usize, "rank");
                        left_out.push(self.left_out(strategy, &format!("it runs on {ranks}, and {error}")));
                    }
                },
                Err(error) => left_out.push(self.left_out(strategy, &error)),
            }
        }
        fit
    }

    fn left_out(&self, strategy: &str, why: &dyn std::fmt::Display) -> LeftOutStrategy {
        LeftOutStrategy { strategy: strategy.into(), ranks: self.ranks, why: why.to_string() }
    }

    fn machine(&self, ranks: u32) -> CommandResult<SimulatedRanks> {
        let topology = Topology::named(&self.topology, ranks).map_err(CommandError::usage)?;
        let faults = self.devices.with(&[], &topology)?;
        Ok(SimulatedRanks { topology, devices: self.devices.clone(), faults })
    }

    fn place(&self) -> String {
        format!("{} of {}", self.topology, self.devices)
    }
}
