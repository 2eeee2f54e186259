//! One rank's model on its device, and its release when a rank or the device fails.
//!
//! ```text
//! healthy   wait for all streams, by the deadline    | destroy graphs | free
//! failed    destroy graphs | abort the link's sums   | wait for all streams, by the deadline | free
//!                                                                     '-- too late: the memory is not given back
//! ```
//!
//! A failed replica is released in NCCL's order: NCCL's abort waits for graphs that contain its collectives, and kernels that wait
//! for a lost rank use memory until the abort has ended them. Memory that a device may still use is never freed: if work does not
//! end by the deadline, its memory is leaked, and [`kept`] counts the replica. If NCCL's errors do not name the failed rank, the
//! ranks' communicator does.

use super::outcome::StepOutcome;
use super::within::Within;
use super::worker::GpuWorker;
use crate::engine::{MeshAxis, NetworkSplit, StepInput};
use crate::evaluate::EvaluationPlace;
use crate::optim::Optimiser;
use crate::strategies::{self, Driver, EnginePlan, ddp};
use crate::{Batch, Config, Error, MemoryUse as Held, Network, Result, SampleForm, models};
use allfold_collectives::{Communicator, Error as Failure};
use allfold_config::ElementType;
use allfold_cuda::NvtxRange;
use allfold_gpu::nccl::culprit;
use allfold_kernels::nn::Float;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The number of replicas whose memory was leaked.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// The number of replicas of this process whose memory was leaked because work on their devices did not end in time.
pub fn kept() -> u64 {
    KEPT.load(Ordering::Relaxed)
}

/// One rank's model on a device. After an error it cannot train any more.
pub struct Replica<'a> {
    worker: ManuallyDrop<GpuWorker<'a>>,
    driver: Box<dyn Driver>,
    comm: &'a Communicator,
    deadline: Duration,
    failed: bool,
}

