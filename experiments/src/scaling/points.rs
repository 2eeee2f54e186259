//! Points of a scaling curve: measured on threads, run on virtual time with real arithmetic, or modeled from shapes alone.

use super::workload::thinned;
use crate::measure::statistics::mean_and_error;
use crate::predict::exchanges::Exchanges;
use crate::training::launch_mode::{LaunchMode, SimulatedRanks, operation_deadline};
use crate::training::rank_steps::RankSteps;
use crate::training::records::{held, setup};
use crate::training::run::{self, RecordOptions};
use crate::training::trained::Trained;
use allfold_cli::devices::RankDevices;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::{memory, progress};
use allfold_collectives::{Communicator, Plan, Rank, ReduceOp};
use allfold_prediction::{self as prediction, MOST_SERVED, ModeledMachine, StepPrediction};
use allfold_report::format::counted;
use allfold_report::records::{MeasuredScale, ScalePoint, Setup, SimulatedScale};
use allfold_report::sizes::RankCounts;
use allfold_sim::{Faults, Topology};
use allfold_trainer::{Config, Dataset, data, strategies};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

/// How long the ranks of a job that take no part in a point wait for it.
const WITHOUT_END: Duration = Duration::from_secs(1 << 30);

/// Faults of the runs on the virtual clock.
#[derive(Clone, Debug, Default)]
pub struct FaultRules {
    /// The rules, as `--fault` takes them.
    pub rules: Vec<String>,
    /// The seed of their random draws.
    pub seed: u64,
}

impl FaultRules {
    /// The faults of those rules whose ranks and links a machine has.
    fn on(&self, topology: &Topology, devices: &RankDevices) -> CommandResult<Faults> {
        let is_there = |rule: &&String| Faults::parse([rule.as_str()], topology).is_ok();
        let there: Vec<String> = self.rules.iter().filter(is_there).cloned().collect();
        Ok(devices.with(&there, topology)?.seeded(self.seed))
    }
}

/// The configuration and the machine of a scaling curve.
pub struct Scaling {
    /// The training configuration.
    pub config: Config,
    /// The simulated machine, as `--topology` names it: a name or a file.
    pub topology: String,
    /// The device model of each rank.
    pub devices: RankDevices,
    by_speed: bool,
    faults: FaultRules,
    /// The job of which this process is a rank, if the points are measured on its ranks.
    job: Option<Communicator>,
    /// How the exchanges of modeled points are timed.
    exchanges: Exchanges,
    /// The data of all points, loaded by the first point that needs it.
    data: OnceCell<(Dataset, Dataset)>,
}

impl Scaling {
    /// The scaling of a configuration on the machine of this name.
    pub fn new(config: Config, topology: String, devices: impl Into<RankDevices>) -> Scaling {
        let (devices, faults) = (devices.into(), FaultRules::default());
        let (exchanges, data) = (Exchanges::Simulated, OnceCell::new());
        Scaling { config, topology, devices, by_speed: false, faults, job: None, exchanges, data }
    }

    /// This scaling, measured on the ranks of a job, all of which must make the same points.
    pub fn within(self, job: Communicator) -> Scaling {
        Scaling { job: Some(job), ..self }
    }

    /// Whether points are measured on the ranks of a job.
    pub fn is_job(&self) -> bool {
        self.job.is_some()
    }

    /// This scaling, with faults in its runs on the virtual clock.
    pub fn faulty(self, faults: FaultRules) -> Scaling {
        Scaling { faults, ..self }
    }

    /// This scaling, with the exchanges of its modeled points timed by `exchanges`.
    pub fn timed_by(self, exchanges: Exchanges) -> Scaling {
        Scaling { exchanges, ..self }
    }

    /// This scaling, with shares of the samples by the speed of each rank's device if `by_speed`, otherwise with equal shares.
    pub fn shared(self, by_speed: bool) -> Scaling {
        Scaling { by_speed, ..self }
    }

