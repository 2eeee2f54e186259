//! One rank's model on its device, and how it ends when a rank or the device fails.
//!
//! ```text
//! healthy   wait for all streams, by the deadline    | destroy graphs | free
//! failed    destroy graphs | abort the link's sums   | wait for all streams, by the deadline | free
//!                                                                     '-- too late: the memory is not given back
//! ```
//!
//! The order of a failed end is NCCL's: its abort waits for graphs that hold its collectives, and kernels that wait for a lost
//! rank use memory until the abort has ended them. Memory that a device may still use is never freed: what does not end by the
//! deadline keeps it, and [`kept`] counts it. Whom NCCL's errors do not name, the ranks' communicator does.

use super::outcome::StepOutcome;
use super::state::State;
use super::within::Within;
use crate::optim::Optimiser;
use crate::{Batch, Config, DrawKey, Error, GradScaler, MemoryUse as Held, Network, Result, models};
use allfold_collectives::{Communicator, Error as Failure};
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
    state: ManuallyDrop<State<'a>>,
    comm: &'a Communicator,
    deadline: Duration,
    failed: bool,
}

impl<'a> Replica<'a> {
    /// Builds the model that `config` asks for on a device, given as a machine and the device's number there.
    ///
    /// # Errors
    /// What GPUs do not train; what the driver refused; missing ranks.
    pub fn new(
        config: &'a Config,
        (shape, classes): ((usize, usize, usize), usize),
        comm: &'a Communicator,
        on: impl Into<Within>,
    ) -> Result<Replica<'a>> {
        Replica::of(config, models::build::<f32>(config, shape, classes)?, comm, on)
    }

    /// [`Replica::new`] of any network; `config` says how it is trained.
    ///
    /// # Errors
    /// As [`Replica::new`].
    pub fn of(
        config: &'a Config,
        network: Network<f32>,
        comm: &'a Communicator,
        on: impl Into<Within>,
    ) -> Result<Replica<'a>> {
        refuse(config)?;
        if !network.unreached().is_empty() && !config.find_unused && !config.static_graph {
            let name = &network.params()[network.unreached()[0]].name;
            return Err(Error::Config(format!(
                "the loss does not depend on parameter `{name}`; set `find_unused`"
            )));
        }
        let within = on.into();
        let deadline = within.deadline;
        let state = ManuallyDrop::new(State::new(config, network, comm, within)?);
        Ok(Replica { state, comm, deadline, failed: false })
    }

    /// How the ranks sum gradients, in words.
    pub fn link(&self) -> &'static str {
        self.state.link.name()
    }

    /// Parts of a step that have become graphs.
    pub fn graphs(&self) -> usize {
        self.state.captures.graphs()
    }

    /// Copies host values, laid out as the network has them, to the device; with what an optimiser remembers.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn upload<F: Float>(
        &mut self,
        params: &[F],
        buffers: &[F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.guarded(|own| own.upload(params, buffers, state))
    }

    /// The reverse of [`Replica::upload`].
    ///
    /// # Errors
    /// What the driver refused, or what went wrong on the way.
    pub fn download<F: Float>(
        &mut self,
        params: &mut [F],
        buffers: &mut [F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.guarded(|own| own.download(params, buffers, state))
    }

    /// This rank's hook state by name; equally long on every rank.
    pub fn hook_state<F: Float>(&mut self) -> Vec<(&'static str, Vec<F>)> {
        let State { exchange, passes, weights, .. } = &mut *self.state;
        let all = exchange.hook_state(&passes.network, weights);
        let wide = |values: Vec<f32>| values.into_iter().map(|x| F::from_f64(f64::from(x))).collect();
        all.into_iter().map(|(name, values)| (name, wide(values))).collect()
    }

    /// Goes on after `steps` steps from what [`Replica::hook_state`] gave.
    pub fn load_hook_state<F: Float>(&mut self, steps: u64, values: &[Vec<F>]) {
        let narrow = |values: &Vec<F>| values.iter().map(|x| x.to_f64() as f32).collect();
        let values: Vec<Vec<f32>> = values.iter().map(narrow).collect();
        let State { exchange, passes, weights, .. } = &mut *self.state;
        exchange.load_hook_state(&passes.network, weights, steps, &values);
    }

    /// Takes back what the last step changed of what this rank's hook remembers: the step was skipped.
    pub fn undo(&mut self) {
        self.state.exchange.undo();
    }

    /// Multiplies the errors that this rank's hook remembers, which are in units of the loss scale.
    pub fn rescale(&mut self, by: f32) {
        self.state.exchange.rescale(by);
    }

    /// Bytes that the model holds on the device. Activations are the most that a step has had at once, with all that is
    /// kept for the way back.
    pub fn memory(&self) -> Held {
        self.state.memory()
    }

    /// Sends a batch to the device while the device computes. At most two batches wait there.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn stage<F: Float>(&mut self, batch: &Batch<F>) -> Result<()> {
        self.guarded(|own| own.stage(batch))
    }

    /// Whether a batch waits on the device.
    pub fn is_staged(&self) -> bool {
        self.state.is_staged()
    }

    /// Queues a step over the batch that was staged first: forward, backward, the sums over ranks, the optimiser.
    /// `everywhere` is the number of samples that all ranks together have in this step, the same number on every rank. By it
    /// the ranks agree on what is captured as a graph: equal numbers must mean that this rank has equally many of them.
    ///
    /// # Errors
    /// That none is staged, or more samples than `batch`; what the driver or a peer refused.
    pub fn start(
        &mut self,
        draw_key: DrawKey,
        everywhere: u64,
        lr: f64,
        scaler: Option<&GradScaler>,
    ) -> Result<usize> {
        self.guarded(|own| own.start(draw_key, everywhere, lr, scaler))
    }

    /// Waits for the step that was started last.
    ///
    /// # Errors
    /// What went wrong on the device, or that it was not done in time; a rank that is lost, by name.
    pub fn finish(&mut self, samples: usize) -> Result<StepOutcome> {
        self.guarded(|own| own.finish(samples))
    }

    /// (Sum of losses, correct answers) over a batch.
    ///
    /// # Errors
    /// What the driver refused, or what went wrong on the way.
    pub fn evaluate<F: Float>(&mut self, batch: &Batch<F>) -> Result<(f64, u64)> {
        self.guarded(|own| own.evaluate(batch))
    }

    fn guarded<R>(&mut self, body: impl FnOnce(&mut State<'a>) -> Result<R>) -> Result<R> {
        body(&mut self.state).map_err(|error| {
            self.give_up();
            self.named(error)
        })
    }

    /// NCCL reports that some rank is late or gone without naming it, or that CUDA failed without saying why. A lost device
    /// gives its own reason; the ranks' communicator names the rank to blame.
    fn named(&self, error: Error) -> Error {
        use Failure::{Aborted, DeadlineExceeded, Nccl, NcclDeadline, PeerLost, Poisoned, QueueDeadline};
        if !matches!(error, Error::Collective(NcclDeadline { .. } | QueueDeadline { .. } | Nccl { .. })) {
            return error;
        }
        let machine = self.state.queue.machine();
        let lost = self.state.queues().into_iter().find_map(|queue| machine.idle(queue.stream()).err());
        if let Some(lost) = lost {
            return lost.into();
        }
        match self.comm.barrier() {
            Err(known @ (PeerLost { .. } | DeadlineExceeded { .. } | Aborted { .. } | Poisoned { .. })) => {
                known.into()
            }
            _ => error,
        }
    }

    /// Ends this rank's part in sums that are under way.
    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.failed, true) {
            let machine = self.state.queue.machine().clone();
            self.state.captures.clear(&*machine);
            self.state.link.abandon();
        }
    }

    /// Whether nothing on the device uses this rank's memory any more. Not where the device is lost: the driver takes nothing
    /// back then.
    fn quiet(&self) -> bool {
        let machine = self.state.queue.machine();
        let begun = clock();
        loop {
            let idle = self.state.queues().map(|queue| machine.idle(queue.stream()));
            if idle.iter().any(std::result::Result::is_err) {
                return false;
            }
            if idle.iter().all(|idle| *idle == Ok(true)) {
                return !self.state.link.is_lent();
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
        if !self.failed && self.state.settle("finish what was under way").is_err() {
            self.give_up();
        }
        let machine = self.state.queue.machine().clone();
        self.state.captures.clear(&*machine);
        if !self.quiet() {
            KEPT.fetch_add(1, Ordering::Relaxed);
            return;
        }
        #[allow(unsafe_code, reason = "memory that a device may use is not dropped")]
        // SAFETY: the state is dropped here alone, once, and `self` is not used afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.state);
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
    match config.dtype.as_str() {
        "f32" => Ok(()),
        other => Err(Error::Config(format!("`dtype` is {other}; GPUs train in f32, with `amp` for less"))),
    }
}