impl<'a> Replica<'a> {
    /// Builds the model that `config` selects on the device `on`, given as a machine and the device's number there. The samples have
    /// the shape `shape` and `classes` classes.
    ///
    /// # Errors
    /// If GPUs cannot train the configuration, the driver refuses a call, or a rank is missing.
    pub fn new(
        config: &'a Config,
        samples: SampleForm,
        comm: &'a Communicator,
        on: impl Into<Within>,
    ) -> Result<Replica<'a>> {
        Replica::of(config, models::build::<f32>(config, samples)?, comm, on)
    }

    /// Puts `network` on the device `on`, as [`Replica::new`] does; `config` says how it is trained.
    ///
    /// # Errors
    /// Those of [`Replica::new`].
    pub fn of(
        config: &'a Config,
        network: Network<f32>,
        comm: &'a Communicator,
        on: impl Into<Within>,
    ) -> Result<Replica<'a>> {
        refuse(config)?;
        let (rank, ranks) = (comm.rank().index(), comm.size());
        let EnginePlan { mesh, channels, driver } = strategies::plan(config, rank, ranks)?;
        ddp::fits_network(config, &network)?;
        let within = on.into();
        let deadline = within.deadline;
        let (network, split) = NetworkSplit::of(network, &mesh, rank, config.parallel.sequence_parallel)?;
        let units = driver.units(&network.outline())?;
        let worker = GpuWorker::new(config, (network, split), units, (mesh, channels), comm, within)?;
        let mut own = Replica { worker: ManuallyDrop::new(worker), driver, comm, deadline, failed: false };
        own.guarded(|worker, driver| {
            driver.start(worker)?;
            worker.allocate()
        })?;
        Ok(own)
    }

    /// The configuration of the run.
    pub(crate) fn config(&self) -> &'a Config {
        self.worker.config
    }

    /// All ranks of the run.
    pub(crate) fn comm(&self) -> &'a Communicator {
        self.comm
    }

    /// The path by which the ranks sum gradients, with the version of NCCL if it is NCCL, and why; `None` for a single rank.
    pub fn exchange(&self) -> Option<String> {
        self.worker.groups.exchange()
    }

    /// The number of parts of a step that have become graphs.
    pub fn graphs(&self) -> usize {
        self.worker.captures.graphs()
    }

    /// Copies parameters and buffers, in the network's layout, and the optimiser's state to the device.
    ///
    /// # Errors
    /// If the driver refuses a call.
    pub fn upload<F: Float>(
        &mut self,
        params: &[F],
        buffers: &[F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.guarded(|own, _| own.upload(params, buffers, state))
    }

    /// Copies parameters and buffers, in the network's layout, and the optimiser's state to the host.
    ///
    /// # Errors
    /// If the driver refuses a call, or queued work failed.
    pub fn download<F: Float>(
        &mut self,
        params: &mut [F],
        buffers: &mut [F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.guarded(|own, _| own.download(params, buffers, state))
    }

    /// The state of this rank's hook, by name; equally long on every rank.
    pub fn hook_state<F: Float>(&mut self) -> Vec<(&'static str, Vec<F>)> {
        let GpuWorker { exchange, passes, weights, .. } = &mut *self.worker;
        let Some(hook) = exchange.hook() else { return Vec::new() };
        let all = hook.hook_state(&weights.members, passes.network.params());
        let wide = |values: Vec<f32>| values.into_iter().map(|x| F::from_f64(f64::from(x))).collect();
        all.into_iter().map(|(name, values)| (name, wide(values))).collect()
    }

    /// Restores the state of this rank's hook from `values`, which [`Replica::hook_state`] returned.
    pub fn load_hook_state<F: Float>(&mut self, values: &[Vec<F>]) {
        let narrow = |values: &Vec<F>| values.iter().map(|x| x.to_f64() as f32).collect();
        let values: Vec<Vec<f32>> = values.iter().map(narrow).collect();
        let GpuWorker { exchange, passes, weights, .. } = &mut *self.worker;
        if let Some(hook) = exchange.hook() {
            hook.load_hook_state(&weights.members, passes.network.params(), &values);
        }
    }

    /// Whether this rank has parts of gradients or optimiser state: all ranks must download together then.
    pub fn is_sharded(&self) -> bool {
        self.worker.is_sharded()
    }

    /// This rank's place in an evaluation: ranks that share layers, positions or experts evaluate the same samples, which count once.
    pub fn evaluates(&self) -> EvaluationPlace {
        let place = &self.worker.place;
        let axes = [MeshAxis::Tensor, MeshAxis::Context, MeshAxis::Expert];
        let places = axes.map(|axis| place.position(axis));
        // Ranks that differ only in these are neighbours.
        let alike: usize = places.iter().map(|place| place.size).product();
        let counts = places.iter().all(|place| place.index == 0);
        EvaluationPlace { index: place.rank / alike, size: self.comm.size() as usize / alike, counts }
    }

    /// Gives every rank rank 0's running statistics, and in a pipeline those of all layers. Every rank must call it.
    ///
    /// # Errors
    /// If the driver or another rank fails.
    pub fn share_statistics(&mut self) -> Result<()> {
        let comm = self.comm;
        self.guarded(|own, _| own.share_statistics(comm))
    }

    /// Gathers the parameters of which this rank has a part, until [`Replica::close`], so that the model can be evaluated. Every rank
    /// must call it.
    ///
    /// # Errors
    /// If the driver or another rank fails.
    pub fn open(&mut self) -> Result<()> {
        self.guarded(|own, _| own.open_units())
    }

    /// Frees what [`Replica::open`] has gathered.
    ///
    /// # Errors
    /// If queued work failed.
    pub fn close(&mut self) -> Result<()> {
        self.guarded(|own, _| {
            own.close_units();
            Ok(())
        })
    }

    /// After a step under a loss scale: undoes a skipped step's changes of the hook's state, and multiplies the errors that the hook
    /// remembers, which are in units of the scale, by the factor by which the scale has changed.
    pub fn after_scaled(&mut self, skipped: bool, by: f32) {
        if let Some(hook) = self.worker.exchange.hook() {
            hook.after_scaled(skipped, by);
        }
    }

    /// The bytes that the model takes on the device. `activations` is the peak of a step, including the tensors saved for the
    /// backward pass.
    pub fn memory(&self) -> Held {
        self.worker.memory()
    }

    /// Copies a batch to the device while the device computes. The device holds at most two staged batches.
    ///
    /// # Errors
    /// If the driver refuses a call.
    pub fn stage<F: Float>(&mut self, batch: &Batch<F>) -> Result<()> {
        self.guarded(|own, _| own.stage(batch))
    }

    /// Whether the device holds a staged batch.
    pub fn is_staged(&self) -> bool {
        !self.worker.staging.is_empty()
    }

    /// Queues a step over the batch that was staged first, as the strategy does it. Returns the number of samples of the batch.
    /// `everywhere` is the number of samples of all ranks together in this step; it must be the same on every rank. The ranks decide by
    /// `everywhere` which parts of the step are captured as graphs: equal values must mean that this rank has equally many samples.
    /// `scaled`: whether there is a loss scale, by which gradients that are not finite skip the step.
    ///
    /// # Errors
    /// If no batch is staged, the batch has more samples than `batch`, or the driver or another rank fails.
    pub fn start(&mut self, input: StepInput, everywhere: u64, scaled: bool) -> Result<usize> {
        let _range = NvtxRange::begin(c"step");
        self.guarded(|own, driver| {
            let samples = own.begin(input, everywhere, scaled)?;
            driver.step(own)?;
            Ok(samples)
        })
    }

    /// Waits for the step that was started last, and returns its outcome.
    ///
    /// # Errors
    /// If the device failed or did not finish by the deadline, or if a rank was lost, which the error names.
    pub fn finish(&mut self, samples: usize) -> Result<StepOutcome> {
        let _range = NvtxRange::begin(c"wait for the step");
        self.guarded(|own, _| own.finish(samples))
    }

    /// Evaluates the model on a batch: the sum of the losses, and the number of correct answers.
    ///
    /// # Errors
    /// If the driver refuses a call, or queued work failed.
    pub fn evaluate<F: Float>(&mut self, batch: &Batch<F>) -> Result<(f64, u64)> {
        let _range = NvtxRange::begin(c"evaluation");
        self.guarded(|own, _| own.evaluate(batch))
    }

    fn guarded<R>(
        &mut self,
        body: impl FnOnce(&mut GpuWorker<'a>, &mut dyn Driver) -> Result<R>,
    ) -> Result<R> {
        body(&mut self.worker, &mut *self.driver).map_err(|error| {
            self.give_up(&error.to_string());
            self.named(error)
        })
    }

    /// Names the cause of an error. NCCL reports that some rank is late or lost without naming the rank, or that CUDA failed
    /// without a reason. A lost device reports its own reason; otherwise the ranks' communicator names the rank to blame.
    fn named(&self, error: Error) -> Error {
        let Error::Collective(
            failure @ (Failure::NcclDeadline { .. } | Failure::QueueDeadline { .. } | Failure::Nccl { .. }),
        ) = error
        else {
            return error;
        };
        let machine = self.worker.queue.machine();
        let lost = self.worker.queues().find_map(|queue| machine.idle(queue.stream()).err());
        match lost {
            Some(lost) => lost.into(),
            None => culprit(self.comm, failure).into(),
        }
    }

    /// Ends this rank's part in the sums over ranks that are under way.
    fn give_up(&mut self, why: &str) {
        if !std::mem::replace(&mut self.failed, true) {
            let GpuWorker { captures, queue, groups, .. } = &mut *self.worker;
            captures.clear(queue);
            groups.abandon(why);
        }
    }

    /// Waits, by the deadline, until no work on the device uses this rank's memory. Returns false if such work remains, or if the
    /// device is lost, since the driver frees no memory then.
    fn quiet(&self) -> bool {
        let machine = self.worker.queue.machine();
        let begun = clock();
        loop {
            let idle: Vec<_> = self.worker.queues().map(|queue| machine.idle(queue.stream())).collect();
            if idle.iter().any(std::result::Result::is_err) {
                return false;
            }
            if idle.iter().all(|idle| *idle == Ok(true)) {
                return !self.worker.groups.is_lent();
            }
            if begun.elapsed() > self.deadline {
                return false;
            }
            pause();
        }
    }
}

impl Drop for Replica<'_> {
    fn drop(&mut self) {
        if !self.failed
            && let Err(error) = self.worker.settle("finish what was under way")
        {
            self.give_up(&error.to_string());
        }
        let GpuWorker { captures, queue, .. } = &mut *self.worker;
        captures.clear(queue);
        if !self.quiet() {
            KEPT.fetch_add(1, Ordering::Relaxed);
            return;
        }
        #[allow(unsafe_code, reason = "memory that a device may use is not dropped")]
        // SAFETY: only this line drops the worker, once, and `self` is not used afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.worker);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "deadlines of GPUs are real time")]
fn clock() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "a GPU is waited for in real time")]
fn pause() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Refuses, before anything runs, a configuration that GPUs do not train.
fn refuse(config: &Config) -> Result<()> {
    match config.precision.dtype {
        ElementType::F32 => Ok(()),
        ElementType::F64 => {
            let what = "`precision.dtype` is f64; GPUs train in f32, with `precision.amp` for less";
            Err(Error::Config(what.into()))
        }
    }
}