    /// Refuses a fault that no run on the virtual clock, of up to `most` ranks, can have.
    ///
    /// # Errors
    /// An invalid rule, or a rule whose ranks or links the largest of these machines does not have.
    pub fn check_faults(&self, ranks: &RankCounts, most: u32) -> CommandResult {
        if self.faults.rules.is_empty() {
            return Ok(());
        }
        let Some(largest) = ranks.0.iter().copied().filter(|ranks| *ranks <= most).max() else {
            return Err(CommandError::usage(format!(
                "--fault acts in runs on the virtual clock, which are those of up to {most} ranks; give a larger --sim-ranks"
            )));
        };
        let on = |ranks: u32| -> CommandResult<allfold_sim::Result<Faults>> {
            let rules = self.faults.rules.iter().map(String::as_str);
            Ok(Faults::parse(rules, &self.machine(ranks)?))
        };
        let Err(refused) = on(largest)? else { return Ok(()) };
        for more in thinned(&ranks.0).into_iter().filter(|ranks| *ranks > most) {
            if on(more)?.is_ok() {
                return Err(CommandError::usage(format!(
                    "{refused} in the largest run on the virtual clock, where --fault acts; --sim-ranks {more} adds the run of {more} ranks"
                )));
            }
        }
        Err(CommandError::usage(refused))
    }

    /// Whether the runs on the virtual clock have faults; modeled points never have any.
    pub fn has_faults(&self) -> bool {
        !self.faults.rules.is_empty()
    }

    /// Refuses a curve without a point that can be made, before the first point is made.
    ///
    /// # Errors
    /// No number of ranks fits ([`Scaling::fits`]), and the error is that of the first one; a strategy or network that cannot be
    /// predicted; more ranks than fit in this machine's memory.
    pub fn check(&self, ranks: &RankCounts) -> CommandResult {
        let fewest = ranks.0.first().copied().unwrap_or(1);
        if self.config.strategy == "single" && fewest > 1 {
            return Err(CommandError::usage(
                "strategy `single` trains on 1 rank and has no scaling curve; set strategy = \"ddp\"",
            ));
        }
        // The memory that the engine needs: a clock and a position in the schedule for every rank and lane.
        self.devices.check(ranks.greatest())?;
        let most = u64::from(ranks.greatest());
        memory::require(most.checked_mul(256), &format!("the clocks of {most} ranks"))?;
        let mut refused = None;
        for ranks in thinned(&ranks.0) {
            let least = if self.fits(1).is_ok() { 1 } else { ranks };
            match self.fits(ranks).and_then(|()| self.modeled(least)) {
                Ok(_) => return Ok(()),
                Err(why @ CommandError::Usage(_)) => refused = refused.or(Some(why)),
                Err(failed) => return Err(failed),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Whether a point of this many ranks can be made, as far as the strategy and the machine decide.
    ///
    /// # Errors
    /// A strategy that does not take this number of ranks, or is not predicted for it; a topology that is unknown, or does not have
    /// so many ranks.
    pub fn fits(&self, ranks: u32) -> CommandResult {
        strategies::fits(&self.config, ranks)?;
        if self.config.strategy == "parameter_server" && ranks > MOST_SERVED {
            return Err(CommandError::usage(format!(
                "a parameter server is predicted message by message, for {MOST_SERVED} ranks at most, and not for {ranks}"
            )));
        }
        self.machine(ranks).map(drop)
    }

    /// Loads the data of all points.
    ///
    /// # Errors
    /// Data that are missing.
    pub fn load(&self) -> CommandResult {
        self.data().map(drop)
    }

    fn data(&self) -> CommandResult<&(Dataset, Dataset)> {
        if let Some(data) = self.data.get() {
            return Ok(data);
        }
        let data = data::load(&self.config)?;
        Ok(self.data.get_or_init(|| data))
    }

    /// The number of this machine's GPUs if the configuration trains on them; `None` if it trains on the CPU.
    ///
    /// # Errors
    /// GPUs that are missing.
    pub fn gpus(&self) -> CommandResult<Option<u32>> {
        let gpus = allfold_trainer::cuda::open(&self.config)?;
        Ok(gpus.map(|gpus| u32::try_from(gpus.devices()).unwrap_or(u32::MAX)))
    }

    /// A run of a few steps on threads of this machine, each on a core or on a GPU of its own; in a job, on its first ranks.
    ///
    /// # Errors
    /// More ranks than GPUs, which would share them; a failed run.
    pub fn measured(&self, ranks: u32) -> CommandResult<MeasuredScale> {
        if let Some(job) = &self.job {
            return self.in_job(job, ranks);
        }
        if let Some(gpus) = self.gpus()?.filter(|gpus| *gpus < ranks) {
            return Err(CommandError::usage(format!(
                "{ranks} ranks need a GPU each, and this machine has {}; give fewer --ranks",
                counted(gpus as usize, "GPU")
            )));
        }
        let trained = self.train(LaunchMode::Threads(ranks))?;
        let (time_us, time_error_us) = trained.step_us();
        tracing::debug!("measured a step of {ranks} ranks: {time_us:.1} us");
        Ok(MeasuredScale {
            setup: trained.setup(&self.config, "threads"),
            batch: self.config.training.batch as u64,
            topology: "this machine".into(),
            time_us,
            time_error_us,
            exposed_us: trained.breakdown().exposed_us,
            exchange: trained.result.exchange.clone(),
            samples_per_s: trained.throughput(),
            ..ScalePoint::default()
        })
    }

    /// A run of a few steps on the first ranks of a job, timed by the slowest of them in each step. The other ranks wait. Every rank of the
    /// job gets the figures.
    fn in_job(&self, job: &Communicator, ranks: u32) -> CommandResult<MeasuredScale> {
        // A rank that waits for the run has no deadline of its own for it. Only ranks that are connected over TCP have one each.
        let _ = job.set_deadline(WITHOUT_END);
        let mine = (job.rank().0 < ranks).then_some(0);
        let part = job.split(mine, job.rank().0).map_err(CommandError::from)?.map(Arc::new);
        let (mut figures, mut exchange) = ([0.0; 4], None);
        if let Some(part) = part {
            let _ = job.set_deadline(operation_deadline()?);
            let trained = self.train(LaunchMode::Joined(part.clone()))?;
            let mut slowest: Vec<f64> = trained.step_times_us();
            part.all_reduce(&mut slowest, ReduceOp::Max).map_err(CommandError::from)?;
            let (time_us, error_us) = mean_and_error(&slowest);
            let samples = trained.result.samples as f64 / trained.made().max(1) as f64;
            figures = [time_us, error_us, trained.breakdown().exposed_us, 1e6 * samples / time_us];
            exchange.clone_from(&trained.result.exchange);
        }
        job.broadcast(&mut figures, Rank(0)).map_err(CommandError::from)?;
        let [time_us, time_error_us, exposed_us, samples_per_s] = figures;
        tracing::debug!("measured a step of {ranks} ranks: {time_us:.1} us");
        let device = LaunchMode::Threads(ranks).device(&self.config)?;
        Ok(MeasuredScale {
            setup: setup(&self.config, "tcp", &device, ranks),
            batch: self.config.training.batch as u64,
            topology: "this job".into(),
            time_us,
            time_error_us,
            exposed_us,
            exchange,
            samples_per_s,
            ..ScalePoint::default()
        })
    }

    /// Refuses the virtual clock where the configuration trains on GPUs, which compute in real time.
    ///
    /// # Errors
    /// The configuration trains on GPUs.
    pub fn check_virtual_clock(&self) -> CommandResult {
        match self.config.uses_gpus() {
            false => Ok(()),
            true => Err(CommandError::usage(format!(
                "`device` is {}, which computes in real time and cannot run on the virtual clock: leave --sim-ranks out",
                self.config.device
            ))),
        }
    }

    /// Runs the configuration on virtual time, with real arithmetic.
    ///
    /// # Errors
    /// A configuration that trains on GPUs; a failed run.
    pub fn on_virtual_clock(&self, ranks: u32) -> CommandResult<SimulatedScale> {
        self.check_virtual_clock()?;
        let topology = self.machine(ranks)?;
        let faults = self.faults.on(&topology, &self.devices)?;
        let place = SimulatedRanks { topology, devices: self.devices.clone(), faults };
        let trained = self.train(LaunchMode::Sim(Box::new(place)))?;
        let (time_us, time_error_us) = trained.step_us();
        tracing::debug!("simulated a step of {ranks} ranks: {time_us:.1} us");
        Ok(SimulatedScale {
            setup: trained.setup(&self.config, "sim"),
            batch: self.config.training.batch as u64,
            topology: self.place(),
            time_us,
            time_error_us,
            exposed_us: trained.breakdown().exposed_us,
            samples_per_s: trained.throughput(),
            memory: Some(RankSteps::from(&trained).peak()),
            device_memory: self.device_memory(ranks),
            ..ScalePoint::default()
        })
    }

    /// Predicts a step from shapes, operations and bytes.
    ///
    /// # Errors
    /// A step that cannot be timed.
    pub fn modeled(&self, ranks: u32) -> CommandResult<SimulatedScale> {
        let prediction = self.predict(ranks)?;
        let model = match prediction.parameters {
            0..1_000_000 => self.config.model.name.clone(),
            many => format!("{} of {:.0}M", self.config.model.name, many as f64 / 1e6),
        };
        Ok(SimulatedScale {
            setup: Setup { model, ..setup(&self.config, "modeled", &self.devices.to_string(), ranks) },
            batch: self.config.training.batch as u64,
            topology: self.place(),
            time_us: prediction.time.total().as_micros(),
            exposed_us: prediction.time.exposed.as_micros(),
            samples_per_s: prediction.throughput(),
            memory: prediction.peak().map(held),
            device_memory: self.device_memory(ranks),
            engines: prediction.engines,
            ..ScalePoint::default()
        })
    }

    fn predict(&self, ranks: u32) -> CommandResult<StepPrediction> {
        let samples = run::form(&self.config, || self.data().map(|(train, _)| train.form()))?;
        let topology = self.machine(ranks)?;
        let devices = self.devices.with(&[], &topology)?;
        let (plan, system) = (Plan::default(), self.exchanges.system(&self.topology, ranks)?);
        let machine = ModeledMachine {
            devices: &devices,
            nccl: system.as_ref(),
            ..ModeledMachine::new(&topology, self.devices.device, &plan)
        };
        let mut config = self.config.clone();
        if self.by_speed {
            config.parallel.shares = prediction::shares_by_speed(&config, samples, &machine)?;
        }
        prediction::predict(&config, samples, &machine).map_err(CommandError::from)
    }

    fn train(&self, place: LaunchMode) -> CommandResult<Trained> {
        let mut config = self.config.clone();
        // Only whole batches are used, so that every step is like the modeled one.
        let data = self.data()?;
        let train = &data.0;
        let step = config.training.batch.saturating_mul(place.ranks() as usize);
        let samples = train.len().min(if config.data.train_samples > 0 {
            config.data.train_samples
        } else {
            usize::MAX
        });
        config.data.train_samples = samples / step * step;
        if step > samples {
            // The set has too few samples for a step, so random samples replace it: the values of samples do not affect the time
            // of a step.
            let (channels, height, width) = train.shape;
            config.data.name = "synthetic".into();
            (config.data.synthetic_shape, config.data.synthetic_classes) =
                ([channels, height, width], train.classes);
            (config.data.synthetic_samples, config.data.train_samples) = (step, step);
            config.data.random_resized_crop = false;
        }
        if self.by_speed && matches!(place, LaunchMode::Sim(_)) {
            config.parallel.shares = place.shares_by_speed(&config, train.form())?;
        }
        // A point is not a run to resume, and must not touch the checkpoints of a run.
        config.fixed_length();
        let what = format!("{} on {}", config.model.name, counted(place.ranks() as usize, "rank"));
        let bar = if place.is_reporter() { progress::steps(1, &what) } else { progress::hidden() };
        // The peak of memory is recorded only on virtual time, where that costs no time of the step.
        let spans = matches!(place, LaunchMode::Sim(_));
        let noted = RecordOptions { spans, ..RecordOptions::default() };
        let random = if step > samples { Some(run::load(&config)?) } else { None };
        let trained = run::run_on(&config, random.as_ref().unwrap_or(data), &place, &bar, noted);
        bar.finish_and_clear();
        trained
    }

    fn machine(&self, ranks: u32) -> CommandResult<Topology> {
        Topology::named(&self.topology, ranks).map_err(CommandError::usage)
    }

    /// Bytes of the smallest memory of the ranks' devices. With shares by speed the rank that holds the most has another device.
    fn device_memory(&self, ranks: u32) -> Option<u64> {
        if self.by_speed { None } else { self.devices.least_memory(ranks) }
    }

    fn place(&self) -> String {
        format!("{} of {}", self.topology, self.devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_sim::Device;

    /// The vocabulary of a text is known only once the text is read, which the first point does for all points.
    #[test]
    fn the_points_of_a_curve_share_their_data() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text.txt");
        std::fs::write(&text, "to be or not to be ".repeat(20)).unwrap();
        let config = Config::default().with(|c| {
            c.model.name = "gpt".into();
            c.data.name = "text".into();
            c.data.dir = folder.path().display().to_string();
            c.model.layers = 1;
            c.model.width = 8;
            c.model.heads = 2;
            c.data.positions = 4;
            c.training.batch = 2;
            c.training.max_steps = 1;
        });
        let scaling = Scaling::new(config, "switch".into(), Device::CPU_CORE);
        scaling.modeled(1).unwrap();
        std::fs::remove_file(text).unwrap();
        scaling.measured(2).unwrap();
        scaling.on_virtual_clock(2).unwrap();
        scaling.modeled(2).unwrap();
    }
}
